//! Frames with wrong fields, lengths or addresses.

use std::time::Duration;

use esp_client::{EdpSocket, EspListener, EspStream, MacAddr};
use esp_tests::frames::{ACK, CTL, EDP, Frame, RST, Tap, expect_drops, reset};
use esp_tests::process::ip_in_switch;
use esp_tests::{PATIENCE, address, client, counter, lab_or_skip};
use lab::{LabOptions, Node};

use crate::cases::{datagrams, malformed_esp, refused, wrong_addresses};
use crate::live::Live;

#[test]
fn each_wrong_frame_is_counted_once_under_its_name() {
    let test = "each_wrong_frame_is_counted_once_under_its_name";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(3)) else {
        return;
    };
    let victim = client(&lab, 0);
    let live = Live::new(&lab, 8000);
    let _listener = EspListener::builder().bind_at(&victim, 7000).unwrap();
    let datagram_port = EdpSocket::builder().bind_at(&victim, 9000).unwrap();
    let (mut stranger, cable) = (Tap::of_node(&lab, 2), Tap::of_cable(&lab, 0));

    for (what, name, bytes) in malformed_esp().into_iter().chain(datagrams()) {
        expect_drops(&victim, name, 1, what, || stranger.send(&bytes));
    }
    // Everything above was dropped silently.
    let answered =
        std::iter::from_fn(|| stranger.hear(Duration::ZERO)).find(|f| f.src == Node(0).mac());
    assert_eq!(answered, None);
    for ((what, name, bytes), reason) in refused() {
        expect_drops(&victim, name, 1, what, || stranger.send(&bytes));
        let answer = stranger.await_frame(what, |f| f.src == Node(0).mac());
        assert_eq!(
            (answer.flags & RST, answer.rest.first()),
            (RST, Some(&reason)),
            "{what}"
        );
    }
    // W-59: a reset is never answered.
    let end = Frame::new(2, 0, RST)
        .ports(40000, 7000)
        .payload(&reset(4, 1));
    expect_drops(
        &victim,
        "rx_drop_no_connection",
        1,
        "reset of nothing",
        || stranger.send(&end.bytes()),
    );
    for (what, name, bytes) in wrong_addresses() {
        expect_drops(&victim, name, 1, what, || cable.send(&bytes));
    }

    // Frames of other EtherTypes do not reach the daemon.
    let received = counter(&victim, "rx_frames");
    let frame = Frame::new(2, 0, ACK).ports(40000, 7000);
    for packet_type in [46, 0x0800, 0x86dd, 0x88b4, 0x88b7, 0xffff] {
        cable.send(
            &frame
                .clone()
                .packet_type(packet_type)
                .trailing(&[0; 40])
                .bytes(),
        );
    }
    expect_drops(
        &victim,
        "rx_drop_no_connection",
        1,
        "the frame after them",
        || cable.send(&frame.bytes()),
    );
    assert_eq!(counter(&victim, "rx_frames"), received + 1);

    // W-04: padding may be anything.
    let padded = Frame::new(2, 0, 0)
        .packet_type(EDP)
        .ports(40000, 9000)
        .payload(b"taken")
        .trailing(&[0xee; 40]);
    stranger.send(&padded.bytes());
    let mut buffer = [0; 100];
    let (len, info) = datagram_port
        .recv_from_timeout(&mut buffer, PATIENCE)
        .unwrap();
    assert_eq!(
        (&buffer[..len], info.src, info.len),
        (&b"taken"[..], MacAddr(Node(2).mac()).into(), 5)
    );
    live.is_intact();
}

#[test]
fn frames_cut_off_at_every_length_and_frames_too_long() {
    let test = "frames_cut_off_at_every_length_and_frames_too_long";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(3)) else {
        return;
    };
    let victim = client(&lab, 0);
    let mut live = Live::new(&lab, 8000);
    // The frame that the peer would send next; unaltered, it would be accepted.
    let whole = live.next_of_peer(ACK).payload(&[3; 1489]).bytes();
    let cable = Tap::of_cable(&lab, 0);
    assert_eq!(whole.len(), 1514);
    expect_drops(&victim, "rx_drop_runt", 11, "inside the header", || {
        (14..25).for_each(|len| cable.send(&whole[..len]));
    });
    expect_drops(
        &victim,
        "rx_drop_length",
        1489,
        "inside the payload",
        || {
            (25..1514).for_each(|len| cable.send(&whole[..len]));
        },
    );
    let datagram = Frame::new(2, 0, CTL)
        .packet_type(EDP)
        .payload(&[1; 200])
        .bytes();
    expect_drops(&victim, "rx_drop_length", 200, "a datagram", || {
        (25..225).for_each(|len| cable.send(&datagram[..len]));
    });

    // The switch's port now sends more than the node's MTU. The kernel accepts four more bytes, for
    // a VLAN tag; longer frames do not reach the daemon.
    ip_in_switch(&lab, "link set dev port0 mtu 9000");
    for len in [1494, 1495, 4000, 8989] {
        // Some kernels report the drop, some do not.
        let _ = cable.offer(&live.next_of_peer(ACK).payload(&vec![6; len]).bytes());
    }
    let longest = live.next_of_peer(ACK).payload(&[6; 1493]).bytes();
    expect_drops(
        &victim,
        "rx_drop_too_long",
        1,
        "four bytes too long",
        || cable.send(&longest),
    );
    assert_eq!(counter(&victim, "rx_drop_too_long"), 1);
    live.is_intact();
}

#[test]
fn data_longer_than_agreed_is_dropped() {
    let mut options = LabOptions::new(2);
    options.wire.mtu = 9000;
    let Some(lab) = lab_or_skip("data_longer_than_agreed_is_dropped", &options) else {
        return;
    };
    let (victim, other) = (client(&lab, 0), client(&lab, 1));
    let ear = Tap::of_cable(&lab, 1);
    let listener = EspListener::builder().bind_at(&other, 8000).unwrap();
    // A receive ring smaller than a frame makes the peer send smaller ones.
    let left = EspStream::builder()
        .rings(4096, 4096)
        .connect_at(&victim, address(1, 8000))
        .unwrap();
    let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
    let mut live = Live { left, right, ear };
    let peer = Tap::of_node(&lab, 1);
    for len in [4097, 8989] {
        let frame = live.next_of_peer(ACK).payload(&vec![6; len]);
        expect_drops(&victim, "rx_drop_too_long", 1, "too long", || {
            peer.send(&frame.bytes());
        });
    }
    live.is_intact();
}
