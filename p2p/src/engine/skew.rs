//! A late receiver tells its senders, who then send medium messages through the transport's memory rather than wait for it (hybrid
//! paper, section 4.2).

use std::time::Instant;

use btl::Rank;

use super::Engine;
use crate::wire::Header;

/// How late this process is.
#[derive(Debug, Default)]
pub(crate) struct Skew {
    /// Peers were told so.
    pub(crate) late: bool,
    /// Since when the queue is long (not late yet), or short again (late).
    since: Option<Instant>,
}

impl Engine {
    /// After the queue of unexpected messages changed. The clock is read only while there is something to measure.
    #[inline]
    pub(crate) fn look_at_skew(&mut self) {
        let length = self.unexpected.len();
        if length > self.config.skew_queue || self.skew.late || self.skew.since.is_some() {
            self.measure_skew(length);
        }
    }

    #[cold]
    fn measure_skew(&mut self, length: usize) {
        if !self.config.skew {
            return;
        }
        // Gone only when clearly shorter, or it would go on and off.
        let long = length
            > if self.skew.late {
                self.config.skew_queue / 2
            } else {
                self.config.skew_queue
            };
        if long == self.skew.late {
            self.skew.since = None;
            return;
        }
        let now = Instant::now();
        let since = *self.skew.since.get_or_insert(now);
        let patience = if long {
            self.config.skew_after
        } else {
            self.config.skew_rest
        };
        if now.duration_since(since) < patience {
            return;
        }
        self.skew = Skew {
            late: long,
            since: None,
        };
        if long {
            self.stats.skew_on += 1;
        } else {
            self.stats.skew_off += 1;
        }
        for rank in 0..self.size {
            self.tell_skew(rank);
        }
    }

    /// Tells a peer what it does not know yet; that we are late only one whose messages wait.
    pub(crate) fn tell_skew(&mut self, rank: Rank) {
        let late = self.skew.late;
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        if peer.told_late == late || !peer.alive || peer.own || (late && peer.account.waiting == 0)
        {
            return;
        }
        peer.told_late = late;
        self.control(rank, Header::Skew { late });
    }

    /// A peer says that it is late, or not any more.
    pub(crate) fn peer_skew(&mut self, rank: Rank, late: bool) {
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        self.stats.skewed_peers += u64::from(late && !peer.late);
        peer.late = late;
        peer.refresh();
    }
}
