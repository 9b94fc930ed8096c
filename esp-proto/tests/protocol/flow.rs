//! Credit (section 5).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

fn consume_all(pair: &mut Pair, b: ConnId) {
    let received = pair.b.app(b).received;
    pair.b.apps.get_mut(&b).unwrap().consumed = received;
    pair.b.ep.consumed(pair.now, b, received);
}

#[test]
fn a_program_that_does_not_read_stops_the_sender_and_loses_nothing() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 1_000_000);
    pair.run(Duration::from_secs(5));
    let received = pair.b.app(b).received;
    assert!(received <= u64::from(ROOM) && received > u64::from(ROOM) - 1489);
    assert_eq!(pair.a.ep.info(a).unwrap().credit, 0);
    assert_eq!(
        pair.a.state(a),
        State::Established,
        "a silent program is not dead (W-52)"
    );
    assert_eq!(pair.a.ep.counters().tx_retransmits, 0);
    pair.b.consume = true;
    consume_all(&mut pair, b);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.b.app(b).received, 1_000_000);
}

#[test]
fn new_credit_is_announced_when_a_quarter_is_free() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 1_000_000);
    pair.run(Duration::from_millis(50));
    let from = pair.log.len();
    let quarter = u64::from(ROOM) / 4;
    pair.b.apps.get_mut(&b).unwrap().consumed = quarter - 2000;
    pair.b.ep.consumed(pair.now, b, quarter - 2000);
    pair.flush();
    assert_eq!(pair.sent(MAC_B, from).count(), 0, "not worth a frame");
    pair.b.apps.get_mut(&b).unwrap().consumed = quarter + 2000;
    pair.b.ep.consumed(pair.now, b, quarter + 2000);
    pair.flush();
    assert_eq!(pair.sent(MAC_B, from).count(), 1, "W-41");
}

/// W-41: a peer without credit waits for it, so it goes before the data of other connections; a
/// peer that has some left gets it in turn.
#[test]
fn new_credit_after_none_goes_before_data() {
    for (written, first) in [(400_000, 1000), (200_000, 1001)] {
        let mut pair = Pair::new();
        pair.listen(1000, 8);
        pair.listen(1001, 8);
        pair.connect(5000, 1000);
        pair.connect(5001, 1001);
        pair.run(Duration::from_millis(1));
        let of = |pair: &Pair, port| {
            let mut conns = pair.b.ep.connections();
            conns.find(|(_, info)| info.local_port == port).unwrap().0
        };
        let (reading, writing) = (of(&pair, 1000), of(&pair, 1001));
        pair.b.consume = false;
        let a = (pair.a.ep.connections())
            .find(|(_, info)| info.local_port == 5000)
            .unwrap()
            .0;
        pair.a.write(pair.now, a, written);
        pair.run(Duration::from_millis(50));
        let from = pair.log.len();
        pair.b.write(pair.now, writing, 10_000);
        consume_all(&mut pair, reading);
        pair.flush();
        let next = pair.sent(MAC_B, from).next().unwrap();
        assert_eq!(next.header().src_port, first, "{written} bytes unread");
    }
}

/// A host that waits until all is sent asks for this.
#[test]
fn bytes_that_wait_for_a_window_or_to_be_repeated_are_unsent() {
    let (mut pair, a, b) = Pair::connected();
    let unsent = |pair: &Pair| {
        let one = pair.a.ep.has_unsent(a);
        assert_eq!(one, pair.a.ep.any_unsent());
        one
    };
    assert!(!unsent(&pair) && !pair.b.ep.any_unsent());
    pair.b.consume = false;
    pair.a.write(pair.now, a, 1000);
    assert!(unsent(&pair));
    pair.flush();
    assert!(!unsent(&pair), "sent, and not acknowledged");
    pair.a.write(pair.now, a, 300_000);
    pair.run(Duration::from_millis(50));
    assert!(unsent(&pair), "there is no credit");
    pair.b.consume = true;
    consume_all(&mut pair, b);
    pair.run(Duration::from_millis(50));
    assert!(!unsent(&pair));
    // All of it was lost, and counts as such after a timeout.
    pair.filter = Box::new(|_| Wire::Drop);
    pair.a.write(pair.now, a, 20_000);
    pair.flush();
    while pair.a.ep.info(a).unwrap().timeouts == 0 {
        let due = pair.a.ep.poll_timeout().unwrap();
        pair.now = pair.now.max(due);
        pair.a.ep.handle_timeout(pair.now);
        if pair.a.ep.info(a).unwrap().timeouts == 0 {
            pair.flush();
        }
    }
    assert!(unsent(&pair), "to be repeated");
}

#[test]
fn a_lost_credit_update_does_not_stop_the_connection() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 300_000);
    pair.run(Duration::from_millis(100));
    let from = pair.log.len();
    pair.filter = Box::new(|f| {
        if f.src == MAC_B {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    consume_all(&mut pair, b);
    pair.flush();
    assert_eq!(pair.kinds(MAC_B, from, FrameType::Ack), 1);
    pair.filter = Box::new(|_| Wire::Pass);
    pair.b.consume = true;
    pair.run_until(Duration::from_millis(250), |p| {
        p.b.app(b).received == 300_000
    });
    assert!(pair.kinds(MAC_A, from, FrameType::Probe) >= 1, "W-40");
}

/// A host is not notified of each byte that its program reads: it checks when there is progress.
#[test]
fn a_probe_finds_what_was_read_without_a_notice() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 300_000);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.a.ep.info(a).unwrap().credit, 0);
    pair.b.consume = true;
    pair.run_until(Duration::from_millis(250), |p| {
        p.b.app(b).received == 300_000
    });
}

