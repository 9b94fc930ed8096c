//! Owners share the turns to send.

use crate::common::*;
use esp_proto::*;

#[test]
fn connections_and_owners_send_32_frames_in_turn() {
    assert_eq!(turns([0, 0]), [32; 4]);
    assert_eq!(turns([1, 2]), [32; 4]);
}

/// Returns how many frames the connections of two owners send in turn.
fn turns(owners: [u32; 2]) -> Vec<usize> {
    let mut pair = Pair::new();
    pair.listen(1000, 64);
    let conns = [5000, 5001].map(|port| pair.connect(port, 1000));
    pair.run(Duration::from_millis(2));
    for (conn, owner) in conns.into_iter().zip(owners) {
        pair.a.ep.set_owner(conn, owner);
    }
    // The windows grow beyond a turn.
    for _ in 0..20 {
        for conn in conns {
            pair.a.write(pair.now, conn, 100_000);
        }
        pair.run(Duration::from_millis(20));
    }
    let from = pair.log.len();
    for conn in conns {
        pair.a.write(pair.now, conn, 64 * 1489);
    }
    pair.flush();
    let ports = pair.sent(MAC_A, from).map(|frame| frame.header().src_port);
    let ports: Vec<_> = ports.collect();
    let turns = ports.chunk_by(|a, b| a == b);
    turns.map(<[_]>::len).collect()
}

/// The frames of a connection do not wait for those of all connections of another owner.
#[test]
fn owners_send_in_turn() {
    let mut pair = Pair::new();
    pair.listen(1000, 64);
    let many: Vec<_> = (0..40).map(|n| pair.connect(5000 + n, 1000)).collect();
    let one = pair.connect(6000, 1000);
    pair.run(Duration::from_millis(2));
    for conn in &many {
        pair.a.ep.set_owner(*conn, 1);
    }
    pair.a.ep.set_owner(one, 2);
    for conn in many.iter().chain([&one]) {
        pair.a.write(pair.now, *conn, 100_000);
    }
    let from = pair.log.len();
    pair.flush();
    let ports: Vec<_> = (pair.sent(MAC_A, from))
        .map(|frame| frame.header().src_port)
        .collect();
    let first = ports.iter().position(|port| *port == 6000);
    assert!(
        first.is_some_and(|first| first <= 32),
        "{first:?} of {}",
        ports.len()
    );
    assert!(ports.len() > 300, "{}", ports.len());
    pair.run(Duration::from_secs(5));
    for conn in many.iter().chain([&one]) {
        assert_eq!(pair.a.app(*conn).acked, 100_000);
    }
}
