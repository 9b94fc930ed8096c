//! Verification of large payloads (W-53).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

fn jumbo_blocked() -> Box<dyn FnMut(&OnWire) -> Wire> {
    Box::new(|f| {
        if f.body.len() > 1502 {
            Wire::Drop
        } else {
            Wire::Pass
        }
    })
}

#[test]
fn a_switch_without_jumbo_frames_costs_only_size() {
    let mut pair = Pair::with(9000, EndpointConfig::default());
    pair.filter = jumbo_blocked();
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.a.write(pair.now, a, 500_000);
    pair.run(Duration::from_millis(50));
    let b = pair.b.only();
    assert_eq!(pair.b.app(b).received, 500_000);
    let info = pair.a.ep.info(a).unwrap();
    assert_eq!(
        (info.payload, info.payload_agreed, info.retransmits),
        (1489, 8989, 0)
    );
}

#[test]
fn probes_back_off_and_go_on_slowly() {
    let mut pair = Pair::with(9000, EndpointConfig::default());
    pair.filter = jumbo_blocked();
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_secs(25));
    let large = |f: &&OnWire| f.kind() == FrameType::Probe && f.header().len == 8989;
    let times: Vec<_> = pair.sent(MAC_A, 0).filter(large).map(|f| f.at).collect();
    let gaps: Vec<_> = times
        .windows(2)
        .map(|w| (w[1] - w[0]).as_millis())
        .collect();
    assert_eq!(gaps[..6], [10, 20, 40, 80, 160, 10_000]);
    // The switch is reconfigured: the next probe detects it.
    pair.filter = Box::new(|_| Wire::Pass);
    pair.run(Duration::from_secs(10));
    assert_eq!(pair.a.ep.info(a).unwrap().payload, 8989);
    let probes = pair.sent(MAC_A, 0).filter(large).count();
    pair.run(Duration::from_secs(30));
    assert_eq!(pair.sent(MAC_A, 0).filter(large).count(), probes);
    pair.a.write(pair.now, a, 100_000);
    pair.run(Duration::from_millis(10));
    assert_eq!(pair.b.app(pair.b.only()).received, 100_000);
    assert!(
        pair.log
            .iter()
            .any(|f| f.kind() == FrameType::Data && f.header().len == 8989)
    );
}

#[test]
fn an_answer_to_another_size_verifies_nothing() {
    let mut pair = Pair::with(9000, EndpointConfig::default());
    pair.filter = jumbo_blocked();
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    let n = pair.numbers();
    let answer = |len: u16| {
        let [x, y] = len.to_be_bytes();
        Forge::ack(n.b_next, n.a_next)
            .ports(5000, 1000)
            .ext(&[4, 2, x, y])
            .build()
    };
    pair.inject(MAC_B, MAC_A, answer(8988));
    assert_eq!(pair.a.ep.info(a).unwrap().payload, 1489);
    pair.inject(MAC_B, MAC_A, answer(8989));
    assert_eq!(pair.a.ep.info(a).unwrap().payload, 8989);
}

/// W-19: a longer packet is dropped even if it arrives.
#[test]
fn data_beyond_the_agreed_payload_is_dropped() {
    let (mut pair, _, b) = Pair::connected();
    let n = pair.numbers();
    for (len, received) in [(1490, 0), (1489, 1489)] {
        let bytes: Vec<u8> = (0..len).map(pattern).collect();
        let data = Forge::ack(n.a_next, n.b_next).payload(&bytes);
        pair.inject(MAC_A, MAC_B, data.build());
        assert_eq!(pair.b.app(b).received, received);
    }
    assert_eq!(pair.b.ep.counters().rx_drop_too_long, 1);
}

/// W-19.
#[test]
fn sides_with_different_mtus_use_the_smaller() {
    let mut pair = Pair::with(9000, EndpointConfig::default());
    pair.b = Node::new(MAC_B, 4000, 2, EndpointConfig::default());
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(5));
    let b = pair.b.only();
    assert_eq!(pair.a.ep.info(a).unwrap().payload, 3989);
    assert_eq!(pair.b.ep.info(b).unwrap().payload, 3989);
    pair.a.write(pair.now, a, 100_000);
    pair.b.write(pair.now, b, 100_000);
    pair.run(Duration::from_millis(50));
    assert_eq!(
        (pair.a.app(a).received, pair.b.app(b).received),
        (100_000, 100_000)
    );
}

#[test]
fn a_payload_that_no_longer_fits_ends_in_a_timeout() {
    let (mut pair, a, b) = Pair::connected_with(9000, EndpointConfig::default());
    pair.run(Duration::from_millis(5));
    pair.filter = jumbo_blocked();
    pair.a.write(pair.now, a, 100_000);
    pair.b.write(pair.now, b, 10);
    let took = pair.run_until(Duration::from_secs(31), |p| p.a.app(a).closed.is_some());
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
    assert!(took >= Duration::from_secs(30), "{took:?}");
}
