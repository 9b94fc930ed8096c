//! The sender's end of a queue.

use std::collections::VecDeque;

use super::slot::store_message;
use super::{
    CHUNK, FILLED, HELP, Help, INLINE, INLINE_BYTES, PAIR, REST, RING, SLOT_HEADER, header_line,
    lap, place, start, word0,
};
use crate::Scribble;
use crate::distance::Distance;
use crate::layout::{PairHead, Slot};
use shmem::sync::Ordering;
use shmem::{Bytes, Shared, SharedSlice};

/// The sender's end.
#[derive(Debug)]
pub(crate) struct Producer {
    slots: SharedSlice<Slot>,
    ring: Bytes,
    /// Own words for this peer.
    mine: Shared<PairHead>,
    /// The peer's words for us: how much it has consumed.
    theirs: Shared<PairHead>,
    start: u64,
    shift: u32,
    sent: u64,
    /// What `sent` was behind the last real message: `FILLED` and `HELP` compete with nobody for a receive.
    last_message: u64,
    consumed: u64,
    ring_head: u64,
    ring_tail: u64,
    /// For each slot, where the ring ended when it was written.
    ring_ends: Box<[u64]>,
    /// Chunks out, and what the peer's count must reach for them to come back.
    lent: VecDeque<(u64, u32)>,
    wants_room: bool,
    /// Of the peer's core.
    distance: Distance,
}

impl Producer {
    /// From `sender` to `receiver`. `lent`: chunks it may ever hold.
    pub(crate) fn new(
        (sender, receiver): (u32, u32),
        slots: SharedSlice<Slot>,
        ring: Bytes,
        mine: Shared<PairHead>,
        theirs: Shared<PairHead>,
        lent: usize,
    ) -> Self {
        Producer {
            start: start(sender, receiver, slots.len()),
            shift: slots.len().trailing_zeros(),
            ring_ends: vec![0; slots.len()].into(),
            lent: VecDeque::with_capacity(lent),
            slots,
            ring,
            mine,
            theirs,
            sent: 0,
            last_message: 0,
            consumed: 0,
            ring_head: 0,
            ring_tail: 0,
            wants_room: false,
            distance: Distance::default(),
        }
    }

    #[inline]
    fn index(&self, count: u64) -> usize {
        #[allow(clippy::cast_possible_truncation)] // masked
        let index = (self.start + count) as usize & (self.slots.len() - 1);
        index
    }

    /// Looks how far the peer is.
    pub(crate) fn refresh(&mut self) -> Result<(), Scribble> {
        // SYNC POINT consumed
        let now = self.theirs.consumed.0.load(Ordering::Acquire);
        if now == self.consumed {
            return Ok(());
        }
        if now.wrapping_sub(self.consumed) > self.sent - self.consumed {
            return Err(Scribble {
                what: "it consumed messages that were never sent",
                value: now,
            });
        }
        self.consumed = now;
        self.ring_tail = self.ring_ends[self.index(now - 1)];
        Ok(())
    }

    /// As [`Producer::refresh`], and now and then notes how far away the peer is.
    pub(crate) fn refresh_timed(&mut self) -> Result<(), Scribble> {
        if !self.distance.is_due() {
            return self.refresh();
        }
        let mut distance = self.distance;
        distance.watch(|| {
            let before = self.consumed;
            self.refresh()?;
            Ok(self.consumed != before)
        })?;
        self.distance = distance;
        Ok(())
    }

