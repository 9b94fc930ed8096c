//! Loss detection and repair: by order of transmission, by time (RACK, RFC 8985), by tail-loss
//! probe and by timeout.
//!
//! A timeout is genuine, or spurious because the peer's program computed or its node ran another
//! process. The next acknowledgement decides: when it covers a segment that was sent only once, the
//! original has arrived, and no segment counts as lost any more. F-RTO (RFC 5682) would first
//! retransmit only the oldest segment; under heavy loss that one is lost as well, and the timeout
//! doubles: an incast of 32 flows took 1.7 times as long.

use crate::rtt::Rtt;
use crate::send::{Segment, SendSide};
use crate::seq::Seq;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;

/// Number of later transmissions that must be acknowledged before a frame counts as lost (W-48).
const PACKET_THRESHOLD: u64 = 3;
/// Maximum exponent of back-off; the ceiling of the timeout is reached long before.
const MAX_BACKOFF: u32 = 10;

/// Effect of one acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckOutcome {
    /// Packets newly acknowledged.
    pub(crate) acked: u32,
    /// Round-trip sample from a segment sent once, if there was one.
    pub(crate) rtt: Option<Duration>,
    /// Number and time of the newest transmission among those of segments sent once.
    clean: Option<(u64, Instant)>,
    /// The oldest outstanding sequence advanced.
    pub(crate) advanced: bool,
    /// A new round of the congestion controller began.
    pub(crate) round_start: bool,
    /// The preceding timeout was spurious.
    pub(crate) spurious: bool,
}

/// State of loss recovery of one connection. All work is amortised constant for each transmission.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Number of the next transmission.
    pub(crate) next_tx: u64,
    /// Sequences in order of transmission, starting with transmission number `order_base`. An entry
    /// is ignored once its segment is acknowledged, lost, or retransmitted.
    order: VecDeque<Seq>,
    order_base: u64,
    /// Sequences found lost, in the order of detection. Entries whose segment is no longer lost are
    /// ignored.
    lost: VecDeque<Seq>,
    /// Newest transmission known to have arrived.
    newest_acked: Option<u64>,
    /// Packets believed to be in the network.
    pub(crate) in_flight: u32,
    /// The tail-loss probe was used since the last progress.
    probed: bool,
    /// Sequence to be sent as tail-loss probe.
    probe: Option<Seq>,
    /// Doublings of the timeout. They stay until a clean round trip is measured (second part of
    /// Karn's algorithm); otherwise a path that became slower than the timeout would never be
    /// measured again.
    backoff: u32,
    /// Doublings of the tail-loss probe's delay, kept as `backoff` is.
    tail_backoff: u32,
    /// Transmission number at which the current round ends.
    round_end: u64,
    /// The timeout expired, and no acknowledgement has shown yet whether it was genuine.
    doubtful: bool,
}

impl Recovery {
    /// Returns the timeout with back-off applied (W-47).
    pub(crate) fn backed_off(&self, rto: Duration, ceiling: Duration) -> Duration {
        (rto * (1 << self.backoff)).min(ceiling)
    }

    /// Returns the delay of the tail-loss probe with back-off applied (W-49).
    pub(crate) fn tail_backed_off(&self, delay: Duration, ceiling: Duration) -> Duration {
        (delay * (1 << self.tail_backoff)).min(ceiling)
    }

    /// Records the transmission of a segment, new or repeated, with the number `next_tx`.
    pub(crate) fn on_sent(&mut self, seq: Seq) {
        self.order.push_back(seq);
        self.next_tx += 1;
        self.in_flight += 1;
    }

    /// Returns true when a segment waits to be retransmitted.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns true when the tail-loss probe waits to be sent.
    pub(crate) fn has_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Returns true while a tail-loss probe may be armed: not used since the last progress, and no
    /// known loss.
    pub(crate) fn may_probe(&self) -> bool {
        !self.probed && self.lost.is_empty()
    }

    /// Takes the next segment to be retransmitted and marks it as sent now. The tail-loss probe
    /// ignores the congestion window; other segments need room for one packet in it.
    pub(crate) fn take_repeat(
        &mut self,
        send: &mut SendSide,
        cwnd: u32,
        now: Instant,
    ) -> Option<(Seq, Segment)> {
        if let Some(seq) = self.probe.take()
            && let Some(segment) = send.get_mut(seq).filter(|s| !s.sacked)
        {
            if !segment.lost {
                self.in_flight -= 1; // the copy replaces it
            }
            return Some(self.repeat(seq, segment, now));
        }
        while let Some(&seq) = self.lost.front() {
            let Some(segment) = send.get_mut(seq).filter(|s| s.lost) else {
                self.lost.pop_front();
                continue;
            };
            if self.in_flight >= cwnd {
                return None;
            }
            self.lost.pop_front();
            return Some(self.repeat(seq, segment, now));
        }
        None
    }

