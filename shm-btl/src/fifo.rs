//! Messages from one process to another: a queue of lines, and the bytes that do not fit into a line.
//!
//! # A slot
//! A message is one cache line of eight words. Word 0 is written last and is all that the receiver looks at meanwhile:
//!
//! ```text
//! bit 63..48  lap: how often the queue has been round, from 1; another one is an old message, 0 is none yet
//!     47..40  kind
//!     39..32  length of the header
//!     31..0   length of the body
//! ```
//!
//! | kind | words 1–7 | body |
//! |---|---|---|
//! | `INLINE` | header and body, up to 56 bytes | there |
//! | `PAIR` | header and body, up to 112 bytes: the rest stands behind word 0 of the next slot, whose kind is `REST` | there |
//! | `RING` | word 1 unused, header up to 48 bytes | in the pair's ring |
//! | `CHUNK` | word 1 the chunk, header as above | in the sender's pool |
//! | `FILLED` | a posted receive was filled: id, length, envelope | in the receiver's buffer |
//! | `HELP` | this process copies a long message and could do with help (`share.rs`): id, from, to, length | where the sender has it |
//!
//! A longer header stands in the ring or chunk, in a line of its own before the body. Because of the lap nothing has to be
//! cleared, by either side: one transfer of one line is all that a short message costs.
//!
//! # The ring
//! A slot does not say where its bytes are. Both sides place messages by the same rule ([`place`]): one behind the other in
//! whole lines, and at the start when there is not enough left before the end. So there is nothing to lie about.
//!
//! # Coming back
//! The receiver counts the messages whose callbacks have returned. That count is the only thing it tells the sender, at the end
//! of a batch, and gives back slot, ring and chunk at once. It also says what a matched send must know: "seen".
//!
//! # Orderings
//! - `SYNC POINT slot`: word 0, Release by the sender, Acquire by the receiver: who sees it sees the rest of the message.
//! - `SYNC POINT consumed`: Release by the receiver, Acquire by the sender: who sees the count may write where the receiver has read,
//!   and knows that the receiver's program has dealt with these messages.

use std::collections::VecDeque;

use crate::Scribble;
use crate::layout::{ALIGN, LINE, PairHead, Slot};
use crate::memory::{Bytes, Shared, SharedSlice, View, load_message, prefetch, store_message};
use crate::sync::Ordering;

/// Bytes of header and body in a slot.
pub(crate) const INLINE_BYTES: usize = 56;
/// Bytes of header and body in two slots; the header is in the first.
pub(crate) const PAIR_BYTES: usize = 2 * INLINE_BYTES;
/// Bytes of a header in a slot whose body is elsewhere.
const SLOT_HEADER: usize = 48;

const INLINE: u8 = 1;
const RING: u8 = 2;
const CHUNK: u8 = 3;
const FILLED: u8 = 4;
const HELP: u8 = 5;
const PAIR: u8 = 6;
const REST: u8 = 7;

/// Where the count begins: another line of the queue in each pair, so that a receiver that looks at the next slot of many
/// peers does not look at the same set of its cache each time.
fn start(sender: u32, receiver: u32, slots: usize) -> u64 {
    u64::from(sender.wrapping_mul(5).wrapping_add(receiver.wrapping_mul(11))) & (slots as u64 - 1)
}

#[inline]
fn lap(index: u64, shift: u32) -> u64 {
    (index >> shift).wrapping_add(1) << 48
}

#[inline]
fn word0(lap: u64, kind: u8, header: usize, body: usize) -> u64 {
    lap | u64::from(kind) << 40 | (header as u64) << 32 | body as u64
}

/// Kind, and lengths of header and body.
#[inline]
fn open_word0(word: u64) -> (u8, usize, usize) {
    #[allow(clippy::cast_possible_truncation)] // taken apart
    let (kind, header, body) = ((word >> 40) as u8, (word >> 32) as u8, word as u32);
    (kind, usize::from(header), body as usize)
}

