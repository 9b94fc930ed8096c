//! When a sender asks for an acknowledgement (W-34).
//!
//! Only the sender knows how many packets it may have under way, so it says when it wants to hear: eight times for each
//! window, or for each filling of the program's send buffer if that is smaller. A receiver that guesses acknowledges every
//! few packets of a long message (a quarter of all frames were acknowledgements) or makes a small window wait for its timer.

/// Packets after which an acknowledgement comes without being asked for, and so the longest interval between two questions.
pub(super) const UNASKED: u32 = 32;
/// Questions for each window.
const SHARE: u32 = 8;
/// Shortest interval.
const LEAST: u32 = 2;

/// Counts the packets since the last question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asking {
    since: u32,
    /// Most bytes that were written and not acknowledged of late: a program that fills its send buffer waits at this mark, and
    /// goes on when some of it is acknowledged.
    peak: u64,
}

impl Asking {
    /// A packet is about to go. `alone`: nothing else is under way. `backlog`: bytes written and not acknowledged. `window`: packets
    /// that may be under way, `room`: how many of them are left behind this one.
    pub(super) fn on_packet(
        &mut self,
        alone: bool,
        backlog: u64,
        payload: u16,
        window: u32,
        room: u32,
    ) -> bool {
        if alone {
            self.since = 0; // an answer of the program carried the acknowledgement
        }
        self.since += 1;
        self.peak = self.peak.max(backlog);
        let buffer = u32::try_from(self.peak / u64::from(payload.max(1))).unwrap_or(u32::MAX);
        let interval = (window.min(buffer) / SHARE).clamp(LEAST, UNASKED);
        let ask = self.since >= interval || room == 0;
        if ask {
            self.since = 0;
            self.peak -= self.peak / 8;
        }
        ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Of 1000 packets, how many ask.
    fn questions(backlog: u64, window: u32) -> usize {
        let mut asking = Asking::default();
        (0..1000)
            .filter(|n| asking.on_packet(*n == 0, backlog, 1000, window, 1))
            .count()
    }

    #[test]
    fn eight_questions_a_window_or_buffer_and_one_in_32_packets_at_least() {
        assert_eq!(questions(1 << 20, 1024), 1000 / 32);
        assert_eq!(questions(1 << 20, 64), 125);
        assert_eq!(questions(1 << 20, 2), 500);
        assert_eq!(questions(24_000, 1024), 333, "a small buffer");
        assert_eq!(questions(100, 1024), 500, "a program that trickles");
    }

    #[test]
    fn a_lone_packet_does_not_ask_and_the_last_that_may_go_does() {
        let mut asking = Asking::default();
        assert!((0..100).all(|_| !asking.on_packet(true, 10, 1000, 16, 15)));
        assert!(asking.on_packet(false, 1 << 20, 1000, 16, 0));
        assert!(asking.on_packet(true, 10, 1000, 1, 0));
    }

    #[test]
    fn a_buffer_that_was_once_full_is_forgotten() {
        let mut asking = Asking::default();
        asking.on_packet(false, 1 << 20, 1000, 1024, 9);
        let asked: Vec<u32> = (0..2000)
            .filter(|_| asking.on_packet(false, 1000, 1000, 1024, 9))
            .collect();
        assert!(
            asked
                .windows(2)
                .rev()
                .take(10)
                .all(|pair| pair[1] - pair[0] == 2),
            "{asked:?}"
        );
    }
}
