//! Peers of an endpoint: declared by its owner, reached by the first send, or strangers that have
//! connected; and reports of completed requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use btl::{PeerError, Rank};

use super::account::{OPEN_WINDOW, eager_limit, open_limit};
use super::contexts::Contexts;
use super::peer::{Peer, Rail};
use super::protocol::Protocol;
use super::request::RequestOutcome;
use super::transports::Engine;
use crate::error::Error;
use crate::ids::{PeerId, TransportId};
use crate::regions::Regions;
use crate::types::TransportAddress;

/// Maximum number of peers that connected without having been declared and that are alive or whose
/// messages still wait. Others are refused.
const MAX_STRANGERS: usize = 4096;
/// Number of strangers for which the memory for unexpected messages grows.
const EXPECTED_STRANGERS: usize = 64;
/// Number of peers at which strangers are no longer admitted, because a number is never reused.
const MAX_NUMBERS: u32 = 64 << 10;
/// Maximum number of strangers admitted in one poll.
const ADMISSIONS: usize = 16;

/// State of an endpoint in addition to that of a rank.
#[derive(Debug)]
pub(crate) struct Open {
    identity: u64,
    /// Peers by identity, including this endpoint.
    numbers: HashMap<u64, PeerId>,
    /// Identities by number.
    identities: Vec<u64>,
    /// Addresses of declared peers to which nothing was sent.
    addresses: HashMap<PeerId, Vec<TransportAddress>>,
    /// Declared peers whose addresses were tried because of a connection in their name: anyone may
    /// make such a connection, and trying takes time.
    tried: HashSet<PeerId>,
    /// Peers that were not declared and that are alive or whose messages still wait.
    strangers: HashSet<PeerId>,
    /// Number of declared peers.
    declared: usize,
    /// Memory that peers may access.
    pub(super) regions: Arc<Regions>,
    /// Every access of a peer is reported.
    pub(crate) reports_accesses: bool,
    /// Accesses of peers to be reported.
    pub(crate) served: VecDeque<Served>,
}

/// An access of a peer that this process has served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) peer: PeerId,
    pub(crate) key: u64,
    pub(crate) writes: bool,
    pub(crate) atomic: bool,
    pub(crate) length: usize,
    pub(crate) data: Option<u64>,
}

/// A completed request.
#[derive(Debug)]
pub(crate) struct Reported {
    pub(crate) cookie: u64,
    pub(crate) sends: bool,
    pub(crate) accesses: bool,
    pub(crate) peer: Option<PeerId>,
    pub(crate) context: u32,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) length: usize,
    pub(crate) result: Result<(), Error>,
}

impl Open {
    /// Returns the identity of a peer.
    pub(crate) fn identity_of(&self, peer: Rank) -> Option<u64> {
        self.identities.get(peer as usize).copied()
    }

    /// Returns the number of peers that share the memory for unexpected messages.
    pub(super) fn sharers(&self) -> usize {
        self.declared + self.strangers.len()
    }

    /// Returns the peer with this identity.
    pub(crate) fn number_of(&self, identity: u64) -> Option<PeerId> {
        self.numbers.get(&identity).copied()
    }
}

impl Protocol {
    /// Turns the state of a job of one rank into that of an endpoint.
    pub(crate) fn open(&mut self, identity: u64, regions: Arc<Regions>) {
        self.contexts = Contexts::new(true);
        self.open = Some(Box::new(Open {
            identity,
            numbers: HashMap::from([(identity, self.own)]),
            identities: vec![identity],
            addresses: HashMap::new(),
            tried: HashSet::new(),
            strangers: HashSet::new(),
            declared: 0,
            regions,
            reports_accesses: false,
            served: VecDeque::new(),
        }));
    }

