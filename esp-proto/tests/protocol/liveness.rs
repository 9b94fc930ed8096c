//! Keep-alive and dead peers (W-46, W-51, W-52).

use crate::common::*;
use esp_proto::wire::Kind;
use esp_proto::*;

#[test]
fn an_idle_connection_is_kept_alive_by_the_nodes() {
    let (mut pair, a, b) = Pair::connected();
    let from = pair.log.len();
    pair.run(Duration::from_secs(60));
    assert_eq!((pair.a.state(a), pair.b.state(b)), (State::Established, State::Established));
    let probes = pair.kinds(MAC_A, from, Kind::Probe) + pair.kinds(MAC_B, from, Kind::Probe);
    assert!((25..=60).contains(&probes), "one or two every two seconds: {probes}");
    assert_eq!(pair.a.ep.counters().rx_dropped() + pair.b.ep.counters().rx_dropped(), 0);
}

#[test]
fn a_dead_peer_is_noticed_while_idle() {
    let (mut pair, a, _) = Pair::connected();
    pair.filter = Box::new(|_| Wire::Drop);
    let took = pair.run_until(Duration::from_secs(13), |p| p.a.app(a).closed.is_some());
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
    assert!(
        took > Duration::from_secs(11) && took <= Duration::from_secs(12),
        "keep-alive + time-out: {took:?}"
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
    let took = pair.run_until(Duration::from_secs(11), |p| p.a.app(a).closed.is_some());
    assert!(took > Duration::from_secs(9), "{took:?}");
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
}

#[test]
fn a_probe_is_answered_at_once_with_credit_and_its_size() {
    let (mut pair, _, _) = Pair::connected();
    let n = pair.numbers();
    for (len, probed) in [(0usize, None), (1, Some(1)), (1400, Some(1400))] {
        let from = pair.log.len();
        let probe =
            Forge::ack(n.a_next, n.b_next).flags(wire::FLAG_ACK | wire::FLAG_PRB).payload(&vec![0; len]);
        pair.inject(MAC_A, MAC_B, probe.build());
        let answer = pair.sent(MAC_B, from).next().unwrap().esp();
        assert_eq!((answer.kind, answer.ext.unwrap().probed), (Kind::Ack, probed));
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
fn an_endpoint_at_rest_asks_for_no_timeout() {
    let mut pair = Pair::new();
    assert_eq!(pair.a.ep.poll_timeout(), None);
    pair.listen(1000, 1);
    assert_eq!(pair.b.ep.poll_timeout(), None);
}
