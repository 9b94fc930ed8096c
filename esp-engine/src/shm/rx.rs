//! The ring from the engine to the program.

use std::sync::Arc;

use super::layout::FIN;
use super::region::Region;
use super::roles::Role;
use super::{Corruption, Word, crosses_page};
use shmem::sync::Ordering;

/// The engine's end: puts what arrived into the ring. One per region, made while the region is new.
#[derive(Debug)]
pub struct RxProducer {
    region: Arc<Region>,
    /// Bytes put, published or not.
    end: u64,
    /// Bytes published.
    published: u64,
    /// Bytes the program has taken, as accepted last.
    consumed: u64,
    /// The shared word's master copy.
    shift: u64,
    finished: bool,
}

impl RxProducer {
    /// The region's only producer; the region is one that nothing was put into yet.
    ///
    /// # Panics
    /// When the region has one already in this process.
    pub fn new(region: Arc<Region>) -> Self {
        region.roles().acquire(Role::RxProducer);
        RxProducer {
            region,
            end: 0,
            published: 0,
            consumed: 0,
            shift: 0,
            finished: false,
        }
    }

    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Bytes the ring holds.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.region.rx().capacity()
    }

    /// Bytes that fit, by the last good [`RxProducer::poll_consumed`].
    #[inline]
    pub fn room(&self) -> usize {
        // end - consumed <= capacity holds always.
        self.capacity() - usize::try_from(self.end - self.consumed).unwrap_or(self.capacity())
    }

    /// Copies the next bytes of the stream in, without publishing them. `offset` is the stream offset of the first.
    /// An error (not the next bytes, no room, or behind `finish`) is a mistake of the engine's side, not the program's;
    /// nothing is copied then.
    #[inline]
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Corruption> {
        self.check(offset, bytes.len())?;
        if crosses_page(offset.wrapping_add(self.shift), bytes.len()) {
            self.restart_at_first_page();
        }
        // SAFETY: [end, consumed + capacity) belongs to the one producer until `published` passes it; `consumed` was
        // loaded with Acquire from the program's release, and the room is checked.
        unsafe {
            self.region
                .rx()
                .store(offset.wrapping_add(self.shift), bytes)
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// The next bytes lie at the ring's beginning, if it is empty.
    fn restart_at_first_page(&mut self) {
        // What the program scribbled is told by those who ask for the number.
        let _ = self.poll_consumed();
        if self.end == self.consumed {
            self.shift = self.end.wrapping_neg();
            // SYNC POINT shift: shown by `rx_head` with the bytes that lie there.
            self.region
                .words()
                .rx_head
                .0
                .shift
                .store(self.shift, Ordering::Relaxed);
        }
    }

    /// Counts bytes as put that the program got by another way; what the ring has in their place is nothing. Returns the offset of those
    /// that follow. Errors as of [`RxProducer::put`].
    #[inline]
    pub fn pass(&mut self, offset: u64, len: usize) -> Result<u64, Corruption> {
        self.check(offset, len)?;
        self.end += len as u64;
        Ok(self.end)
    }

    #[inline]
    fn check(&self, offset: u64, len: usize) -> Result<(), Corruption> {
        if offset != self.end || len > self.room() || self.finished {
            return Err(Corruption {
                word: Word::RxPut,
                value: offset,
                what: "RX bytes do not fit behind the last ones",
            });
        }
        Ok(())
    }

    /// Bytes put that the program has not taken, by the last good [`RxProducer::poll_consumed`].
    #[inline]
    pub fn unread(&self) -> u64 {
        self.end - self.consumed
    }

    /// Shows the program what was put. True: there was something, [wake](super::EngineStatus::wake) the reader.
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
        self.region
            .words()
            .rx_head
            .0
            .count
            .store(self.published | fin, Ordering::Release);
    }

    /// Looks how far the program has read. An error is the program's fault and comes again until the word is mended;
    /// nothing changes here.
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
        Corruption {
            word: Word::RxTail,
            value: word,
            what,
        }
    }

    /// No byte will follow: publishes what was put with the FIN mark behind it. Wake the reader afterwards.
    pub fn finish(&mut self) {
        self.finished = true;
        self.published = self.end;
        self.store_head();
    }

    /// Bytes put since the start.
    #[inline]
    pub fn put_total(&self) -> u64 {
        self.end
    }
}

#[cfg(all(test, not(loom)))]
impl RxProducer {
    /// As if the region were new, for tests that wear out many.
    pub(super) fn restart(&mut self) {
        (
            self.end,
            self.published,
            self.consumed,
            self.shift,
            self.finished,
        ) = (0, 0, 0, 0, false);
    }
}

impl Drop for RxProducer {
    fn drop(&mut self) {
        self.region.roles().release(Role::RxProducer);
    }
}

