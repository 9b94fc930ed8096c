//! State of a wrapper: its random numbers, and for each peer the messages and events held back.

use std::collections::{BTreeMap, VecDeque};

use super::Faults;
use crate::rng::Rng;
use btl::{PeerError, Rank};

/// Maximum number of messages held back in each direction for each peer.
pub(super) const HELD: usize = 16;

#[derive(Debug)]
pub(super) struct State {
    pub(super) faults: Faults,
    pub(super) rng: Rng,
    pub(super) closed: bool,
    pub(super) peers: BTreeMap<Rank, Peer>,
    /// Operations pending at the wrapped transport, by token.
    pub(super) tokens: BTreeMap<u64, Rank>,
    /// Number of faults made.
    pub(super) made: u64,
}

#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Messages accepted here and not yet sent by the wrapped transport.
    pub(super) out: VecDeque<(Vec<u8>, Vec<u8>)>,
    pub(super) out_wait: u32,
    /// Events of the wrapped transport, not yet reported.
    pub(super) held: VecDeque<Held>,
    pub(super) held_wait: u32,
    pub(super) messages: u64,
    /// [`PeerInfo::max_send`](btl::PeerInfo::max_send), known once the peer was added.
    pub(super) max_send: Option<usize>,
    /// Failure of the peer, held back or reported.
    pub(super) gone: Option<PeerError>,
    /// Number of calls of [`Btl::drop_peer`](btl::Btl::drop_peer).
    pub(super) dropping: u32,
    /// The peer is lost by [`Faults::cut`].
    pub(super) cut: bool,
}

#[derive(Debug)]
pub(super) enum Held {
    Message(Vec<u8>, Vec<u8>),
    Completed(u64, Result<(), PeerError>),
    Failed(PeerError),
}

impl State {
    pub(super) fn chance(&mut self, permille: u16) -> bool {
        let yes = self.rng.chance(permille);
        self.made += u64::from(yes);
        yes
    }

    /// Holds an event back.
    pub(super) fn hold(&mut self, rank: Rank, event: Held) {
        let late = self.chance(self.faults.late_event);
        let wait = if late {
            1 + self.rng.below(6) as u32
        } else {
            0
        };
        let peer = self.peers.entry(rank).or_default();
        peer.held_wait = peer.held_wait.max(wait);
        peer.held.push_back(event);
    }

    /// Counts a message from or to a peer; at the limit of [`Faults::cut`] the peer is lost.
    pub(super) fn count(&mut self, rank: Rank) {
        let Some((victim, after)) = self.faults.cut else {
            return;
        };
        let peer = self.peers.entry(rank).or_default();
        peer.messages += 1;
        if victim == rank && peer.messages > after && !peer.cut {
            peer.cut = true;
            peer.out.clear();
            peer.held.retain(|held| !matches!(held, Held::Message(..)));
            self.made += 1;
        }
    }

    /// Fails cut peers that have no pending operations, which might still write memory.
    pub(super) fn end_cut(&mut self) -> usize {
        let mut done = 0;
        for (rank, peer) in &mut self.peers {
            if peer.cut && peer.gone.is_none() && !self.tokens.values().any(|of| of == rank) {
                peer.gone = Some(lost());
                peer.held.push_back(Held::Failed(lost()));
                done += 1;
            }
        }
        done
    }

    /// Returns a header as a hostile peer might have sent it.
    pub(super) fn spoil(&mut self, header: &[u8]) -> Vec<u8> {
        let mut header = header.to_vec();
        if !header.is_empty() && self.chance(self.faults.corrupt) {
            let at = self.rng.below(header.len());
            header[at] ^= 1 << self.rng.below(8);
        }
        if !header.is_empty() && self.chance(self.faults.truncate) {
            header.truncate(self.rng.below(header.len()));
        }
        header
    }
}

pub(super) fn lost() -> PeerError {
    PeerError::Lost("cut by the fault injection".into())
}
