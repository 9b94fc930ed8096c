//! The ring from the program to the engine. Bytes stay in it until the peer has acknowledged them.

use core::ptr::NonNull;
use std::sync::Arc;

use super::layout::FIN;
use super::region::Region;
use super::roles::{HeldRole, Role};
use super::{Corruption, IN_USE, crosses_page};
use shmem::sync::Ordering;

/// The program's end: writes bytes. One per region. It clamps what it reads from the engine.
#[derive(Debug)]
pub struct TxProducer {
    _role: HeldRole,
    region: Arc<Region>,
    /// Bytes written; the shared word is a copy.
    head: u64,
    /// Bytes released, as last seen; never more than `head`.
    tail: u64,
    /// Shift of the ring; the shared word is a copy.
    shift: u64,
    finished: bool,
}

impl TxProducer {
    /// Returns the region's only producer.
    ///
    /// # Panics
    /// If this process has one already.
    pub fn new(region: Arc<Region>) -> Self {
        let _role = region.roles().acquire(Role::TxProducer);
        let word = region.words().tx_head.0.count.load(Ordering::Relaxed);
        let head = word & !FIN;
        let shift = region.words().tx_head.0.shift.load(Ordering::Relaxed);
        let mut producer = TxProducer {
            _role,
            tail: head,
            head,
            shift,
            finished: word & FIN != 0,
            region,
        };
        let shared = producer.region.words().tx_tail.0.load(Ordering::Acquire);
        // All that is known: at most a full ring is pending.
        producer.tail = shared.clamp(head.saturating_sub(producer.capacity() as u64), head);
        producer
    }

    /// Returns the capacity of the ring, in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.region.tx().capacity()
    }

    /// Returns the number of bytes that [`TxProducer::write`] would take now.
    #[inline]
    pub fn free(&self) -> usize {
        self.room(self.acked())
    }

    #[inline]
    fn room(&self, tail: u64) -> usize {
        if self.finished {
            return 0;
        }
        // tail <= head and head - tail <= capacity always hold; clamped nevertheless.
        self.capacity()
            .saturating_sub(usize::try_from(self.head.saturating_sub(tail)).unwrap_or(usize::MAX))
    }

    /// Copies and publishes the bytes that fit; ring the doorbell afterwards. Returns their number:
    /// 0 if the ring is full or [`TxProducer::finish`] was called.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let mut room = self.room(self.tail);
        if room < bytes.len() {
            self.tail = self.acked();
            room = self.room(self.tail);
        }
        let take = bytes.len().min(room);
        if take > 0 {
            self.settle(take);
            self.place(0, &bytes[..take]);
            self.advance(take);
        }
        take
    }

    /// Prepares to place `n` bytes: an empty ring restarts at its first page if they would begin on
    /// another page.
    #[inline]
    pub(super) fn settle(&mut self, n: usize) {
        if crosses_page(self.head.wrapping_add(self.shift), n) {
            self.tail = self.acked();
            if self.tail == self.head {
                self.shift = self.head.wrapping_neg();
                // SYNC POINT shift: published by `tx_head` with the bytes at that place.
                let word = &self.region.words().tx_head.0.shift;
                word.store(self.shift, Ordering::Relaxed);
            }
        }
    }

    /// Copies bytes after the written ones, at a distance of `ahead` bytes. The caller has checked
    /// the room.
    #[inline]
    pub(super) fn place(&mut self, ahead: usize, bytes: &[u8]) {
        debug_assert!(ahead + bytes.len() <= self.capacity());
        // SAFETY: the range lies in [head, tail + capacity), which belongs to the one producer
        // until `head` passes it: callers pass at most `room` bytes, and `tail` was loaded with
        // Acquire from the engine's release.
        unsafe {
            self.region
                .tx()
                .store((self.head + ahead as u64).wrapping_add(self.shift), bytes);
        }
    }

    /// Publishes `n` bytes placed before.
    #[inline]
    pub(super) fn advance(&mut self, n: usize) {
        self.head += n as u64;
        // SYNC POINT tx-head: the engine that sees the index sees the bytes.
        let word = &self.region.words().tx_head.0.count;
        word.store(self.head, Ordering::Release);
    }

    /// Returns the number of bytes written since the start.
    #[inline]
    pub fn written(&self) -> u64 {
        self.head
    }

    /// Returns the number of bytes acknowledged since the start, never more than were written.
    #[inline]
    pub fn acked(&self) -> u64 {
        // SYNC POINT tx-tail
        let shared = self.region.words().tx_tail.0.load(Ordering::Acquire);
        if (self.tail..=self.head).contains(&shared) {
            shared
        } else {
            self.tail
        }
    }

    /// Returns the number of bytes written and not acknowledged.
    #[inline]
    pub fn pending(&self) -> u64 {
        self.head - self.acked()
    }

    /// Sets the FIN mark: no byte will follow. Ring the doorbell afterwards.
    pub fn finish(&mut self) {
        self.finished = true;
        // SYNC POINT tx-head
        let word = &self.region.words().tx_head.0.count;
        word.store(self.head | FIN, Ordering::Release);
    }

    /// Returns true if [`TxProducer::finish`] was called.
    pub fn is_finished(&self) -> bool {
        self.finished
    }
}