/// Where in a ring of `size` bytes a message of `len` goes when the last one ended at `at` (both counted from the start of time):
/// where it begins and where it ends.
#[inline]
fn place(at: u64, len: usize, size: usize) -> (u64, u64) {
    let len = len.next_multiple_of(ALIGN) as u64;
    let left = size as u64 - (at & (size as u64 - 1));
    let begin = if len > left { at + left } else { at };
    (begin, begin + len)
}

/// Bytes of a header that are not in the slot: all or nothing.
#[inline]
fn header_line(header: usize) -> usize {
    if header > SLOT_HEADER { LINE } else { 0 }
}

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
            return Err(Scribble { what: "it consumed messages that were never sent", value: now });
        }
        self.consumed = now;
        self.ring_tail = self.ring_ends[self.index(now - 1)];
        Ok(())
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
        store_message(slot, first, second);
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

    /// A message of at most [`PAIR_BYTES`] bytes, more than [`INLINE_BYTES`], whose header fits into one slot. The caller has asked
    /// [`Producer::two_slots_free`].
    #[inline]
    pub(crate) fn push_pair(&mut self, header: &[u8], body: &[u8]) {
        let (front, rest) = body.split_at(INLINE_BYTES.saturating_sub(header.len()).min(body.len()));
        let second = self.index(self.sent + 1);
        let slot = &self.slots[second];
        store_message(slot, rest, &[]);
        // Relaxed: nobody looks before the first slot is there.
        let word = word0(lap(self.start + self.sent + 1, self.shift), REST, 0, 0);
        slot.0[0].store(word, Ordering::Relaxed);
        let index = self.index(self.sent);
        let slot = &self.slots[index];
        store_message(slot, header, front);
        let word = word0(lap(self.start + self.sent, self.shift), PAIR, header.len(), body.len());
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
        let in_slot = if header.len() <= SLOT_HEADER { header } else { &[] };
        self.publish(kind, (header.len(), body), &first.to_ne_bytes(), in_slot);
    }

    /// Copies header and body to where a slot will refer to.
    fn fill(bytes: &Bytes, at: usize, header: &[u8], body: &[u8]) {
        let line = header_line(header.len());
        if line > 0 {
            bytes.store(at, header);
        }
        bytes.store(at + line, body);
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
        Self::fill(&self.ring, at, header, body);
        self.ring_head = end;
        self.publish_elsewhere(RING, 0, header, body.len());
        Ok(true)
    }

    /// A message through a chunk of the pool, which is lent to the peer with it.
    pub(crate) fn push_chunk(&mut self, chunk: u32, bytes: &Bytes, header: &[u8], body: &[u8]) {
        Self::fill(bytes, 0, header, body);
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
    pub(crate) fn push_help(&mut self, Help { id, from, to, length }: Help) {
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
        self.mine.writing.0.wants_room.store(u64::from(wants), Ordering::Relaxed);
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

/// Where the body of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Behind the header in [`Taken::bytes`].
    Inline,
    Ring(usize),
    Pool(usize),
}

/// A message taken from its slot. It is valid until the consumer's next [`Consumer::done`].
#[derive(Debug)]
pub(crate) struct Taken {
    bytes: [u8; PAIR_BYTES],
    header: usize,
    body: usize,
    place: Place,
}

impl Taken {
    #[inline]
    pub(crate) fn header(&self) -> &[u8] {
        &self.bytes[..self.header]
    }

    /// Did it come through the pool, so that giving it back is worth to be told at once?
    pub(crate) fn in_pool(&self) -> bool {
        matches!(self.place, Place::Pool(_))
    }
}

/// A message that its receiver is copying, as it tells the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Help {
    /// Of the offer.
    pub(crate) id: u32,
    /// In the sender's memory.
    pub(crate) from: u64,
    /// In the receiver's.
    pub(crate) to: u64,
    pub(crate) length: u64,
}

/// What a slot held.
#[derive(Debug)]
pub(crate) enum Found {
    Message(Taken),
    /// The sender copies one of our messages.
    Help(Help),
    /// The sender filled a posted receive.
    Filled {
        id: u64,
        length: u64,
        envelope: u64,
    },
}

