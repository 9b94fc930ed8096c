//! Registered message memory is as configured, for each number of peers.

use std::io::IoSlice;
use std::time::Duration;

use btl::{Btl, Events, PeerError, Rank, Tx};
use fake_verbs::Fabric;
use ib_btl::{IbBtl, IbConfig};

struct Discard;

impl Events for Discard {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, _: &[u8], _: &[u8]) {}
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        panic!("{peer}: {error}");
    }
}

/// Returns the number of bytes that rank 0 has registered when connected with `peers` peers, and
/// the number computed from its configuration.
fn memory(peers: u32, change: fn(IbConfig) -> IbConfig) -> (u64, usize) {
    let fabric = Fabric::new();
    let config = |rank| {
        let mut config = change(IbConfig::new(rank, peers + 1, b"memory"));
        config.add_wait = Duration::ZERO;
        config
    };
    let mut all: Vec<IbBtl> = (0..=peers)
        .map(|rank| IbBtl::over(Box::new(fabric.nic().unwrap().1), config(rank)).unwrap())
        .collect();
    let (first, others) = all.split_first_mut().unwrap();
    for (rank, other) in (1..).zip(others) {
        first.add_peer(rank, &other.address()).unwrap();
        other.add_peer(0, &first.address()).unwrap();
        while first
            .send(rank, b"", &[IoSlice::new(b"connected")])
            .is_err()
        {
            first.progress(&mut Discard);
            other.progress(&mut Discard);
        }
    }
    (
        fabric.registered(0).0,
        config(0).message_memory(peers as usize),
    )
}

#[test]
fn each_peer_takes_a_ring_or_no_memory() {
    for peers in [1, 2, 15] {
        for change in [|config| config, IbConfig::shared] {
            let (is, computed) = memory(peers, change);
            assert_eq!(is, computed as u64, "{peers} peers");
        }
    }
    assert_eq!(
        memory(15, |config| config).0 - memory(14, |config| config).0,
        67 * 4096
    );
    assert_eq!(
        memory(15, IbConfig::shared).0,
        memory(1, IbConfig::shared).0
    );
}
