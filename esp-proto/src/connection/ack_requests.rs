//! Requests for acknowledgement by the sender (W-34).
//!
//! Only the sender knows how many packets may be in flight, so it requests acknowledgements: eight
//! for each window, or for each filling of the program's send buffer if that is smaller. A receiver
//! that guesses either acknowledges every few packets of a long message (a quarter of all frames
//! were acknowledgements) or makes a small window wait for its timer.

/// Number of packets after which the receiver acknowledges without a request, and so the longest
/// interval between two requests.
pub(super) const UNASKED: u32 = 32;
/// Requests in each window.
const SHARE: u32 = 8;
/// Shortest interval between requests, in packets.
const LEAST: u32 = 2;

/// Counts the packets since the last request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AckRequests {
    since: u32,
    /// Recent maximum of bytes written and not acknowledged: a program that fills its send buffer
    /// waits at this mark, and continues when part of it is acknowledged.
    peak: u64,
}

impl AckRequests {
    /// Records that a packet is about to be sent, and returns whether it requests an
    /// acknowledgement. `alone`: nothing else is in flight. `backlog`: bytes written and not
    /// acknowledged. `window`: packets that may be in flight. `room`: how many of them remain after
    /// this one.
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

    /// Returns how many of 1000 packets request an acknowledgement.
    fn questions(backlog: u64, window: u32) -> usize {
        let mut requests = AckRequests::default();
        (0..1000)
            .filter(|n| requests.on_packet(*n == 0, backlog, 1000, window, 1))
            .count()
    }

    #[test]
    fn eight_requests_per_window_and_one_in_32_packets_at_least() {
        assert_eq!(questions(1 << 20, 1024), 1000 / 32);
        assert_eq!(questions(1 << 20, 64), 125);
        assert_eq!(questions(1 << 20, 2), 500);
        assert_eq!(questions(24_000, 1024), 333, "a small buffer");
        assert_eq!(questions(100, 1024), 500, "a program that trickles");
    }

    #[test]
    fn a_lone_packet_does_not_ask_and_the_last_that_may_go_does() {
        let mut requests = AckRequests::default();
        assert!((0..100).all(|_| !requests.on_packet(true, 10, 1000, 16, 15)));
        assert!(requests.on_packet(false, 1 << 20, 1000, 16, 0));
        assert!(requests.on_packet(true, 10, 1000, 1, 0));
    }

    #[test]
    fn a_buffer_that_was_once_full_is_forgotten() {
        let mut requests = AckRequests::default();
        requests.on_packet(false, 1 << 20, 1000, 1024, 9);
        let asked: Vec<u32> = (0..2000)
            .filter(|_| requests.on_packet(false, 1000, 1000, 1024, 9))
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
