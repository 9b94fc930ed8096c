//! Keep-alive and dead peers (W-46, W-51, W-52).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

#[test]
fn an_idle_connection_is_kept_alive_by_the_nodes() {
    let (mut pair, a, b) = Pair::connected();
    let from = pair.log.len();
    pair.run(Duration::from_secs(60));
    assert_eq!(
        (pair.a.state(a), pair.b.state(b)),
        (State::Established, State::Established)
    );
    let probes =
        pair.kinds(MAC_A, from, FrameType::Probe) + pair.kinds(MAC_B, from, FrameType::Probe);
    assert!(
        (25..=60).contains(&probes),
        "one or two every two seconds: {probes}"
    );
    assert_eq!(
        pair.a.ep.counters().rx_dropped() + pair.b.ep.counters().rx_dropped(),
        0
    );
}

#[test]
fn a_dead_peer_is_noticed_while_idle() {
    let (mut pair, a, _) = Pair::connected();
    pair.filter = Box::new(|_| Wire::Drop);
    let took = pair.run_until(Duration::from_secs(33), |p| p.a.app(a).closed.is_some());
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
    assert!(
        took > Duration::from_secs(31) && took <= Duration::from_secs(32),
        "keep-alive + timeout: {took:?}"
    );
    assert_eq!(pair.a.ep.counters().connections_timed_out, 1);
}

#[test]
fn a_dead_peer_is_noticed_while_credit_is_awaited() {
    let (mut pair, a, _) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 1_000_000);
    pair.run(Duration::from_secs(3));
    pair.filter = Box::new(|_| Wire::Drop);
    let took = pair.run_until(Duration::from_secs(31), |p| p.a.app(a).closed.is_some());
    assert!(took > Duration::from_secs(29), "{took:?}");
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
}

#[test]
fn a_probe_is_answered_at_once_with_credit_and_its_size() {
    let (mut pair, _, _) = Pair::connected();
    let n = pair.numbers();
    for (len, probed) in [(0usize, None), (1, Some(1)), (1400, Some(1400))] {
        let from = pair.log.len();
        let probe = Forge::ack(n.a_next, n.b_next)
            .flags(wire::FLAG_ACK | wire::FLAG_PRB)
            .payload(&vec![0; len]);
        pair.inject(MAC_A, MAC_B, probe.build());
        let answer = pair.sent(MAC_B, from).next().unwrap().esp();
        assert_eq!(
            (answer.kind, answer.ext.unwrap().probed),
            (FrameType::Ack, probed)
        );
        assert!(answer.ext.unwrap().credit.is_some());
    }
    assert_eq!(pair.b.ep.counters().rx_data, 0, "filler is not data");
}

#[test]
fn time_that_runs_backwards_does_no_harm() {
    let (mut pair, a, b) = Pair::connected();
    let past = Instant::from_nanos(1);
    pair.a.ep.handle_timeout(past);
    pair.a.write(past, a, 5000);
    pair.a.ep.handle_timeout(past);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.b.app(b).received, 5000);
}

#[test]
fn early_and_repeated_timeouts_do_nothing() {
    let (mut pair, a, _) = Pair::connected();
    pair.a.write(pair.now, a, 5000);
    pair.flush();
    let from = pair.log.len();
    let next = pair.a.ep.poll_timeout();
    for _ in 0..10 {
        pair.a.ep.handle_timeout(pair.now);
    }
    pair.flush();
    assert_eq!(pair.log.len(), from);
    assert_eq!(pair.a.ep.poll_timeout(), next);
}

#[test]
fn an_idle_endpoint_has_no_timeout() {
    let mut pair = Pair::new();
    assert_eq!(pair.a.ep.poll_timeout(), None);
    pair.listen(1000, 1);
    assert_eq!(pair.b.ep.poll_timeout(), None);
}

/// Returns the bodies of the port queries that A has sent since `from`.
fn queries(pair: &Pair, from: usize) -> Vec<Vec<u8>> {
    let control = |f: &&OnWire| f.body[..2] == [0x88, 0xb6] && f.body[13] == 5;
    pair.sent(MAC_A, from)
        .filter(control)
        .map(|f| f.body[..16].to_vec())
        .collect()
}

/// Lets only datagrams pass.
fn silence(pair: &mut Pair) {
    pair.filter = Box::new(|f| {
        if f.body[..2] == [0x88, 0xb6] {
            Wire::Pass
        } else {
            Wire::Drop
        }
    });
}

