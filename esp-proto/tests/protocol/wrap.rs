//! Sequence numbers that wrap around many times.

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

#[test]
fn a_stream_survives_many_wraps_with_loss() {
    let config = EndpointConfig {
        max_window: 4096,
        ..EndpointConfig::default()
    };
    let (mut pair, a, b) = Pair::connected_with(1500, config);
    pair.keep_log = false;
    let mut n = 0u32;
    // One frame in 97 is lost, one in 61 is duplicated, in both directions.
    pair.filter = Box::new(move |_| {
        n += 1;
        match (n.is_multiple_of(97), n.is_multiple_of(61)) {
            (true, _) => Wire::Drop,
            (_, true) => Wire::Twice,
            _ => Wire::Pass,
        }
    });
    // A small agreed payload makes many packets of few bytes; with 64-byte packets the program
    // would write each separately.
    let packets = 5 * 65536u64;
    let total = packets * 1489;
    let mut written = 0;
    while written < total {
        let chunk = (total - written).min(1 << 20);
        pair.a.write(pair.now, a, chunk);
        written += chunk;
        pair.run_until(Duration::from_secs(5), |p| p.b.app(b).received == written);
    }
    let info = pair.a.ep.info(a).unwrap();
    assert!(info.packets_sent >= packets);
    assert_eq!(pair.b.ep.counters().rx_drop_beyond_credit, 0);
    assert_eq!(
        pair.a.ep.counters().rx_drop_ack_forged + pair.b.ep.counters().rx_drop_ack_forged,
        0
    );
}

#[test]
fn every_first_sequence_near_the_wrap_works() {
    // The first sequence comes from the seed; find seeds that put the wrap inside a short transfer.
    let mut found = 0;
    for seed in 0..=255u8 {
        let mut pair = Pair::new();
        pair.a = Node::new(MAC_A, 1500, seed, EndpointConfig::default());
        pair.listen(1000, 4);
        let a = pair.connect(5000, 1000);
        pair.flush();
        let first = pair
            .log
            .iter()
            .find(|f| f.kind() == FrameType::Syn)
            .unwrap()
            .esp()
            .seq;
        if first.0 < 65536u32.wrapping_sub(1000) as u16 {
            continue;
        }
        found += 1;
        pair.a.write(pair.now, a, 3_000_000);
        pair.run(Duration::from_millis(300));
        assert_eq!(pair.b.app(pair.b.only()).received, 3_000_000);
    }
    assert!(found > 0, "some seed must come near the wrap");
}
