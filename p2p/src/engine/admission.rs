//! Peers of an endpoint: declared by its owner, reached by the first send, or strangers that have
//! connected; and the report of ended requests.

use std::collections::HashMap;

use btl::{PeerError, Rank};

use super::account::{OPEN_WINDOW, eager_limit, open_limit};
use super::contexts::Contexts;
use super::peer::{Peer, Rail};
use super::protocol::Protocol;
use super::request::RequestOutcome;
use super::transports::Engine;
use crate::error::Error;
use crate::ids::{PeerId, TransportId};
use crate::types::TransportAddress;

/// Maximum number of peers that connected without having been declared. Others are refused.
const MAX_STRANGERS: usize = 4096;
/// Maximum number of strangers admitted in one poll.
const ADMISSIONS: usize = 16;

/// State of an endpoint that a rank does not have.
#[derive(Debug)]
pub(crate) struct Open {
    identity: u64,
    /// Peers by identity, the own one included.
    numbers: HashMap<u64, PeerId>,
    /// Identities by number.
    identities: Vec<u64>,
    /// Addresses of declared peers that nothing was sent to.
    addresses: HashMap<PeerId, Vec<TransportAddress>>,
    strangers: usize,
}

/// A request that is over.
#[derive(Debug)]
pub(crate) struct Reported {
    pub(crate) cookie: u64,
    pub(crate) sends: bool,
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

    /// Returns the peer with this identity.
    pub(crate) fn number_of(&self, identity: u64) -> Option<PeerId> {
        self.numbers.get(&identity).copied()
    }
}

impl Protocol {
    /// Turns the state of a job of one rank into that of an endpoint.
    pub(crate) fn open(&mut self, identity: u64) {
        self.contexts = Contexts::new(true);
        self.open = Some(Box::new(Open {
            identity,
            numbers: HashMap::from([(identity, self.own)]),
            identities: vec![identity],
            addresses: HashMap::new(),
            strangers: 0,
        }));
    }

    /// Declares a peer, which the first send reaches by the addresses. Returns the same number for
    /// the same identity.
    pub(crate) fn declare(
        &mut self,
        identity: u64,
        addresses: Vec<TransportAddress>,
    ) -> Result<PeerId, Error> {
        let invalid = Error::InvalidArgument("not an endpoint, or too many peers");
        let open = self.open.as_mut().ok_or(invalid.clone())?;
        if let Some(&known) = open.numbers.get(&identity) {
            return Ok(known);
        }
        let peer = self.add_peer(identity, Peer::without_rails(OPEN_WINDOW));
        let peer = peer.ok_or(invalid)?;
        if let Some(open) = &mut self.open {
            open.addresses.insert(peer, addresses);
        }
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
        self.limit = open_limit(self.config.unexpected_bytes, self.peers.size());
        Some(peer)
    }

    /// Returns a request of the endpoint that is over, and forgets it.
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
    /// Reaches a declared peer, if that was not tried before. Fails the peer if no transport does.
    pub(super) fn reach(&mut self, peer: PeerId) {
        let Some(open) = &mut self.protocol.open else {
            return;
        };
        let Some(addresses) = open.addresses.remove(&peer) else {
            return;
        };
        let lower = open.identity < open.identity_of(peer.rank()).unwrap_or_default();
        let transports = &mut self.transports;
        let mut reached = crate::start::reach(transports, peer.rank(), &addresses, lower);
        let rails = crate::start::choose(transports, &mut reached);
        if rails.is_empty() {
            let reasons = crate::start::reasons(&reached.reports);
            let error = PeerError::Lost(format!("it cannot be reached: {reasons}"));
            return self.protocol.fail(peer, error, None);
        }
        self.set_rails(peer, rails);
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
        let Some(open) = &mut self.protocol.open else {
            return;
        };
        let known = open.number_of(identity);
        let too_many = known.is_none() && open.strangers >= MAX_STRANGERS;
        let peer = match known {
            _ if too_many => None,
            None => {
                open.strangers += 1;
                self.protocol
                    .add_peer(identity, Peer::without_rails(OPEN_WINDOW))
            }
            Some(peer) => {
                let alive = self.protocol.peers[peer].alive && peer != self.protocol.own;
                // A declared peer is reached as by a send, and so over the same rails.
                if alive {
                    self.reach(peer);
                }
                Some(peer).filter(|_| alive)
            }
        };
        let btl = &mut self.transports[transport].btl;
        let Some(peer) = peer else {
            let reason = "this endpoint takes no connection from it";
            return btl.refuse_stranger(identity, reason);
        };
        // Reaching it may have accepted the connection.
        if btl.stranger() != Some(identity) {
            return;
        }
        let added = btl.admit(peer.rank(), identity);
        match added {
            _ if !self.protocol.peers[peer].rails.is_empty() => {}
            Ok(info) => self.set_rails(peer, vec![Rail::new(transport, info)]),
            Err(error) => self
                .protocol
                .fail(peer, PeerError::Lost(error.reason), None),
        }
    }
}