    /// Declares a peer, which the first send reaches by the addresses. Equal identities return
    /// equal numbers.
    pub(crate) fn declare(
        &mut self,
        identity: u64,
        addresses: Vec<TransportAddress>,
    ) -> Result<PeerId, Error> {
        let invalid = Error::InvalidArgument("not an endpoint, or too many peers");
        let open = self.open.as_mut().ok_or(invalid.clone())?;
        if let Some(&known) = open.numbers.get(&identity) {
            if open.strangers.remove(&known) {
                open.declared += 1;
                self.set_open_limit();
            }
            return Ok(known);
        }
        let peer = self.add_peer(identity, Peer::without_rails(OPEN_WINDOW));
        let peer = peer.ok_or(invalid)?;
        if let Some(open) = &mut self.open {
            open.addresses.insert(peer, addresses);
            open.declared += 1;
        }
        self.set_open_limit();
        Ok(peer)
    }

    fn add_peer(&mut self, identity: u64, peer: Peer) -> Option<PeerId> {
        let open = self.open.as_mut()?;
        if self.peers.size() >= i32::MAX as u32 {
            return None;
        }
        let peer = self.peers.push(peer)?;
        open.numbers.insert(identity, peer);
        open.identities.push(identity);
        Some(peer)
    }

    fn add_stranger(&mut self, identity: u64) -> Option<PeerId> {
        let count = self.open.as_ref()?.strangers.len();
        if count >= MAX_STRANGERS || self.peers.size() >= MAX_NUMBERS {
            return None;
        }
        let peer = self.add_peer(identity, Peer::without_rails(OPEN_WINDOW))?;
        self.open.as_mut()?.strangers.insert(peer);
        self.set_open_limit();
        Some(peer)
    }

    /// Removes the peer that was added last and never had a connection.
    fn remove_stranger(&mut self, identity: u64) {
        if let Some(open) = &mut self.open
            && let Some(peer) = open.numbers.remove(&identity)
        {
            open.identities.pop();
            open.tried.remove(&peer);
            open.strangers.remove(&peer);
            self.peers.0.pop();
            self.set_open_limit();
        }
    }

    /// Makes room for another stranger if this one has failed and no message of it waits.
    pub(super) fn forget_stranger(&mut self, peer: PeerId) {
        let state = &self.peers[peer];
        if !state.alive
            && state.account.waiting == 0
            && let Some(open) = &mut self.open
            && open.strangers.remove(&peer)
        {
            self.set_open_limit();
        }
    }

    fn set_open_limit(&mut self) {
        let Some(open) = &self.open else { return };
        let peers = open.declared + open.strangers.len().min(EXPECTED_STRANGERS);
        self.limit = open_limit(self.config.unexpected_bytes, peers);
    }

    /// Returns a completed request of the endpoint, and forgets it.
    pub(crate) fn next_report(&mut self) -> Option<Reported> {
        loop {
            let key = self.reports.pop_front()?;
            let Some(request) = self.requests.get(key).copied() else {
                continue;
            };
            let result = match request.outcome {
                // The owner compares the length with that of its buffer.
                RequestOutcome::Done => Ok(()),
                _ => self.result(&request).map(|_| ()),
            };
            self.requests.remove(key);
            return Some(Reported {
                cookie: request.cookie.unwrap_or_default(),
                sends: request.is_send(),
                accesses: request.access != 0,
                peer: request.peer,
                context: request.context,
                tag: request.tag,
                data: request.data,
                length: request.length,
                result,
            });
        }
    }
}

impl Engine {
    /// Connects to a declared peer, unless that was tried before. Fails the peer if no transport
    /// reaches it.
    pub(super) fn reach(&mut self, peer: PeerId) {
        if let Err((_, error)) = self.try_reach(peer) {
            self.protocol.fail(peer, error, None);
        }
    }

    /// Connects to a declared peer as [`reach`](Engine::reach) does. Returns its addresses if no
    /// transport reaches it.
    fn try_reach(&mut self, peer: PeerId) -> Result<(), (Vec<TransportAddress>, PeerError)> {
        let Some(open) = &mut self.protocol.open else {
            return Ok(());
        };
        let Some(addresses) = open.addresses.remove(&peer) else {
            return Ok(());
        };
        let lower = open.identity < open.identity_of(peer.rank()).unwrap_or_default();
        let transports = &mut self.transports;
        let mut reached =
            crate::start::reach(transports, peer.rank(), (&addresses, lower), |_, _| true);
        let rails = crate::start::choose(transports, &mut reached);
        if rails.is_empty() {
            let reasons = crate::start::reasons(&reached.reports);
            let error = PeerError::Lost(format!("it cannot be reached: {reasons}"));
            return Err((addresses, error));
        }
        self.set_rails(peer, rails);
        Ok(())
    }

