//! The sender's end of a queue.

use std::collections::VecDeque;

use super::slot::store_message;
use super::{
    CHUNK, HELP, Help, INLINE, INLINE_BYTES, Lane, PAIR, REST, RING, SLOT_HEADER, header_line,
    place, word0,
};
use crate::Corruption;
use crate::distance::Distance;
use crate::layout::{PairHead, Slot};
use shmem::sync::Ordering;
use shmem::{Bytes, Shared, SharedSlice};

/// The sender's end.
#[derive(Debug)]
pub(crate) struct Producer {
    lane: Lane,
    ring: Bytes,
    /// This process's words for the peer.
    mine: Shared<PairHead>,
    /// The peer's words for this process: the number of messages it has consumed.
    theirs: Shared<PairHead>,
    sent: u64,
    consumed: u64,
    ring_head: u64,
    ring_tail: u64,
    /// For each slot, the end of the ring when it was written.
    ring_ends: Box<[u64]>,
    /// Chunks lent to the peer, and the count at which each comes back.
    lent: VecDeque<(u64, u32)>,
    /// Distance of the peer's core.
    distance: Distance,
}

impl Producer {
    /// Returns the end of the queue from one rank to another, which holds at most `lent` chunks.
    pub(crate) fn new(
        ranks: (u32, u32),
        slots: SharedSlice<Slot>,
        ring: Bytes,
        mine: Shared<PairHead>,
        theirs: Shared<PairHead>,
        lent: usize,
    ) -> Self {
        Producer {
            ring_ends: vec![0; slots.len()].into(),
            lent: VecDeque::with_capacity(lent),
            lane: Lane::new(slots, ranks),
            ring,
            mine,
            theirs,
            sent: 0,
            consumed: 0,
            ring_head: 0,
            ring_tail: 0,
            distance: Distance::default(),
        }
    }

    /// Reads the number of messages that the peer has consumed.
    pub(crate) fn refresh(&mut self) -> Result<(), Corruption> {
        // SYNC POINT consumed
        let now = self.theirs.consumed.0.load(Ordering::Acquire);
        if now == self.consumed {
            return Ok(());
        }
        if now.wrapping_sub(self.consumed) > self.sent - self.consumed {
            return Err(Corruption {
                what: "the count of consumed messages exceeds those sent",
                value: now,
            });
        }
        self.consumed = now;
        self.ring_tail = self.ring_ends[self.lane.index(now - 1)];
        Ok(())
    }

    /// Calls [`Producer::refresh`], and times one call in eight to measure the distance of the
    /// peer.
    pub(crate) fn refresh_timed(&mut self) -> Result<(), Corruption> {
        let mut distance = self.distance;
        if distance.is_due() {
            let before = self.consumed;
            distance.time(|| {
                self.refresh()?;
                Ok(self.consumed != before)
            })?;
        } else {
            self.refresh()?;
        }
        self.distance = distance;
        Ok(())
    }

