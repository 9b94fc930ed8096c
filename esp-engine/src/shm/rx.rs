//! The ring from the engine to the program.

use std::sync::Arc;

use super::layout::FIN;
use super::region::Region;
use super::roles::{HeldRole, Role};
use super::{Corruption, IN_USE, crosses_page};
use shmem::sync::Ordering;

/// The engine's end: puts received bytes into the ring. One per region, created while the region is
/// new.
#[derive(Debug)]
pub struct RxProducer {
    _role: HeldRole,
    region: Arc<Region>,
    /// Bytes put, published or not.
    end: u64,
    /// Bytes published.
    published: u64,
    /// Bytes that the program has consumed, as accepted last.
    consumed: u64,
    /// Shift of the ring; the shared word is a copy.
    shift: u64,
    finished: bool,
}

impl RxProducer {
    /// Returns the region's only producer. Nothing was put into the region yet.
    ///
    /// # Panics
    /// If this process has one already.
    pub fn new(region: Arc<Region>) -> Self {
        let role = region.roles().acquire(Role::RxProducer);
        RxProducer::with(role, region)
    }

    /// Returns the producer of a new region.
    fn with(role: HeldRole, region: Arc<Region>) -> Self {
        RxProducer {
            _role: role,
            region,
            end: 0,
            published: 0,
            consumed: 0,
            shift: 0,
            finished: false,
        }
    }

    /// Returns the producer of a region that an earlier engine left: it continues after the
    /// published bytes, and after the FIN mark if there is one.
    ///
    /// # Errors
    /// The indices are impossible, or this process has a producer of the region.
    #[cfg(not(loom))]
    pub fn resume(region: Arc<Region>) -> Result<Self, Corruption> {
        let role = region.roles().try_acquire(Role::RxProducer).ok_or(IN_USE)?;
        let words = region.words();
        let head = words.rx_head.0.count.load(Ordering::Acquire);
        let shift = words.rx_head.0.shift.load(Ordering::Relaxed);
        let tail = words.rx_tail.0.load(Ordering::Acquire);
        let end = head & !FIN;
        if !(end.saturating_sub(region.rx().capacity() as u64)..=end).contains(&tail) {
            return Err(Corruption {
                value: tail,
                what: "RX tail is ahead of the head, or further behind than the ring is long",
            });
        }
        let mut producer = RxProducer::with(role, region);
        (producer.end, producer.published, producer.consumed) = (end, end, tail);
        (producer.shift, producer.finished) = (shift, head & FIN != 0);
        Ok(producer)
    }

