//! Explicit congestion notification (W-110 to W-117).

use crate::common::*;
use esp_proto::wire::{FEATURE_ECN, FrameType};
use esp_proto::*;

fn config(ecn: bool) -> EndpointConfig {
    EndpointConfig {
        ecn,
        ..EndpointConfig::default()
    }
}

fn connected() -> (Pair, ConnId, ConnId) {
    Pair::connected_with(1500, config(true))
}

/// Connects two endpoints that may differ in their offer.
fn offering(a: bool, b: bool) -> (Pair, ConnId) {
    let mut pair = Pair::with(1500, config(a));
    pair.b = Node::new(MAC_B, 1500, 2, config(b));
    pair.listen(1000, 8);
    let id = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    (pair, id)
}

/// Marks every data frame of A.
fn mark_data(f: &OnWire) -> Wire {
    if f.src == MAC_A && f.kind() == FrameType::Data {
        Wire::Marked
    } else {
        Wire::Pass
    }
}

/// The counts in the frames of a station: those of bare acknowledgements, and those of others.
fn counts(pair: &Pair, src: MacAddr, from: usize) -> (Vec<Option<u16>>, usize) {
    let field = |f: &OnWire| f.esp().ext.and_then(|ext| ext.ce);
    let acks = pair.sent(src, from).filter(|f| f.kind() == FrameType::Ack);
    let others = pair.sent(src, from).filter(|f| f.kind() != FrameType::Ack);
    (
        acks.map(field).collect(),
        others.filter(|f| field(f).is_some()).count(),
    )
}

fn window(node: &Node, id: ConnId) -> u32 {
    node.ep.info(id).unwrap().cwnd
}

/// W-18, W-110: in force when both sides offer it.
#[test]
fn marks_count_when_both_sides_offered() {
    for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut pair, id) = offering(a, b);
        let offers = |kind| {
            let frame = pair.log.iter().find(|f| f.kind() == kind).unwrap();
            wire::SetUp::parse(frame.esp().payload).unwrap().features & FEATURE_ECN != 0
        };
        assert_eq!(
            (offers(FrameType::Syn), offers(FrameType::SynAck)),
            (a, b),
            "each side offers its own features"
        );
        pair.filter = Box::new(mark_data);
        pair.a.write(pair.now, id, 100 * 1489);
        pair.run(Duration::from_millis(10));
        assert_eq!(pair.a.app(id).acked, 100 * 1489);
        let marks = if a && b { 100 } else { 0 };
        assert_eq!(pair.b.ep.counters().rx_ecn_marks, marks);
        assert_eq!(pair.a.ep.counters().rx_ecn_reported, marks);
        assert_eq!(pair.a.ep.counters().ecn_reductions > 0, a && b);
        let (acks, others) = counts(&pair, MAC_B, 0);
        assert_eq!(acks.iter().any(Option::is_some), a && b);
        assert_eq!(others, 0);
    }
}

/// W-113: every bare acknowledgement since the first mark, no other frame.
#[test]
fn the_count_is_in_every_acknowledgement_from_the_first_mark_on() {
    let (mut pair, a, _) = connected();
    pair.a.write(pair.now, a, 50 * 1489);
    pair.run(Duration::from_millis(5));
    assert!(counts(&pair, MAC_B, 0).0.iter().all(Option::is_none));
    let from = pair.log.len();
    let mut first = true;
    pair.filter = Box::new(move |f| {
        let mark = mark_data(f) == Wire::Marked && std::mem::take(&mut first);
        if mark { Wire::Marked } else { Wire::Pass }
    });
    for _ in 0..10 {
        pair.a.write(pair.now, a, 20 * 1489);
        pair.run(Duration::from_millis(2));
    }
    let (acks, others) = counts(&pair, MAC_B, from);
    assert!(acks.len() > 5);
    assert!(acks.iter().all(|count| *count == Some(1)), "{acks:?}");
    assert_eq!(others, 0);
    assert_eq!(pair.a.ep.counters().rx_ecn_reported, 1);
}

/// W-113: a count is cumulative.
#[test]
fn lost_acknowledgements_lose_no_mark() {
    let (mut pair, a, _) = connected();
    let mut n = 0;
    pair.filter = Box::new(move |f| {
        n += 1;
        match mark_data(f) {
            Wire::Pass if f.src == MAC_B && n % 3 != 0 => Wire::Drop,
            other => other,
        }
    });
    pair.a.write(pair.now, a, 400 * 1489);
    pair.run(Duration::from_secs(1));
    let reported = pair.a.ep.counters().rx_ecn_reported;
    assert!(reported > 0);
    pair.filter = Box::new(|_| Wire::Pass);
    pair.run_until(Duration::from_secs(5), |p| p.a.app(a).acked == 400 * 1489);
    pair.a.write(pair.now, a, 1);
    pair.run(Duration::from_millis(10));
    let marked = pair.b.ep.counters().rx_ecn_marks;
    assert!(marked >= reported);
    assert_eq!(pair.a.ep.counters().rx_ecn_reported, marked);
}