/// Bytes that wait to be read leave room for a packet.
#[test]
fn two_packets_fit_in_the_buffer_of_the_side_that_connects() {
    for room in [128, 4096, 8192, 12_000] {
        let mut pair = Pair::with(9000, EndpointConfig::default());
        pair.listen(1000, 4);
        let options = ConnOptions {
            buffers: Buffers { rx: room, tx: room },
            key: vec![],
        };
        let a = pair.connect_with(5000, 1000, options);
        pair.run(Duration::from_millis(1));
        let b = pair.b.only();
        assert_eq!(pair.b.ep.info(b).unwrap().credit, 2, "{room}");
        assert_eq!(pair.a.state(a), State::Established);
    }
}

#[test]
fn credit_probes_back_off() {
    let (mut pair, a, _) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 1_000_000);
    pair.run(Duration::from_secs(2));
    let times: Vec<_> = pair
        .sent(MAC_A, 0)
        .filter(|f| f.kind() == FrameType::Probe)
        .map(|f| f.at)
        .collect();
    let gaps: Vec<_> = times.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.len() > 8 && gaps.len() < 20, "{}", gaps.len());
    assert!(
        gaps.windows(2)
            .all(|w| w[0] <= w[1] + Duration::from_micros(1))
    );
    assert!(*gaps.last().unwrap() <= Duration::from_millis(200));
}

#[test]
fn nothing_is_sent_before_attach() {
    let mut pair = Pair::new();
    pair.b.attach = None;
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.a.write(pair.now, a, 5000);
    pair.run(Duration::from_secs(3));
    let b = pair.b.only();
    assert_eq!(pair.kinds(MAC_A, 0, FrameType::Data), 0);
    assert_eq!(pair.a.state(a), State::Established);
    pair.b.apps.get_mut(&b).unwrap().room = ROOM;
    assert!(
        pair.b
            .ep
            .attach(pair.now, b, Buffers { rx: ROOM, tx: ROOM })
    );
    let took = pair.run_until(Duration::from_millis(10), |p| p.b.app(b).received == 5000);
    assert!(
        took <= pair.delay * 4,
        "credit is announced at once: {took:?}"
    );
}

#[test]
fn attach_refuses_a_buffer_too_small_for_the_agreed_payload() {
    let mut pair = Pair::new();
    pair.b.attach = None;
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    let b = pair.b.only();
    assert!(!pair.b.ep.attach(
        pair.now,
        b,
        Buffers {
            rx: 4 * 1489 - 1,
            tx: ROOM
        }
    ));
    pair.run(Duration::from_millis(1));
    assert_eq!(
        pair.b.app(b).closed,
        Some(CloseReason::Aborted(ResetReason::Resources))
    );
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Reset(ResetReason::Resources))
    );
    assert_eq!(pair.b.ep.listeners().next().unwrap().1.waiting, 0);
    assert!(4 * 1489 <= min_listener_capacity(1500));
}

#[test]
fn buffers_of_every_size_make_progress() {
    for room in [64, 65, 100, 1488, 1489, 1490, 2978, 4000, 10_000] {
        let mut pair = Pair::new();
        pair.listen(1000, 4);
        let a = pair.connect_with(
            5000,
            1000,
            ConnOptions {
                buffers: Buffers { rx: room, tx: room },
                key: vec![],
            },
        );
        pair.run(Duration::from_millis(1));
        let b = pair.b.only();
        pair.b.write(pair.now, b, 20_000);
        pair.run_until(Duration::from_secs(20), |p| p.a.app(a).received == 20_000);
        assert!(u32::from(pair.b.ep.info(b).unwrap().payload) <= room);
        assert_eq!(pair.a.ep.counters().rx_drop_beyond_credit, 0);
    }
}

#[test]
fn one_byte_writes_do_not_overrun_the_buffer() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.consume = false;
    for _ in 0..3000 {
        pair.a.write(pair.now, a, 1);
        pair.run(Duration::from_micros(10));
    }
    pair.run(Duration::from_millis(10));
    assert!(pair.b.app(b).received <= 3000);
    assert_eq!(pair.b.ep.counters().rx_drop_beyond_credit, 0);
    assert_eq!(pair.b.app(b).received, 3000);
}

#[test]
fn small_writes_grow_together_while_the_credit_is_used_up() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 262_000);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.a.ep.info(a).unwrap().credit, 0);
    let from = pair.log.len();
    for _ in 0..100 {
        pair.a.write(pair.now, a, 10);
        pair.flush();
    }
    pair.b.consume = true;
    consume_all(&mut pair, b);
    pair.run(Duration::from_millis(10));
    assert_eq!(pair.b.app(b).received, 263_000);
    assert!(pair.kinds(MAC_A, from, FrameType::Data) <= 2);
}
