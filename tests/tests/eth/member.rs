//! Ranks that a test polls itself.

use std::io::IoSlice;
use std::path::Path;

use btl::{Btl, Events, PeerError, Rank, SendError, Tx};
use btl_eth::address::EthAddress;
use btl_eth::{EthBtl, EthConfig};
use esp_tests::wait_until;
use lab::Lab;

pub(super) const JOB: &[u8] = b"the job of these tests";

/// Daemon configuration with short timeouts.
pub(super) const IMPATIENT: &str =
    "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"400ms\"\nconnect_timeout = \"1s\"\n";

/// Events of a transport.
#[derive(Default)]
pub(super) struct Log {
    pub(super) messages: Vec<(Rank, Vec<u8>, Vec<u8>)>,
    pub(super) failed: Vec<(Rank, PeerError)>,
}

impl Events for Log {
    fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        self.messages.push((peer, header.to_vec(), body.to_vec()));
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, _: Result<(), PeerError>) {
        panic!("completion of unknown operation {token}");
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.failed.push((peer, error));
    }
}

/// A rank of a test.
pub(super) struct Member {
    pub(super) btl: EthBtl,
    pub(super) log: Log,
}

impl Member {
    pub(super) fn new(socket: &Path, rank: Rank, size: u32) -> Member {
        Member::with_limit(socket, rank, size, None)
    }

    /// Makes a rank with a limit of connections.
    pub(super) fn with_limit(
        socket: &Path,
        rank: Rank,
        size: u32,
        max_connections: Option<usize>,
    ) -> Member {
        let mut config = EthConfig::new(rank, size, JOB);
        config.max_connections = max_connections;
        Member::with(socket, config)
    }

    pub(super) fn with(socket: &Path, mut config: EthConfig) -> Member {
        config.socket = socket.to_owned();
        Member {
            btl: EthBtl::new(config).expect("a transport"),
            log: Log::default(),
        }
    }

    pub(super) fn at(lab: &Lab, node: usize, rank: Rank, size: u32) -> Member {
        Member::new(&lab.socket(node), rank, size)
    }

    pub(super) fn step(&mut self) -> usize {
        self.btl.progress(&mut self.log)
    }

    pub(super) fn port(&self) -> u16 {
        EthAddress::decode(&self.btl.address())
            .expect("its own address")
            .port
    }
}

/// Adds all ranks to each other.
pub(super) fn join(members: &mut [Member]) {
    let addresses: Vec<_> = members.iter().map(|member| member.btl.address()).collect();
    for member in members {
        for (rank, address) in (0..).zip(&addresses) {
            member.btl.add_peer(rank, address).expect("reachable");
        }
    }
}

/// Polls all ranks until `done`.
pub(super) fn run(
    what: &str,
    members: &mut [&mut Member],
    mut done: impl FnMut(&mut [&mut Member]) -> bool,
) {
    wait_until(what, || {
        for _ in 0..200 {
            for member in members.iter_mut() {
                member.step();
            }
            if done(members) {
                return true;
            }
        }
        false
    });
}

/// Sends a message, polling all ranks until it is accepted.
pub(super) fn send(members: &mut [&mut Member], from: usize, to: Rank, body: &[u8]) {
    run("a message is taken", members, |members| {
        match members[from].btl.send(to, b"h", &[IoSlice::new(body)]) {
            Ok(()) => true,
            Err(SendError::Busy) => false,
            Err(error) => panic!("{error}"),
        }
    });
}

/// Exchanges one message in each direction.
pub(super) fn talk(left: &mut Member, right: &mut Member, ranks: (Rank, Rank)) {
    let members = &mut [left, right];
    send(members, 0, ranks.1, b"there");
    send(members, 1, ranks.0, b"and back");
    run("both come", members, |members| {
        members.iter().all(|member| !member.log.messages.is_empty())
    });
    assert_eq!(
        members[0].log.messages.pop(),
        Some((ranks.1, b"h".to_vec(), b"and back".to_vec()))
    );
    assert_eq!(
        members[1].log.messages.pop(),
        Some((ranks.0, b"h".to_vec(), b"there".to_vec()))
    );
}

pub(super) fn until_failed(what: &str, member: &mut Member, peer: Rank) -> PeerError {
    run(what, &mut [member], |members| {
        members[0].log.failed.iter().any(|(rank, _)| *rank == peer)
    });
    let failed = &member.log.failed;
    assert_eq!(
        failed.iter().filter(|(rank, _)| *rank == peer).count(),
        1,
        "once: {failed:?}"
    );
    failed
        .iter()
        .find(|(rank, _)| *rank == peer)
        .expect("just seen")
        .1
        .clone()
}