/// The receiver's end.
#[derive(Debug)]
pub(crate) struct Consumer {
    slots: SharedSlice<Slot>,
    start: u64,
    shift: u32,
    taken: u64,
    published: u64,
    ring_at: u64,
    ring: Bytes,
    /// The sender's pool, and the bytes from one chunk to the next.
    pool: Bytes,
    stride: usize,
    /// Own words for the sender: how much was consumed.
    mine: Shared<PairHead>,
    /// The sender's words for us.
    theirs: Shared<PairHead>,
}

impl Consumer {
    /// From `sender` to `receiver`.
    pub(crate) fn new(
        (sender, receiver): (u32, u32),
        slots: SharedSlice<Slot>,
        ring: Bytes,
        (pool, stride): (Bytes, usize),
        mine: Shared<PairHead>,
        theirs: Shared<PairHead>,
    ) -> Self {
        Consumer {
            start: start(sender, receiver, slots.len()),
            shift: slots.len().trailing_zeros(),
            slots,
            ring,
            pool,
            stride,
            mine,
            theirs,
            taken: 0,
            published: 0,
            ring_at: 0,
        }
    }

    /// Word 0 of the next slot, when it is a message; `None`: not yet.
    #[inline]
    pub(crate) fn poll(&self) -> Result<Option<u64>, Scribble> {
        // SYNC POINT slot
        let word = self.slot().0[0].load(Ordering::Acquire);
        let expected = lap(self.start + self.taken, self.shift);
        if word & !0 << 48 == expected {
            return Ok(Some(word));
        }
        if word == 0 || word & !0 << 48 == expected.wrapping_sub(1 << 48) {
            // If a pair comes, its second line is fetched along with the first one.
            prefetch(&self.slots[self.index(self.taken + 1)]);
            return Ok(None);
        }
        Err(Scribble { what: "a slot is neither old nor next", value: word })
    }

    #[inline]
    fn slot(&self) -> &Slot {
        &self.slots[self.index(self.taken)]
    }

    #[inline]
    fn index(&self, count: u64) -> usize {
        #[allow(clippy::cast_possible_truncation)] // masked
        let index = (self.start + count) as usize & (self.slots.len() - 1);
        index
    }

    /// The second half of a pair whose first slot was just taken.
    #[inline]
    fn take_rest(&mut self) -> Result<[u8; INLINE_BYTES], Scribble> {
        // Acquire of the first slot's word covers it: an honest sender wrote it before.
        let word = self.slot().0[0].load(Ordering::Relaxed);
        if word != word0(lap(self.start + self.taken, self.shift), REST, 0, 0) {
            return Err(Scribble { what: "a pair has no second half", value: word });
        }
        let bytes = load_message(self.slot());
        self.taken += 1;
        Ok(bytes)
    }

    /// Takes the message whose word 0 [`Consumer::poll`] has just found, if all of it is in the slot: its bytes, where the header
    /// ends, and where the body does. `None`: use [`Consumer::take`].
    #[inline]
    pub(crate) fn take_short(&mut self, word: u64) -> Option<([u8; INLINE_BYTES], usize, usize)> {
        let (kind, header, body) = open_word0(word);
        if kind != INLINE || header + body > INLINE_BYTES {
            return None;
        }
        let bytes = load_message(self.slot());
        self.taken += 1;
        Some((bytes, header, header + body))
    }

    /// Takes the message whose word 0 [`Consumer::poll`] has just found. Everything in it is checked.
    pub(crate) fn take(&mut self, word: u64) -> Result<Found, Scribble> {
        let (kind, header, body) = open_word0(word);
        let mut bytes = [0u8; PAIR_BYTES];
        bytes[..INLINE_BYTES].copy_from_slice(&load_message(self.slot()));
        self.taken += 1;
        if kind == PAIR && header <= INLINE_BYTES && header + body <= PAIR_BYTES {
            bytes[INLINE_BYTES..].copy_from_slice(&self.take_rest()?);
            return Ok(Found::Message(Taken { bytes, header, body, place: Place::Inline }));
        }
        if kind == INLINE && header + body <= INLINE_BYTES {
            return Ok(Found::Message(Taken { bytes, header, body, place: Place::Inline }));
        }
        self.take_other(word, kind, (header, body), bytes)
    }