/// State of a program's writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxView {
    /// Bytes written since the start.
    pub total: u64,
    /// The program will write no more.
    pub finished: bool,
}

/// The engine's end: sends from the ring and frees it. One per region, created while the region is
/// new.
#[derive(Debug)]
pub struct TxConsumer {
    _role: HeldRole,
    region: Arc<Region>,
    /// Bytes that the program wrote, as accepted last.
    written: u64,
    /// Bytes freed.
    released: u64,
    /// `released` when the writer was last notified of room.
    noticed: u64,
    finished: bool,
}

impl TxConsumer {
    /// Returns the region's only consumer. Nothing of the region was freed yet.
    ///
    /// # Panics
    /// If this process has one already.
    pub fn new(region: Arc<Region>) -> Self {
        let role = region.roles().acquire(Role::TxConsumer);
        TxConsumer::with(role, region, 0)
    }

    /// Returns the consumer of a region of which `released` bytes were freed.
    fn with(role: HeldRole, region: Arc<Region>, released: u64) -> Self {
        TxConsumer {
            _role: role,
            region,
            written: released,
            released,
            noticed: released,
            finished: false,
        }
    }

    /// Returns the consumer of a region that an earlier engine left, and the state of the program's
    /// writing.
    ///
    /// # Errors
    /// The indices are impossible, or this process has a consumer of the region.
    pub fn resume(region: Arc<Region>) -> Result<(Self, TxView), Corruption> {
        let role = region.roles().try_acquire(Role::TxConsumer).ok_or(IN_USE)?;
        let released = region.words().tx_tail.0.load(Ordering::Acquire);
        if released & FIN != 0 {
            return Err(Corruption {
                value: released,
                what: "TX tail is impossible",
            });
        }
        let mut consumer = TxConsumer::with(role, region, released);
        let view = consumer.poll_written()?;
        Ok((consumer, view))
    }

    /// Returns the number of bytes that the program has written.
    ///
    /// # Errors
    /// The program wrote an impossible value. The state is unchanged, and the error is returned
    /// until the word is valid again.
    #[inline]
    pub fn poll_written(&mut self) -> Result<TxView, Corruption> {
        // SYNC POINT tx-head
        let word = self.region.words().tx_head.0.count.load(Ordering::Acquire);
        let (total, finished) = (word & !FIN, word & FIN != 0);
        // At most one ring full beyond what is free, never back, and nothing after the FIN mark.
        let advance = total.wrapping_sub(self.written);
        let limit = self.region.tx().capacity() as u64 - (self.written - self.released);
        if advance > limit || (self.finished && (advance != 0 || !finished)) {
            return Err(self.corrupt_head(word));
        }
        self.written = total;
        self.finished = finished;
        Ok(TxView { total, finished })
    }

