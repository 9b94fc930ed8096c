//! Frames in the name of the peer.

use esp_tests::frames::{ACK, EXT, Frame, RST, SYN, Tap, expect_drops, reset, setup};
use esp_tests::{client, counter, lab_or_skip};
use lab::{LabOptions, Node};

use crate::live::Live;

#[test]
fn forged_frames_of_the_peer_do_not_touch_the_connection() {
    let test = "forged_frames_of_the_peer_do_not_touch_the_connection";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(3)) else {
        return;
    };
    let victim = client(&lab, 0);
    let mut live = Live::new(&lab, 8000);
    // Sent from the peer's own node, but not by its daemon, so that all addresses are right.
    let peer = Tap::of_node(&lab, 1);
    let mut forge = |what: &str, name: &str, change: &dyn Fn(Frame) -> Frame| {
        let frame = change(live.next_of_peer(ACK));
        expect_drops(&victim, name, 1, what, || peer.send(&frame.bytes()));
    };
    let shift = |frame: Frame, seq: u16, ack: u16| {
        let (seq, ack) = (frame.seq.wrapping_add(seq), frame.ack.wrapping_add(ack));
        frame.numbers(seq, ack)
    };
    for ahead in [1, 2, 1000, 4097, 0x7fff] {
        forge(
            "acknowledgement of the future",
            "rx_drop_ack_forged",
            &|f| shift(f, 0, ahead),
        );
        forge("data with it", "rx_drop_ack_forged", &|f| {
            shift(f, 0, ahead).payload(&[6; 500])
        });
    }
    forge(
        "selective acknowledgement",
        "rx_drop_sack_forged",
        &|mut f| {
            f.flags |= EXT;
            f.trailing(&[3, 4, 1])
        },
    );
    for ahead in [5000, 0x7fff] {
        forge("data beyond the credit", "rx_drop_sequence_forged", &|f| {
            shift(f, ahead, 0).payload(&[6; 500])
        });
    }
    for back in [1u16, 2, 1000] {
        forge("data of the past", "rx_drop_duplicate", &|f| {
            shift(f, back.wrapping_neg(), 0).payload(&[6; 500])
        });
    }
    let reset_with = |frame: Frame, ahead: u16, nonce: u64| Frame {
        flags: RST | ACK,
        ..shift(frame, ahead, 0).payload(&reset(4, nonce))
    };
    forge("reset with a wrong nonce", "rx_drop_reset_forged", &|f| {
        reset_with(f, 0, 0x1234_5678)
    });
    forge("reset far away", "rx_drop_reset_forged", &|f| {
        reset_with(f, 0x4000, 0)
    });
    forge("short reset block", "rx_drop_reset_block", &|f| Frame {
        flags: RST,
        ..f.payload(&[4, 0, 0])
    });
    let challenges = counter(&victim, "rx_challenges");
    forge("reset close by", "rx_drop_reset_forged", &|f| {
        reset_with(f, 1, 0)
    });
    let syn = |f: Frame, flags, nonce| Frame {
        flags,
        ..f.payload(&setup(nonce, 0, 100, b""))
    };
    forge("SYN of another incarnation", "rx_drop_stale_setup", &|f| {
        syn(f, SYN, 99)
    });
    assert_eq!(
        counter(&victim, "rx_challenges"),
        challenges + 2,
        "the real peer was asked"
    );
    forge(
        "SYN+ACK of another incarnation",
        "rx_drop_stale_setup",
        &|f| syn(f, SYN | ACK, 99),
    );
    // A third station cannot address the connection.
    let stranger = Tap::of_node(&lab, 2);
    let mut frame = live.next_of_peer(ACK).payload(&[6; 500]);
    frame.src = Node(2).mac();
    expect_drops(&victim, "rx_drop_no_connection", 1, "of a third", || {
        stranger.send(&frame.bytes());
    });
    live.is_intact();
}