    fn repeat(&mut self, seq: Seq, segment: &mut Segment, now: Instant) -> (Seq, Segment) {
        segment.lost = false;
        segment.repeated = true;
        segment.tx_no = self.next_tx;
        segment.tx_time = now;
        let copy = *segment;
        self.on_sent(seq);
        (seq, copy)
    }

    /// Processes an acceptable ack sequence and bitmap (both checked by the caller: W-33, W-44).
    pub(crate) fn on_ack(
        &mut self,
        send: &mut SendSide,
        rtt: &mut Rtt,
        ack: Seq,
        sack: &[u8],
        now: Instant,
    ) -> AckOutcome {
        let mut outcome = AckOutcome::default();
        let min_rtt = rtt.min;
        while send.una != ack {
            let Some(segment) = send.pop_acked() else {
                break;
            };
            outcome.advanced = true;
            if !segment.sacked {
                self.settle(&segment, min_rtt, now, &mut outcome);
            }
        }
        for (j, byte) in sack.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            for k in (0..8).filter(|k| byte & (1 << k) != 0) {
                let seq = ack.plus(1 + 8 * j as u16 + k); // W-42; j < 128
                let Some(segment) = send.get_mut(seq).filter(|s| !s.sacked) else {
                    continue;
                };
                let before = *segment;
                segment.sacked = true;
                segment.lost = false;
                self.settle(&before, min_rtt, now, &mut outcome);
            }
        }
        if let Some((_, tx_time)) = outcome.clean {
            let sample = now.since(tx_time);
            rtt.sample(sample);
            outcome.rtt = Some(sample);
            self.backoff = 0;
            self.tail_backoff = 0;
        }
        if outcome.acked > 0 {
            self.probed = false;
            self.doubtful = false;
            if outcome.spurious {
                self.revive(send);
            }
            outcome.round_start = self.newest_acked >= Some(self.round_end);
            if outcome.round_start {
                self.round_end = self.next_tx;
            }
        }
        outcome
    }

    /// Removes a segment from the packets in flight.
    fn settle(
        &mut self,
        segment: &Segment,
        min_rtt: Option<Duration>,
        now: Instant,
        outcome: &mut AckOutcome,
    ) {
        outcome.acked += 1;
        if !segment.lost {
            self.in_flight -= 1;
        }
        if !segment.repeated {
            outcome.spurious |= self.doubtful && segment.lost;
            outcome.clean = outcome.clean.max(Some((segment.tx_no, segment.tx_time)));
        } else if min_rtt.is_some_and(|min_rtt| now.since(segment.tx_time) < min_rtt) {
            return; // W-48: it belongs to the original transmission
        }
        self.newest_acked = self.newest_acked.max(Some(segment.tx_no));
    }

    /// Detects lost packets (W-48). Returns the number of newly lost packets and, when a frame is
    /// only suspected, the time at which it will count as lost.
    pub(crate) fn detect(
        &mut self,
        send: &mut SendSide,
        rtt: &Rtt,
        now: Instant,
    ) -> (u32, Option<Instant>) {
        let Some(newest) = self.newest_acked else {
            return (0, None);
        };
        let delay = rtt.loss_delay();
        let mut found = 0;
        while let Some(&seq) = self.order.front() {
            let tx_no = self.order_base;
            let live = send
                .get_mut(seq)
                .filter(|s| s.tx_no == tx_no && !s.sacked && !s.lost);
            if let Some(segment) = live {
                if tx_no >= newest {
                    break;
                }
                let deadline = segment.tx_time + delay;
                if newest - tx_no < PACKET_THRESHOLD && now < deadline {
                    return (found, Some(deadline));
                }
                segment.lost = true;
                self.lost.push_back(seq);
                self.in_flight -= 1;
                found += 1;
            }
            self.order.pop_front();
            self.order_base += 1;
        }
        (found, None)
    }

    /// Schedules the tail-loss probe: the last outstanding segment is sent again (W-49).
    pub(crate) fn on_tail_probe(&mut self, send: &mut SendSide) -> bool {
        if !self.may_probe() {
            return false;
        }
        self.probed = true;
        self.tail_backoff = (self.tail_backoff + 1).min(MAX_BACKOFF);
        let last = send.iter_mut().rfind(|(_, s)| !s.sacked);
        self.probe = last.map(|(seq, _)| seq);
        self.probe.is_some()
    }

    /// Handles the retransmission timeout: all outstanding segments count as lost and are
    /// retransmitted in sequence order (W-46), except those that the peer reported as received. If
    /// the oldest one is among these, a report was damaged, and none is trusted.
    pub(crate) fn on_timeout(&mut self, send: &mut SendSide) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.order.clear();
        self.order_base = self.next_tx;
        self.round_end = self.next_tx;
        self.lost.clear();
        self.probe = None;
        let contradicted = send.iter_mut().next().is_some_and(|(_, s)| s.sacked);
        for (seq, segment) in send.iter_mut().filter(|(_, s)| contradicted || !s.sacked) {
            segment.sacked = false;
            segment.lost = true;
            self.lost.push_back(seq);
        }
        self.in_flight = 0;
        self.doubtful = true;
    }

    /// Returns segments that the timeout marked as lost to the packets in flight. They keep their
    /// age, so segments that are not acknowledged along with later ones are soon found lost.
    fn revive(&mut self, send: &mut SendSide) {
        while let Some(seq) = self.lost.pop_front() {
            if let Some(segment) = send.get_mut(seq).filter(|s| s.lost) {
                segment.lost = false;
                segment.tx_no = self.next_tx;
                self.on_sent(seq);
            }
        }
    }

    /// Releases memory that an idle connection does not need. No segment may be outstanding.
    pub(crate) fn shrink(&mut self) {
        self.order = VecDeque::new();
        self.order_base = self.next_tx;
        self.lost = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        send: SendSide,
        recovery: Recovery,
        rtt: Rtt,
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    impl Rig {
        /// Creates `n` segments of one byte, starting at sequence 65534, sent one microsecond
        /// apart.
        fn new(n: u16) -> Rig {
            let mut rig = Rig {
                send: SendSide::new(Seq(65534)),
                recovery: Recovery::default(),
                rtt: Rtt::default(),
            };
            rig.send.set_written(u64::from(n));
            for i in 0..n {
                let (seq, _) = rig
                    .send
                    .cut(1, rig.recovery.next_tx, at(u64::from(i)))
                    .unwrap();
                rig.recovery.on_sent(seq);
            }
            rig
        }

        fn ack(
            &mut self,
            ack: u16,
            sack: &[u8],
            micros: u64,
        ) -> (AckOutcome, u32, Option<Instant>) {
            let ack = Seq(65534).plus(ack);
            let outcome =
                self.recovery
                    .on_ack(&mut self.send, &mut self.rtt, ack, sack, at(micros));
            let (lost, timer) = self.recovery.detect(&mut self.send, &self.rtt, at(micros));
            (outcome, lost, timer)
        }

        fn repeats(&mut self, cwnd: u32, micros: u64) -> Vec<u16> {
            let mut seqs = vec![];
            while let Some((seq, _)) = self.recovery.take_repeat(&mut self.send, cwnd, at(micros)) {
                seqs.push(seq.ahead_of(Seq(65534)));
            }
            seqs
        }
    }

    use std::vec;
    use std::vec::Vec;

    /// W-49.
    #[test]
    fn a_repeated_report_permits_no_second_probe() {
        let mut rig = Rig::new(4);
        rig.ack(0, &[0b1], 50);
        assert!(rig.recovery.on_tail_probe(&mut rig.send));
        assert_eq!(rig.repeats(100, 60), [3]);
        let (outcome, ..) = rig.ack(0, &[0b1], 61);
        assert_eq!(outcome.acked, 0);
        assert!(!rig.recovery.may_probe());
        rig.ack(0, &[0b11], 62);
        assert!(rig.recovery.may_probe());
    }

    /// No timeout has declared it lost, so its acknowledgement says nothing of one.
    #[test]
    fn a_late_packet_shows_no_spurious_timeout() {
        let mut rig = Rig::new(8);
        let (_, lost, _) = rig.ack(0, &[0b1110], 50);
        assert_eq!(lost, 2);
        let (outcome, ..) = rig.ack(2, &[], 51);
        assert_eq!((outcome.acked, outcome.spurious), (2, false));
    }

    #[test]
    fn an_idle_connection_keeps_no_memory() {
        let mut rig = Rig::new(8);
        rig.ack(0, &[0b1110], 50);
        rig.ack(8, &[], 51);
        let Recovery { order, lost, .. } = &rig.recovery;
        assert!(order.capacity() > 0 && lost.capacity() > 0);
        rig.recovery.shrink();
        let Recovery { order, lost, .. } = &rig.recovery;
        assert_eq!((order.capacity(), lost.capacity()), (0, 0));
    }

    #[test]
    fn three_later_transmissions_prove_a_loss() {
        let mut rig = Rig::new(8);
        let (outcome, lost, timer) = rig.ack(1, &[0b001], 50);
        assert_eq!((outcome.acked, lost), (2, 0));
        assert!(timer.is_some(), "under suspicion");
        let (outcome, lost, _) = rig.ack(1, &[0b111], 51);
        assert_eq!((outcome.acked, lost), (2, 1));
        assert_eq!(rig.recovery.in_flight, 3);
        assert_eq!(rig.repeats(100, 52), [1]);
        assert_eq!(rig.repeats(100, 52), []);
        let (outcome, lost, _) = rig.ack(8, &[], 110);
        assert_eq!((outcome.acked, lost, rig.recovery.in_flight), (4, 0, 0));
    }

    #[test]
    fn one_later_transmission_proves_a_loss_in_time() {
        let mut rig = Rig::new(2);
        let (_, lost, timer) = rig.ack(0, &[1], 50);
        assert_eq!(lost, 0);
        let due = timer.unwrap();
        assert_eq!(rig.recovery.detect(&mut rig.send, &rig.rtt, due).0, 1);
        assert_eq!(rig.repeats(100, 500), [0]);
    }

    #[test]
    fn a_lost_retransmission_is_detected() {
        let mut rig = Rig::new(8);
        rig.ack(0, &[0b1110], 50);
        assert_eq!(rig.repeats(100, 51), [0, 1]);
        // New data sent after the repetitions arrives; the repetitions did not.
        rig.send.set_written(20);
        for _ in 0..4 {
            let (seq, _) = rig.send.cut(1, rig.recovery.next_tx, at(52)).unwrap();
            rig.recovery.on_sent(seq);
        }
        let (_, lost, _) = rig.ack(0, &[0b1110, 0b111], 120);
        assert!(lost >= 2);
        assert_eq!(
            &rig.repeats(100, 121)[..2],
            [5, 6],
            "the rest of the flight is older, thus first"
        );
    }

    /// The reports of 1 and 2 were damaged: the next acknowledgement says that 1 is missing (W-42).
    #[test]
    fn a_timeout_forgets_contradicted_reports() {
        let mut rig = Rig::new(4);
        rig.ack(0, &[0b111], 50);
        rig.ack(1, &[], 51);
        rig.recovery.on_timeout(&mut rig.send);
        assert_eq!(rig.repeats(100, 60), [1, 2, 3]);
        assert_eq!(rig.recovery.in_flight, 3);
        let (outcome, ..) = rig.ack(4, &[], 120);
        assert_eq!((outcome.acked, rig.recovery.in_flight), (3, 0));
    }

    #[test]
    fn a_timeout_repeats_only_missing_segments() {
        let mut rig = Rig::new(4);
        rig.ack(0, &[0b110], 50);
        rig.recovery.on_timeout(&mut rig.send);
        assert_eq!(rig.repeats(100, 60), [0, 1]);
    }

    #[test]
    fn early_acknowledgement_of_a_repetition_proves_nothing() {
        let mut rig = Rig::new(4);
        rig.ack(1, &[], 50);
        rig.recovery.on_timeout(&mut rig.send);
        assert_eq!(rig.repeats(2, 60), [1, 2]);
        let newest = rig.recovery.newest_acked;
        rig.ack(2, &[], 61);
        assert_eq!(rig.recovery.newest_acked, newest);
        assert_eq!(
            rig.rtt.min,
            Some(Duration::from_micros(50)),
            "no sample of a repetition"
        );
    }

    #[test]
    fn repair_respects_the_window() {
        let mut rig = Rig::new(10);
        rig.recovery.on_timeout(&mut rig.send);
        assert_eq!(rig.recovery.in_flight, 0);
        assert_eq!(rig.repeats(4, 100), [0, 1, 2, 3]);
        rig.ack(2, &[], 200);
        assert_eq!(rig.repeats(4, 200), [4, 5]);
    }

    #[test]
    fn a_spurious_timeout_returns_segments_to_flight() {
        let mut rig = Rig::new(20);
        rig.recovery.on_timeout(&mut rig.send);
        assert_eq!(rig.repeats(4, 2_000), [0, 1, 2, 3]);
        // The peer returns and processes the waiting frames in two batches.
        let (outcome, lost, _) = rig.ack(8, &[], 5_000);
        assert!(outcome.spurious, "four of these were sent once");
        assert_eq!(
            (outcome.acked, outcome.rtt),
            (8, Some(Duration::from_micros(4_993)))
        );
        assert_eq!(
            (lost, rig.recovery.in_flight, rig.recovery.has_lost()),
            (0, 12, false)
        );
        assert_eq!(rig.repeats(100, 5_000), []);
        let (outcome, lost, _) = rig.ack(20, &[], 5_010);
        assert_eq!(
            (
                outcome.acked,
                outcome.spurious,
                lost,
                rig.recovery.in_flight
            ),
            (12, false, 0, 0)
        );
    }

    #[test]
    fn loss_after_a_spurious_timeout_is_detected() {
        let mut rig = Rig::new(12);
        rig.recovery.on_timeout(&mut rig.send);
        assert_eq!(rig.repeats(4, 2_000), [0, 1, 2, 3]);
        // 0 to 5 and 8 to 10 arrive.
        assert!(rig.ack(5, &[], 5_000).0.spurious);
        let (outcome, lost, _) = rig.ack(6, &[0b1110], 5_010);
        assert_eq!((outcome.acked, lost), (4, 2));
        assert_eq!(rig.repeats(100, 5_011), [6, 7]);
    }

    #[test]
    fn several_timeouts_in_a_row_may_be_spurious() {
        let mut rig = Rig::new(6);
        for round in 1..4 {
            rig.recovery.on_timeout(&mut rig.send);
            assert_eq!(rig.repeats(4, 2_000 * round), [0, 1, 2, 3]);
        }
        assert!(rig.ack(6, &[], 9_000).0.spurious);
        assert_eq!(rig.recovery.in_flight, 0);
        // Only retransmitted segments arrive: this proves nothing.
        let mut rig = Rig::new(4);
        rig.recovery.on_timeout(&mut rig.send);
        assert_eq!(rig.repeats(4, 2_000), [0, 1, 2, 3]);
        assert!(!rig.ack(4, &[], 9_000).0.spurious);
    }

    #[test]
    fn tail_probe_sends_the_last_one_once() {
        let mut rig = Rig::new(5);
        assert!(rig.recovery.on_tail_probe(&mut rig.send));
        assert_eq!(rig.repeats(0, 100), [4]);
        assert_eq!(rig.recovery.in_flight, 5);
        assert!(!rig.recovery.on_tail_probe(&mut rig.send));
        rig.ack(5, &[], 150);
        assert_eq!(rig.recovery.in_flight, 0);
    }

    /// W-47.
    #[test]
    fn back_off_doubles_to_the_ceiling_and_ends_with_a_clean_round_trip() {
        let mut rig = Rig::new(2);
        let (rto, ceiling) = (Duration::from_millis(2), Duration::from_millis(200));
        let mut seen = vec![];
        for _ in 0..9 {
            rig.recovery.on_timeout(&mut rig.send);
            seen.push(rig.recovery.backed_off(rto, ceiling).as_millis());
        }
        assert_eq!(seen, [4, 8, 16, 32, 64, 128, 200, 200, 200]);
        rig.repeats(9, 90);
        rig.ack(2, &[], 100);
        assert_eq!(
            rig.recovery.backed_off(rto, ceiling),
            ceiling,
            "Karn: repetitions measure nothing"
        );
        rig.send.set_written(3);
        let (seq, _) = rig.send.cut(1, rig.recovery.next_tx, at(110)).unwrap();
        rig.recovery.on_sent(seq);
        rig.ack(3, &[], 200);
        assert_eq!(rig.recovery.backed_off(rto, ceiling), rto);
    }

    #[test]
    fn order_does_not_grow_with_time() {
        let mut rig = Rig::new(0);
        for i in 0..100_000u64 {
            rig.send.set_written(i + 1);
            let (seq, _) = rig.send.cut(1, rig.recovery.next_tx, at(i)).unwrap();
            rig.recovery.on_sent(seq);
            rig.ack((i + 1) as u16, &[], i + 1);
        }
        assert!(rig.recovery.order.len() < 4);
    }
}