    /// Returns the distance of the peer, for tests.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn distance(&mut self) -> &mut Distance {
        &mut self.distance
    }

    /// Returns true if this many slots are free.
    #[inline]
    pub(crate) fn has_room(&mut self, slots: usize) -> Result<bool, Corruption> {
        let all = self.lane.slots.len() as u64;
        let fits = |this: &Self| this.sent - this.consumed + slots as u64 <= all;
        if !fits(self) {
            self.refresh()?;
        }
        Ok(fits(self))
    }

    /// Returns true if half of the queue is free. Optional requests leave the rest to messages.
    pub(crate) fn is_half_free(&mut self) -> Result<bool, Corruption> {
        self.has_room(self.lane.slots.len() / 2)
    }

    /// Returns true if the peer has consumed everything sent, as of the last [`Producer::refresh`].
    pub(crate) fn is_idle(&self) -> bool {
        self.consumed == self.sent
    }

    /// Writes the slot of message `count`, with `first` and `second` one after the other. Word 0 is
    /// stored in this order.
    #[inline]
    fn write_slot(
        &mut self,
        count: u64,
        (kind, header, body): (u8, usize, usize),
        (first, second): (&[u8], &[u8]),
        order: Ordering,
    ) {
        let slot = self.lane.slot(count);
        // SAFETY: the slot is free (the caller has checked), in this process's file, which is
        // mapped writable.
        unsafe { store_message(slot, first, second) };
        let word = word0(self.lane.lap(count), kind, header, body);
        slot.0[0].store(word, order);
        self.ring_ends[self.lane.index(count)] = self.ring_head;
    }

    /// Publishes the next slot.
    #[inline]
    fn publish(&mut self, kind: u8, (header, body): (usize, usize), first: &[u8], second: &[u8]) {
        let lengths = (kind, header, body);
        // SYNC POINT slot
        self.write_slot(self.sent, lengths, (first, second), Ordering::Release);
        self.sent += 1;
    }

    /// Sends a message of at most [`INLINE_BYTES`] bytes. The caller has checked
    /// [`Producer::has_room`].
    #[inline]
    pub(crate) fn push_inline(&mut self, header: &[u8], body: &[u8]) {
        self.publish(INLINE, (header.len(), body.len()), header, body);
    }

    /// Sends a message of more than [`INLINE_BYTES`] and at most [`PAIR_BYTES`](super::PAIR_BYTES)
    /// bytes, whose header fits into one slot. The caller has checked that two slots are free.
    #[inline]
    pub(crate) fn push_pair(&mut self, header: &[u8], body: &[u8]) {
        let (front, rest) =
            body.split_at(INLINE_BYTES.saturating_sub(header.len()).min(body.len()));
        // Relaxed: the receiver reads it after the first slot only.
        let next = self.sent + 1;
        self.write_slot(next, (REST, 0, 0), (rest, &[]), Ordering::Relaxed);
        self.publish(PAIR, (header.len(), body.len()), header, front);
        self.sent = next + 1;
    }

    /// Publishes a slot whose body is elsewhere.
    #[inline]
    fn publish_elsewhere(&mut self, kind: u8, first: u64, header: &[u8], body: usize) {
        let in_slot = if header.len() <= SLOT_HEADER {
            header
        } else {
            &[]
        };
        self.publish(kind, (header.len(), body), &first.to_ne_bytes(), in_slot);
    }

    /// Copies a header that does not fit into the slot, and returns the position of the body.
    fn fill(bytes: &Bytes, at: usize, header: &[u8]) -> usize {
        let line = header_line(header.len());
        if line > 0 {
            // SAFETY: as in `push_ring` and `push_chunk`.
            unsafe { bytes.store(at, header) };
        }
        at + line
    }

    /// Sends a message through the ring; returns false if there is no room. The caller has checked
    /// [`Producer::has_room`] and keeps the message shorter than half the ring.
    pub(crate) fn push_ring(&mut self, header: &[u8], body: &[u8]) -> Result<bool, Corruption> {
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
        // SAFETY: the peer has consumed earlier bytes here, if any; this process's file is
        // writable.
        unsafe { self.ring.store(at, body) };
        self.ring_head = end;
        self.publish_elsewhere(RING, 0, header, body.len());
        Ok(true)
    }

    /// Sends a message through a chunk of the pool, which is lent to the peer.
    pub(crate) fn push_chunk(&mut self, chunk: u32, bytes: &Bytes, header: &[u8], body: &[u8]) {
        let at = Self::fill(bytes, 0, header);
        if self.distance.is_far() {
            // SAFETY: the chunk is free (`Pool::take`), in this process's file, which is mapped
            // writable.
            unsafe { bytes.store_uncached(at, body) };
        } else {
            // SAFETY: as above.
            unsafe { bytes.store(at, body) };
        }
        self.publish_elsewhere(CHUNK, u64::from(chunk), header, body.len());
        self.lent.push_back((self.sent, chunk));
    }

    /// Returns the number of chunks lent.
    pub(crate) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Returns the next chunk that the peer has returned, as of the last [`Producer::refresh`].
    /// With `all`, including those that it still holds, because the peer is gone.
    pub(crate) fn next_returned(&mut self, all: bool) -> Option<u32> {
        let (due, chunk) = *self.lent.front()?;
        (all || due <= self.consumed).then(|| {
            self.lent.pop_front();
            chunk
        })
    }

    /// Asks the peer to help copy one of its messages. The caller has checked
    /// [`Producer::has_room`].
    pub(crate) fn push_help(&mut self, help: Help) {
        let words = [help.id.into(), help.from, help.to, help.length];
        let bytes = words.map(u64::to_ne_bytes);
        self.publish(HELP, (0, 0), bytes.as_flattened(), &[]);
    }

    /// Returns the process's own words for this peer.
    pub(crate) fn mine(&self) -> &PairHead {
        &self.mine
    }

    /// Returns the peer's words for this process.
    pub(crate) fn theirs(&self) -> &PairHead {
        &self.theirs
    }
}