    /// How far away the peer is, for tests.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn distance(&mut self) -> &mut Distance {
        &mut self.distance
    }

    /// Is a slot free?
    #[inline]
    pub(crate) fn slot_free(&mut self) -> Result<bool, Scribble> {
        if self.sent - self.consumed < self.slots.len() as u64 {
            return Ok(true);
        }
        self.refresh()?;
        Ok(self.sent - self.consumed < self.slots.len() as u64)
    }

    /// Is half of the queue free? What may as well stay away leaves the rest to messages.
    pub(crate) fn is_half_free(&mut self) -> Result<bool, Scribble> {
        let free = |this: &Self| (this.sent - this.consumed) * 2 <= this.slots.len() as u64;
        if !free(self) {
            self.refresh()?;
        }
        Ok(free(self))
    }

    /// Are two?
    #[inline]
    pub(crate) fn two_slots_free(&mut self) -> Result<bool, Scribble> {
        let free = |this: &Self| this.sent - this.consumed + 2 <= this.slots.len() as u64;
        if !free(self) {
            self.refresh()?;
        }
        Ok(free(self))
    }

    /// Has the peer seen every message? Their callbacks have then returned (see `board.rs`).
    pub(crate) fn all_seen(&mut self) -> Result<bool, Scribble> {
        self.refresh()?;
        Ok(self.consumed >= self.last_message)
    }

    /// Was anything sent that the peer has not consumed, as of the last [`Producer::refresh`]?
    pub(crate) fn is_idle(&self) -> bool {
        self.consumed == self.sent
    }

    /// Publishes the next slot with this behind its word 0, one behind the other.
    #[inline]
    fn publish(&mut self, kind: u8, (header, body): (usize, usize), first: &[u8], second: &[u8]) {
        let index = self.index(self.sent);
        let slot = &self.slots[index];
        // SAFETY: the slot is free (the caller has asked), in the own file, which is mapped writable.
        unsafe { store_message(slot, first, second) };
        let word = word0(lap(self.start + self.sent, self.shift), kind, header, body);
        // SYNC POINT slot
        slot.0[0].store(word, Ordering::Release);
        self.ring_ends[index] = self.ring_head;
        self.sent += 1;
        if !matches!(kind, FILLED | HELP) {
            self.last_message = self.sent;
        }
        if self.wants_room {
            self.set_wants_room(false);
        }
    }

    /// A message of at most [`INLINE_BYTES`] bytes. The caller has asked [`Producer::slot_free`].
    #[inline]
    pub(crate) fn push_inline(&mut self, header: &[u8], body: &[u8]) {
        self.publish(INLINE, (header.len(), body.len()), header, body);
    }

    /// A message of at most [`PAIR_BYTES`](super::PAIR_BYTES) bytes, more than [`INLINE_BYTES`], whose header fits into one slot. The caller has asked
    /// [`Producer::two_slots_free`].
    #[inline]
    pub(crate) fn push_pair(&mut self, header: &[u8], body: &[u8]) {
        let (front, rest) =
            body.split_at(INLINE_BYTES.saturating_sub(header.len()).min(body.len()));
        let second = self.index(self.sent + 1);
        let slot = &self.slots[second];
        // SAFETY: the slot is free (the caller has asked), in the own file, which is mapped writable.
        unsafe { store_message(slot, rest, &[]) };
        // Relaxed: nobody looks before the first slot is there.
        let word = word0(lap(self.start + self.sent + 1, self.shift), REST, 0, 0);
        slot.0[0].store(word, Ordering::Relaxed);
        let index = self.index(self.sent);
        let slot = &self.slots[index];
        // SAFETY: as above.
        unsafe { store_message(slot, header, front) };
        let word = word0(
            lap(self.start + self.sent, self.shift),
            PAIR,
            header.len(),
            body.len(),
        );
        // SYNC POINT slot
        slot.0[0].store(word, Ordering::Release);
        self.ring_ends[index] = self.ring_head;
        self.ring_ends[second] = self.ring_head;
        self.sent += 2;
        self.last_message = self.sent;
        if self.wants_room {
            self.set_wants_room(false);
        }
    }

    /// A slot whose body is elsewhere.
    #[inline]
    fn publish_elsewhere(&mut self, kind: u8, first: u64, header: &[u8], body: usize) {
        let in_slot = if header.len() <= SLOT_HEADER {
            header
        } else {
            &[]
        };
        self.publish(kind, (header.len(), body), &first.to_ne_bytes(), in_slot);
    }

    /// Copies a header that does not fit into the slot to where the slot will refer to; answers where the body goes.
    fn fill(bytes: &Bytes, at: usize, header: &[u8]) -> usize {
        let line = header_line(header.len());
        if line > 0 {
            // SAFETY: as in `push_ring` and `push_chunk`.
            unsafe { bytes.store(at, header) };
        }
        at + line
    }

    /// A message through the ring; false: no room. The caller has asked [`Producer::slot_free`] and keeps the message shorter than
    /// half the ring.
    pub(crate) fn push_ring(&mut self, header: &[u8], body: &[u8]) -> Result<bool, Scribble> {
        let size = self.ring.len();
        let (begin, end) = place(self.ring_head, header_line(header.len()) + body.len(), size);
        if end - self.ring_tail > size as u64 {
            self.refresh()?;
            if end - self.ring_tail > size as u64 {
                return Ok(false);
            }
        }
        #[allow(clippy::cast_possible_truncation)] // masked
        let at = begin as usize & (size - 1);
        let at = Self::fill(&self.ring, at, header);
        // SAFETY: the peer has consumed what lay here, or nothing did; the own file is writable.
        unsafe { self.ring.store(at, body) };
        self.ring_head = end;
        self.publish_elsewhere(RING, 0, header, body.len());
        Ok(true)
    }

    /// A message through a chunk of the pool, which is lent to the peer with it.
    pub(crate) fn push_chunk(&mut self, chunk: u32, bytes: &Bytes, header: &[u8], body: &[u8]) {
        let at = Self::fill(bytes, 0, header);
        if self.distance.is_far() {
            // SAFETY: the chunk is free (`Pool::take`), in the own file, which is mapped writable.
            unsafe { bytes.store_uncached(at, body) };
        } else {
            // SAFETY: as above.
            unsafe { bytes.store(at, body) };
        }
        self.publish_elsewhere(CHUNK, u64::from(chunk), header, body.len());
        self.lent.push_back((self.sent, chunk));
    }

    /// Chunks lent.
    pub(crate) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// The next chunk that came back, as of the last [`Producer::refresh`].
    pub(crate) fn take_back(&mut self) -> Option<u32> {
        let (due, chunk) = *self.lent.front()?;
        if due > self.consumed {
            return None;
        }
        self.lent.pop_front();
        Some(chunk)
    }

    /// The next chunk, come back or not: the peer is gone.
    pub(crate) fn take_all_back(&mut self) -> Option<u32> {
        self.lent.pop_front().map(|(_, chunk)| chunk)
    }

    /// Says that the posted receive `id` was filled by a message of `length` bytes. The caller has asked [`Producer::slot_free`].
    pub(crate) fn push_filled(&mut self, id: u64, length: u64, envelope: u64) {
        self.publish_words(FILLED, [id, length, envelope, 0]);
    }

    /// Asks the peer to help with copying one of its messages. The caller has asked [`Producer::slot_free`].
    pub(crate) fn push_help(
        &mut self,
        Help {
            id,
            from,
            to,
            length,
        }: Help,
    ) {
        self.publish_words(HELP, [id.into(), from, to, length]);
    }

    fn publish_words(&mut self, kind: u8, words: [u64; 4]) {
        let mut bytes = [0; 32];
        for (eight, word) in bytes.chunks_exact_mut(8).zip(words) {
            eight.copy_from_slice(&word.to_ne_bytes());
        }
        self.publish(kind, (0, 0), &bytes, &[]);
    }

    /// Tells the peer whether its progress is waited for.
    pub(crate) fn set_wants_room(&mut self, wants: bool) {
        self.wants_room = wants;
        self.mine
            .writing
            .0
            .wants_room
            .store(u64::from(wants), Ordering::Relaxed);
    }

    /// Is there a wish for room, and has the peer moved since?
    pub(crate) fn wish_granted(&self) -> bool {
        self.wants_room && self.theirs.consumed.0.load(Ordering::Relaxed) != self.consumed
    }

    /// Own words for this peer.
    pub(crate) fn mine(&self) -> &PairHead {
        &self.mine
    }

    /// The peer's words for us.
    pub(crate) fn theirs(&self) -> &PairHead {
        &self.theirs
    }
}