/// W-113: data in the other direction does not hide the count.
#[test]
fn traffic_in_both_directions_does_not_delay_the_report() {
    let (mut pair, a, b) = connected();
    pair.filter = Box::new(mark_data);
    let (total, wide) = (3_000 * 1000, 1000);
    for _ in 0..3_000 {
        pair.a.write(pair.now, a, wide);
        pair.b.write(pair.now, b, wide);
        pair.run(Duration::from_micros(5));
    }
    let counters = pair.a.ep.counters();
    assert!(
        counters.rx_ecn_reported + 20 > counters.tx_data && counters.ecn_reductions > 5,
        "before the traffic ends: {counters:?}"
    );
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.b.app(b).received, total);
    assert_eq!(
        pair.a.ep.counters().rx_ecn_reported,
        pair.b.ep.counters().rx_ecn_marks
    );
}

/// W-113: the answer of the program does not replace the report, and a mark alone does not force a
/// report.
#[test]
fn a_report_is_as_late_as_an_acknowledgement_at_most() {
    let (mut pair, a, b) = connected();
    pair.filter = Box::new(mark_data);
    let from = pair.log.len();
    pair.a.write(pair.now, a, 1);
    let arrival = pair.now + pair.delay;
    pair.run(Duration::from_micros(50));
    pair.b.write(pair.now, b, 1);
    pair.run(Duration::from_millis(2));
    let frames: Vec<_> = pair.sent(MAC_B, from).map(|f| (f.kind(), f.at)).collect();
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[0].0, FrameType::Data);
    assert_eq!(
        frames[1],
        (FrameType::Ack, arrival + Duration::from_micros(200))
    );
    assert_eq!(counts(&pair, MAC_B, from).0, [Some(1)]);
    // Without new marks, the answer carries the acknowledgement again.
    pair.filter = Box::new(|_| Wire::Pass);
    let from = pair.log.len();
    pair.a.write(pair.now, a, 1);
    pair.run(Duration::from_micros(50));
    pair.b.write(pair.now, b, 1);
    pair.run(Duration::from_micros(300));
    assert_eq!(pair.kinds(MAC_B, from, FrameType::Ack), 0);
}

/// W-113: a report that is due is sent before the data that waits, on request or by the timer.
#[test]
fn a_due_report_precedes_waiting_data() {
    for asks in [true, false] {
        let (mut pair, _, b) = connected();
        let n = pair.numbers();
        let flags = wire::FLAG_ACK | if asks { wire::FLAG_ASK } else { 0 };
        let data = Forge::ack(n.a_next, n.b_next)
            .flags(flags)
            .payload(&[pattern(0)]);
        pair.b.receive(
            pair.now,
            &OnWire {
                at: pair.now,
                src: MAC_A,
                dst: MAC_B,
                body: data.build(),
                looped: false,
                ce: true,
            },
        );
        if !asks {
            assert!(pair.b.transmit(pair.now).is_none(), "not due");
            pair.now = pair.now + Duration::from_micros(200);
            pair.b.ep.handle_timeout(pair.now);
        }
        pair.b.write(pair.now, b, 100 * 1489);
        let first = pair.b.transmit(pair.now).unwrap();
        assert_eq!(first.kind(), FrameType::Ack, "asks: {asks}");
        assert_eq!(first.esp().ext.unwrap().ce, Some(1));
        let second = pair.b.transmit(pair.now).unwrap();
        assert_eq!(second.kind(), FrameType::Data);
    }
}

/// W-112: packets count; frames without a sequence number do not.
#[test]
fn marks_of_acknowledgements_probes_and_set_up_do_not_count() {
    let mut pair = Pair::with(1500, config(true));
    pair.filter = Box::new(|_| Wire::Marked);
    pair.listen(1000, 8);
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_secs(5));
    assert!(pair.b.ep.counters().rx_probes > 0, "keep-alive");
    assert_eq!(pair.a.ep.counters().rx_ecn_marks, 0);
    assert_eq!(pair.b.ep.counters().rx_ecn_marks, 0);
    pair.a.write(pair.now, a, 10 * 1489);
    pair.run(Duration::from_millis(10));
    assert_eq!(pair.b.ep.counters().rx_ecn_marks, 10);
    assert_eq!(
        pair.a.ep.counters().rx_ecn_marks,
        0,
        "its acknowledgements were marked, too"
    );
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(10));
    assert_eq!(pair.b.ep.counters().rx_ecn_marks, 11, "a FIN is a packet");
}

