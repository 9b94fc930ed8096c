//! Messages at every distance, and the chunks that they take.

use btl::{Btl, Tx};
use std::io::IoSlice;

use super::{Seen, transport};
use crate::config::ShmConfig;
use crate::transport::{PeerState, ShmBtl};

/// Headers and bodies.
#[derive(Default)]
struct Whole(Vec<(Vec<u8>, Vec<u8>)>);

impl btl::Events for Whole {
    fn message(&mut self, _: &mut dyn Tx, _: u32, header: &[u8], body: &[u8]) {
        self.0.push((header.to_vec(), body.to_vec()));
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), btl::PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: u32, _: btl::PeerError) {}
}

#[test]
fn long_messages_are_complete_at_every_distance() {
    let (mut one, mut other) = (transport(0), transport(1));
    one.add_peer(1, &other.address()).expect("reachable");
    other.add_peer(0, &one.address()).expect("reachable");
    let source: Vec<u8> = (0..33_000u32).map(|i| (i % 251) as u8).collect();
    for far in [false, true] {
        for (header, from, length) in [
            (1, 0, 32_768),
            (48, 3, 20_001),
            (49, 1, 32_703),
            (64, 0, 32_768),
        ] {
            let PeerState::Added(peer) = &mut one.peers[1] else {
                panic!("the peer is added")
            };
            let state = if far {
                crate::distance::Distance::far()
            } else {
                Default::default()
            };
            *peer.producer.distance() = state;
            let (header, body) = (&source[100..100 + header], &source[from..from + length]);
            one.send(1, header, &[IoSlice::new(body)]).expect("room");
            let mut heard = Whole::default();
            other.progress(&mut heard);
            assert!(
                heard.0 == [(header.to_vec(), body.to_vec())],
                "far {far}, {length} bytes"
            );
        }
    }
}

#[test]
fn unchanged_lines_do_not_affect_the_distance() {
    let (mut one, other) = (transport(0), transport(1));
    one.add_peer(1, &other.address()).expect("reachable");
    let PeerState::Added(peer) = &mut one.peers[1] else {
        panic!("the peer is added")
    };
    *peer.producer.distance() = crate::distance::Distance::far();
    for _ in 0..200 {
        peer.producer.refresh_timed().expect("nothing was consumed");
    }
    assert!(peer.producer.distance().is_far());
}

#[test]
fn chunks_of_a_living_peer_are_not_used_for_others() {
    let make = |rank| {
        let config = ShmConfig::new(rank, 3, format!("chunks-{}", std::process::id()));
        ShmBtl::new(config).expect("shared memory")
    };
    let mut all = [make(0), make(1), make(2)];
    let addresses = [0, 1, 2].map(|rank: usize| all[rank].address());
    for (rank, peer) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        all[rank]
            .add_peer(peer as u32, &addresses[peer])
            .expect("reachable");
    }
    let [one, late, other] = &mut all;
    let body = vec![3u8; 20_000];
    one.send(1, b"h", &[IoSlice::new(&body)]).expect("room");
    let mut seen = Seen::default();
    assert!(one.drop_peer(1));
    one.progress(&mut seen);
    assert_eq!(seen.0, ["lost 1"]);
    one.send(2, b"h", &[IoSlice::new(&vec![9u8; 20_000])])
        .expect("room");
    let (mut heard, mut heard_other) = (Seen::default(), Seen::default());
    late.progress(&mut heard);
    other.progress(&mut heard_other);
    assert_eq!(
        (heard.1, std::mem::take(&mut heard_other.1)),
        (vec![body], vec![vec![9u8; 20_000]])
    );
    // It has read them or ended the connection, so they are returned.
    let begin = std::time::Instant::now();
    while !one.closing.is_empty() {
        one.progress(&mut seen);
        late.progress(&mut heard_other);
        assert!(begin.elapsed().as_secs() < 20, "chunks are lost");
    }
    assert_eq!(one.live, 1);
}
