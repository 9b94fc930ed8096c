//! Counters agree with what was on the wire.

use crate::common::*;
use crate::handshake::drop_first;
use esp_proto::wire::FrameType;
use esp_proto::*;

#[test]
fn received_packets_are_counted_by_kind() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.write(pair.now, a, 100_000);
    pair.run(Duration::from_millis(20));
    let data = pair.kinds(MAC_A, 0, FrameType::Data) as u64;
    let (ours, theirs) = (*pair.a.ep.counters(), *pair.b.ep.counters());
    assert_eq!((theirs.rx_data, theirs.rx_data_bytes), (data, 100_000));
    assert_eq!(ours.tx_frames, pair.sent(MAC_A, 0).count() as u64);
    let bytes = pair.sent(MAC_A, 0).map(|frame| frame.body.len() as u64);
    assert_eq!(theirs.rx_bytes, bytes.sum());
    assert_eq!(
        ours.rx_acks,
        pair.kinds(MAC_B, 0, FrameType::Ack) as u64,
        "the SYN+ACK is none"
    );
    assert_eq!(ours.losses_detected, 0);
    let info = pair.b.ep.info(b).unwrap();
    assert_eq!(info.packets_received, data);
    assert_eq!((info.out_of_order, info.duplicates), (0, 0));
    pair.b.ep.abort(pair.now, b, ResetReason::Aborted);
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.a.ep.counters().rx_resets, 1);
}

#[test]
fn resets_are_counted_and_leave_no_slot_in_use() {
    let mut pair = Pair::new();
    pair.listen(1000, 8);
    for count in 1..=3 {
        let a = pair.connect(5000, 1000);
        pair.run(Duration::from_millis(1));
        pair.a.ep.abort(pair.now, a, ResetReason::Aborted);
        pair.run(Duration::from_millis(1));
        let of = |node: &Node| (node.ep.counters().connections_reset, node.ep.slots());
        assert_eq!((of(&pair.a), of(&pair.b)), ((0, 1), (count, 1)));
    }
    // A connection that was never reported.
    pair.filter = Box::new(|frame| match frame.src {
        MAC_A => Wire::Pass,
        _ => Wire::Drop,
    });
    for _ in 0..3 {
        let a = pair.connect(5000, 1000);
        pair.run(Duration::from_millis(1));
        assert_eq!(pair.b.ep.connections().count(), 1);
        pair.a.ep.abort(pair.now, a, ResetReason::Aborted);
        pair.run(Duration::from_secs(60));
        assert_eq!((pair.b.ep.connections().count(), pair.b.ep.slots()), (0, 1));
    }
}

/// W-24, W-50.
#[test]
fn what_is_refused_is_counted_and_limited() {
    let mut pair = Pair::new();
    for _ in 0..2000 {
        pair.inject(MAC_A, MAC_B, Forge::ack(Seq(1), Seq(2)).build());
    }
    let resets = pair.kinds(MAC_B, 0, FrameType::Rst) as u64;
    assert!((256..300).contains(&resets), "{resets}");
    let counters = pair.b.ep.counters();
    let counted = (counters.tx_resets, counters.tx_reset_limited);
    assert_eq!(counted, (resets, 2000 - resets));

    let mut pair = Pair::new();
    pair.b.attach = None;
    pair.listen(1000, 1);
    for port in [5000, 5001] {
        pair.connect(port, 1000);
        pair.run(Duration::from_millis(5));
    }
    assert_eq!(pair.b.ep.counters().rx_drop_backlog, 1);

    // Resets that the host requests wait for the host, too.
    let mut pair = Pair::with(
        1500,
        EndpointConfig {
            max_connections: 1,
            ..EndpointConfig::default()
        },
    );
    for port in 1..=600 {
        let peer = (MAC_A.into(), port);
        let reason = ResetReason::Aborted;
        pair.b.ep.reset_orphan(pair.now, 7, peer, 1, reason);
    }
    assert_eq!(pair.b.ep.counters().tx_reset_limited, 600 - 512);
}

#[test]
fn what_expires_is_counted() {
    let mut pair = Pair::new();
    pair.listen(1000, 8);
    pair.filter = Box::new(|_| Wire::Drop);
    pair.inject(MAC_A, MAC_B, Forge::syn(7, Seq(100)).build());
    pair.run(Duration::from_secs(60));
    assert_eq!(pair.b.ep.counters().half_open_expired, 1);

    let (mut pair, a, _) = Pair::connected();
    pair.filter = drop_first(FrameType::Data, 1);
    pair.a.write(pair.now, a, 100);
    pair.run(Duration::from_millis(50));
    let counters = pair.a.ep.counters();
    assert_eq!((counters.tail_probes, counters.retransmit_timeouts), (1, 0));
    pair.filter = drop_first(FrameType::Data, 2);
    pair.a.write(pair.now, a, 100);
    pair.run(Duration::from_millis(500));
    let counters = pair.a.ep.counters();
    assert_eq!((counters.tail_probes, counters.retransmit_timeouts), (2, 1));
}

#[test]
fn the_nonce_of_the_peer_is_known() {
    let (pair, a, b) = Pair::connected();
    let nonce = pair.b.ep.image(b).map(|image| image.nonce);
    assert_eq!(Some(pair.a.ep.peer_nonce(a)), nonce);
    let other = ConnId { slot: 77, ..a };
    assert_eq!(pair.a.ep.peer_nonce(other), 0);
}

#[test]
fn an_endpoint_shows_what_it_is_in_a_log() {
    let (mut pair, ..) = Pair::connected();
    pair.connect(5001, 1000);
    let text = format!("{:?}", pair.a.ep);
    assert!(text.contains("mtu: 1500, connections: 2"), "{text}");
}

