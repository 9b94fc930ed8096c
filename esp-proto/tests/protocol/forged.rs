//! Frames from a blind attacker (W-33, W-39, W-44, W-58).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

/// Returns a filter that drops every frame of station B.
fn loses_all_of_b() -> Box<dyn FnMut(&OnWire) -> Wire> {
    Box::new(|frame| {
        if frame.src == MAC_B {
            Wire::Drop
        } else {
            Wire::Pass
        }
    })
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_dropped_whole() {
    let (mut pair, _, b) = Pair::connected();
    let n = pair.numbers();
    for ahead in [1u16, 2, 100, 0x7fff, 0x8000] {
        let forged = Forge::ack(n.a_next, n.b_next.plus(ahead)).payload(b"evil");
        pair.inject(MAC_A, MAC_B, forged.build());
    }
    assert_eq!(pair.b.ep.counters().rx_drop_ack_forged, 5);
    assert_eq!(pair.b.app(b).received, 0, "the data went with it");
}

#[test]
fn an_older_acknowledgement_does_not_hide_the_data() {
    let (mut pair, _, b) = Pair::connected();
    pair.b.write(pair.now, b, 10);
    pair.run(Duration::from_millis(5));
    let n = pair.numbers();
    let byte = [pattern(0)];
    let old = Forge::ack(n.a_next, n.b_next.plus(0u16.wrapping_sub(1))).payload(&byte);
    pair.inject(MAC_A, MAC_B, old.build());
    assert_eq!(pair.b.app(b).received, 1);
    assert_eq!(pair.b.ep.counters().rx_old_acks, 1);
}

#[test]
fn an_acknowledgement_older_than_any_window_takes_the_data_with_it() {
    let (mut pair, _, b) = Pair::connected();
    pair.b.write(pair.now, b, 10);
    pair.run(Duration::from_millis(5));
    let n = pair.numbers();
    // One packet was outstanding at once.
    for back in [2u16, 100, 0x7fff] {
        let old = n.b_next.plus(0u16.wrapping_sub(back));
        let forged = Forge::ack(n.a_next, old).payload(b"evil");
        pair.inject(MAC_A, MAC_B, forged.build());
    }
    assert_eq!(pair.b.ep.counters().rx_drop_ack_forged, 3);
    assert_eq!(pair.b.app(b).received, 0);
}

#[test]
fn a_frame_with_a_far_sequence_acknowledges_nothing() {
    let (mut pair, _, b) = Pair::connected();
    pair.filter = loses_all_of_b();
    pair.b.write(pair.now, b, 1489 * 4);
    pair.flush();
    let n = pair.numbers();
    let credit = u16::try_from(pair.b.ep.info(b).unwrap().rx_credit).unwrap();
    let from = pair.log.len();
    for far in [credit + 1, 0x7fff, 0x8000, 4097u16.wrapping_neg()] {
        let bare = Forge::ack(n.a_next.plus(far), n.b_next);
        pair.inject(MAC_A, MAC_B, bare.build());
        let data = Forge::ack(n.a_next.plus(far), n.b_next).payload(b"evil");
        pair.inject(MAC_A, MAC_B, data.build());
    }
    assert_eq!(pair.b.ep.counters().rx_drop_sequence_forged, 8);
    assert_eq!(pair.b.ep.info(b).unwrap().in_flight, 4);
    assert_eq!(pair.log.len(), from, "not answered");
    for near in [4096u16.wrapping_neg(), 0, credit] {
        pair.inject(
            MAC_A,
            MAC_B,
            Forge::ack(n.a_next.plus(near), n.b_next).build(),
        );
    }
    assert_eq!(pair.b.ep.counters().rx_drop_sequence_forged, 8);
    assert_eq!(pair.b.ep.info(b).unwrap().in_flight, 0);
}

#[test]
fn resets_without_a_nonce_are_limited() {
    let (mut pair, _, b) = Pair::connected();
    let n = pair.numbers();
    let reset = |seq: Seq| {
        Forge::ack(seq, Seq(0))
            .reset(ResetReason::Unknown, 0)
            .build()
    };
    for wrong in 1..=1000 {
        pair.inject(MAC_A, MAC_B, reset(n.a_next.plus(wrong)));
    }
    pair.inject(MAC_A, MAC_B, reset(n.a_next));
    assert_eq!(pair.b.state(b), State::Established, "beyond the limit");
    pair.run(Duration::from_secs(1));
    pair.inject(MAC_A, MAC_B, reset(n.a_next));
    assert!(pair.b.app(b).closed.is_some(), "the limit is a rate");
}

/// W-58.
#[test]
fn a_reset_without_a_nonce_within_the_credit_is_challenged() {
    let (mut pair, _, b) = Pair::connected();
    let n = pair.numbers();
    let credit = pair.b.ep.info(b).unwrap().rx_credit as u16;
    for (ahead, challenges) in [(1, 1), (credit - 1, 2), (credit, 2), (u16::MAX, 2)] {
        let reset = Forge::ack(n.a_next.plus(ahead), Seq(0)).reset(ResetReason::Unknown, 0);
        pair.inject(MAC_A, MAC_B, reset.build());
        assert_eq!(pair.b.ep.counters().rx_challenges, challenges, "{ahead}");
    }
    assert_eq!(pair.b.state(b), State::Established);
}

#[test]
fn selective_acknowledgements_beyond_what_was_sent_are_dropped() {
    let (mut pair, _, b) = Pair::connected();
    pair.filter = loses_all_of_b();
    pair.b.write(pair.now, b, 1489 * 4);
    pair.flush();
    let n = pair.numbers();
    let una = n.b_next.plus(0u16.wrapping_sub(4));
    // 4 outstanding: bits 0..=2 may be set, bit 3 is the next sequence.
    let forged = |bits: u8| Forge::ack(n.a_next, una).ext(&[3, 4, bits]).build();
    pair.inject(MAC_A, MAC_B, forged(0b1000));
    pair.inject(MAC_A, MAC_B, forged(0b1111));
    assert_eq!(pair.b.ep.counters().rx_drop_sack_forged, 2);
    assert_eq!(pair.b.ep.info(b).unwrap().in_flight, 4);
    pair.inject(MAC_A, MAC_B, forged(0b0100));
    assert_eq!(pair.b.ep.counters().rx_drop_sack_forged, 2);
    // The last one arrived, so the first is lost (three later) and retransmitted.
    assert_eq!(pair.b.ep.info(b).unwrap().retransmits, 1);
}

#[test]
fn credit_does_not_move_back_nor_too_far() {
    let (mut pair, _, b) = Pair::connected();
    let n = pair.numbers();
    let credit = pair.b.ep.info(b).unwrap().credit;
    let [x, y] = n.b_next.plus(credit as u16).0.to_be_bytes();
    pair.inject(
        MAC_A,
        MAC_B,
        Forge::ack(n.a_next, n.b_next).ext(&[4, 1, x, y]).build(),
    );
    assert_eq!(pair.b.ep.counters().rx_credit_ignored, 0, "the known edge");
    for edge in [n.b_next.plus(1), n.b_next.plus(5000), n.b_next.plus(0xffff)] {
        let [x, y] = edge.0.to_be_bytes();
        pair.inject(
            MAC_A,
            MAC_B,
            Forge::ack(n.a_next, n.b_next).ext(&[4, 1, x, y]).build(),
        );
    }
    assert_eq!(pair.b.ep.counters().rx_credit_ignored, 3);
    assert_eq!(pair.b.ep.info(b).unwrap().credit, credit);
    let [x, y] = n.b_next.plus(4096).0.to_be_bytes();
    pair.inject(
        MAC_A,
        MAC_B,
        Forge::ack(n.a_next, n.b_next).ext(&[4, 1, x, y]).build(),
    );
    assert_eq!(pair.b.ep.info(b).unwrap().credit, 4096);
}

#[test]
fn only_the_nonce_or_the_exact_sequence_ends_a_connection() {
    let (mut pair, _, b) = Pair::connected();
    let n = pair.numbers();
    let reset = |seq: Seq, nonce| {
        Forge::ack(seq, Seq(0))
            .reset(ResetReason::Aborted, nonce)
            .build()
    };
    let from = pair.log.len();
    pair.inject(MAC_A, MAC_B, reset(n.a_next, n.b_nonce ^ 1));
    pair.inject(MAC_A, MAC_B, reset(n.a_next, n.a_nonce));
    pair.inject(MAC_A, MAC_B, reset(n.a_next.plus(0xffff), 0));
    pair.inject(MAC_A, MAC_B, reset(n.a_next.plus(30_000), 0));
    assert_eq!(pair.log.len(), from, "ignored");
    pair.inject(MAC_A, MAC_B, reset(n.a_next.plus(3), 0));
    assert_eq!(
        pair.kinds(MAC_B, from, FrameType::Ack),
        1,
        "within the credit: a challenge"
    );
    assert_eq!(pair.b.ep.counters().rx_drop_reset_forged, 5);
    assert_eq!(pair.b.state(b), State::Established);
    pair.inject(MAC_A, MAC_B, reset(n.a_next, 0));
    assert_eq!(
        pair.b.app(b).closed,
        Some(CloseReason::Reset(ResetReason::Aborted))
    );
    // With the nonce, any sequence is accepted.
    let (mut pair, _, b) = Pair::connected();
    let n = pair.numbers();
    pair.inject(MAC_A, MAC_B, reset(Seq(1), n.b_nonce));
    assert_eq!(
        pair.b.app(b).closed,
        Some(CloseReason::Reset(ResetReason::Aborted))
    );
}

#[test]
fn a_blind_acknowledgement_does_not_complete_a_set_up() {
    let mut pair = Pair::new();
    pair.listen(1000, 4);
    pair.filter = Box::new(|_| Wire::Drop);
    pair.inject(MAC_A, MAC_B, Forge::syn(3, Seq(50)).build());
    let syn_ack = pair.log[0].esp().seq;
    for (seq, ack) in [
        (51, syn_ack.0),
        (51, syn_ack.0.wrapping_add(2)),
        (50, syn_ack.0.wrapping_add(1)),
    ] {
        pair.inject(MAC_A, MAC_B, Forge::ack(Seq(seq), Seq(ack)).build());
    }
    assert!(pair.b.events.is_empty());
    assert_eq!(pair.b.ep.counters().rx_drop_ack_forged, 3);
    pair.inject(MAC_A, MAC_B, Forge::ack(Seq(51), syn_ack.plus(1)).build());
    assert!(matches!(pair.b.events[..], [Event::Incoming { .. }]));
}

/// W-06, W-07.
#[test]
fn frames_for_others_or_with_our_own_source_are_dropped() {
    let mut pair = Pair::new();
    let body = Forge::ack(Seq(1), Seq(2)).build();
    let mut feed = |src, dst, looped| {
        let frame = OnWire {
            at: pair.now,
            src,
            dst,
            body: body.clone(),
            looped,
            ce: false,
        };
        pair.b.receive(pair.now, &frame);
    };
    let group = MacAddr([3, 0, 0, 0, 0, 1]);
    feed(MAC_B, MAC_B, false);
    feed(group, MAC_B, false);
    feed(MAC_A, MAC_A, false);
    feed(MAC_A, MacAddr::BROADCAST, false);
    feed(MAC_A, group, false);
    feed(MAC_B, MAC_B, true);
    let c = pair.b.ep.counters();
    assert_eq!(
        (
            c.rx_drop_echo,
            c.rx_drop_source_group,
            c.rx_drop_destination
        ),
        (1, 1, 3)
    );
    assert_eq!(c.rx_drop_no_connection, 1, "the looped one is ours");
    assert_eq!(c.rx_dropped(), c.rx_frames);
}
