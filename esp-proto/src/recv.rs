//! Receiving half of a connection: next expected sequence, credit given, data that arrived after a
//! gap.

use crate::image::Positions;
use crate::seq::Seq;
use crate::wire::{MAX_SACK, MAX_WINDOW};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Spare buffers for out-of-order data, shared by all connections of an endpoint.
///
/// Nothing is allocated while data arrives in order. The pool keeps a bounded number of buffers for
/// the next gap.
#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

/// Maximum number of spare buffers; others are freed.
const SPARE: usize = 256;

impl Pool {
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.0.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn give(&mut self, buffer: Vec<u8>) {
        if self.0.len() < SPARE {
            self.0.push(buffer);
        }
    }
}

/// Content of a sequence number at or after the gap.
#[derive(Debug)]
enum Slot {
    Missing,
    Data(Vec<u8>),
    Fin,
}

/// Result of processing a data frame or FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Delivered; nothing was or is missing.
    InOrder,
    /// Delivered together with stored data, or with data still missing after it.
    Filled,
    /// Stored: an earlier one is missing.
    Kept,
    /// A duplicate (W-32).
    Duplicate,
    /// At or beyond the credit edge (W-32).
    BeyondCredit,
    /// Longer than agreed on (W-19).
    TooLong,
    /// Data after a FIN, or a second FIN (W-56).
    Violation,
}

/// Returns the number of packets for which `room` bytes give a peer credit.
pub(crate) fn packets(room: u64, payload: u16) -> u16 {
    let packets = room / u64::from(payload.max(1));
    packets.min(MAX_WINDOW.into()) as u16
}

/// State of the receiving half.
#[derive(Debug, Default)]
pub(crate) struct RecvSide {
    /// The next expected sequence.
    pub(crate) expected: Seq,
    /// The credit edge announced to the peer (W-37). Never moves back.
    edge: Seq,
    /// Maximum payload of a packet.
    payload: u16,
    /// Size of the host's buffer in bytes; 0 before `attach`.
    capacity: u32,
    /// Stream bytes delivered to the program.
    pub(crate) delivered: u64,
    /// Stream bytes consumed by the program.
    consumed: u64,
    /// Packets starting at `expected`; empty when nothing is stored. The last one is never
    /// `Missing`.
    kept: VecDeque<Slot>,
    /// Sequence of the peer's FIN, once seen.
    fin: Option<Seq>,
    /// The peer's FIN was received in order.
    pub(crate) finished: bool,
}

impl RecvSide {
    /// Creates the receiving half. `expected` is the sequence after the peer's SYN; `edge` is the
    /// edge promised by the set-up block.
    pub(crate) fn new(expected: Seq, credit: u16, payload: u16, capacity: u32) -> Self {
        RecvSide {
            expected,
            edge: expected.plus(credit),
            payload,
            capacity,
            ..RecvSide::default()
        }
    }

    /// Creates the receiving half of a connection whose state was lost. `expected` stands for the
    /// unknown next sequence until the peer names it.
    pub(crate) fn resumed(expected: Seq, payload: u16, capacity: u32, at: &Positions) -> Self {
        RecvSide {
            delivered: at.delivered,
            consumed: at.consumed,
            finished: at.peer_finished,
            ..RecvSide::new(expected, 0, payload, capacity)
        }
    }

    /// Returns the number of bytes delivered and not consumed.
    pub(crate) fn queued(&self) -> u64 {
        self.delivered - self.consumed
    }

    /// Returns the number of packets that the peer may still send.
    pub(crate) fn credit(&self) -> u16 {
        self.edge.ahead_of(self.expected)
    }

    /// Returns true if the peer may have sent a frame with this sequence recently (W-33): repeated
    /// data, as far back as its window may reach, or a frame that follows its data.
    pub(crate) fn is_plausible(&self, seq: Seq) -> bool {
        seq.ahead_of(self.expected) <= self.credit() || self.expected.ahead_of(seq) <= MAX_WINDOW
    }

    pub(crate) fn has_gap(&self) -> bool {
        !self.kept.is_empty()
    }

    pub(crate) fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// Sets the number of bytes consumed by the program, if it is plausible.
    pub(crate) fn set_consumed(&mut self, total: u64) {
        if total <= self.delivered {
            self.consumed = self.consumed.max(total);
        }
    }

    /// Returns the size of the whole buffer in packets.
    pub(crate) fn window(&self) -> u16 {
        packets(self.capacity.into(), self.payload)
    }