#[test]
fn losses_gaps_and_copies_are_counted() {
    let (mut pair, a, b) = Pair::connected();
    let mut n = 0;
    pair.filter = Box::new(move |f| {
        if f.src != MAC_A || f.kind() != FrameType::Data {
            return Wire::Pass;
        }
        n += 1;
        match n {
            10 | 11 => Wire::Drop,
            3 | 5 | 7 => Wire::Twice,
            _ => Wire::Pass,
        }
    });
    pair.a.write(pair.now, a, 14 * 1489);
    pair.run(Duration::from_millis(20));
    assert_eq!(pair.b.app(b).received, 14 * 1489);
    let info = pair.b.ep.info(b).unwrap();
    assert_eq!(info.duplicates, 3);
    assert_eq!(info.out_of_order, 3, "12 to 14, after the gap");
    assert_eq!(info.packets_received, 14);
    assert_eq!(pair.b.ep.counters().rx_out_of_order, 3);
    let ours = *pair.a.ep.counters();
    assert_eq!((ours.losses_detected, ours.tx_retransmits), (2, 2));
}

#[test]
fn dropped_packets_are_counted_by_reason() {
    let mut pair = Pair::new();
    pair.connect(5000, 1000);
    pair.flush();
    let early = Forge::ack(Seq(5), Seq(9)).ports(5000, 1000).build();
    pair.inject(MAC_B, MAC_A, early);
    assert_eq!(pair.a.ep.counters().rx_drop_unexpected, 1);
    let (mut pair, _, b) = Pair::connected();
    let n = pair.numbers();
    let credit = pair.b.ep.info(b).unwrap().rx_credit as u16;
    for (ahead, counted) in [(credit - 1, 0), (credit, 1)] {
        let data = Forge::ack(n.a_next.plus(ahead), n.b_next).payload(b"x");
        pair.inject(MAC_A, MAC_B, data.build());
        let dropped = pair.b.ep.counters().rx_drop_beyond_credit;
        assert_eq!(dropped, counted, "W-32");
    }
}

/// W-55.
#[test]
fn time_wait_answers_and_counts_what_still_arrives() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(1));
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.a.state(a), State::TimeWait);
    let n = pair.numbers();
    let to_a = |seq, ack| Forge::ack(seq, ack).ports(5000, 1000);
    let (fin, next) = (n.b_next.plus(u16::MAX), n.b_next);
    for (flags, ack, answers, counted) in [
        (wire::FLAG_FIN, n.a_next, 1, [1, 0, 0]),
        (wire::FLAG_PRB, n.a_next, 1, [0, 0, 0]),
        (0, n.a_next, 0, [0, 1, 0]),
        (0, n.a_next.plus(1), 0, [0, 0, 1]),
    ] {
        let (before, from) = (*pair.a.ep.counters(), pair.log.len());
        let seq = if flags == wire::FLAG_FIN { fin } else { next };
        let frame = to_a(seq, ack).flags(wire::FLAG_ACK | flags).build();
        pair.inject(MAC_B, MAC_A, frame);
        let after = *pair.a.ep.counters();
        assert_eq!(pair.sent(MAC_A, from).count(), answers, "flags {flags}");
        assert_eq!(
            [
                after.rx_drop_duplicate - before.rx_drop_duplicate,
                after.rx_acks - before.rx_acks,
                after.rx_drop_ack_forged - before.rx_drop_ack_forged,
            ],
            counted,
            "flags {flags}"
        );
        assert_eq!(pair.a.state(a), State::TimeWait);
    }
}

#[test]
fn set_up_packets_and_their_copies_are_counted() {
    let mut pair = Pair::new();
    pair.listen(1000, 8);
    let mut n = 0;
    pair.filter = Box::new(move |f| {
        n += 1;
        match (n, f.kind()) {
            (1, FrameType::Syn) => Wire::Drop,
            (_, FrameType::Syn | FrameType::SynAck) => Wire::Twice,
            _ => Wire::Pass,
        }
    });
    let a = pair.connect(5000, 1000);
    pair.run_until(Duration::from_secs(5), |p| {
        p.a.state(a) == State::Established
    });
    pair.run(Duration::from_millis(1));
    let (ours, theirs) = (*pair.a.ep.counters(), *pair.b.ep.counters());
    assert_eq!((ours.tx_syns, theirs.tx_syns), (2, 1));
    assert_eq!(theirs.rx_drop_duplicate_setup, 1, "of the SYN");
    assert_eq!(ours.rx_drop_duplicate_setup, 1, "of the SYN+ACK");
    let syn = |nonce| Forge::syn(nonce, Seq(100)).build();
    pair.inject(MAC_A, MAC_B, syn(7));
    assert_eq!(pair.b.ep.counters().rx_drop_stale_setup, 1);
}

#[test]
fn sent_packets_are_counted_by_kind() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 400_000);
    pair.run(Duration::from_millis(500));
    let ours = *pair.a.ep.counters();
    let sent = |kind| pair.kinds(MAC_A, 0, kind) as u64;
    assert_eq!(ours.tx_data, sent(FrameType::Data));
    assert_eq!(ours.tx_data_bytes, pair.b.app(b).received);
    assert_eq!(ours.tx_acks, sent(FrameType::Ack));
    assert_eq!(ours.tx_probes, sent(FrameType::Probe));
    assert!(ours.tx_probes > 1, "of credit (W-40)");
    assert_eq!(pair.b.ep.counters().rx_probes, ours.tx_probes);
    let info = pair.a.ep.info(a).unwrap();
    assert_eq!(info.packets_sent, sent(FrameType::Data));
    assert_eq!(info.send_queue, 400_000 - pair.b.app(b).received);
}
