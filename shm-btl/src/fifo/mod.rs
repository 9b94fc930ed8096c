//! Messages from one process to another: a queue of lines, and the bytes that do not fit into a
//! line.
//!
//! # A slot
//! A message is one cache line of eight words. Word 0 is written last; the receiver polls only
//! that.
//!
//! ```text
//! bit 63..48  lap of the queue, from 1; another one is an old message, 0 is none yet
//!     47..40  kind
//!     39..32  length of the header
//!     31..0   length of the body
//! ```
//!
//! | kind | words 1–7 | body |
//! |---|---|---|
//! | `INLINE` | header and body, up to 56 bytes | in the slot |
//! | `PAIR` | header and body, up to 112 bytes, continued after word 0 of the next slot, whose kind is `REST` | in the slots |
//! | `RING` | word 1 unused, header up to 48 bytes | in the pair's ring |
//! | `CHUNK` | word 1 the chunk, header as above | in the sender's pool |
//! | `HELP` | this process copies a long message and asks for help (`coop.rs`): id, from, to, length | in the sender's memory |
//!
//! A longer header is in the ring or chunk, in a separate line before the body. Because of the lap
//! neither side clears anything: a short message costs one transfer of one line.
//!
//! # The ring
//! A slot does not contain the position of its bytes. Both sides place messages by the same rule
//! ([`place`]): consecutively in whole lines, and at the start if there is not enough room before
//! the end. A corrupt sender cannot choose a position.
//!
//! # Reuse
//! The receiver counts the messages whose callbacks have returned. It publishes that count at the
//! end of a batch, which returns slot, ring and chunk at once.
//!
//! # Orderings
//! - `SYNC POINT slot`: word 0, Release by the sender, Acquire by the receiver: a receiver that
//!   sees it sees the rest of the message.
//! - `SYNC POINT consumed`: Release by the receiver, Acquire by the sender: a sender that sees the
//!   count may write where the receiver has read.

mod consumer;
mod producer;
mod slot;

pub(crate) use consumer::{Consumer, Found};
pub(crate) use producer::Producer;

pub(crate) use slot::INLINE_BYTES;

use shmem::{LINE, SharedSlice};

use crate::layout::{ALIGN, Slot};

/// Maximum bytes of header and body in two slots; the header is in the first.
pub(crate) const PAIR_BYTES: usize = 2 * INLINE_BYTES;
/// Maximum bytes of a header in a slot whose body is elsewhere.
const SLOT_HEADER: usize = 48;

const INLINE: u8 = 1;
const RING: u8 = 2;
const CHUNK: u8 = 3;
const HELP: u8 = 4;
const PAIR: u8 = 5;
const REST: u8 = 6;

/// The slots of a queue. Both sides count its messages from 0.
#[derive(Debug)]
struct Lane {
    slots: SharedSlice<Slot>,
    /// Slot at which it starts. It differs between pairs, so that a receiver that polls the next
    /// slot of many peers does not poll one set of its cache each time.
    start: u64,
    shift: u32,
}

impl Lane {
    fn new(slots: SharedSlice<Slot>, (sender, receiver): (u32, u32)) -> Lane {
        let start = sender
            .wrapping_mul(5)
            .wrapping_add(receiver.wrapping_mul(11));
        Lane {
            start: u64::from(start) & (slots.len() as u64 - 1),
            shift: slots.len().trailing_zeros(),
            slots,
        }
    }

    #[inline]
    fn index(&self, count: u64) -> usize {
        #[allow(clippy::cast_possible_truncation)] // masked
        let index = (self.start + count) as usize & (self.slots.len() - 1);
        index
    }

    #[inline]
    fn slot(&self, count: u64) -> &Slot {
        &self.slots[self.index(count)]
    }

    #[inline]
    fn lap(&self, count: u64) -> u64 {
        lap(self.start + count, self.shift)
    }
}

#[inline]
fn lap(index: u64, shift: u32) -> u64 {
    (index >> shift).wrapping_add(1) << 48
}

#[inline]
fn word0(lap: u64, kind: u8, header: usize, body: usize) -> u64 {
    lap | u64::from(kind) << 40 | (header as u64) << 32 | body as u64
}

/// Returns the kind, and the lengths of header and body.
#[inline]
fn open_word0(word: u64) -> (u8, usize, usize) {
    #[allow(clippy::cast_possible_truncation)] // taken apart
    let (kind, header, body) = ((word >> 40) as u8, (word >> 32) as u8, word as u32);
    (kind, usize::from(header), body as usize)
}

/// Returns where a message of `len` bytes begins and ends in a ring of `size` bytes, if the last
/// one ended at `at`. All positions count from the start of the queue.
#[inline]
fn place(at: u64, len: usize, size: usize) -> (u64, u64) {
    let len = len.next_multiple_of(ALIGN) as u64;
    let left = size as u64 - (at & (size as u64 - 1));
    let begin = if len > left { at + left } else { at };
    (begin, begin + len)
}

/// Returns the number of bytes that a header takes outside the slot: a line or none.
#[inline]
fn header_line(header: usize) -> usize {
    if header > SLOT_HEADER { LINE } else { 0 }
}

/// A message that its receiver is copying, as described to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Help {
    /// Id of the offer.
    pub(crate) id: u32,
    /// Address in the sender's memory.
    pub(crate) from: u64,
    /// Address in the receiver's memory.
    pub(crate) to: u64,
    pub(crate) length: u64,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_take_whole_lines_and_never_cross_the_end() {
        assert_eq!(place(0, 1, 256), (0, 64));
        assert_eq!(place(64, 128, 256), (64, 192));
        assert_eq!(place(192, 64, 256), (192, 256));
        assert_eq!(place(192, 65, 256), (256, 384), "skips the rest");
        assert_eq!(place(256, 0, 256), (256, 256));
    }

    #[test]
    fn laps_repeat_only_after_65535() {
        assert_eq!(lap(0, 8), 1 << 48);
        assert_eq!(lap(256, 8), 2 << 48);
        assert_eq!(
            lap((0xffff) << 8, 8),
            0,
            "the lap after 65535 is 0, and then 1 again"
        );
    }
}