    /// Returns the number of packets by which the edge could be advanced now.
    pub(crate) fn edge_gain(&self) -> u16 {
        self.credit_at(self.payload).saturating_sub(self.credit()) // W-38
    }

    /// Advances the edge as room permits and returns it, to be announced to the peer.
    pub(crate) fn raise_edge(&mut self) -> Seq {
        self.edge = self.edge.plus(self.edge_gain());
        self.edge
    }

    /// Returns the number of packets of `payload` bytes that fit when data stored after a gap is
    /// dropped (W-106).
    pub(crate) fn credit_at(&self, payload: u16) -> u16 {
        packets(
            u64::from(self.capacity).saturating_sub(self.queued()),
            payload,
        )
    }

    /// Restarts at the sequence with which the peer continues; data stored after a gap will be sent
    /// again (W-106).
    pub(crate) fn restart(&mut self, expected: Seq, payload: u16, pool: &mut Pool) {
        self.release(pool);
        self.payload = payload;
        self.expected = expected;
        self.edge = expected.plus(self.credit_at(payload));
        // The FIN, if it has arrived, came just before the expected sequence.
        self.fin = self.finished.then(|| expected.plus(u16::MAX));
    }

    /// Returns true when new credit is worth a frame of its own (W-41): a quarter of the window has
    /// become free since the last announcement, or, when the peer has no credit left, a quarter of
    /// the buffer or one packet, whichever is more.
    pub(crate) fn credit_worth_announcing(&self) -> bool {
        !self.finished && self.edge_gain() >= (self.window() / 4).max(1)
    }

    /// Processes a data frame, or a FIN when `payload` is `None`.
    pub(crate) fn accept(
        &mut self,
        seq: Seq,
        payload: Option<&[u8]>,
        pool: &mut Pool,
        mut deliver: impl FnMut(u64, &[u8]),
    ) -> Verdict {
        let ahead = seq.ahead_of(self.expected);
        if seq.is_before(self.expected) {
            return Verdict::Duplicate;
        }
        if ahead >= self.credit() {
            return Verdict::BeyondCredit;
        }
        if self.violates_fin(seq, payload.is_none()) {
            return Verdict::Violation;
        }
        if payload.is_some_and(|bytes| bytes.len() > usize::from(self.payload)) {
            return Verdict::TooLong;
        }
        if ahead > 0 {
            return self.keep(seq, usize::from(ahead), payload, pool);
        }
        if payload.is_none() {
            self.fin = Some(seq);
        }
        let verdict = if self.kept.is_empty() {
            Verdict::InOrder
        } else {
            Verdict::Filled
        };
        match payload {
            Some(bytes) => self.advance(bytes, &mut deliver),
            None => self.advance_fin(),
        }
        self.kept.pop_front();
        while (self.kept.front()).is_some_and(|slot| !matches!(slot, Slot::Missing)) {
            match self.kept.pop_front() {
                Some(Slot::Data(buffer)) => {
                    self.advance(&buffer, &mut deliver);
                    pool.give(buffer);
                }
                _ => self.advance_fin(),
            }
        }
        verdict
    }

    /// Returns true if a packet contradicts a FIN: once a FIN is known, only that FIN may be at or
    /// after its sequence, and no FIN may precede stored data (W-56).
    fn violates_fin(&self, seq: Seq, is_fin: bool) -> bool {
        match self.fin {
            Some(fin) if is_fin || self.finished => fin != seq,
            Some(fin) => !seq.is_before(fin),
            None => is_fin && usize::from(seq.ahead_of(self.expected)) + 1 < self.kept.len(),
        }
    }

    fn keep(&mut self, seq: Seq, index: usize, payload: Option<&[u8]>, pool: &mut Pool) -> Verdict {
        while self.kept.len() <= index {
            self.kept.push_back(Slot::Missing);
        }
        match self.kept.get_mut(index) {
            Some(slot @ Slot::Missing) => {
                *slot = payload.map_or(Slot::Fin, |bytes| Slot::Data(pool.take(bytes)));
                if payload.is_none() {
                    self.fin = Some(seq);
                }
                Verdict::Kept
            }
            _ => Verdict::Duplicate,
        }
    }

    /// Delivers the expected sequence, at the offset after all earlier ones (W-36). The only place
    /// that delivers.
    fn advance(&mut self, bytes: &[u8], deliver: &mut impl FnMut(u64, &[u8])) {
        deliver(self.delivered, bytes);
        self.delivered += bytes.len() as u64;
        self.expected = self.expected.plus(1);
    }

    fn advance_fin(&mut self) {
        self.finished = true;
        self.expected = self.expected.plus(1);
    }