    #[cold]
    fn corrupt_head(&self, word: u64) -> Corruption {
        let what = if self.finished {
            "TX head changed after its FIN mark"
        } else if word & !FIN < self.written {
            "TX head went back"
        } else {
            "TX head is further than the ring is long"
        };
        Corruption { value: word, what }
    }

    /// Returns the address of `len` bytes that start at stream offset `offset`, or `None` unless
    /// all of them are written and unreleased. They are contiguous, and valid until released or
    /// until the region is dropped.
    ///
    /// The program can still change the bytes: read each once, and trust nothing found in them.
    #[inline]
    pub fn payload(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        #[cfg(not(loom))]
        return self
            .holds(offset, len)
            .then(|| self.region.tx().at(self.place_of(offset)));
        // The model's memory is not flat; models use `copy_out`.
        #[cfg(loom)]
        return self.holds(offset, len).then_some(NonNull::dangling());
    }

    /// Copies bytes out (to a program of this node). Returns false under the condition under which
    /// [`TxConsumer::payload`] returns `None`.
    #[inline]
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let held = self.holds(offset, bytes.len());
        if held {
            // SAFETY: the range is written and unreleased, so at most a ring long. A program that
            // follows the protocol does not write it; another one affects only its own bytes.
            unsafe { self.region.tx().load(self.place_of(offset), bytes) }
        }
        held
    }

    /// Returns the index of a byte that is written and unreleased. A program that changes the shift
    /// concurrently damages only its own bytes.
    #[inline]
    fn place_of(&self, offset: u64) -> u64 {
        // SYNC POINT shift: loaded after the `tx_head` that published the byte, and not changed
        // before it is released.
        offset.wrapping_add(self.region.words().tx_head.0.shift.load(Ordering::Relaxed))
    }

    #[inline]
    fn holds(&self, offset: u64, len: usize) -> bool {
        offset >= self.released
            && offset
                .checked_add(len as u64)
                .is_some_and(|end| end <= self.written)
    }

    /// Frees everything below stream offset `acked`, which is clamped to what was written; going
    /// back is ignored. Returns true if the writer should be [woken](super::Region::wake),
    /// see [`TxConsumer::room_notice_due`].
    #[inline]
    pub fn release(&mut self, acked: u64) -> bool {
        self.free_below(acked);
        self.room_notice_due()
    }

    #[inline]
    pub(super) fn free_below(&mut self, acked: u64) {
        let acked = acked.min(self.written);
        if acked > self.released {
            self.released = acked;
            // SYNC POINT tx-tail: the program that sees the index may write where the engine has
            // read.
            let word = &self.region.words().tx_tail.0;
            word.store(acked, Ordering::Release);
        }
    }

    /// Returns true if the writer should be woken: a quarter of the ring was freed since this last
    /// returned true, or the ring is empty. A writer that waits for room is always woken, because
    /// the bytes it waits for are acknowledged eventually.
    #[inline]
    pub fn room_notice_due(&mut self) -> bool {
        let freed = self.released - self.noticed;
        let due = freed > 0
            && (freed >= self.region.tx().capacity() as u64 / 4 || self.released == self.written);
        if due {
            self.noticed = self.released;
        }
        due
    }

    /// Returns the number of bytes written, as of the last successful [`TxConsumer::poll_written`].
    #[inline]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes freed.
    #[inline]
    pub fn released(&self) -> u64 {
        self.released
    }
}

#[cfg(all(test, not(loom)))]
impl TxConsumer {
    /// Resets the state to that of a new region, for tests that use many.
    pub(super) fn restart(&mut self) {
        (self.written, self.released, self.noticed, self.finished) = (0, 0, 0, false);
    }
}
