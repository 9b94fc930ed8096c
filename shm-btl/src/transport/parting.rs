//! Peers that are over: when they use this process's memory no more, and when what they have of it comes back.
//!
//! A peer that has ended copies nothing any more. One that lives, because it broke the protocol or was closed out, may be in the middle
//! of a copy into this process's memory: into a posted receive, a region, or the target of a `get` that it helps with. Nobody can take
//! that memory away from it, so it is told, and waited for:
//! ```text
//! this process                          peer, before each copy
//!   end = BROKEN, offers stopped          copying = what
//!   fence                 SYNC POINT shut   fence
//!   copying = 0, no chunk under way?      end = BROKEN? does not copy
//!     yes: the memory is ours             copying = 0
//! ```
//! A process that runs and does not come to the end of a copy in [`LETTING_GO`] lies, and could write here without asking anyway. One that
//! is *stopped* does not lie: it will go on with its copy, and is waited for until it does or ends.
//!
//! Chunks of the pool that it has not consumed stay its: it may still read them, and would else deliver the bytes of another message.

use std::time::Duration;

use btl::{Envelope, Events, PeerError, Rank};
use rustix::event::epoll;

use super::peer::{Entry, Peer};
use super::{ShmBtl, coarse_now};
use crate::attach::has_ended;
use crate::host::is_stopped;
use crate::layout::{END_BROKEN, END_REFUSED};
use shmem::sync::{Ordering, fence};

/// See the module.
const LETTING_GO: Duration = Duration::from_secs(1);

impl Peer {
    /// The peer is not to begin any copy into this process's memory.
    fn shut(&mut self) {
        if self.shut.is_some() {
            return;
        }
        self.shut = Some(coarse_now());
        let mine = self.producer.mine();
        mine.writing.0.end.store(END_BROKEN, Ordering::Release);
        for shared in &mut self.sharing.open {
            shared.stop(mine);
        }
        // SYNC POINT shut
        fence(Ordering::SeqCst);
    }

    /// Neither copies nor reads any more, whatever its other words say: it has ended, has closed, or has given this process up.
    fn is_gone(&self) -> bool {
        let end = self.producer.theirs().writing.0.end.load(Ordering::Acquire);
        matches!(self.ending, Some(PeerError::Died | PeerError::Left))
            || matches!(end, END_BROKEN | END_REFUSED)
            || self.common.about.0.left.load(Ordering::Acquire) != 0
            || has_ended(&self.pidfd)
    }

    /// After [`Peer::shut`]: does it write nothing any more?
    fn is_quiet(&self) -> bool {
        let theirs = self.producer.theirs();
        // SYNC POINT shut
        let at_work = theirs.writing.0.copying.load(Ordering::Acquire) != 0
            || self
                .sharing
                .open
                .iter()
                .any(|shared| !shared.is_stopped(theirs));
        let overdue = || {
            let since = self
                .shut
                .map_or(Duration::ZERO, |since| coarse_now().saturating_sub(since));
            since >= LETTING_GO && !is_stopped(self.pid)
        };
        !at_work || self.is_gone() || overdue()
    }
}

impl ShmBtl {
    /// A peer that nothing more is to be heard of.
    pub(super) fn part_with(&mut self, rank: Rank) {
        let Some(entry) = self.peers.get_mut(rank as usize) else {
            return;
        };
        match std::mem::replace(entry, Entry::Never) {
            Entry::Here(mut peer) => {
                peer.shut();
                // It wants to know that it was given up, unless it is gone itself.
                peer.ring();
                *entry = Entry::Parting(peer);
                self.parting.push(rank);
            }
            other => *entry = other,
        }
    }

    /// Looks whether peers that are over have ended what they do, reports them then, and takes back what comes.
    pub(super) fn let_go(&mut self, events: &mut dyn Events) -> usize {
        let mut count = 0;
        for rank in std::mem::take(&mut self.parting) {
            count += self.report_quiet(rank, events);
            if !self.is_all_back(rank) {
                self.parting.push(rank);
            }
        }
        count
    }

    fn report_quiet(&mut self, rank: Rank, events: &mut dyn Events) -> usize {
        let (Some(own), Some(Entry::Parting(peer))) =
            (&mut self.own, self.peers.get_mut(rank as usize))
        else {
            return 0;
        };
        if peer.told || !peer.is_quiet() {
            return 0;
        }
        peer.told = true;
        let error = peer.ending.clone().unwrap_or(PeerError::Died);
        let (pending, helping) = Self::end_shared(peer);
        self.helping -= helping;
        let mut claimed = Vec::new();
        let stood_by = |id| crate::board::stands_by(peer.producer.theirs(), id);
        while let Some(record) = own.board.taken_by_dead(rank, stood_by) {
            claimed.push(record);
        }
        self.sharing -= pending.len();
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

    /// Takes chunks back; true: nothing of the peer is left.
    fn is_all_back(&mut self, rank: Rank) -> bool {
        // Callbacks may have closed the transport.
        let (Some(own), Some(entry)) = (&mut self.own, self.peers.get_mut(rank as usize)) else {
            return true;
        };
        let Entry::Parting(peer) = entry else {
            return true;
        };
        let gone = peer.is_gone();
        // What a liar says that it consumed is not believed beyond what was sent.
        let _ = peer.producer.refresh();
        while let Some(chunk) = if gone {
            peer.producer.take_all_back()
        } else {
            peer.producer.take_back()
        } {
            own.pool.give_back(chunk);
        }
        if !peer.told || peer.producer.lent() != 0 {
            return false;
        }
        let _ = epoll::delete(&own.epoll, &peer.pidfd);
        *entry = Entry::Gone(peer.ending.clone().unwrap_or(PeerError::Died));
        self.live -= 1;
        true
    }

    /// See [`btl::Btl::drop_peer`].
    pub(super) fn close_out(&mut self, rank: Rank) -> bool {
        let here = match self.peers.get_mut(rank as usize) {
            Some(Entry::Here(peer)) if rank != self.config.rank => peer,
            Some(Entry::Parting(peer)) => return peer.is_quiet(),
            _ => return true,
        };
        here.closed_out = true;
        here.ending
            .get_or_insert_with(|| PeerError::Lost("this process has closed it out".into()));
        here.shut();
        self.look_now = true;
        here.is_quiet()
    }

    /// Somebody may still be at work in this process's memory, and rings no bell when it is not.
    pub(super) fn waits_for_quiet(&self) -> bool {
        let untold = |rank: &Rank| matches!(self.peers.get(*rank as usize), Some(Entry::Parting(peer)) if !peer.told);
        self.parting.iter().any(untold)
    }
}
