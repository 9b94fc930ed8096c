//! Peers of a large job, which are reached when they are used: by a message or a receive of this
//! process, or by a connection of theirs.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use btl::{PeerError, Rank};

use super::account::{eager_limit, window};
use super::peer::{Contact, MAX_RAILS, Rail};
use super::protocol::{Protocol, Work};
use super::transports::Engine;
use crate::ids::{PeerId, TransportId};
use crate::probes::Probes;
use crate::start::{self, Reached};
use crate::types::{AddressBook, PathReport, TransportAddress};

/// Maximum time for which a peer that does not answer is probed. The job runs, so its node may be
/// busy.
const LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of look-ups in one poll: each asks the launcher.
const LOOKUPS: usize = 4;
/// Maximum number of peers that are probed at once.
const PROBED: usize = 256;
/// Time between two polls of the probes.
const INTERVAL: Duration = Duration::from_micros(100);

/// Addresses of the peers, and those that are being reached.
#[derive(Debug)]
pub(super) struct Lazy {
    book: Box<dyn AddressBook>,
    /// Peers to be looked up.
    used: VecDeque<PeerId>,
    /// Time of the last poll of the probes.
    polled: Option<Instant>,
    /// Probes of one peer each.
    begun: Vec<(PeerId, Probes)>,
    /// Addresses of the peers that were reached.
    addresses: HashMap<PeerId, Vec<TransportAddress>>,
}

impl Protocol {
    /// Queues a peer to be reached on its first use.
    #[inline]
    pub(super) fn use_peer(&mut self, peer: PeerId) {
        if self.peers[peer].contact == Contact::OnUse {
            self.peers[peer].contact = Contact::Begun;
            self.work.push_back(Work::Reach(peer));
        }
    }
}

impl Engine {
    /// Sets the book in which the addresses of peers are looked up, if some are not reached yet.
    pub(crate) fn look_up_in(&mut self, book: Box<dyn AddressBook>) {
        let mut peers = self.protocol.peers.iter();
        if !peers.any(|(_, peer)| peer.contact == Contact::OnUse) {
            return;
        }
        self.lazy = Some(Box::new(Lazy {
            book,
            used: VecDeque::new(),
            polled: None,
            begun: Vec::new(),
            addresses: HashMap::new(),
        }));
    }

    /// Queues a peer whose addresses the next polls look up.
    pub(super) fn begin_reach(&mut self, peer: PeerId) {
        if let Some(lazy) = &mut self.lazy {
            lazy.used.push_back(peer);
            self.protocol.reaching += 1;
        }
    }

    /// Looks up the addresses of a peer, and begins to probe them.
    fn look_up(&mut self, peer: PeerId) {
        let Some(lazy) = &mut self.lazy else { return };
        match lazy.book.addresses(peer.rank()) {
            Ok(addresses) => {
                let peers = vec![(peer.rank(), addresses)];
                let mut probes = Probes::new(&self.transports, peers, self.protocol.own.rank());
                probes.limit = LIMIT;
                lazy.begun.push((peer, probes));
            }
            Err(reason) => {
                self.protocol.reaching -= 1;
                self.protocol.peers[peer].contact = Contact::Made;
                let error = PeerError::Lost(format!("its addresses are unknown: {reason}"));
                self.protocol.fail(peer, error, None);
            }
        }
    }

    /// Advances the probes, and handles peers that have connected. Returns the number of events.
    pub(super) fn reach_used(&mut self) -> usize {
        let mut events = self.use_pending();
        for _ in 0..LOOKUPS {
            let Some(lazy) = &mut self.lazy else { break };
            if lazy.begun.len() >= PROBED {
                break;
            }
            let Some(peer) = lazy.used.pop_front() else {
                break;
            };
            self.look_up(peer);
            events += 1;
        }
        for (peer, probes) in self.poll_probes() {
            events += 1;
            self.end_reach(peer, probes);
        }
        events
    }

    /// Polls the probes if it is time. Returns those that are complete.
    fn poll_probes(&mut self) -> Vec<(PeerId, Probes)> {
        let mut done = Vec::new();
        let Some(lazy) = self.lazy.as_mut().filter(|lazy| !lazy.begun.is_empty()) else {
            return done;
        };
        let now = Instant::now();
        if lazy.polled.is_some_and(|last| now - last < INTERVAL) {
            return done;
        }
        lazy.polled = Some(now);
        let mut at = 0;
        while let Some((_, probes)) = lazy.begun.get_mut(at) {
            match probes.poll(&mut self.transports) {
                true => done.push(lazy.begun.swap_remove(at)),
                false => at += 1,
            }
        }
        done
    }

