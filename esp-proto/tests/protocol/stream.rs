//! Bytes from one end to the other.

use crate::common::*;
use esp_proto::*;

#[test]
fn handshake_data_and_close() {
    let (mut pair, a, b) = Pair::connected();
    assert_eq!(pair.a.events, [Event::Connected(a)]);
    pair.a.write(pair.now, a, 100_000);
    pair.b.write(pair.now, b, 50_000);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.b.app(b).received, 100_000);
    assert_eq!(pair.a.app(a).received, 50_000);
    assert_eq!(pair.a.app(a).acked, 100_000);
    assert_eq!(pair.b.app(b).acked, 50_000);
    pair.a.ep.shutdown(pair.now, a);
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(200));
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::Finished));
    assert_eq!(pair.b.app(b).closed, Some(CloseReason::Finished));
    assert_eq!(pair.a.ep.connections().count(), 0);
    assert_eq!(pair.b.ep.connections().count(), 0);
    assert_eq!(pair.a.ep.counters().tx_retransmits, 0);
    assert_eq!(pair.b.ep.counters().rx_dropped(), 0);
    assert_eq!(pair.a.ep.counters().rx_dropped(), 0);
}

#[test]
fn jumbo_payload_is_used_only_after_it_was_verified() {
    let mut pair = Pair::with(9000, EndpointConfig::default());
    pair.listen(1000, 8);
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_micros(50));
    pair.a.write(pair.now, a, 20_000);
    pair.run(Duration::from_millis(5));
    let b = pair.b.only();
    assert_eq!(pair.b.app(b).received, 20_000);
    let info = pair.a.ep.info(a).unwrap();
    assert_eq!((info.payload, info.payload_agreed), (8989, 8989));
    let probe = pair
        .log
        .iter()
        .position(|f| f.header().len == 8989)
        .unwrap();
    assert_eq!(pair.log[probe].kind(), wire::FrameType::Probe);
}

#[test]
fn every_other_frame_lost_still_arrives() {
    let (mut pair, a, b) = Pair::connected();
    let mut n = 0u32;
    pair.filter = Box::new(move |_| {
        n += 1;
        if n.is_multiple_of(2) {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    pair.a.write(pair.now, a, 300_000);
    pair.a.ep.shutdown(pair.now, a);
    pair.run_until(Duration::from_secs(10), |p| p.b.app(b).finished);
    assert_eq!(pair.b.app(b).received, 300_000);
}

#[test]
fn a_thousand_connections_share_one_endpoint() {
    let mut pair = Pair::new();
    pair.keep_log = false;
    pair.listen(1000, 1000);
    let conns: Vec<_> = (0..1000).map(|n| pair.connect(2000 + n, 1000)).collect();
    pair.run(Duration::from_millis(5));
    let mut n = 0u32;
    pair.filter = Box::new(move |_| {
        n += 1;
        if n.is_multiple_of(50) {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    for (n, conn) in conns.iter().enumerate() {
        pair.a.write(pair.now, *conn, 1000 + n as u64 * 10);
        pair.a.ep.shutdown(pair.now, *conn);
    }
    pair.run(Duration::from_secs(1));
    let sum: u64 = pair.b.apps.values().map(|app| app.received).sum();
    assert_eq!(sum, (0..1000).map(|n| 1000 + n * 10).sum());
    assert!(pair.b.apps.values().all(|app| app.finished));
}

#[test]
fn an_endpoint_may_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Endpoint>();
}
