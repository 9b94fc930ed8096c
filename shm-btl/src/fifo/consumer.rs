//! The receiver's end of a queue. Every value of the sender is checked.

use super::slot::load_message;
use super::{
    CHUNK, HELP, Help, INLINE, INLINE_BYTES, Lane, PAIR, PAIR_BYTES, REST, RING, header_line,
    open_word0, place, word0,
};
use crate::Corruption;
use crate::layout::{PairHead, Slot};
use shmem::cache::prefetch;
use shmem::sync::Ordering;
use shmem::{Bytes, Shared, SharedSlice, View};

/// Position of a message's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// After the header in [`Taken::bytes`].
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

    /// Returns true if the message came through the pool, so that its chunk should be returned at
    /// once.
    pub(crate) fn in_pool(&self) -> bool {
        matches!(self.place, Place::Pool(_))
    }
}

/// Content of a slot.
#[derive(Debug)]
pub(crate) enum Found {
    Message(Taken),
    /// The sender copies one of this process's messages and asks for help.
    Help(Help),
}

/// The receiver's end.
#[derive(Debug)]
pub(crate) struct Consumer {
    lane: Lane,
    taken: u64,
    published: u64,
    ring_at: u64,
    ring: Bytes,
    /// Pool of the sender, and the distance between two chunks.
    pool: Bytes,
    stride: usize,
    /// This process's words for the sender: the number of messages consumed.
    mine: Shared<PairHead>,
}

impl Consumer {
    /// Returns the end of the queue from one rank to another.
    pub(crate) fn new(
        ranks: (u32, u32),
        slots: SharedSlice<Slot>,
        ring: Bytes,
        (pool, stride): (Bytes, usize),
        mine: Shared<PairHead>,
    ) -> Self {
        Consumer {
            lane: Lane::new(slots, ranks),
            ring,
            pool,
            stride,
            mine,
            taken: 0,
            published: 0,
            ring_at: 0,
        }
    }

    /// Returns word 0 of the next slot if it holds a message, otherwise `None`.
    #[inline]
    pub(crate) fn poll(&self) -> Result<Option<u64>, Corruption> {
        // SYNC POINT slot
        let word = self.slot().0[0].load(Ordering::Acquire);
        let expected = self.lane.lap(self.taken);
        if word & !0 << 48 == expected {
            return Ok(Some(word));
        }
        if word == 0 || word & !0 << 48 == expected.wrapping_sub(1 << 48) {
            // If the next message is a pair, its second line is fetched along with the first one.
            prefetch(self.lane.slot(self.taken + 1));
            return Ok(None);
        }
        Err(Corruption {
            what: "a slot has an impossible lap",
            value: word,
        })
    }

    #[inline]
    fn slot(&self) -> &Slot {
        self.lane.slot(self.taken)
    }

    /// Takes the second half of a pair whose first slot was just taken.
    #[inline]
    fn take_rest(&mut self) -> Result<[u8; INLINE_BYTES], Corruption> {
        // The Acquire of the first slot's word covers it: an honest sender wrote it before.
        let word = self.slot().0[0].load(Ordering::Relaxed);
        if word != word0(self.lane.lap(self.taken), REST, 0, 0) {
            return Err(Corruption {
                what: "a pair has no second half",
                value: word,
            });
        }
        let bytes = load_message(self.slot());
        self.taken += 1;
        Ok(bytes)
    }

    /// Takes the message whose word 0 [`Consumer::poll`] has just returned, if all of it is in the
    /// slot. Returns its bytes, the end of the header, and the end of the body. On `None`, use
    /// [`Consumer::take`].
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

    /// Takes a message for which [`Consumer::take_short`] returned `None`, by the word passed
    /// there. Everything in it is checked.
    pub(crate) fn take(&mut self, word: u64) -> Result<Found, Corruption> {
        let (kind, header, body) = open_word0(word);
        let bad = |what| Err(Corruption { what, value: word });
        if header > btl::MAX_HEADER {
            return bad("a header is too long");
        }
        let mut bytes = [0u8; PAIR_BYTES];
        bytes[..INLINE_BYTES].copy_from_slice(&load_message(self.slot()));
        self.taken += 1;
        let eight = |index: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[index * 8..][..8]);
            u64::from_ne_bytes(eight)
        };
        let first = eight(0);
        let line = header_line(header);
        let (place, at, whole) = match kind {
            PAIR if header <= INLINE_BYTES && header + body <= PAIR_BYTES => {
                bytes[INLINE_BYTES..].copy_from_slice(&self.take_rest()?);
                return Ok(Found::Message(Taken {
                    bytes,
                    header,
                    body,
                    place: Place::Inline,
                }));
            }
            RING => {
                let size = self.ring.len();
                if line + body > size / 2 {
                    return bad("a message is longer than half the ring");
                }
                let (begin, end) = place(self.ring_at, line + body, size);
                self.ring_at = end;
                #[allow(clippy::cast_possible_truncation)] // masked
                let at = begin as usize & (size - 1);
                (Place::Ring(at + line), at, &self.ring)
            }
            CHUNK => {
                let chunks = self.pool.len() / self.stride;
                let Some(chunk) = usize::try_from(first).ok().filter(|chunk| *chunk < chunks)
                else {
                    return bad("a chunk number is out of range");
                };
                if line + body > self.stride {
                    return bad("a message is longer than a chunk");
                }
                let at = chunk * self.stride;
                (Place::Pool(at + line), at, &self.pool)
            }
            HELP => {
                let Ok(id) = u32::try_from(first) else {
                    return bad("a request for help has no offer");
                };
                return Ok(Found::Help(Help {
                    id,
                    from: eight(1),
                    to: eight(2),
                    length: eight(3),
                }));
            }
            _ => return bad("a slot has an unknown kind or length"),
        };
        if line > 0 {
            // SAFETY: the message is ours until `done`: an honest sender does not write it, and
            // this process, as its own peer, writes before the consumer's index only.
            let Some(view) = (unsafe { whole.view(at, header) }) else {
                return bad("a header is outside of the ring or chunk");
            };
            #[allow(clippy::needless_borrow)] // a copy in the models
            bytes[..header].copy_from_slice(&view);
        } else {
            bytes.copy_within(8..8 + header, 0);
        }
        Ok(Found::Message(Taken {
            bytes,
            header,
            body,
            place,
        }))
    }

    /// Returns the body, in place.
    #[inline]
    pub(crate) fn body<'a>(&'a self, taken: &'a Taken) -> View<'a> {
        let view = match taken.place {
            #[allow(clippy::useless_conversion)] // a copy in the models
            Place::Inline => return taken.bytes[taken.header..taken.header + taken.body].into(),
            // SAFETY: as in `take`.
            Place::Ring(at) => unsafe { self.ring.view(at, taken.body) },
            // SAFETY: as above.
            Place::Pool(at) => unsafe { self.pool.view(at, taken.body) },
        };
        // `take` has checked that it is within bounds.
        view.unwrap_or_default()
    }

    /// Publishes the number of messages consumed: taken, with their callbacks returned. The sender
    /// may reuse the space.
    #[inline]
    pub(crate) fn done(&mut self) {
        if self.published != self.taken {
            self.published = self.taken;
            // SYNC POINT consumed
            self.mine.consumed.0.store(self.taken, Ordering::Release);
        }
    }
}