/// W-77: a peer whose node reports its port as held is not given up; without such a report it is.
#[test]
fn a_held_port_keeps_a_silent_peer_alive() {
    let (mut pair, a, _) = Pair::connected();
    silence(&mut pair);
    // B's node itself answers FREE, which has no effect; the test answers HELD for a while.
    pair.a.write(pair.now, a, 5000);
    let from = pair.log.len();
    let mut answered = 0;
    for _ in 0..1800 {
        pair.run(Duration::from_millis(100));
        let all = queries(&pair, from);
        if all.len() > answered {
            answered = all.len();
            let query = &all[answered - 1];
            assert_eq!(query[2..4], [0, 0], "to the node");
            // Ports swapped, the query's number, type 6, the port asked for, HELD.
            let mut reply = vec![
                0x88, 0xb6, query[4], query[5], 0, 0, query[6], query[7], 0, 0, 0, 4, 1,
            ];
            reply.extend([6, query[14], query[15], 1]);
            pair.inject(MAC_B, MAC_A, reply);
        }
    }
    assert_eq!(
        pair.a.state(a),
        State::Established,
        "three minutes of silence"
    );
    assert!(
        (5..=40).contains(&answered),
        "one query each half timeout: {answered}"
    );
    let repeated = pair.sent(MAC_A, from).count();
    // Four packets, five times a second (the maximum retransmission timeout), and the queries.
    assert!(
        repeated < 3900,
        "back-off: {repeated} frames in three minutes"
    );
    let took = pair.run_until(Duration::from_secs(32), |p| p.a.app(a).closed.is_some());
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
    assert!(
        took > Duration::from_secs(29) && took < Duration::from_secs(31),
        "{took:?}"
    );
}

/// W-77: HELD without a query, or for another connection, does not prove that the peer is alive.
#[test]
fn an_unsolicited_port_reply_has_no_effect() {
    let (mut pair, a, _) = Pair::connected();
    silence(&mut pair);
    pair.a.write(pair.now, a, 5000);
    let from = pair.log.len();
    let took = {
        let mut steps = 0;
        while pair.a.app(a).closed.is_none() && steps < 400 {
            steps += 1;
            pair.run(Duration::from_millis(100));
            // Before the first query the ports are right; later they are wrong.
            let own = if queries(&pair, from).is_empty() {
                5000u16
            } else {
                4999
            };
            let [high, low] = own.to_be_bytes();
            let reply = vec![
                0x88, 0xb6, high, low, 0, 0, 0, 1, 0, 0, 0, 4, 1, 6, 3, 232, 1,
            ];
            pair.inject(MAC_B, MAC_A, reply);
        }
        steps
    };
    assert!((290..=310).contains(&took), "{took} tenths of a second");
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
}

/// W-76: the node answers for held and free ports, drops stream frames to held ones, and serves
/// them again afterwards.
#[test]
fn a_node_answers_queries_for_held_ports() {
    let mut pair = Pair::new();
    assert!(pair.b.ep.hold(1000));
    for (port, state) in [(1000u16, 1), (1001, 0)] {
        let [high, low] = port.to_be_bytes();
        let query = vec![
            0x88, 0xb6, 0, 0, 0x13, 0x88, 0, 9, 0, 0, 0, 3, 1, 5, high, low,
        ];
        pair.inject(MAC_A, MAC_B, query);
        let reply = pair.sent(MAC_B, 0).last().unwrap();
        assert_eq!(
            reply.body[..17],
            [
                0x88, 0xb6, 0x13, 0x88, 0, 0, 0, 9, 0, 0, 0, 4, 1, 6, high, low, state
            ]
        );
    }
    let before = pair.log.len();
    pair.inject(MAC_A, MAC_B, Forge::ack(Seq(1), Seq(2)).build());
    assert_eq!(
        (pair.log.len(), pair.b.ep.counters().rx_drop_held),
        (before, 1)
    );
    // Other ports are served.
    pair.listen(1001, 8);
    let other = pair.connect(5001, 1001);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.a.state(other), State::Established);
    let before = pair.log.len();
    pair.b.ep.unhold(1000);
    pair.inject(MAC_A, MAC_B, Forge::ack(Seq(1), Seq(2)).build());
    assert_eq!(
        pair.sent(MAC_B, before).next().unwrap().kind(),
        FrameType::Rst
    );
}

/// A port with connections to other nodes cannot be held.
#[test]
fn a_port_in_use_is_not_held() {
    let (mut pair, _, b) = Pair::connected();
    let port = pair.b.ep.info(b).unwrap().local_port;
    assert!(!pair.b.ep.hold(port));
    assert!(pair.b.ep.hold(port + 1) && !pair.b.ep.hold(0));
}
