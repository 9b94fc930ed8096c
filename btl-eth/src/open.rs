//! Open transports: peers without ranks.
//!
//! A peer is known by its identity, the nonce of its address. HELLO, which has no ranks to name
//! then, has what the acceptor needs to connect by itself later: the port of the connector's
//! listener and the maximum length of a message.

use btl::{PeerInfo, Rank, Unreachable};

use crate::address::job_hash;
use crate::config::MIN_MAX_SEND;
use crate::peer::{Peer, PeerState};
use crate::record::Hello;
use crate::transport::EthBtl;

impl EthBtl {
    /// Returns the hash of a key in the addresses of open transports.
    #[must_use]
    pub fn open_key(key: &[u8]) -> [u8; 16] {
        job_hash(&[b"open\0", key].concat())
    }

    /// Returns `from` and `to` of a HELLO to a peer.
    pub(crate) fn hello_numbers(&self, rank: Rank) -> (u32, u32) {
        match self
            .open
            .as_ref()
            .filter(|_| self.config.identity.is_some())
        {
            Some(open) => {
                let max_send = u32::try_from(self.max_send).unwrap_or(u32::MAX);
                (open.listener.port().into(), max_send)
            }
            None => (self.config.rank, rank),
        }
    }

    /// Returns the number of the sender of a HELLO; `Some(None)`: a stranger. `None`: the HELLO is
    /// not for this transport, or from a rank that the job does not have.
    pub(crate) fn caller(&self, hello: &Hello) -> Option<Option<Rank>> {
        if hello.to_nonce != self.nonce {
            return None;
        }
        if self.config.identity.is_some() {
            let number = self.numbers.get(&hello.from_nonce).copied();
            return (hello.from_nonce != self.nonce).then_some(number);
        }
        let own = self.config.rank;
        let exists = (hello.from as usize) < self.peers.len();
        (hello.to == own && hello.from != own && exists).then_some(Some(hello.from))
    }

    /// Creates the place of a peer of an open transport.
    pub(crate) fn make_place(&mut self, peer: Rank) {
        let places = peer as usize + 1;
        if self.config.identity.is_some() && peer < self.config.size && self.peers.len() < places {
            self.peers.resize_with(places, || PeerState::Unknown);
        }
    }

    /// Records a peer that was added.
    pub(crate) fn enter(&mut self, rank: Rank, state: PeerState) {
        if self.config.identity.is_some()
            && let PeerState::Peer(peer) = &state
        {
            self.numbers.insert(peer.nonce, rank);
        }
        if let Some(place) = self.peers.get_mut(rank as usize) {
            *place = state;
        }
    }

    /// Adds a stranger, which is reached over the connection that it has opened; see
    /// [`btl::PendingPeers::admit`].
    pub(crate) fn admit_stranger(
        &mut self,
        rank: Rank,
        stranger: u64,
    ) -> Result<PeerInfo, Unreachable> {
        let unreachable = |reason: &str| Unreachable {
            reason: reason.to_owned(),
        };
        let pending = self.take_pending(|pending| pending.is_stranger(stranger));
        let Some((pending, hello)) = pending.and_then(|one| one.hello.map(|hello| (one, hello)))
        else {
            return Err(unreachable("it is gone"));
        };
        self.make_place(rank);
        let known = match self.peers.get(rank as usize) {
            Some(PeerState::Peer(peer)) if peer.nonce == stranger => Some(peer.info.clone()),
            Some(PeerState::Unknown) => None,
            _ => {
                self.reject(pending, "its number belongs to another peer");
                return Err(unreachable("its number belongs to another peer"));
            }
        };
        if let Some(info) = known {
            self.handle_hello(pending, hello);
            return Ok(info);
        }
        let theirs = usize::try_from(hello.to).unwrap_or(usize::MAX);
        let port = u16::try_from(hello.from).unwrap_or(0);
        if theirs < MIN_MAX_SEND || port < 1024 {
            self.counters.malformed += 1;
            self.reject(pending, "the numbers in the HELLO are invalid");
            return Err(unreachable("the numbers in its HELLO are invalid"));
        }
        let path = self.path_of(&pending);
        let info = self.info_of(&path, self.max_send.min(theirs));
        let peer = Peer::new(port, stranger, path, info.clone());
        self.enter(rank, PeerState::Peer(Box::new(peer)));
        self.handle_hello(pending, hello);
        self.start_liveness();
        Ok(info)
    }
}