    fn set_rails(&mut self, peer: PeerId, rails: Vec<Rail>) {
        let state = &mut self.protocol.peers[peer];
        state.set_rails(rails, &self.protocol.config, eager_limit(OPEN_WINDOW));
        self.transports.set_held(state);
    }

    /// Admits peers that have connected without having been added. Returns their number.
    pub(super) fn admit_strangers(&mut self) -> usize {
        let mut admitted = 0;
        for transport in self.transports.ids() {
            while admitted < ADMISSIONS
                && let Some(identity) = self.transports[transport].btl.stranger()
            {
                self.admit(transport, identity);
                admitted += 1;
            }
        }
        admitted
    }

    fn admit(&mut self, transport: TransportId, identity: u64) {
        let Some(open) = &self.protocol.open else {
            return;
        };
        let known = open.number_of(identity);
        let peer = match known {
            None => self.protocol.add_stranger(identity),
            Some(peer) => {
                Some(peer).filter(|_| self.protocol.peers[peer].alive && peer != self.protocol.own)
            }
        };
        let Some(peer) = peer else {
            let reason = "this endpoint refuses its connection";
            let btl = &mut self.transports[transport].btl;
            return btl.refuse_stranger(identity, reason);
        };
        // A declared peer is reached as by a send, and so over the same rails; if its addresses do
        // not reach it, by the connection that it has made.
        let open = self.protocol.open.as_mut();
        let unreached = match open.map(|open| open.tried.insert(peer)) {
            Some(true) => self.try_reach(peer).err(),
            _ => None,
        };
        let btl = &mut self.transports[transport].btl;
        // Reaching it may have accepted the connection.
        let waits = btl.stranger() == Some(identity);
        let added = waits.then(|| btl.admit(peer.rank(), identity));
        if !self.protocol.peers[peer].rails.is_empty() {
            return;
        }
        match added {
            Some(Ok(info)) => {
                if let Some(open) = &mut self.protocol.open {
                    open.addresses.remove(&peer);
                }
                self.set_rails(peer, vec![Rail::new(transport, info)]);
            }
            // Others may have used its identity: the connection is refused, but the peer may still
            // be reached, or connect.
            _ if known.is_none() => self.protocol.remove_stranger(identity),
            _ => {
                if let Some((addresses, _)) = unreached
                    && let Some(open) = &mut self.protocol.open
                {
                    open.addresses.insert(peer, addresses);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::peer::Peers;

    fn protocol() -> Protocol {
        let own = PeerId::new(0, 1).unwrap();
        let peers = Peers(vec![Peer::own()]);
        let mut protocol = Protocol::new(own, peers, Config::default());
        protocol.open(1, Arc::default());
        protocol
    }

    #[test]
    fn strangers_make_room_when_none_of_their_messages_is_left() {
        let mut protocol = protocol();
        let all: Vec<PeerId> = (0..MAX_STRANGERS as u64)
            .map(|at| protocol.add_stranger(100 + at).unwrap())
            .collect();
        assert_eq!(protocol.add_stranger(50), None);
        // Most of them do not add to the memory.
        let expected = open_limit(protocol.config.unexpected_bytes, EXPECTED_STRANGERS);
        assert_eq!(protocol.limit, expected);
        protocol.charge(all[0], 1000);
        for peer in [all[0], all[1]] {
            protocol.fail(peer, PeerError::Left, None);
            protocol.forget_stranger(peer);
        }
        assert!(protocol.add_stranger(50).is_some());
        assert_eq!(protocol.add_stranger(51), None);
        protocol.release(all[0], 1000);
        let last = protocol.add_stranger(51).unwrap();
        // A peer that was never connected leaves no trace.
        protocol.remove_stranger(51);
        assert_eq!(protocol.add_stranger(52), Some(last));
        // A declared stranger is not a stranger any more.
        assert_eq!(protocol.declare(52, Vec::new()), Ok(last));
        assert!(protocol.add_stranger(53).is_some());
    }
}
