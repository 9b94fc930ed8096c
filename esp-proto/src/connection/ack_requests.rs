//! Requests for acknowledgement by the sender (W-34).
//!
//! Only the sender knows how many packets may be in flight and how much its program may write, so
//! it requests acknowledgements: eight for each window, or for each filling of the program's send
//! buffer if that is smaller, and none while less than half of both is in use and all written data
//! fits. A receiver that guesses either acknowledges every few packets of a long message (a quarter
//! of all frames were acknowledgements) or makes a small window wait for its timer.

/// Number of packets after which the receiver acknowledges without a request, and so the maximum
/// interval between two requests.
pub(super) const UNASKED: u32 = 64;
/// Requests in each window.
const SHARE: u32 = 8;
/// Minimum interval between requests, in packets.
const MIN_INTERVAL: u32 = 2;

/// State of the sender as a packet is about to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// No other packet is in flight.
    pub(super) alone: bool,
    /// Bytes written by the program and not acknowledged.
    pub(super) unacknowledged: u64,
    /// Unacknowledged bytes that remain unsent after this packet.
    pub(super) unsent: u64,
    /// Bytes of a full packet.
    pub(super) payload: u16,
    /// Packets that may be in flight.
    pub(super) window: u32,
    /// Packets that may still be sent after this one.
    pub(super) room: u32,
}

/// Counts the packets since the last request.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckRequests {
    since: u32,
    /// Bytes of the program's send buffer.
    buffer: u32,
}

impl AckRequests {
    /// Creates the counter for a send buffer of `buffer` bytes.
    pub(super) fn new(buffer: u32) -> AckRequests {
        AckRequests { since: 0, buffer }
    }

    /// Records that a packet is about to be sent, and returns whether it requests an
    /// acknowledgement.
    pub(super) fn on_packet(&mut self, sending: &Sending) -> bool {
        let Sending { window, room, .. } = *sending;
        let payload = u64::from(sending.payload.max(1));
        if sending.alone {
            self.since = 0; // an answer of the program carried the acknowledgement
        }
        self.since += 1;
        let buffer = u64::from(self.buffer) / payload;
        let interval = u64::from(window).min(buffer) / u64::from(SHARE);
        let interval = interval.clamp(MIN_INTERVAL.into(), UNASKED.into());
        let half_used = 2 * room < window || 2 * sending.unacknowledged > u64::from(self.buffer);
        let limited = half_used || sending.unsent > u64::from(room) * payload;
        let ask = room == 0 || (limited && u64::from(self.since) >= interval);
        if ask {
            self.since = 0;
        }
        ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const PAYLOAD: u16 = 1000;

    /// Returns the packets of a message that request an acknowledgement. `window` is the number of
    /// packets that may be in flight; the oldest are acknowledged as the window requires.
    fn asking(message: u32, window: u32, buffer: u32) -> Vec<u32> {
        let mut requests = AckRequests::new(buffer);
        let asks = |&n: &u32| {
            let unsent = u64::from(message - n - 1) * u64::from(PAYLOAD);
            let in_flight = (n + 1).min(window);
            requests.on_packet(&Sending {
                alone: n == 0,
                unacknowledged: unsent + u64::from(in_flight) * u64::from(PAYLOAD),
                unsent,
                payload: PAYLOAD,
                window,
                room: (window - in_flight).max(1),
            })
        };
        (0..message).filter(asks).collect()
    }

    #[test]
    fn eight_requests_per_window_and_one_in_64_packets_at_most() {
        assert_eq!(asking(2000, 1024, 1 << 20).len(), 2000 / 64);
        assert_eq!(asking(1000, 64, 1 << 20).len(), 1000 / 8);
        assert_eq!(asking(1000, 4, 1 << 20).len(), 1000 / 2);
    }

    #[test]
    fn eight_requests_per_filling_of_a_small_buffer() {
        assert_eq!(asking(24, 1024, 24_000).len(), 8);
    }

    #[test]
    fn none_while_less_than_half_of_window_and_buffer_is_in_use() {
        assert_eq!(asking(512, 1024, 1 << 21), []);
        assert_eq!(asking(5, 10, 1 << 20), []);
        assert_eq!(asking(12, 10, 1 << 20), [1, 3, 5, 7, 9, 11]);
    }

    #[test]
    fn half_of_the_window_or_the_buffer_and_all_data_fit_without_a_request() {
        // Room of a window of 100 packets; bytes unacknowledged in a buffer of 200 000, and unsent.
        for (room, unacknowledged, unsent, asks) in [
            (50, 100_000, 50_000, false),
            (49, 100_000, 49_000, true),
            (50, 100_001, 50_000, true),
            (50, 100_000, 50_001, true),
        ] {
            let mut requests = AckRequests::new(200_000);
            let sending = Sending {
                alone: false,
                unacknowledged,
                unsent,
                payload: PAYLOAD,
                window: 100,
                room,
            };
            let asked = (0..100).any(|_| requests.on_packet(&sending));
            assert_eq!(asked, asks, "{sending:?}");
        }
    }

    #[test]
    fn the_last_packet_that_may_be_sent_asks() {
        let mut requests = AckRequests::new(1 << 20);
        let mut sending = Sending {
            alone: true,
            unacknowledged: 10,
            unsent: 0,
            payload: PAYLOAD,
            window: 16,
            room: 15,
        };
        assert!((0..100).all(|_| !requests.on_packet(&sending)));
        sending.room = 0;
        assert!(requests.on_packet(&sending));
        sending.window = 1;
        assert!(requests.on_packet(&sending));
    }
}
