//! The wait for answers of peers at the start.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use btl::{Btl, Events, PeerInfo, Probe, Rank, SendError, Tx, Unreachable};
use btl::{HeldSends, NoticedPuts, PendingPeers};
use btl_conformance::loopback::Limits;
use p2p::{NotStarted, P2p, Setup, StartError, TransportAddress};

use crate::common::{config, loopbacks};
use crate::passed_on::passed_on;

const SIZE: u32 = 4;
const NAMES: [&str; 2] = ["first", "second"];

/// Number of polls for each transport and peer.
type Polls = Arc<Mutex<BTreeMap<(&'static str, Rank), u32>>>;

/// Returns whether a peer answers over a transport, given the polls so far.
type Answers = fn(&BTreeMap<(&'static str, Rank), u32>, &'static str, Rank) -> bool;

/// Transport over which peers answer late or never.
#[derive(Debug)]
struct Slow {
    inner: Box<dyn Btl>,
    polls: Polls,
    answers: Answers,
}

impl Tx for Slow {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.inner.send(peer, header, body)
    }
}

impl HeldSends for Slow {}

impl NoticedPuts for Slow {}

impl PendingPeers for Slow {}

impl Btl for Slow {
    passed_on!();

    fn probe(&mut self, peer: Rank, _: &[u8]) -> Probe {
        let mut polls = self.polls.lock().unwrap();
        *polls.entry((self.inner.name(), peer)).or_default() += 1;
        match (self.answers)(&polls, self.inner.name(), peer) {
            true => Probe::Reached,
            false => Probe::Awaited,
        }
    }

    /// Waits for nothing.
    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let polls = self.polls.lock().unwrap();
        if (self.answers)(&polls, self.inner.name(), peer) {
            return self.inner.add_peer(peer, address);
        }
        Err(Unreachable {
            reason: "no answer".into(),
        })
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        self.inner.progress(events)
    }
}

/// Starts rank 1 over two transports.
fn start(answers: Answers) -> (Result<P2p, NotStarted>, Polls) {
    let polls = Polls::default();
    let mut all: Vec<Vec<TransportAddress>> = vec![Vec::new(); SIZE as usize];
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for name in NAMES {
        let limits = Limits {
            name,
            ..Limits::default().plain()
        };
        for (rank, one) in loopbacks(SIZE, limits).0.into_iter().enumerate() {
            for inner in one {
                all[rank].push(TransportAddress {
                    transport: name.into(),
                    address: inner.address(),
                });
                match rank {
                    1 => own.push(Box::new(Slow {
                        inner,
                        polls: Arc::clone(&polls),
                        answers,
                    }) as Box<dyn Btl>),
                    _ => others.push(inner),
                }
            }
        }
    }
    let setup = Setup {
        rank: 1,
        size: SIZE,
        transports: own,
        config: config(SIZE),
    };
    let started = P2p::start(setup, |peer| Ok(all[peer as usize].clone()));
    drop(others);
    (started, polls)
}

/// A transport that waited for one peer after the other would never see an answer.
#[test]
fn all_peers_are_probed_over_all_transports_at_once() {
    let (started, polls) = start(|polls, _, _| {
        let expected = NAMES.len() * (SIZE as usize - 1);
        polls.len() == expected && polls.values().all(|count| *count >= 3)
    });
    let layer = started.expect("all answer");
    assert!(
        layer.paths().iter().all(|path| path.used),
        "{:?}",
        layer.paths()
    );
    assert!(!polls.lock().unwrap().contains_key(&("first", 1)), "itself");
}

#[test]
fn a_peer_that_one_transport_reaches_needs_no_other() {
    let (started, _) = start(|_, name, peer| name == "second" || peer == 3);
    let paths = started.expect("the second one reaches all").paths();
    let of = |peer, name| {
        let mut paths = paths.iter();
        let found = paths.find(|path| path.peer == peer && path.transport == name);
        found.expect("a report").clone()
    };
    assert!(of(3, "first").used && of(3, "second").used && of(0, "second").used);
    let silent = of(0, "first");
    assert!(!silent.used && silent.reason == "no answer", "{silent:?}");
}

#[test]
fn a_silent_peer_is_named() {
    let (started, polls) = start(|_, _, peer| peer != 2);
    let error = started.expect_err("rank 2 never answers").error;
    match error {
        StartError::Unreachable { peer, reasons } => {
            assert_eq!(
                (peer, reasons.as_str()),
                (2, "first: no answer\nsecond: no answer")
            );
        }
        other => panic!("{other}"),
    }
    // The others are not asked again.
    assert_eq!(polls.lock().unwrap()[&("first", 0)], 1);
}