    fn take_other(
        &mut self,
        word: u64,
        kind: u8,
        (header, body): (usize, usize),
        bytes: [u8; PAIR_BYTES],
    ) -> Result<Found, Scribble> {
        let bad = |what| Err(Scribble { what, value: word });
        let first = eight(&bytes, 0);
        let line = header_line(header);
        if header > btl::MAX_HEADER {
            return bad("a header is longer than headers are");
        }
        let (place, at, whole) = match kind {
            RING => {
                let size = self.ring.len();
                if line + body > size / 2 {
                    return bad("a message is longer than the ring takes");
                }
                let (begin, end) = place(self.ring_at, line + body, size);
                self.ring_at = end;
                #[allow(clippy::cast_possible_truncation)] // masked
                let at = begin as usize & (size - 1);
                (Place::Ring(at + line), at, &self.ring)
            }
            CHUNK => {
                let chunks = self.pool.len() / self.stride;
                let Some(chunk) = usize::try_from(first).ok().filter(|chunk| *chunk < chunks) else {
                    return bad("there is no such chunk");
                };
                if line + body > self.stride {
                    return bad("a message is longer than a chunk");
                }
                (Place::Pool(chunk * self.stride + line), chunk * self.stride, &self.pool)
            }
            FILLED => {
                return Ok(Found::Filled { id: first, length: eight(&bytes, 1), envelope: eight(&bytes, 2) });
            }
            HELP => {
                let Ok(id) = u32::try_from(first) else { return bad("it wants help with no offer") };
                let (from, to, length) = (eight(&bytes, 1), eight(&bytes, 2), eight(&bytes, 3));
                return Ok(Found::Help(Help { id, from, to, length }));
            }
            _ => return bad("a slot is of no kind"),
        };
        let mut taken = Taken { bytes: [0; PAIR_BYTES], header, body, place };
        if line > 0 {
            let Some(view) = whole.view(at, header) else { return bad("a header is elsewhere") };
            #[allow(clippy::needless_borrow)] // a copy in the models
            taken.bytes[..header].copy_from_slice(&view);
        } else {
            taken.bytes[..header].copy_from_slice(&bytes[8..8 + header]);
        }
        Ok(Found::Message(taken))
    }

    /// The body, in place.
    #[inline]
    pub(crate) fn body<'a>(&'a self, taken: &'a Taken) -> View<'a> {
        let view = match taken.place {
            #[allow(clippy::useless_conversion)] // a copy in the models
            Place::Inline => return taken.bytes[taken.header..taken.header + taken.body].into(),
            Place::Ring(at) => self.ring.view(at, taken.body),
            Place::Pool(at) => self.pool.view(at, taken.body),
        };
        // `take` has checked that it is inside.
        view.unwrap_or_default()
    }

    /// Tells the sender how many messages were consumed: those that were taken and whose callbacks have returned. True: the sender waits
    /// for that.
    #[inline]
    pub(crate) fn done(&mut self) -> bool {
        if self.published == self.taken {
            return false;
        }
        self.published = self.taken;
        // SYNC POINT consumed
        self.mine.consumed.0.store(self.taken, Ordering::Release);
        true
    }

    /// Does the sender wait for room? Asked behind the fence of `sleep.rs`.
    #[inline]
    pub(crate) fn sender_waits(&self) -> bool {
        self.theirs.writing.0.wants_room.load(Ordering::Relaxed) != 0
    }
}

fn eight(bytes: &[u8; PAIR_BYTES], index: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_ne_bytes(eight)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_lie_whole_lines_apart_and_never_across_the_end() {
        assert_eq!(place(0, 1, 256), (0, 64));
        assert_eq!(place(64, 128, 256), (64, 192));
        assert_eq!(place(192, 64, 256), (192, 256));
        assert_eq!(place(192, 65, 256), (256, 384), "skips what is left");
        assert_eq!(place(256, 0, 256), (256, 256));
    }

    #[test]
    fn no_two_laps_look_alike_soon() {
        assert_eq!(lap(0, 8), 1 << 48);
        assert_eq!(lap(256, 8), 2 << 48);
        assert_eq!(lap((0xffff) << 8, 8), 0, "the lap after 65535 is 0, and then 1 again");
    }
}
