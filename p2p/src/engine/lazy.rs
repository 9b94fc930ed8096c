//! Peers of a large job, which are reached when they are used: by a message or a receive of this
//! process, or by a connection of theirs.

use std::collections::HashMap;
use std::time::Duration;

use btl::{PeerError, Rank};

use super::account::{eager_limit, window};
use super::peer::{Contact, MAX_RAILS, Rail};
use super::protocol::{Protocol, Work};
use super::transports::Engine;
use crate::ids::{PeerId, TransportId};
use crate::start::{self, Probes};
use crate::types::{AddressBook, TransportAddress};

/// Longest time that the probes of a peer without an answer take. The job runs, so its node may be
/// busy.
const LIMIT: Duration = Duration::from_secs(10);

/// Addresses of the peers, and those that are being reached.
#[derive(Debug)]
pub(super) struct Lazy {
    book: Box<dyn AddressBook>,
    /// Probes of one peer each.
    begun: Vec<(PeerId, Probes)>,
    /// Addresses of the peers that were reached.
    addresses: HashMap<PeerId, Vec<TransportAddress>>,
}

impl Protocol {
    /// Has a peer reached that was not used before.
    #[inline]
    pub(super) fn use_peer(&mut self, peer: PeerId) {
        if self.peers[peer].contact == Contact::OnUse {
            self.peers[peer].contact = Contact::Begun;
            self.work.push_back(Work::Reach(peer));
        }
    }
}

impl Engine {
    /// Sets where the addresses of peers are looked up that are not reached yet.
    pub(crate) fn look_up_in(&mut self, book: Box<dyn AddressBook>) {
        self.lazy = Some(Box::new(Lazy {
            book,
            begun: Vec::new(),
            addresses: HashMap::new(),
        }));
    }

    /// Looks up the addresses of a peer, and begins to probe them.
    pub(super) fn begin_reach(&mut self, peer: PeerId) {
        let Some(lazy) = &mut self.lazy else { return };
        match lazy.book.addresses(peer.rank()) {
            Ok(addresses) => {
                let peers = vec![(peer.rank(), addresses)];
                let mut probes = Probes::new(&self.transports, peers, self.protocol.own.rank());
                probes.limit = LIMIT;
                lazy.begun.push((peer, probes));
                self.protocol.reaching += 1;
            }
            Err(reason) => {
                self.protocol.peers[peer].contact = Contact::Made;
                let error = PeerError::Lost(format!("its addresses are unknown: {reason}"));
                self.protocol.fail(peer, error, None);
            }
        }
    }

    /// Advances the probes, and handles peers that have connected. Returns the number of events.
    pub(super) fn reach_used(&mut self) -> usize {
        let mut events = self.use_pending();
        let Some(lazy) = &mut self.lazy else {
            return events;
        };
        let mut at = 0;
        let mut over = Vec::new();
        while let Some((_, probes)) = lazy.begun.get_mut(at) {
            match probes.poll(&mut self.transports) {
                true => over.push(lazy.begun.swap_remove(at)),
                false => at += 1,
            }
        }
        for (peer, probes) in over {
            events += 1;
            self.protocol.reaching -= 1;
            self.end_reach(peer, probes);
        }
        events
    }

    /// Has peers reached that have connected. One that was reached over other transports than that
    /// of its connection gets a further rail.
    fn use_pending(&mut self) -> usize {
        let mut events = 0;
        for id in self.transports.ids() {
            for rank in self.transports[id].btl.pending_peers() {
                events += usize::from(self.use_pending_peer(id, rank));
            }
        }
        events
    }

    /// Handles one of them. Returns false if it is being reached.
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
        let name = self.transports.name(id);
        let addresses = self
            .lazy
            .as_ref()
            .and_then(|lazy| lazy.addresses.get(&peer));
        let state = &self.protocol.peers[peer];
        let added = addresses.into_iter().flatten();
        let added = added.filter(|address| state.alive && address.transport == name);
        let mut failed = "this process does not reach it by this transport".to_owned();
        for address in added {
            match start::add_peer(&mut self.transports, id, peer.rank(), address) {
                Ok(info) => {
                    let mut rails = std::mem::take(&mut self.protocol.peers[peer].rails);
                    if rails.len() < MAX_RAILS {
                        rails.push(Rail::new(id, info));
                    }
                    self.set_reached(peer, rails);
                    return Ok(());
                }
                Err(unreachable) => failed = unreachable.reason,
            }
        }
        Err(failed)
    }

    /// Adds a peer to the transports that reach it, and sends what waits for it.
    fn end_reach(&mut self, peer: PeerId, mut probes: Probes) {
        self.protocol.peers[peer].contact = Contact::Made;
        let lower = self.protocol.own < peer;
        for (rank, addresses) in std::mem::take(&mut probes.peers) {
            let is_over = |id, address| probes.is_over(id, address);
            let peer_addresses = (&addresses[..], lower);
            let mut reached = start::reach(&mut self.transports, rank, peer_addresses, is_over);
            let rails = start::choose(&self.transports, &mut reached);
            if let Some(lazy) = &mut self.lazy {
                lazy.book.reached(&reached.reports);
                lazy.addresses.insert(peer, addresses);
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
    }

    fn set_reached(&mut self, peer: PeerId, rails: Vec<Rail>) {
        let limit = eager_limit(window(self.protocol.peers.size()));
        let state = &mut self.protocol.peers[peer];
        state.set_rails(rails, &self.protocol.config, limit);
        self.transports.set_held(state);
    }
}