    /// Returns the number of bytes that the program has consumed, as of the last successful
    /// [`RxProducer::poll_consumed`].
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Returns true after the FIN mark.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Returns the capacity of the ring, in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.region.rx().capacity()
    }

    /// Returns the free space of the ring, in bytes, as of the last successful
    /// [`RxProducer::poll_consumed`].
    #[inline]
    pub fn room(&self) -> usize {
        // end - consumed <= capacity holds always.
        self.capacity() - usize::try_from(self.end - self.consumed).unwrap_or(self.capacity())
    }

    /// Copies the next bytes of the stream in, without publishing them. `offset` is the stream
    /// offset of the first.
    ///
    /// # Errors
    /// The bytes are not the next ones, do not fit, or follow `finish`: a fault of the engine, not
    /// of the program. Nothing is copied.
    #[inline]
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Corruption> {
        self.check(offset, bytes.len())?;
        if crosses_page(offset.wrapping_add(self.shift), bytes.len()) {
            self.restart_at_first_page();
        }
        // SAFETY: [end, consumed + capacity) belongs to the one producer until `published` passes
        // it; `consumed` was loaded with Acquire from the program's release, and the room is
        // checked.
        unsafe {
            self.region
                .rx()
                .store(offset.wrapping_add(self.shift), bytes);
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Restarts at the first page if the ring is empty.
    fn restart_at_first_page(&mut self) {
        // A corrupt tail is reported to the callers of `poll_consumed`.
        let _ = self.poll_consumed();
        if self.end == self.consumed {
            self.shift = self.end.wrapping_neg();
            // SYNC POINT shift: published by `rx_head` with the bytes at that place.
            let word = &self.region.words().rx_head.0.shift;
            word.store(self.shift, Ordering::Relaxed);
        }
    }

    /// Counts bytes as put that the program received without the ring; their content in the ring is
    /// undefined. Returns the offset of the next bytes.
    ///
    /// # Errors
    /// As for [`RxProducer::put`].
    #[inline]
    pub fn skip(&mut self, offset: u64, len: usize) -> Result<u64, Corruption> {
        self.check(offset, len)?;
        self.end += len as u64;
        Ok(self.end)
    }

    #[inline]
    fn check(&self, offset: u64, len: usize) -> Result<(), Corruption> {
        if offset != self.end || len > self.room() || self.finished {
            return Err(Corruption {
                value: offset,
                what: "RX bytes do not follow the last ones",
            });
        }
        Ok(())
    }

    /// Returns the number of bytes put that the program has not consumed, as of the last successful
    /// [`RxProducer::poll_consumed`].
    #[inline]
    pub fn unread(&self) -> u64 {
        self.end - self.consumed
    }

    /// Publishes the bytes that were put. Returns true if there were any:
    /// [wake](super::Region::wake) the reader.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let fresh = self.published != self.end;
        if fresh {
            self.published = self.end;
            self.store_head();
        }
        fresh
    }

    #[inline]
    fn store_head(&self) {
        let fin = if self.finished { FIN } else { 0 };
        // SYNC POINT rx-head: the program that sees the index sees the bytes.
        let word = &self.region.words().rx_head.0.count;
        word.store(self.published | fin, Ordering::Release);
    }

    /// Returns the number of bytes that the program has consumed.
    ///
    /// # Errors
    /// The program wrote an impossible value. The state is unchanged, and the error is returned
    /// until the word is valid again.
    #[inline]
    pub fn poll_consumed(&mut self) -> Result<u64, Corruption> {
        // SYNC POINT rx-tail
        let word = self.region.words().rx_tail.0.load(Ordering::Acquire);
        if word.wrapping_sub(self.consumed) > self.published - self.consumed {
            return Err(self.corrupt_tail(word));
        }
        self.consumed = word;
        Ok(word)
    }

    #[cold]
    fn corrupt_tail(&self, word: u64) -> Corruption {
        let what = if word < self.consumed {
            "RX tail went back"
        } else {
            "RX tail is beyond the RX head"
        };
        Corruption { value: word, what }
    }

    /// Publishes the bytes that were put, and the FIN mark: no byte will follow. Wake the reader
    /// afterwards.
    pub fn finish(&mut self) {
        self.finished = true;
        self.published = self.end;
        self.store_head();
    }

    /// Returns the number of bytes put since the start.
    #[inline]
    pub fn put_total(&self) -> u64 {
        self.end
    }
}

#[cfg(all(test, not(loom)))]
impl RxProducer {
    /// Resets the state to that of a new region, for tests that use many.
    pub(super) fn restart(&mut self) {
        (self.end, self.published, self.consumed) = (0, 0, 0);
        (self.shift, self.finished) = (0, false);
    }
}

/// The program's end: reads bytes. One per region. It clamps what it reads from the engine.
#[derive(Debug)]
pub struct RxConsumer {
    _role: HeldRole,
    region: Arc<Region>,
    /// Bytes consumed; the shared word is a copy.
    tail: u64,
    /// Bytes delivered, as last seen by `read`; at least `tail`.
    head: u64,
    /// `tail` when the engine was last notified.
    noticed: u64,
}

impl RxConsumer {
    /// Returns the region's only consumer.
    ///
    /// # Panics
    /// If this process has one already.
    pub fn new(region: Arc<Region>) -> Self {
        let _role = region.roles().acquire(Role::RxConsumer);
        let tail = region.words().rx_tail.0.load(Ordering::Relaxed) & !FIN;
        RxConsumer {
            _role,
            region,
            tail,
            head: tail,
            noticed: tail,
        }
    }