/// W-112: each arrival of a packet counts.
#[test]
fn duplicates_count() {
    let (mut pair, a, _) = connected();
    pair.a.write(pair.now, a, 1);
    pair.run(Duration::from_millis(5));
    let sent = pair
        .log
        .iter()
        .find(|f| f.kind() == FrameType::Data)
        .unwrap();
    let again = OnWire {
        ce: true,
        ..sent.clone()
    };
    pair.b.receive(pair.now, &again);
    assert_eq!(pair.b.ep.counters().rx_drop_duplicate, 1);
    assert_eq!(pair.b.ep.counters().rx_ecn_marks, 1);
}

/// W-114: the field is unknown without the feature.
#[test]
fn a_count_without_the_feature_drops_the_frame() {
    for (a, b) in [(false, false), (true, false), (false, true)] {
        let (mut pair, _) = offering(a, b);
        let id = pair.b.only();
        pair.b.write(pair.now, id, 1);
        pair.run(Duration::from_millis(5));
        let n = pair.numbers();
        let old = n.b_next.plus(0u16.wrapping_sub(1));
        for ack in [n.b_next, old] {
            let forged = Forge::ack(n.a_next, ack).payload(b"x").ext(&[4, 8, 0, 0]);
            pair.inject(MAC_A, MAC_B, forged.build());
        }
        assert_eq!(pair.b.ep.counters().rx_drop_extension, 2);
        assert_eq!(pair.b.app(id).received, 0, "dropped whole");
    }
}

/// W-114: a half-open connection is not completed by such a frame.
#[test]
fn a_count_without_the_feature_does_not_complete_the_set_up() {
    let mut pair = Pair::new();
    pair.listen(1000, 8);
    pair.filter = Box::new(|f| {
        if f.kind() == FrameType::Ack {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    let n = pair.numbers();
    let forged = Forge::ack(n.a_next, n.b_next).ext(&[4, 8, 0, 0]);
    pair.inject(MAC_A, MAC_B, forged.build());
    assert_eq!(pair.b.ep.counters().rx_drop_extension, 1);
    assert_eq!(pair.b.ep.counters().connections_opened, 0);
    pair.inject(MAC_A, MAC_B, Forge::ack(n.a_next, n.b_next).build());
    assert_eq!(pair.b.ep.counters().connections_opened, 1);
}

/// W-114, W-29: the challenge of a stale connection with marks is answered, so that it ends.
#[test]
fn a_restarted_caller_without_the_feature_ends_the_stale_connection() {
    let (mut pair, a, old) = connected();
    pair.filter = Box::new(mark_data);
    pair.a.write(pair.now, a, 1489);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.b.ep.counters().rx_ecn_marks, 1);
    pair.a = Node::new(MAC_A, 1500, 98, config(false));
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.a.state(a), State::Established);
    assert_eq!(
        pair.b.app(old).closed,
        Some(CloseReason::Reset(ResetReason::Unknown))
    );
}

/// W-115: impossible and old counts are ignored.
#[test]
fn impossible_and_overtaken_counts_are_ignored() {
    let (mut pair, _, b) = connected();
    pair.b.write(pair.now, b, 20 * 1489);
    pair.run(Duration::from_millis(5));
    let n = pair.numbers();
    let before = window(&pair.b, b);
    let mut report = |count: u16| {
        let [x, y] = count.to_be_bytes();
        let forged = Forge::ack(n.a_next, n.b_next).ext(&[4, 8, x, y]);
        pair.inject(MAC_A, MAC_B, forged.build());
        let counters = pair.b.ep.counters();
        (
            counters.rx_ecn_reported,
            counters.rx_ecn_ignored,
            window(&pair.b, b),
        )
    };
    assert_eq!(report(21), (0, 1, before), "20 were sent");
    assert_eq!(report(0x7fff), (0, 2, before));
    assert_eq!(report(0x8000), (0, 2, before), "older");
    let (reported, ignored, reduced) = report(12);
    assert_eq!((reported, ignored), (12, 2));
    assert!(reduced < before);
    assert_eq!(report(11), (12, 2, reduced), "overtaken");
    assert_eq!(report(13), (12, 3, reduced), "nothing was sent since");
}

/// W-116: marks reduce the window instead of losses, down to its minimum.
#[test]
fn a_window_that_is_always_marked_becomes_small() {
    let (mut pair, a, _) = connected();
    pair.filter = Box::new(mark_data);
    pair.a.write(pair.now, a, 1000 * 1489);
    pair.run(Duration::from_millis(200));
    assert_eq!(pair.a.app(a).acked, 1000 * 1489);
    assert!(window(&pair.a, a) <= 4, "{}", window(&pair.a, a));
    let counters = pair.a.ep.counters();
    assert_eq!(
        (counters.tx_retransmits, counters.retransmit_timeouts),
        (0, 0)
    );
    assert_eq!(counters.rx_ecn_reported, 1000);
}
