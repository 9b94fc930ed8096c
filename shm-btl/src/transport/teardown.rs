//! Ending a peer: when it no longer writes to this process's memory, and when the chunks it holds
//! are returned.
//!
//! A dead peer copies nothing. A live one that violated the protocol or was dropped by this process
//! may be in the middle of a copy:
//! - *Into this process's memory*, the target of a `get` that it helps with. That memory cannot be
//!   taken away from it, so this process stops its offers and waits for the chunk under way
//!   (`coop.rs`).
//! - *From this process's memory*, by a `get` of its own. It may read what this process writes
//!   there next, but does not deliver it:
//!
//! ```text
//! this process                          peer, after each copy of a get
//!   end = BROKEN                          fence
//!   fence              SYNC POINT revoke  end = BROKEN? delivers nothing
//!   uses its memory for other things
//! ```
//! A process that runs and does not end a copy within [`STOP_TIMEOUT`] is corrupt, and could write
//! here anyway. A *stopped* process is not: it will continue its copy, and is waited for until it
//! does or dies.
//!
//! The peer keeps chunks of the pool that it has not consumed: it may still read them, and would
//! otherwise deliver the bytes of another message.

use std::time::Duration;

use btl::{Events, PeerError, Rank};
use rustix::event::epoll;

use super::open::Reader;
use super::peer::{Peer, PeerState};
use super::{ShmBtl, coarse_now};
use crate::attach::has_ended;
use crate::layout::{END_BROKEN, END_REFUSED};
use crate::process::is_stopped;
use crate::revoke::revoke;
use shmem::sync::Ordering;

/// Maximum time to wait for a running peer.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

impl Peer {
    /// Returns true if the peer neither copies nor reads any more: it has died, closed, or ended
    /// the connection to this process.
    fn is_gone(&self) -> bool {
        let end = self.producer.theirs().end.0.load(Ordering::Acquire);
        matches!(self.ending, Some(PeerError::Died | PeerError::Left))
            || matches!(end, END_BROKEN | END_REFUSED)
            || self.has_left()
            || has_ended(&self.pidfd)
    }
}

impl ShmBtl {
    /// Revokes a peer's permission to copy from and into this process's memory.
    fn revoke(&mut self, rank: Rank) {
        let Some(PeerState::Added(peer)) = self.peers.get_mut(rank as usize) else {
            return;
        };
        if peer.revoked_at.is_some() {
            return;
        }
        peer.revoked_at = Some(coarse_now());
        revoke(peer.producer.mine());
        for get in self.gets.iter_mut().filter(|get| get.rank == rank) {
            get.stop(peer);
        }
    }

    /// Returns true if a peer has stopped writing, after [`ShmBtl::revoke`].
    fn has_stopped_writing(&self, rank: Rank) -> bool {
        let Some(peer) = self.added(rank) else {
            return true;
        };
        let mut gets = self.gets.iter().filter(|get| get.rank == rank);
        let at_work = gets.any(|get| !get.is_stopped(peer));
        let overdue = || {
            let since = peer.revoked_at.unwrap_or_else(coarse_now);
            coarse_now().saturating_sub(since) >= STOP_TIMEOUT && !is_stopped(peer.pid)
        };
        !at_work || peer.is_gone() || overdue()
    }

    /// Starts closing a peer, of which no message is delivered any more.
    pub(super) fn start_closing(&mut self, rank: Rank) {
        self.revoke(rank);
        if let Some(peer) = self.added_mut(rank) {
            // The peer must notice that the connection ended, unless it has ended itself.
            peer.ring();
            peer.closing = true;
            self.closing.push(rank);
        }
    }

    /// Reports closing peers that have stopped writing, and reclaims chunks.
    pub(super) fn advance_closing(&mut self, events: &mut dyn Events) -> usize {
        let mut count = 0;
        for rank in std::mem::take(&mut self.closing) {
            count += self.report_stopped(rank, events);
            if !self.reclaim(rank) {
                self.closing.push(rank);
            }
        }
        count
    }

    fn report_stopped(&mut self, rank: Rank, events: &mut dyn Events) -> usize {
        if !self.has_stopped_writing(rank) {
            return 0;
        }
        let Some(peer) = self.added_mut(rank) else {
            return 0;
        };
        if std::mem::replace(&mut peer.reported, true) {
            return 0;
        }
        let error = peer.ending.clone().unwrap_or(PeerError::Died);
        self.helping.retain(|helping| helping.rank != rank);
        while let Some(at) = self.gets.iter().position(|get| get.rank == rank) {
            let token = self.gets.remove(at).token;
            events.completed(self, token, Err(error.clone()));
        }
        events.failed(self, rank, error);
        1
    }

    /// Reclaims chunks. Returns true if the peer no longer holds any.
    fn reclaim(&mut self, rank: Rank) -> bool {
        // Callbacks may have closed the transport.
        let (Some(own), Some(entry)) = (&mut self.own, self.peers.get_mut(rank as usize)) else {
            return true;
        };
        let PeerState::Added(peer) = entry else {
            return true;
        };
        // A peer that has ended the connection reads no chunk any more.
        let gone = peer.is_gone();
        // A corrupt count is limited to the number of messages sent.
        let _ = peer.producer.refresh();
        while let Some(chunk) = peer.producer.next_returned(gone) {
            own.pool.put_back(chunk);
        }
        if !peer.reported || peer.producer.lent() != 0 {
            return false;
        }
        let _ = epoll::delete(&own.epoll, &peer.pidfd);
        let closed = PeerState::Closed(peer.ending.clone().unwrap_or(PeerError::Died));
        let reader = match std::mem::replace(entry, closed) {
            PeerState::Added(peer) => Some(Reader::new(peer.common, peer.pidfd, true)),
            _ => None,
        };
        self.live -= 1;
        self.release_place(rank, reader);
        true
    }

    /// Ends a peer for [`btl::Btl::drop_peer`].
    pub(super) fn close_peer(&mut self, rank: Rank) -> bool {
        let own = self.config.rank;
        let dropped = || PeerError::Lost("this process dropped the peer".into());
        self.end_joining(rank, &dropped());
        let Some(peer) = self.added_mut(rank).filter(|_| rank != own) else {
            return true;
        };
        if !peer.closing {
            peer.closed_here = true;
            peer.ending.get_or_insert_with(dropped);
            self.revoke(rank);
            self.check_now = true;
        }
        self.has_stopped_writing(rank)
    }
}