    /// Returns the capacity of the ring, in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.region.rx().capacity()
    }

    /// Returns the number of bytes delivered since the start, clamped, and whether no more will
    /// come.
    #[inline]
    fn delivered(&self) -> (u64, bool) {
        // SYNC POINT rx-head
        let word = self.region.words().rx_head.0.count.load(Ordering::Acquire);
        let head = word & !FIN;
        let possible = head >= self.head && head - self.tail <= self.capacity() as u64;
        if possible {
            (head, word & FIN != 0)
        } else {
            (self.head, false)
        }
    }

    #[inline]
    fn between(&self, head: u64) -> usize {
        usize::try_from(head - self.tail).unwrap_or(0)
    }

    /// Returns the number of bytes that can be read now.
    #[inline]
    pub fn available(&self) -> usize {
        self.between(self.delivered().0)
    }

    /// Copies the readable bytes, up to the length of `bytes`, and returns their number. After 0,
    /// [`RxConsumer::at_end`] is true if none will follow.
    #[inline]
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        if self.between(self.head) < bytes.len() {
            self.head = self.delivered().0;
        }
        let take = self.between(self.head).min(bytes.len());
        if take > 0 {
            self.fetch(0, &mut bytes[..take]);
            self.advance(take);
        }
        take
    }

    /// Copies readable bytes, starting `ahead` bytes after the consumed ones.
    #[inline]
    pub(super) fn fetch(&self, ahead: usize, bytes: &mut [u8]) {
        debug_assert!(ahead + bytes.len() <= self.capacity());
        // SAFETY: callers pass ranges within [tail, head), at most a ring long, which the engine
        // does not write until `tail` has passed it; `head` was loaded with Acquire.
        unsafe {
            self.region
                .rx()
                .load(self.place().wrapping_add(ahead as u64), bytes);
        }
    }

    /// Returns the index of the next readable byte.
    #[inline]
    fn place(&self) -> u64 {
        // SYNC POINT shift: loaded after the `rx_head` that published the byte, and not changed
        // before it is consumed.
        self.tail
            .wrapping_add(self.region.words().rx_head.0.shift.load(Ordering::Relaxed))
    }

    /// Returns all bytes that can be read now, in place; [`RxConsumer::consume`] them afterwards.
    #[cfg(not(loom))]
    #[inline]
    pub fn peek(&self) -> &[u8] {
        let len = self.available();
        // SAFETY: [tail, tail + len) lies in the ring (`len` is clamped to the capacity and the
        // ring is mapped twice). The engine, which the program trusts in this, does not write there
        // until `tail` has passed it, which needs `&mut self`.
        unsafe { core::slice::from_raw_parts(self.region.rx().at(self.place()).as_ptr(), len) }
    }

    /// Consumes the first `n` readable bytes (at most those that are readable).
    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.head = self.delivered().0;
        let n = n.min(self.between(self.head));
        if n > 0 {
            self.advance(n);
        }
    }

    #[inline]
    fn advance(&mut self, n: usize) {
        self.tail += n as u64;
        // SYNC POINT rx-tail: the engine that sees the index may write where the program has read.
        let word = &self.region.words().rx_tail.0;
        word.store(self.tail, Ordering::Release);
    }

    /// Returns the number of bytes consumed since the start.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.tail
    }

    /// Returns true if the engine should be notified by the doorbell: a quarter of the ring was
    /// consumed since this last returned true.
    #[inline]
    pub fn consumed_notice_due(&mut self) -> bool {
        let due =
            self.tail - self.noticed >= self.capacity() as u64 / 4 && self.tail != self.noticed;
        if due {
            self.noticed = self.tail;
        }
        due
    }

    /// Returns true if nothing will come after the bytes that are
    /// [available](RxConsumer::available) now.
    #[inline]
    pub fn finished(&self) -> bool {
        self.delivered().1
    }

    /// Returns true if everything was read and nothing will come.
    #[inline]
    pub fn at_end(&self) -> bool {
        let (head, finished) = self.delivered();
        finished && head == self.tail
    }
}

/// Shows other threads of the program how many bytes its [`RxConsumer`] can read. Takes no lock and
/// never waits; the result may be outdated on return.
#[derive(Clone, Debug)]
pub struct RxView {
    region: Arc<Region>,
}

impl RxView {
    /// Returns a view of this region.
    pub fn new(region: Arc<Region>) -> RxView {
        RxView { region }
    }

    /// Returns the number of bytes that can be read, and whether nothing will come after them;
    /// clamped as for the consumer.
    #[inline]
    pub fn available(&self) -> (usize, bool) {
        let words = self.region.words();
        let mut tail = words.rx_tail.0.load(Ordering::Acquire);
        loop {
            // SYNC POINT rx-head
            let head = words.rx_head.0.count.load(Ordering::Acquire);
            // An unchanged tail belongs to the head read in between. If it changed, another thread
            // has read in between.
            let again = words.rx_tail.0.load(Ordering::Acquire);
            if again == tail {
                let there = usize::try_from((head & !FIN).wrapping_sub(tail)).unwrap_or(usize::MAX);
                let possible = there <= self.region.rx().capacity();
                return if possible {
                    (there, head & FIN != 0)
                } else {
                    (0, false)
                };
            }
            tail = again;
        }
    }
}
