//! Sending: [`Tx`] and the extensions of the contract.

use std::io::{self, IoSlice};

use btl::{
    HeldSends, MAX_HEADER, NoticedPuts, PeerInfo, PendingPeers, Rank, SendError, Tx, Unreachable,
    gathered_len,
};

use crate::address::EthAddress;
use crate::peer::{Connection, PeerState};
use crate::record::Hello;
use crate::transport::EthBtl;

impl Tx for EthBtl {
    #[inline]
    fn send(&mut self, rank: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        if self.open.is_none() {
            return Err(SendError::Closed);
        }
        let max_send = match self.peers.get(rank as usize) {
            Some(PeerState::Peer(peer)) => peer.info.max_send,
            Some(PeerState::Own) => self.max_send,
            Some(PeerState::Unknown) | None => return Err(SendError::NoPeer(rank)),
        };
        let too_long = |length, limit| Err(SendError::TooLong { length, limit });
        if header.len() > MAX_HEADER {
            return too_long(header.len(), MAX_HEADER);
        }
        let length = gathered_len(body).saturating_add(header.len());
        if length > max_send {
            return too_long(length, max_send);
        }
        let Some(PeerState::Peer(peer)) = self.peers.get_mut(rank as usize) else {
            return self.own_queue.push(header, body);
        };
        peer.used = self.calls;
        match &mut peer.connection {
            Connection::Established(channel) => {
                let sent = channel.message(header, body);
                if sent
                    .as_ref()
                    .is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock)
                {
                    // Reading finds the cause, after everything that arrived before it.
                    self.poll_directly(rank);
                }
                sent.map_err(|_| SendError::Busy)
            }
            Connection::Failed(error) => Err(SendError::Failed {
                peer: rank,
                error: error.clone(),
            }),
            Connection::Idle { retry_at: None } => {
                self.connect(rank);
                Err(SendError::Busy)
            }
            _ => Err(SendError::Busy),
        }
    }
}

impl HeldSends for EthBtl {}

impl NoticedPuts for EthBtl {}

impl PendingPeers for EthBtl {
    fn pending_peers(&self) -> Vec<Rank> {
        let Some(open) = self
            .open
            .as_ref()
            .filter(|_| self.config.identity.is_none())
        else {
            return Vec::new();
        };
        let ranks = open.pending.iter().filter_map(|pending| pending.hello);
        let is_unknown =
            |rank: &Rank| matches!(self.peers.get(*rank as usize), Some(PeerState::Unknown));
        ranks.map(|hello| hello.from).filter(is_unknown).collect()
    }

    fn is_pending_from(&self, rank: Rank, address: &[u8]) -> bool {
        let address = EthAddress::decode(address);
        address.is_ok_and(|address| self.pending_path(rank, &address).is_some())
    }

    fn refuse(&mut self, rank: Rank, reason: &str) {
        if let Some(pending) = self.take_pending(|pending| pending.is_from(rank)) {
            self.counters.refused_rank += 1;
            self.reject(pending, reason);
        }
    }

    fn stranger(&self) -> Option<u64> {
        self.config.identity?;
        let pending = &self.open.as_ref()?.pending;
        let mut hellos = pending.iter().filter_map(|pending| pending.hello);
        let is_stranger = |hello: &Hello| !self.has_earlier_stream(hello.from_nonce);
        hellos.find(is_stranger).map(|hello| hello.from_nonce)
    }

    fn admit(&mut self, peer: Rank, stranger: u64) -> Result<PeerInfo, Unreachable> {
        self.admit_stranger(peer, stranger)
    }

    fn refuse_stranger(&mut self, stranger: u64, reason: &str) {
        if let Some(pending) = self.take_pending(|pending| pending.is_stranger(stranger)) {
            self.counters.refused_rank += 1;
            self.reject(pending, reason);
        }
    }
}
