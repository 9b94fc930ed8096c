//! Explicit congestion notification: the counts of marks of one connection (W-110 to W-117).

use super::{Connection, Cx};
use crate::wire::EspFrame;

/// Minimum increase that shows a count to be older than the last one instead of newer (W-115).
const OLDER: u16 = 1 << 15;

/// Counts of marks in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ecn {
    /// This side offers ECN in its set-up block.
    pub(super) offered: bool,
    /// The peer offers it, too (W-18).
    pub(super) in_force: bool,
    /// A packet has arrived with a mark.
    marked: bool,
    /// `received` is greater than the last count sent.
    pub(super) unreported: bool,
    /// Packets that arrived with a mark.
    received: u16,
    /// The last accepted count of the peer.
    reported: u16,
    /// Number of the first transmission that may have been marked since that count.
    pub(super) base: u64,
}

impl Ecn {
    /// Creates the state of a connection whose endpoint offers ECN or not.
    pub(super) fn new(offered: bool) -> Self {
        Ecn {
            offered,
            ..Ecn::default()
        }
    }

    /// Restarts both counts, because one side has lost them (W-134).
    pub(super) fn restart(&mut self) {
        *self = Ecn {
            in_force: self.in_force,
            ..Ecn::new(self.offered)
        };
    }

    /// Counts a packet received with a mark (W-112).
    fn count(&mut self) {
        self.received = self.received.wrapping_add(1);
        (self.marked, self.unreported) = (true, true);
    }

    /// Returns the count for a bare acknowledgement that is sent now, or `None` before the first
    /// mark (W-113).
    pub(super) fn take_field(&mut self) -> Option<u16> {
        self.unreported = false;
        self.marked.then_some(self.received)
    }

    /// Reads the peer's count and returns its increase, or `None` when the count is to be ignored
    /// (W-115). `next_tx` is the number of the next transmission.
    fn read(&mut self, count: u16, next_tx: u64, outstanding: u16) -> Option<u16> {
        let new = count.wrapping_sub(self.reported);
        if new >= OLDER {
            return Some(0);
        }
        if u64::from(new) > next_tx.saturating_sub(self.base) {
            return None;
        }
        self.reported = count;
        self.base = next_tx.saturating_sub(u64::from(outstanding));
        Some(new)
    }
}

impl Connection {
    /// Returns true for a frame with a field unknown to this connection (W-114).
    pub(super) fn has_unknown_field(&self, frame: &EspFrame<'_>) -> bool {
        frame.ext.is_some_and(|ext| ext.ce.is_some()) && !self.ecn.in_force
    }

    /// Counts a data frame or FIN that arrived with a mark (W-112).
    pub(super) fn count_mark(&mut self, cx: &mut Cx) {
        if self.ecn.in_force {
            self.ecn.count();
            cx.counters.rx_ecn_marks += 1;
        }
    }

    /// Reads the peer's count of marks before the acknowledgement is applied (W-115, W-116).
    pub(super) fn take_report(&mut self, cx: &mut Cx, count: u16) {
        let next_tx = self.recovery.next_tx;
        match self.ecn.read(count, next_tx, self.send.outstanding()) {
            Some(0) => {}
            Some(new) => {
                cx.counters.rx_ecn_reported += u64::from(new);
                let in_flight = self.recovery.in_flight;
                let reduced = self.congestion.on_marks(new.into(), in_flight);
                cx.counters.ecn_reductions += u64::from(reduced);
            }
            None => cx.counters.rx_ecn_ignored += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed() -> Ecn {
        Ecn {
            in_force: true,
            ..Ecn::new(true)
        }
    }

    #[test]
    fn the_field_is_sent_from_the_first_mark_on_and_wraps() {
        let mut ecn = agreed();
        assert_eq!((ecn.take_field(), ecn.unreported), (None, false));
        ecn.count();
        assert!(ecn.unreported);
        assert_eq!((ecn.take_field(), ecn.unreported), (Some(1), false));
        assert_eq!(ecn.take_field(), Some(1), "again in every acknowledgement");
        ecn.received = u16::MAX;
        ecn.count();
        assert_eq!(ecn.take_field(), Some(0));
    }

    #[test]
    fn increases_are_taken_modulo_the_width() {
        let mut ecn = agreed();
        (ecn.reported, ecn.base) = (65_530, 1000);
        assert_eq!(ecn.read(65_535, 2000, 10), Some(5));
        assert_eq!(ecn.read(4, 2000, 10), Some(5));
        assert_eq!(ecn.read(4, 2000, 10), Some(0), "nothing new");
        assert_eq!(ecn.read(65_535, 2000, 10), Some(0), "overtaken");
        assert_eq!(ecn.reported, 4, "an older count changes nothing");
    }

    /// W-115: each count after each of some counts around the wrap.
    #[test]
    fn every_count_is_newer_by_less_than_half_of_the_circle() {
        for reported in [0, 1, 0x7fff, 0x8000, 0xfffe, 0xffff] {
            for new in 0..=u16::MAX {
                let mut ecn = agreed();
                ecn.reported = reported;
                let count = ((u32::from(reported) + u32::from(new)) % 65_536) as u16;
                let (increase, now) = match new {
                    0..0x8000 => (new, count),
                    _ => (0, reported),
                };
                assert_eq!(ecn.read(count, 1 << 20, 0), Some(increase));
                assert_eq!(ecn.reported, now, "{count} after {reported}");
            }
        }
    }

    #[test]
    fn more_marks_than_packets_are_ignored() {
        let mut ecn = agreed();
        assert_eq!(ecn.read(11, 10, 4), None);
        assert_eq!(ecn.reported, 0, "the genuine count is still newer");
        assert_eq!(ecn.read(10, 10, 4), Some(10));
        // Four were outstanding, and six were sent since.
        assert_eq!(ecn.read(21, 16, 6), None);
        assert_eq!(ecn.read(20, 16, 6), Some(10));
        ecn.base = 0;
        assert_eq!(ecn.read(23, 2, 2), None);
        assert_eq!(ecn.read(22, 2, 2), Some(2));
    }
}
