//! Ending a peer: when it no longer writes to this process's memory, and when the chunks it holds
//! come back.
//!
//! A peer that has died copies nothing. One that lives, because it broke the protocol or was
//! dropped by this process, may be in the middle of a copy into this process's memory: into a
//! posted receive, a region, or the target of a `get` that it helps with. That memory cannot be
//! taken away from it, so this process revokes its permission and waits:
//! ```text
//! this process                          peer, before each copy
//!   end = BROKEN, offers stopped          copying = id
//!   fence              SYNC POINT revoke    fence
//!   copying = 0, no chunk under way?      end = BROKEN? does not copy
//!     yes: the memory is ours             copying = 0
//! ```
//! A process that runs and does not end a copy within [`STOP_TIMEOUT`] is corrupt, and could write
//! here without asking anyway. One that is *stopped* is not: it will continue its copy, and is
//! waited for until it does or dies.
//!
//! The peer keeps chunks of the pool that it has not consumed: it may still read them, and would
//! otherwise deliver the bytes of another message.

use std::time::Duration;

use btl::{Envelope, Events, PeerError, Rank};
use rustix::event::epoll;

use super::peer::{Peer, PeerState};
use super::{ShmBtl, coarse_now};
use crate::attach::has_ended;
use crate::layout::{END_BROKEN, END_REFUSED};
use crate::process::is_stopped;
use shmem::sync::{Ordering, fence};

/// Maximum time that a running peer is waited for.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

impl Peer {
    /// Revokes the peer's permission to copy into this process's memory.
    fn revoke(&mut self) {
        if self.revoked_at.is_some() {
            return;
        }
        self.revoked_at = Some(coarse_now());
        let mine = self.producer.mine();
        mine.writing.0.end.store(END_BROKEN, Ordering::Release);
        for shared in &mut self.coop.open {
            shared.stop(mine);
        }
        // SYNC POINT revoke
        fence(Ordering::SeqCst);
    }

    /// Returns true if the peer neither copies nor reads any more: it has died, has closed, or has
    /// given this process up.
    fn is_gone(&self) -> bool {
        let end = self.producer.theirs().writing.0.end.load(Ordering::Acquire);
        matches!(self.ending, Some(PeerError::Died | PeerError::Left))
            || matches!(end, END_BROKEN | END_REFUSED)
            || self.common.about.0.left.load(Ordering::Acquire) != 0
            || has_ended(&self.pidfd)
    }

    /// Returns true if the peer writes nothing any more, after [`Peer::revoke`].
    fn has_stopped_writing(&self) -> bool {
        let theirs = self.producer.theirs();
        // SYNC POINT revoke
        let at_work = theirs.writing.0.copying.load(Ordering::Acquire) != 0
            || self
                .coop
                .open
                .iter()
                .any(|shared| !shared.is_stopped(theirs));
        let overdue = || {
            let since = self
                .revoked_at
                .map_or(Duration::ZERO, |since| coarse_now().saturating_sub(since));
            since >= STOP_TIMEOUT && !is_stopped(self.pid)
        };
        !at_work || self.is_gone() || overdue()
    }
}

impl ShmBtl {
    /// Starts closing a peer; nothing more from it is delivered.
    pub(super) fn start_closing(&mut self, rank: Rank) {
        let Some(entry) = self.peers.get_mut(rank as usize) else {
            return;
        };
        match std::mem::replace(entry, PeerState::NotAdded) {
            PeerState::Connected(mut peer) => {
                peer.revoke();
                // It wants to know that it was given up, unless it is gone itself.
                peer.ring();
                *entry = PeerState::Closing(peer);
                self.closing.push(rank);
            }
            other => *entry = other,
        }
    }

    /// Reports closing peers that have stopped writing, and takes chunks back.
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
        let (Some(own), Some(PeerState::Closing(peer))) =
            (&mut self.own, self.peers.get_mut(rank as usize))
        else {
            return 0;
        };
        if peer.reported || !peer.has_stopped_writing() {
            return 0;
        }
        peer.reported = true;
        let error = peer.ending.clone().unwrap_or(PeerError::Died);
        let (pending, helping) = Self::end_coop(peer);
        self.helping -= helping;
        let mut claimed = Vec::new();
        let confirmed = |id| crate::posted::confirms(peer.producer.theirs(), id);
        while let Some(record) = own.posted.taken_by_dead(rank, confirmed) {
            claimed.push(record);
        }
        self.coop -= pending.len();
        for token in pending {
            events.completed(self, token, Err(error.clone()));
        }
        for record in claimed {
            let nothing = Envelope { context: 0, tag: 0 };
            events.received(self, record.token, rank, nothing, Err(error.clone()));
        }
        events.failed(self, rank, error);
        1
    }

    /// Takes chunks back. Returns true if nothing of the peer is left.
    fn reclaim(&mut self, rank: Rank) -> bool {
        // Callbacks may have closed the transport.
        let (Some(own), Some(entry)) = (&mut self.own, self.peers.get_mut(rank as usize)) else {
            return true;
        };
        let PeerState::Closing(peer) = entry else {
            return true;
        };
        let gone = peer.is_gone();
        // A corrupt count is not believed beyond what was sent.
        let _ = peer.producer.refresh();
        while let Some(chunk) = if gone {
            peer.producer.take_all_back()
        } else {
            peer.producer.take_back()
        } {
            own.pool.give_back(chunk);
        }
        if !peer.reported || peer.producer.lent() != 0 {
            return false;
        }
        let _ = epoll::delete(&own.epoll, &peer.pidfd);
        *entry = PeerState::Closed(peer.ending.clone().unwrap_or(PeerError::Died));
        self.live -= 1;
        true
    }

    /// Ends a peer for [`btl::Btl::drop_peer`].
    pub(super) fn close_peer(&mut self, rank: Rank) -> bool {
        let here = match self.peers.get_mut(rank as usize) {
            Some(PeerState::Connected(peer)) if rank != self.config.rank => peer,
            Some(PeerState::Closing(peer)) => return peer.has_stopped_writing(),
            _ => return true,
        };
        here.closed_here = true;
        here.ending
            .get_or_insert_with(|| PeerError::Lost("this process has closed it out".into()));
        here.revoke();
        self.check_now = true;
        here.has_stopped_writing()
    }

    /// Returns true if a closing peer may still write to this process's memory; it does not wake
    /// this process when it stops.
    pub(super) fn awaits_stop(&self) -> bool {
        let unreported = |rank: &Rank| matches!(self.peers.get(*rank as usize), Some(PeerState::Closing(peer)) if !peer.reported);
        self.closing.iter().any(unreported)
    }
}