/// The program's end: reads bytes. One per region.
///
/// Everything it reads from the engine is clamped to what is possible, so that nothing here panics or leaves the ring.
#[derive(Debug)]
pub struct RxConsumer {
    region: Arc<Region>,
    /// Bytes consumed, the shared word's master copy.
    tail: u64,
    /// Bytes delivered, as last seen by `read`; at least `tail`.
    head: u64,
    /// `tail` when the engine was last told.
    noticed: u64,
}

impl RxConsumer {
    /// The region's only consumer.
    ///
    /// # Panics
    /// When the region has one already in this process.
    pub fn new(region: Arc<Region>) -> Self {
        region.roles().acquire(Role::RxConsumer);
        let tail = region.words().rx_tail.0.load(Ordering::Relaxed) & !FIN;
        RxConsumer {
            region,
            tail,
            head: tail,
            noticed: tail,
        }
    }

    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Bytes the ring holds.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.region.rx().capacity()
    }

    /// (Bytes delivered since the start, no more will come), clamped.
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

    /// Bytes that can be read now.
    #[inline]
    pub fn available(&self) -> usize {
        self.between(self.delivered().0)
    }

    /// Copies out what is there, up to the length of `bytes`; returns how many. 0: nothing there now
    /// ([`RxConsumer::at_end`] tells whether ever).
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

    /// Copies bytes that are there, from `ahead` bytes behind the consumed ones on.
    #[inline]
    pub(super) fn fetch(&self, ahead: usize, bytes: &mut [u8]) {
        debug_assert!(ahead + bytes.len() <= self.capacity());
        // SAFETY: callers pass ranges within [tail, head), at most a ring long, which the engine does not write until
        // `tail` has passed it; `head` was loaded with Acquire.
        unsafe {
            self.region
                .rx()
                .load(self.place().wrapping_add(ahead as u64), bytes)
        }
    }

    /// Where the next byte that is there lies.
    #[inline]
    fn place(&self) -> u64 {
        // SYNC POINT shift: loaded behind the `rx_head` that showed the byte, and not changed before it is consumed.
        self.tail
            .wrapping_add(self.region.words().rx_head.0.shift.load(Ordering::Relaxed))
    }

    /// All bytes that can be read now, where they lie; [`RxConsumer::consume`] them afterwards.
    #[cfg(not(loom))]
    #[inline]
    pub fn peek(&self) -> &[u8] {
        let len = self.available();
        // SAFETY: [tail, tail + len) lies in the ring (`len` is clamped to the capacity and the ring is mapped twice).
        // The engine, which the program trusts in this, does not write there until `tail` has passed it, which needs
        // `&mut self`.
        unsafe { core::slice::from_raw_parts(self.region.rx().at(self.place()).as_ptr(), len) }
    }

    /// Gives the first `n` readable bytes back to the engine (at most those that are there).
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
        self.region
            .words()
            .rx_tail
            .0
            .store(self.tail, Ordering::Release);
    }

    /// Bytes consumed since the start.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.tail
    }

    /// Worth telling the engine (ring the doorbell): a quarter of the ring was consumed since this last said so.
    #[inline]
    pub fn consumed_notice_due(&mut self) -> bool {
        let due =
            self.tail - self.noticed >= self.capacity() as u64 / 4 && self.tail != self.noticed;
        if due {
            self.noticed = self.tail;
        }
        due
    }

    /// Nothing will come behind what is [available](RxConsumer::available) now.
    #[inline]
    pub fn finished(&self) -> bool {
        self.delivered().1
    }

    /// Everything was read and nothing will come.
    #[inline]
    pub fn at_end(&self) -> bool {
        let (head, finished) = self.delivered();
        finished && head == self.tail
    }
}

impl Drop for RxConsumer {
    fn drop(&mut self) {
        self.region.roles().release(Role::RxConsumer);
    }
}

/// A look at what an [`RxConsumer`] could read, for threads of its program that have not got the consumer: it takes no lock and waits for
/// nobody. It may be over when it has been said.
#[derive(Clone, Debug)]
pub struct RxView {
    region: Arc<Region>,
}

impl RxView {
    /// Of this region.
    pub fn new(region: Arc<Region>) -> RxView {
        RxView { region }
    }

    /// Bytes that can be read, and whether nothing will come behind them; clamped as the consumer's are.
    #[inline]
    pub fn look(&self) -> (usize, bool) {
        let words = self.region.words();
        let mut tail = words.rx_tail.0.load(Ordering::Acquire);
        loop {
            // SYNC POINT rx-head
            let head = words.rx_head.0.count.load(Ordering::Acquire);
            // The same before and behind: the two belong together. Another one: some thread has read meanwhile.
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
