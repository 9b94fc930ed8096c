//! Repeated, stale and new incarnations of one connection (W-26 to W-29, W-50, W-55).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

/// Replaces B by a new endpoint, as a restart of its service does.
fn restart_b(pair: &mut Pair) {
    pair.b = Node::new(MAC_B, 1500, 99, EndpointConfig::default());
}

fn restart_a(pair: &mut Pair) {
    pair.a = Node::new(MAC_A, 1500, 98, EndpointConfig::default());
}

#[test]
fn a_repeated_syn_changes_nothing() {
    let (mut pair, a, b) = Pair::connected();
    let syn = pair.log[0].clone();
    let from = pair.log.len();
    pair.inject(MAC_A, MAC_B, syn.body);
    pair.run(Duration::from_millis(1));
    assert_eq!(
        pair.kinds(MAC_B, from, FrameType::Ack),
        1,
        "answered with an acknowledgement"
    );
    assert_eq!(pair.b.ep.counters().rx_drop_duplicate_setup, 1);
    assert_eq!(
        (pair.a.state(a), pair.b.state(b)),
        (State::Established, State::Established)
    );
}

#[test]
fn a_restarted_caller_opens_anew() {
    let (mut pair, _, old) = Pair::connected();
    restart_a(&mut pair);
    let a = pair.connect(5000, 1000);
    let took = pair.run_until(Duration::from_secs(1), |p| {
        p.a.state(a) == State::Established
    });
    assert!(
        took < Duration::from_millis(30),
        "one repetition of the SYN: {took:?}"
    );
    pair.run(Duration::from_millis(1));
    assert_eq!(
        pair.b.app(old).closed,
        Some(CloseReason::Reset(ResetReason::Unknown))
    );
    assert_eq!(pair.b.apps.len(), 2);
    assert_eq!(pair.b.ep.counters().rx_drop_stale_setup, 1);
    assert_eq!(pair.b.ep.counters().rx_challenges, 1);
}

#[test]
fn a_blind_syn_does_not_end_a_connection() {
    let (mut pair, a, b) = Pair::connected();
    let from = pair.log.len();
    pair.inject(MAC_A, MAC_B, Forge::syn(1234, Seq(77)).build());
    pair.run(Duration::from_millis(5));
    assert_eq!(
        (pair.a.state(a), pair.b.state(b)),
        (State::Established, State::Established)
    );
    assert_eq!(pair.kinds(MAC_B, from, FrameType::Ack), 1, "a challenge");
    assert_eq!(
        pair.kinds(MAC_A, from, FrameType::Rst),
        0,
        "the real peer has no reason to reset"
    );
    pair.a.write(pair.now, a, 100);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.b.app(b).received, 100);
}

#[test]
fn a_restarted_listener_is_noticed_by_the_next_frame() {
    let (mut pair, a, _) = Pair::connected();
    restart_b(&mut pair);
    pair.a.write(pair.now, a, 100);
    pair.run_until(Duration::from_millis(1), |p| p.a.app(a).closed.is_some());
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Reset(ResetReason::Unknown))
    );
    assert_eq!(pair.b.ep.counters().rx_drop_no_connection, 1);
}

#[test]
fn a_newer_attempt_replaces_a_half_open_one() {
    let mut pair = Pair::new();
    pair.listen(1000, 4);
    pair.filter = Box::new(|f| {
        if f.src == MAC_B {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    pair.connect(5000, 1000);
    pair.run(Duration::from_micros(100));
    assert_eq!(pair.b.ep.connections().count(), 1);
    restart_a(&mut pair);
    pair.filter = Box::new(|_| Wire::Pass);
    let a = pair.connect(5000, 1000);
    pair.run_until(Duration::from_millis(1), |p| {
        p.a.state(a) == State::Established
    });
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.b.ep.connections().count(), 1);
    assert_eq!(pair.b.state(pair.b.only()), State::Established);
}

/// W-21.
#[test]
fn an_answer_to_an_older_attempt_is_ignored() {
    let mut pair = Pair::new();
    pair.filter = Box::new(|_| Wire::Drop);
    let a = pair.connect(5000, 1000);
    pair.flush();
    let seq = pair.log[0].esp().seq;
    let block = set_up(5, 6);
    let forged = Forge::ack(Seq(1), seq.plus(1)).ports(5000, 1000);
    let forged = forged.set_up(wire::FLAG_SYN | wire::FLAG_ACK, &block);
    pair.inject(MAC_B, MAC_A, forged.build());
    assert_eq!(pair.a.state(a), State::SynSent);
    assert_eq!(pair.a.ep.counters().rx_drop_stale_setup, 1);
    assert_eq!(pair.log.len(), 1, "no answer");
}

#[test]
fn an_answer_with_a_wrong_number_is_reset_and_ignored() {
    let mut pair = Pair::new();
    pair.filter = Box::new(|_| Wire::Drop);
    let a = pair.connect(5000, 1000);
    pair.flush();
    let syn = pair.log[0].clone();
    let nonce = wire::SetUp::parse(syn.esp().payload).unwrap().nonce;
    let block = set_up(5, nonce);
    let forged = Forge::ack(Seq(1), syn.esp().seq.plus(5)).ports(5000, 1000);
    let forged = forged.set_up(wire::FLAG_SYN | wire::FLAG_ACK, &block);
    pair.inject(MAC_B, MAC_A, forged.build());
    assert_eq!(pair.a.state(a), State::SynSent);
    let answer = pair.log[1].esp();
    assert_eq!(
        (answer.kind, answer.seq),
        (FrameType::Rst, syn.esp().seq.plus(5))
    );
}

#[test]
fn time_wait_gives_way_to_a_new_connection_of_the_peer() {
    let (mut pair, a, b) = Pair::connected();
    // B finishes first, so B waits.
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(1));
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.b.ep.info(b).unwrap().state, State::TimeWait);
    assert_eq!(
        pair.b.app(b).closed,
        Some(CloseReason::Finished),
        "already reported to the host"
    );
    assert_eq!(pair.a.ep.info(a), None);
    let again = pair.connect(5000, 1000);
    pair.run_until(Duration::from_millis(1), |p| {
        p.a.state(again) == State::Established
    });
    assert_eq!(pair.b.ep.counters().time_wait_reclaimed, 1);
    assert_eq!(pair.b.ep.info(b), None);
}

#[test]
fn time_wait_survives_the_end_of_its_listener() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(1));
    pair.a.ep.shutdown(pair.now, a);
    pair.b.ep.unlisten(pair.now, 1000);
    pair.run(Duration::from_millis(1));
    let again = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    assert_eq!(
        pair.a.app(again).closed,
        Some(CloseReason::Reset(ResetReason::Refused))
    );
    assert_eq!(pair.b.ep.info(b).unwrap().state, State::TimeWait);
}

#[test]
fn time_wait_gives_way_to_an_own_connection() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(1));
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.a.ep.info(a).unwrap().state, State::TimeWait);
    let again = pair.connect(5000, 1000);
    assert_ne!(again, a);
    pair.run_until(Duration::from_millis(1), |p| {
        p.a.state(again) == State::Established
    });
}

#[test]
fn ids_are_never_reused() {
    let mut pair = Pair::new();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let a = pair.connect(5000, 1000);
        assert!(seen.insert(a));
        assert!(a.slot < 2, "slots are reused");
        pair.run(Duration::from_millis(1));
        assert!(pair.a.app(a).closed.is_some());
        assert_eq!(pair.a.ep.info(a), None);
    }
}