    /// Reaches peers that have connected. A peer that was reached over transports other than that
    /// of its connection gets another rail.
    fn use_pending(&mut self) -> usize {
        let mut events = 0;
        for id in self.transports.ids() {
            for rank in self.transports[id].btl.pending_peers() {
                events += usize::from(self.use_pending_peer(id, rank));
            }
        }
        events
    }

    /// Handles a peer that has connected. Returns false if it is being reached.
    fn use_pending_peer(&mut self, id: TransportId, rank: Rank) -> bool {
        let peer = self.protocol.peers.id(rank);
        let contact = peer.map(|peer| (peer, self.protocol.peers[peer].contact));
        let refused = match contact {
            Some((_, Contact::Begun)) => return false,
            Some((peer, Contact::OnUse)) => {
                self.protocol.use_peer(peer);
                Ok(())
            }
            Some((peer, Contact::Made)) => self.add_rail(peer, id),
            None => Err("there is no such rank".to_owned()),
        };
        if let Err(reason) = refused {
            self.transports[id].btl.refuse(rank, &reason);
        }
        true
    }

    /// Adds a transport to the rails of a peer that uses it.
    fn add_rail(&mut self, peer: PeerId, id: TransportId) -> Result<(), String> {
        let rank = peer.rank();
        let (name, btl) = (self.transports.name(id), &self.transports[id].btl);
        let addresses = self
            .lazy
            .as_ref()
            .and_then(|lazy| lazy.addresses.get(&peer));
        let mut addresses = addresses.into_iter().flatten();
        let is_its = |address: &&TransportAddress| {
            address.transport == name && btl.is_pending_from(rank, &address.address)
        };
        let address = addresses.find(is_its).cloned();
        let Some(address) = address.filter(|_| self.protocol.peers[peer].alive) else {
            return Err("this process does not reach it over this transport".to_owned());
        };
        let added = start::add_peer(&mut self.transports, id, rank, &address);
        let info = added.map_err(|unreachable| unreachable.reason)?;
        let is_it = |path: &&mut PathReport| path.peer == rank && path.transport == name;
        let mut paths = self.paths.iter_mut().filter(is_it);
        let mut rails = std::mem::take(&mut self.protocol.peers[peer].rails);
        if rails.len() < MAX_RAILS {
            if let Some(path) = paths.find(|path| !path.used) {
                path.used = true;
                path.path = Some(info.clone());
                path.reason = "the peer uses it".into();
            }
            rails.push(Rail::new(id, info));
        }
        self.set_reached(peer, rails);
        Ok(())
    }

    /// Adds a peer to the transports that reach it, and sends what waits for it.
    fn end_reach(&mut self, peer: PeerId, mut probes: Probes) {
        let own = self.protocol.own;
        let peers = std::mem::take(&mut probes.peers);
        let (mut reached, mut rails) = (Reached::default(), Vec::new());
        if let Some((rank, addresses)) = peers.first()
            && self.protocol.peers[peer].alive
        {
            let answered = |id, address| probes.is_settled(id, address);
            let to = (&addresses[..], own < peer);
            reached = start::reach(&mut self.transports, *rank, to, answered);
            rails = start::choose(&self.transports, &mut reached);
            if rails.is_empty() {
                probes.peers = peers;
                let again = probes.again(&self.transports, own.rank());
                if let Some((again, lazy)) = again.zip(self.lazy.as_mut()) {
                    lazy.begun.push((peer, again));
                    return;
                }
            } else if let Some(lazy) = &mut self.lazy {
                lazy.addresses.insert(peer, addresses.clone());
            }
        }
        self.protocol.reaching -= 1;
        self.protocol.peers[peer].contact = Contact::Made;
        if let Some(lazy) = &mut self.lazy {
            lazy.book.reached(&reached.reports);
        }
        if rails.is_empty() {
            let mut reasons = start::reasons(&reached.reports);
            if let Some(lazy) = &self.lazy {
                reasons = lazy.book.explain(reasons);
            }
            let error = PeerError::Lost(format!("it cannot be reached: {reasons}"));
            self.protocol.fail(peer, error, None);
        } else {
            self.set_reached(peer, rails);
            self.protocol.activate(peer);
        }
        self.paths.append(&mut reached.reports);
    }

    fn set_reached(&mut self, peer: PeerId, rails: Vec<Rail>) {
        let limit = eager_limit(window(self.protocol.peers.size()));
        let state = &mut self.protocol.peers[peer];
        state.set_rails(rails, &self.protocol.config, limit);
        self.transports.set_held(state);
    }
}
