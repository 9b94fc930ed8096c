//! The sending half, and what owners beside the contract's need.

use std::io::{self, IoSlice};

use btl::{HeldSends, MAX_HEADER, NoticedPuts, PendingPeers, PostedReceives, Rank, SendError, Tx};

use crate::peer::{Link, Member};
use crate::transport::EthBtl;

/// Bytes of messages to the own rank that may wait.
const OWN_BYTES: usize = 1 << 20;
/// Messages to the own rank that may wait.
const OWN_MESSAGES: usize = 4096;

/// How far the bytes to a peer have come, as positions in all that was sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// End of the last message taken.
    pub taken: u64,
    /// End of what has left.
    pub left: u64,
}

impl EthBtl {
    #[inline]
    /// Sends what waits for the peer's window, if the peer opens it within some 10 µs.
    pub fn push(&mut self, _peer: Rank) {}

    /// Returns how far the bytes to a peer have come; `None` if all have left.
    pub fn leaving(&mut self, _peer: Rank) -> Option<Leaving> {
        None
    }

    /// Longest message that this side takes, header and body. A peer's [`btl::PeerInfo::max_send`] may be smaller.
    pub fn max_send(&self) -> usize {
        self.max_send
    }

    /// As [`Tx::send`], with a body in several pieces.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send_gathered(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: &[IoSlice<'_>],
    ) -> Result<(), SendError> {
        self.send_when(peer, header, body, false)
    }

    /// The same, for a program that may be sending many short messages in a row: it may leave with the next call of this transport, see
    /// `btl_eth`.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send_soon(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: &[IoSlice<'_>],
    ) -> Result<(), SendError> {
        self.send_when(peer, header, body, true)
    }

    #[inline]
    fn send_when(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: &[IoSlice<'_>],
        soon: bool,
    ) -> Result<(), SendError> {
        if self.open.is_none() {
            return Err(SendError::Closed);
        }
        let max_send = match self.members.get(peer as usize) {
            Some(Member::Peer(peer)) => peer.path.max_send,
            Some(Member::Own(path)) => path.max_send,
            Some(Member::Unknown) | None => return Err(SendError::NoPeer(peer)),
        };
        if header.len() > MAX_HEADER {
            return Err(SendError::TooLong {
                length: header.len(),
                limit: MAX_HEADER,
            });
        }
        let length = body
            .iter()
            .fold(header.len(), |sum, piece| sum.saturating_add(piece.len()));
        if length > max_send {
            return Err(SendError::TooLong {
                length,
                limit: max_send,
            });
        }
        let Some(Member::Peer(known)) = self.members.get_mut(peer as usize) else {
            return self.send_to_self(header, body);
        };
        match &mut known.link {
            Link::Live(channel) => match channel.message(header, body, soon) {
                Ok(()) => {
                    self.counters.sent += 1;
                    Ok(())
                }
                Err(error) => {
                    self.counters.full += 1;
                    if error.kind() != io::ErrorKind::WouldBlock {
                        // Reading finds out what it is, behind what has come before it.
                        self.watch(peer);
                    }
                    Err(SendError::Busy)
                }
            },
            Link::Failed(error) => Err(SendError::Failed {
                peer,
                error: error.clone(),
            }),
            Link::Idle { again: None } => {
                self.begin(peer);
                Err(SendError::Busy)
            }
            Link::Idle { again: Some(_) }
            | Link::Begun(_)
            | Link::Greeting(_)
            | Link::Welcomed(_) => Err(SendError::Busy),
        }
    }

    fn send_to_self(&mut self, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        let length = body
            .iter()
            .fold(header.len(), |sum, piece| sum + piece.len());
        if self.own_queue.len() >= OWN_MESSAGES
            || (self.own_bytes + length > OWN_BYTES && !self.own_queue.is_empty())
        {
            return Err(SendError::Busy);
        }
        self.own_bytes += length;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(header);
        body.iter().for_each(|piece| bytes.extend_from_slice(piece));
        self.own_queue.push_back((header.len(), bytes));
        Ok(())
    }
}

impl Tx for EthBtl {
    #[inline]
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.send_gathered(peer, header, body)
    }
}

impl PostedReceives for EthBtl {}

impl HeldSends for EthBtl {}

impl NoticedPuts for EthBtl {}

impl PendingPeers for EthBtl {
    fn pending_peer(&self) -> Option<Rank> {
        let open = self.open.as_ref()?;
        let unknown =
            |rank: &Rank| matches!(self.members.get(*rank as usize), Some(Member::Unknown));
        open.lobby.ranks().find(unknown)
    }

    fn refuse(&mut self, rank: Rank, reason: &str) {
        if let Some(guest) = self
            .open
            .as_mut()
            .and_then(|open| open.lobby.take_rank(rank))
        {
            self.counters.refused_rank += 1;
            self.turn_away(guest, reason);
        }
    }
}