    /// Writes the selective acknowledgement (W-42) into a bitmap of zeros and returns its length in
    /// bytes; 0 without a gap.
    pub(crate) fn sack(&self, bitmap: &mut [u8; MAX_SACK]) -> usize {
        for (i, slot) in self.kept.iter().skip(1).enumerate() {
            let Some(byte) = bitmap.get_mut(i / 8) else {
                return MAX_SACK;
            };
            if !matches!(slot, Slot::Missing) {
                *byte |= 1 << (i % 8);
            }
        }
        self.kept.len().saturating_sub(1).div_ceil(8)
    }

    /// Releases all memory: nothing will be received any more.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        for slot in core::mem::take(&mut self.kept) {
            if let Slot::Data(buffer) = slot {
                pool.give(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    struct Rig {
        recv: RecvSide,
        pool: Pool,
        got: Vec<u8>,
    }

    impl Rig {
        fn new(capacity: u32) -> Rig {
            let mut recv = RecvSide::new(Seq(65534), 0, 10, capacity);
            recv.raise_edge();
            Rig {
                recv,
                pool: Pool::default(),
                got: vec![],
            }
        }

        fn data(&mut self, n: u16, bytes: &[u8]) -> Verdict {
            let got = &mut self.got;
            self.recv
                .accept(Seq(65534).plus(n), Some(bytes), &mut self.pool, |at, b| {
                    assert_eq!(at, got.len() as u64);
                    got.extend_from_slice(b);
                })
        }

        fn fin(&mut self, n: u16) -> Verdict {
            let got = &mut self.got;
            self.recv
                .accept(Seq(65534).plus(n), None, &mut self.pool, |_, b| {
                    got.extend_from_slice(b);
                })
        }

        fn sack(&self) -> Vec<u8> {
            let mut bitmap = [0; MAX_SACK];
            let len = self.recv.sack(&mut bitmap);
            bitmap[..len].to_vec()
        }
    }

    /// W-131: its first GO names these positions and the credit that follows from them.
    #[test]
    fn a_side_that_lost_its_state_continues_at_the_positions_of_the_program() {
        for finished in [false, true] {
            let at = Positions {
                delivered: 30,
                consumed: 10,
                peer_finished: finished,
                ..Positions::default()
            };
            let recv = RecvSide::resumed(Seq(5), 10, 100, &at);
            assert_eq!((recv.delivered, recv.queued()), (30, 20));
            assert_eq!((recv.credit(), recv.credit_at(10)), (0, 8));
            assert_eq!(recv.finished, finished);
        }
    }

    /// W-32, W-33 and W-31: each of the 65 536 sequences, at places around the wrap and with credit
    /// from nothing to the maximum, compared with a model of positions without wrap.
    #[test]
    fn every_sequence_is_classed_by_its_position() {
        for expected in [0u16, 1, 4095, 0x7fff, 0x8000, 0xf000, 0xffff] {
            for credit in [0, 1, 2, 1000, MAX_WINDOW - 1, MAX_WINDOW] {
                for position in -0x8000..0x8000i32 {
                    let mut pool = Pool::default();
                    let mut recv = RecvSide::new(Seq(expected), credit, 10, 1 << 20);
                    let seq = Seq((i32::from(expected) + position).rem_euclid(65_536) as u16);
                    let near = -i32::from(MAX_WINDOW)..=i32::from(credit);
                    let place = || std::format!("{position} of {expected}, credit {credit}");
                    assert_eq!(
                        recv.is_plausible(seq),
                        near.contains(&position),
                        "{}",
                        place()
                    );
                    let verdict = recv.accept(seq, Some(&[1]), &mut pool, |_, _| ());
                    // Exactly half of the circle away is not before.
                    let is_new = (0..i32::from(credit)).contains(&position);
                    let is_before = (-0x7fff..0).contains(&position);
                    assert_eq!(verdict == Verdict::Duplicate, is_before, "{}", place());
                    let beyond = verdict == Verdict::BeyondCredit;
                    assert_eq!(beyond, !is_before && !is_new, "{}", place());
                }
            }
        }
    }

    #[test]
    fn a_gap_is_kept_reported_and_filled() {
        let mut rig = Rig::new(100);
        assert_eq!(rig.data(0, b"a"), Verdict::InOrder);
        assert_eq!(rig.data(2, b"c"), Verdict::Kept);
        assert_eq!(rig.data(5, b"f"), Verdict::Kept);
        assert_eq!(rig.data(2, b"c"), Verdict::Duplicate);
        assert_eq!(rig.sack(), [0b1001]);
        assert_eq!(rig.data(1, b"b"), Verdict::Filled);
        assert_eq!(rig.got, b"abc");
        assert_eq!(rig.sack(), [0b10]);
        assert_eq!(rig.data(4, b"e"), Verdict::Kept);
        assert_eq!(rig.data(3, b"d"), Verdict::Filled);
        assert_eq!(rig.got, b"abcdef");
        assert_eq!(rig.sack(), []);
        assert!(!rig.recv.has_gap());
        assert_eq!(rig.data(0, b"a"), Verdict::Duplicate);
    }

    #[test]
    fn credit_bounds_the_accepted_packets() {
        let mut rig = Rig::new(30);
        assert_eq!(rig.recv.credit(), 3);
        assert_eq!(rig.data(3, b"x"), Verdict::BeyondCredit);
        assert_eq!(rig.data(0, b"0123456789"), Verdict::InOrder);
        assert_eq!(rig.data(1, b"0123456789a"), Verdict::TooLong);
        assert_eq!(rig.recv.edge_gain(), 0);
        rig.recv.set_consumed(11);
        assert_eq!(
            rig.recv.edge_gain(),
            0,
            "more than was delivered has no effect"
        );
        rig.recv.set_consumed(10);
        assert_eq!(rig.recv.edge_gain(), 1);
        rig.recv.raise_edge();
        assert_eq!(rig.recv.credit(), 3);
        rig.recv.set_consumed(5);
        assert_eq!(rig.recv.queued(), 0, "never back");
    }

    /// W-38.
    #[test]
    fn small_packets_never_lower_the_edge() {
        let mut rig = Rig::new(35);
        for n in 0..3 {
            assert_eq!(rig.data(n, b"x"), Verdict::InOrder);
            let before = rig.recv.edge;
            rig.recv.raise_edge();
            assert!(!rig.recv.edge.is_before(before));
            let room = 35 - rig.recv.queued();
            assert!(u64::from(rig.recv.credit()) * 10 <= room);
        }
    }

    /// W-56.
    #[test]
    fn fin_in_and_out_of_order() {
        let mut rig = Rig::new(100);
        assert_eq!(rig.fin(2), Verdict::Kept);
        assert_eq!(rig.data(2, b"x"), Verdict::Violation);
        assert_eq!(rig.data(3, b"x"), Verdict::Violation);
        assert_eq!(rig.fin(1), Verdict::Violation);
        assert_eq!(rig.fin(2), Verdict::Duplicate);
        assert_eq!(rig.data(0, b"a"), Verdict::Filled);
        assert!(!rig.recv.finished);
        assert_eq!(rig.data(1, b"b"), Verdict::Filled);
        assert!(rig.recv.finished);
        assert_eq!(rig.fin(2), Verdict::Duplicate);
        assert_eq!(rig.data(3, b"x"), Verdict::Violation);
        assert_eq!(rig.fin(3), Verdict::Violation);
    }

    #[test]
    fn fin_before_kept_data_is_a_violation() {
        let mut rig = Rig::new(100);
        assert_eq!(rig.data(3, b"d"), Verdict::Kept);
        assert_eq!(rig.fin(1), Verdict::Violation);
        assert_eq!(rig.fin(4), Verdict::Kept);
    }

    /// W-32: the data arrived first, so nothing ends there.
    #[test]
    fn a_fin_at_kept_data_is_a_duplicate() {
        let mut rig = Rig::new(100);
        assert_eq!(rig.data(2, b"c"), Verdict::Kept);
        assert_eq!(rig.fin(2), Verdict::Duplicate);
        assert_eq!(rig.data(3, b"d"), Verdict::Kept);
        assert_eq!(rig.fin(4), Verdict::Kept);
    }

    #[test]
    fn bitmap_stops_at_its_limit() {
        let mut rig = Rig::new(60_000);
        for n in 1..3000 {
            assert_eq!(rig.data(n, b"x"), Verdict::Kept);
        }
        assert_eq!(rig.sack(), [0xff; MAX_SACK]);
    }

    #[test]
    fn buffers_return_to_the_pool() {
        let mut rig = Rig::new(100);
        rig.data(1, b"b");
        rig.data(0, b"a");
        assert_eq!(rig.pool.0.len(), 1);
        rig.data(3, b"d");
        assert_eq!(rig.pool.0.len(), 0);
        rig.recv.release(&mut rig.pool);
        assert_eq!(rig.pool.0.len(), 1);
    }
}
