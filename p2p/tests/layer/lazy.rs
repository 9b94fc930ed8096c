//! Jobs whose peers are reached when they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use btl::{Btl, Events, PeerError, PeerInfo, Probe, Rank, SendError, Tx, Unreachable};
use btl::{HeldSends, NoticedPuts, PendingPeers};
use btl_conformance::loopback::Limits;
use p2p::{AddressBook, Error, Op, P2p, Setup, Source, Tag, TransportAddress};

use crate::common::{config, each, loopbacks, pattern};
use crate::passed_on::passed_on;

const SIZE: u32 = 6;
/// Ranks of a node.
const NODE: u32 = 2;
const FIRST: &str = "first";
const SECOND: &str = "second";

/// Shared state of the processes of a job.
#[derive(Debug, Default)]
struct Connections {
    /// Pairs of a rank and a peer that it has added, by transport.
    added: BTreeSet<(&'static str, Rank, Rank)>,
    /// Pairs of a rank and a peer to which it has connected.
    waiting: BTreeSet<(&'static str, Rank, Rank)>,
    /// Such pairs, once the peer has refused the connection, with the reason.
    refused: BTreeMap<(&'static str, Rank, Rank), String>,
    /// Pairs of a rank and a peer that it does not reach.
    broken: BTreeSet<(&'static str, Rank, Rank)>,
    /// Pairs of a rank and a peer that it does not reach before the peer has connected.
    silent: BTreeSet<(&'static str, Rank, Rank)>,
    /// Pairs of a rank and a peer whose addresses it does not find.
    unpublished: BTreeSet<(Rank, Rank)>,
    /// Number of polls that the probe of a peer that is not near takes.
    probes: u32,
    /// Peers whose addresses a rank has read.
    looked_up: BTreeSet<(Rank, Rank)>,
}

type Shared = Arc<Mutex<Connections>>;

/// Transport whose messages to a peer wait until the peer has added this rank.
#[derive(Debug)]
struct Gate {
    inner: Box<dyn Btl>,
    own: Rank,
    shared: Shared,
    polls: BTreeMap<Rank, u32>,
}

impl Gate {
    /// Returns the triple of [`Connections`] from this rank to a peer.
    fn to(&self, peer: Rank) -> (&'static str, Rank, Rank) {
        (self.inner.name(), self.own, peer)
    }

    /// Returns the triple from a peer to this rank.
    fn by(&self, peer: Rank) -> (&'static str, Rank, Rank) {
        (self.inner.name(), peer, self.own)
    }
}

impl Gate {
    fn is_silent(&self, peer: Rank) -> bool {
        let shared = self.shared.lock().unwrap();
        shared.silent.contains(&self.to(peer)) && !shared.waiting.contains(&self.by(peer))
    }
}

impl Tx for Gate {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        let mut shared = self.shared.lock().unwrap();
        assert!(shared.added.contains(&self.to(peer)), "not added");
        if !shared.added.contains(&self.by(peer)) {
            shared.waiting.insert(self.to(peer));
            return Err(SendError::Busy);
        }
        drop(shared);
        self.inner.send(peer, header, body)
    }
}

impl HeldSends for Gate {}

impl NoticedPuts for Gate {}

impl PendingPeers for Gate {
    fn pending_peers(&self) -> Vec<Rank> {
        let shared = self.shared.lock().unwrap();
        let mine =
            |(name, _, to): &&(&str, Rank, Rank)| (*name, *to) == (self.inner.name(), self.own);
        let waiting = shared.waiting.iter().filter(mine).map(|(_, from, _)| *from);
        waiting
            .filter(|from| {
                let added = shared.added.contains(&self.to(*from));
                !added && !shared.refused.contains_key(&self.by(*from))
            })
            .collect()
    }

    fn is_pending_from(&self, rank: Rank, _: &[u8]) -> bool {
        self.pending_peers().contains(&rank)
    }

    fn refuse(&mut self, rank: Rank, reason: &str) {
        let by = self.by(rank);
        let mut shared = self.shared.lock().unwrap();
        shared.refused.insert(by, reason.to_owned());
    }
}

impl Btl for Gate {
    passed_on!();

    fn probe(&mut self, peer: Rank, _: &[u8]) -> Probe {
        let polls = self.polls.entry(peer).or_default();
        *polls += 1;
        let is_near = peer / NODE == self.own / NODE;
        let is_late = is_near || *polls > self.shared.lock().unwrap().probes;
        match is_late && !self.is_silent(peer) {
            true => Probe::Reached,
            false => Probe::Awaited,
        }
    }

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let to = self.to(peer);
        let silent = self.is_silent(peer);
        let mut shared = self.shared.lock().unwrap();
        if silent || shared.broken.contains(&to) {
            return Err(Unreachable {
                reason: "a broken wire".into(),
            });
        }
        shared.added.insert(to);
        drop(shared);
        self.inner.add_peer(peer, address)
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        let mut refused = Vec::new();
        let mut shared = self.shared.lock().unwrap();
        for peer in 0..SIZE {
            refused.extend(shared.refused.remove(&self.to(peer)).map(|why| (peer, why)));
        }
        drop(shared);
        for (peer, reason) in refused {
            events.failed(self, peer, PeerError::Lost(reason));
        }
        self.inner.progress(events)
    }
}

#[derive(Debug)]
struct Book {
    own: Rank,
    all: Arc<Vec<Vec<TransportAddress>>>,
    shared: Shared,
}

impl AddressBook for Book {
    fn is_near(&self, peer: Rank) -> bool {
        peer / NODE == self.own / NODE
    }

    fn addresses(&mut self, peer: Rank) -> Result<Vec<TransportAddress>, String> {
        let mut shared = self.shared.lock().unwrap();
        assert!(shared.looked_up.insert((self.own, peer)), "looked up twice");
        match shared.unpublished.contains(&(self.own, peer)) {
            true => Err("not published".into()),
            false => Ok(self.all[peer as usize].clone()),
        }
    }
}

/// Starts a job over these transports. `change` prepares the state that its processes share.
fn start(names: &[&'static str], change: impl FnOnce(&mut Connections)) -> (Vec<P2p>, Shared) {
    let shared = Shared::default();
    let mut transports: Vec<Vec<Box<dyn Btl>>> = Vec::new();
    transports.resize_with(SIZE as usize, Vec::new);
    for &name in names {
        let limits = Limits {
            name,
            ..Limits::default().plain()
        };
        for (rank, one) in (0..).zip(loopbacks(SIZE, limits).0) {
            transports[rank as usize].extend(one.into_iter().map(|inner| {
                Box::new(Gate {
                    inner,
                    own: rank,
                    shared: Arc::clone(&shared),
                    polls: BTreeMap::new(),
                }) as Box<dyn Btl>
            }));
        }
    }
    let setups: Vec<Setup> = (0..)
        .zip(transports)
        .map(|(rank, transports)| Setup {
            rank,
            size: SIZE,
            transports,
            config: config(SIZE),
        })
        .collect();
    let all: Arc<Vec<_>> = Arc::new(setups.iter().map(P2p::addresses).collect());
    change(&mut shared.lock().unwrap());
    let start = |setup: Setup| {
        let book = Book {
            own: setup.rank,
            all: Arc::clone(&all),
            shared: Arc::clone(&shared),
        };
        let started = P2p::start_lazily(setup, Box::new(book), |_| Ok(None));
        started.expect("the ranks of a node are reached")
    };
    (setups.into_iter().map(start).collect(), shared)
}

/// Returns the ranks that a rank has looked up.
fn looked_up(shared: &Shared, rank: Rank) -> Vec<Rank> {
    let shared = shared.lock().unwrap();
    let of_rank = shared.looked_up.iter().filter(|(own, _)| *own == rank);
    of_rank.map(|(_, peer)| *peer).collect()
}

#[test]
fn a_rank_reaches_those_that_it_uses() {
    let (layers, shared) = start(&[FIRST], |_| {});
    // Its own entry is not needed.
    assert_eq!(looked_up(&shared, 2), [3]);
    let results = each(layers, "ring", |layer, world| {
        let own = world.rank();
        let (next, last) = ((own + 1) % SIZE, (own + SIZE - 1) % SIZE);
        let mut got = vec![0; 100_000];
        let message = pattern(100_000, own as usize);
        world
            .sendrecv(&message, next, 1, &mut got, last, 1)
            .unwrap();
        assert_eq!(got, pattern(100_000, last as usize));
        let used = layer.paths().into_iter().filter(|path| path.used);
        used.map(|path| path.peer).collect::<BTreeSet<Rank>>()
    });
    for (rank, used) in (0..).zip(results) {
        let near = rank ^ 1;
        let far = [(rank + 1) % SIZE, (rank + SIZE - 1) % SIZE];
        let expected = BTreeSet::from([rank, near, far[0], far[1]]);
        assert_eq!(used, expected, "{rank}");
        let mut looked_up = looked_up(&shared, rank);
        looked_up.push(rank);
        assert_eq!(BTreeSet::from_iter(looked_up), expected, "{rank}");
    }
}

#[test]
fn a_rank_that_receives_from_any_reaches_those_that_connect() {
    let (layers, shared) = start(&[FIRST], |_| {});
    each(layers, "any", |_, world| {
        if world.rank() != 0 {
            return world.send(&world.rank().to_le_bytes(), 0, 3).unwrap();
        }
        let mut from = BTreeSet::new();
        for _ in 1..SIZE {
            let mut got = [0; 4];
            let status = world.recv(&mut got, Source::Any, Tag::Any).unwrap();
            assert_eq!(status.source, u32::from_le_bytes(got));
            from.insert(status.source);
        }
        assert_eq!(from.len() as u32, SIZE - 1);
    });
    assert_eq!(looked_up(&shared, 0), [1, 2, 3, 4, 5]);
    assert_eq!(looked_up(&shared, 5), [0, 4]);
}

#[test]
fn collectives_reach_the_peers_they_need() {
    let (layers, _) = start(&[FIRST, SECOND], |shared| shared.probes = 20);
    let sums = each(layers, "allreduce", |_, world| {
        let mut all = [u64::from(world.rank()) + 1];
        world.allreduce(&mut all, Op::Sum).unwrap();
        world.barrier().unwrap();
        all[0]
    });
    assert_eq!(sums, vec![u64::from(SIZE * (SIZE + 1) / 2); SIZE as usize]);
}

/// Probes take long; messages to others do not wait for them.
#[test]
fn messages_wait_for_the_probes_of_their_peer_alone() {
    let (layers, _) = start(&[FIRST], |shared| shared.probes = 3000);
    each(layers, "probes", |_, world| match world.rank() {
        0 => {
            let far = world.isend_owned(vec![7; 10], 4, 1).unwrap();
            world.send(&[1u8], 1, 1).unwrap();
            far.wait().0.unwrap();
        }
        1 => {
            world.recv(&mut [0u8], 0, 1).unwrap();
        }
        4 => {
            let mut got = [0u8; 10];
            world.recv(&mut got, 0, 1).unwrap();
            assert_eq!(got, [7; 10]);
        }
        _ => {}
    });
}

#[test]
fn a_peer_that_no_transport_reaches_fails() {
    let (layers, _) = start(&[FIRST], |shared| {
        shared.broken.insert((FIRST, 0, 2));
        shared.unpublished.insert((0, 4));
    });
    each(layers, "unreachable", |layer, world| {
        if world.rank() != 0 {
            return;
        }
        let reason = |error: Error| match error {
            Error::PeerFailed { peer, error } => (peer, error.to_string()),
            other => panic!("{other}"),
        };
        let sent = reason(world.send(&[1u8], 2, 0).unwrap_err());
        assert!(
            sent.0 == 2 && sent.1.contains("cannot be reached: first: a broken wire"),
            "{sent:?}"
        );
        let received = reason(world.recv(&mut [0u8], 4, 0).unwrap_err());
        assert!(
            received.0 == 4 && received.1.contains("addresses are unknown: not published"),
            "{received:?}"
        );
        let again = reason(world.send(&[1u8], 2, 0).unwrap_err());
        assert_eq!(again, sent);
        let path = layer.paths().into_iter().find(|path| path.peer == 2);
        assert!(path.is_some_and(|path| !path.used && path.reason == "a broken wire"));
    });
}

/// Rank 2 reaches rank 0 over the first transport, but not the other way round.
#[test]
fn a_peer_that_is_reached_in_one_direction_only_gets_the_reason() {
    let (layers, _) = start(&[FIRST], |shared| {
        shared.broken.insert((FIRST, 0, 2));
    });
    each(layers, "one direction", |_, world| match world.rank() {
        0 => {
            let error = world.recv(&mut [0u8], 2, 0).unwrap_err();
            assert!(error.to_string().contains("a broken wire"), "{error}");
        }
        2 => {
            let sent = world.send(&[1u8; 64], 0, 0);
            let error = sent.unwrap_err().to_string();
            assert!(
                error.contains("does not reach it over this transport"),
                "{error}"
            );
        }
        _ => {}
    });
}

/// Rank 2 does not answer rank 0 over the first transport, but uses it.
#[test]
fn a_peer_that_connects_over_another_transport_gets_a_rail() {
    let (layers, _) = start(&[FIRST, SECOND], |shared| {
        shared.silent.insert((FIRST, 0, 2));
    });
    let rails = each(layers, "another rail", |layer, world| {
        let own = world.rank();
        let message = |rank: Rank| pattern(1 << 20, rank as usize);
        let mut got = vec![0; 1 << 20];
        let other = match own {
            0 => 2,
            2 => 0,
            _ => return Vec::new(),
        };
        // Rank 0 begins, so that its probes are complete when the other one connects.
        for sender in [0, 2, 0] {
            if own == sender {
                world.send(&message(own), other, 0).unwrap();
            } else {
                world.recv(&mut got, other, 0).unwrap();
                assert_eq!(got, message(other));
            }
        }
        let rails = layer.rails().into_iter().filter(|rail| rail.peer == other);
        rails.map(|rail| rail.transport).collect()
    });
    assert_eq!(rails[0], [SECOND, FIRST]);
    assert_eq!(rails[2], [FIRST, SECOND]);
}

#[test]
fn the_end_waits_for_messages_to_peers_that_are_being_reached() {
    let (mut layers, _) = start(&[FIRST], |shared| shared.probes = 300);
    let receiver = layers.remove(3);
    let sender = layers.remove(0);
    let thread = std::thread::spawn(move || {
        let world = sender.world();
        let sent = world.isend_owned(vec![9; 300], 3, 0).unwrap();
        sender.finalize().unwrap();
        sent.wait().0.unwrap();
    });
    let mut got = [0u8; 300];
    receiver.world().recv(&mut got, 0, 0).unwrap();
    assert_eq!(got, [9; 300]);
    thread.join().unwrap();
}
