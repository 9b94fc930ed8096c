//! Skew: a late receiver informs its senders, which then send medium messages through the
//! transport's memory instead of waiting for it (hybrid paper, section 4.2).

use crate::ids::PeerId;
use std::time::Instant;

use super::protocol::Protocol;
use crate::wire::Header;

/// Lateness of this process.
#[derive(Debug, Default)]
pub(crate) struct Skew {
    pub(crate) late: bool,
    /// Time since when the queue of unexpected messages has been long, or short again if late.
    since: Option<Instant>,
}

impl Protocol {
    /// Checks the queue of unexpected messages after a change. Reads the clock only while the
    /// state may change.
    #[inline]
    pub(crate) fn check_skew(&mut self) {
        let length = self.unexpected.len();
        if length > self.config.tuning.skew_queue || self.skew.late || self.skew.since.is_some() {
            self.measure_skew(length);
        }
    }

    #[cold]
    fn measure_skew(&mut self, length: usize) {
        if !self.config.skew {
            return;
        }
        let tuning = &self.config.tuning;
        // Hysteresis: no longer late only when clearly shorter.
        let (long, patience) = if self.skew.late {
            let long = length > tuning.skew_queue / 2;
            (long, tuning.skew_rest)
        } else {
            (length > tuning.skew_queue, tuning.skew_after)
        };
        if long == self.skew.late {
            self.skew.since = None;
            return;
        }
        let now = Instant::now();
        let since = *self.skew.since.get_or_insert(now);
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
        for peer in self.peers.ids() {
            self.send_skew(peer);
        }
    }

    /// Sends SKEW to a peer that does not know the state; lateness only if messages of that peer
    /// wait.
    pub(crate) fn send_skew(&mut self, peer: PeerId) {
        let late = self.skew.late;
        let state = &mut self.peers[peer];
        let waits = state.account.waiting != 0;
        if state.knows_late == late || !state.alive || state.own || (late && !waits) {
            return;
        }
        state.knows_late = late;
        self.control(peer, Header::Skew { late });
    }

    /// Handles SKEW.
    pub(crate) fn peer_skew(&mut self, peer: PeerId, late: bool) {
        let state = &mut self.peers[peer];
        self.stats.skewed_peers += u64::from(late && !state.late);
        state.late = late;
        state.refresh();
    }
}
