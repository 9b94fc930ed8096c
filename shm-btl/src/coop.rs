//! Cooperative copy: both processes of one long message copy it concurrently. The receiver reads
//! from the front, the sender writes from the back, in chunks, until they meet. One side alone
//! reaches little more than half of the memory bandwidth, because the system call looks up page
//! after page. A side that is absent copies nothing, and is not waited for.
//!
//! ```text
//! receiver                                  sender
//!   offer = (id, 0), HELP into its queue
//!   offer = (id, front + 1)   SYNC POINT     share = (id, claimed + 1, done)   SYNC POINT
//!   fence                                    fence
//!   share: front + claimed too many?         offer: another id, or front + claimed too many?
//!     no: copies chunk front                   no: copies chunk n - 1 - claimed, then done + 1
//!     yes: contested, waits                    yes: takes the claim back, ends
//! ```
//!
//! Each word has one writer, which first claims and then checks. Because of the fences in between,
//! if two sides claim the last chunk concurrently, at least one sees the other's claim. The sender
//! then withdraws its claim; the receiver waits for the outcome, and copies the chunk if the claim
//! was withdrawn. So no chunk is copied twice or omitted. Nothing is written after the receiver has
//! found the message complete: it has then claimed every chunk that the sender has not copied,
//! which a later claim of the sender sees, or it has opened the next offer in that word, under
//! another id.
//!
//! There is a ring of [`PLACES`] such words, so that the next message can start while the last
//! chunk of the previous one is still being written.
//!
//! # Corruption
//! The words select *which* chunks of an agreed range are copied, never their address. Corruption
//! affects the receiver's own buffer only; a corrupt sender could have sent those bytes anyway.

use crate::Corruption;
use shmem::sync::{AtomicU64, Ordering, fence};

/// Maximum number of open offers of one process to another.
pub(crate) const PLACES: usize = if cfg!(loom) { 1 } else { 8 };
/// Maximum number of chunks of an offer.
pub(crate) const MAX_CHUNKS: u32 = u16::MAX as u32;

/// Returns the index of the word of an offer.
pub(crate) fn place(id: u32) -> usize {
    id as usize % PLACES
}

fn offer_word(id: u32, front: u32) -> u64 {
    u64::from(id) << 32 | u64::from(front)
}

fn share_word(id: u32, claimed: u32, done: u32) -> u64 {
    u64::from(id) << 32 | u64::from(claimed) << 16 | u64::from(done)
}

/// Next step of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Copy this chunk.
    Copy(u32),
    /// Check again later: the sender is copying the last chunks.
    Wait,
    /// All chunks are copied, or (after [`Offer::stop`]) the sender writes nothing more.
    Done,
}

/// The receiver's side of a message.
#[derive(Debug)]
pub(crate) struct Offer {
    id: u32,
    chunks: u32,
    /// Number of chunks claimed from the front.
    front: u32,
    /// True if the sender may have claimed the last chunk claimed.
    contested: bool,
}

impl Offer {
    /// Opens an offer of this many chunks, 1 to [`MAX_CHUNKS`], under an id that is the next of its
    /// word.
    pub(crate) fn open(mine: &AtomicU64, id: u32, chunks: u32) -> Offer {
        // SYNC POINT claim: the sender does nothing more for the previous id in this word.
        mine.store(offer_word(id, 0), Ordering::Release);
        Offer {
            id,
            chunks,
            front: 0,
            contested: false,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns the number of chunks that the sender has claimed and completed.
    fn share(&self, theirs: &AtomicU64) -> Result<(u32, u32), Corruption> {
        // SYNC POINT claim: the chunks counted as done are in memory.
        let word = theirs.load(Ordering::Acquire);
        if word >> 32 != u64::from(self.id) {
            return Ok((0, 0));
        }
        let (claimed, done) = ((word >> 16) as u16, word as u16);
        if u32::from(claimed) > self.chunks || done > claimed {
            return Err(Corruption {
                what: "the count of copied chunks exceeds the message",
                value: word,
            });
        }
        Ok((claimed.into(), done.into()))
    }

    /// Returns the next step if the sender determines it: all is copied, or it copies the rest.
    /// `None`: there is a chunk for the receiver.
    fn settled(&self, theirs: &AtomicU64) -> Result<Option<Next>, Corruption> {
        let (claimed, done) = self.share(theirs)?;
        let missing = self.chunks - self.front + u32::from(self.contested);
        Ok(match missing {
            _ if done >= missing => Some(Next::Done),
            _ if claimed >= missing => Some(Next::Wait),
            _ => None,
        })
    }

    /// Returns the next step. A chunk that it names must be copied before the next call.
    pub(crate) fn next(
        &mut self,
        mine: &AtomicU64,
        theirs: &AtomicU64,
    ) -> Result<Next, Corruption> {
        if let Some(next) = self.settled(theirs)? {
            return Ok(next);
        }
        if self.contested {
            // The other side claimed it first, and has withdrawn the claim.
            self.contested = false;
            return Ok(Next::Copy(self.front - 1));
        }
        self.front += 1;
        mine.store(offer_word(self.id, self.front), Ordering::Release);
        // SYNC POINT claim
        fence(Ordering::SeqCst);
        let (claimed, _) = self.share(theirs)?;
        if self.front + claimed <= self.chunks {
            return Ok(Next::Copy(self.front - 1));
        }
        self.contested = true;
        Ok(Next::Wait)
    }

    /// Forbids both sides to copy further chunks. [`Offer::stopped`] returns whether the sender has
    /// stopped.
    pub(crate) fn stop(&mut self, mine: &AtomicU64) {
        mine.store(offer_word(self.id, self.chunks), Ordering::Relaxed);
        // SYNC POINT claim
        fence(Ordering::SeqCst);
    }

    /// Returns true if the receiver must wait for the sender now.
    pub(crate) fn waits(&self, theirs: &AtomicU64) -> bool {
        matches!(self.settled(theirs), Ok(Some(Next::Wait)))
    }

    /// Returns true if the sender writes nothing more, after [`Offer::stop`].
    pub(crate) fn stopped(&self, theirs: &AtomicU64) -> bool {
        self.share(theirs)
            .is_ok_and(|(claimed, done)| claimed == done)
    }
}

/// Copies chunks from the back on the sender's side, at most `limit` of them. `done` is the number
/// returned by earlier calls for this offer. `copy` copies one chunk, or returns false to leave it
/// to the receiver. Returns the number of chunks done, and whether there may be more to do.
pub(crate) fn help(
    (id, chunks): (u32, u32),
    (mut done, limit): (u32, u32),
    mine: &AtomicU64,
    theirs: &AtomicU64,
    mut copy: impl FnMut(u32) -> bool,
) -> (u32, bool) {
    let end = done.saturating_add(limit);
    let is_free = |claims: u32| {
        let word = theirs.load(Ordering::Acquire);
        word >> 32 == u64::from(id)
            && (word & u64::from(u32::MAX)) + u64::from(claims) <= u64::from(chunks)
    };
    while done < chunks.min(MAX_CHUNKS) && is_free(done + 1) {
        if done == end {
            return (done, true);
        }
        // SYNC POINT claim: also publishes the chunks done.
        mine.store(share_word(id, done + 1, done), Ordering::Release);
        fence(Ordering::SeqCst);
        if !is_free(done + 1) || !copy(chunks - 1 - done) {
            // SYNC POINT claim
            mine.store(share_word(id, done, done), Ordering::Release);
            break;
        }
        done += 1;
        // SYNC POINT claim: the copied chunk is in memory when this is seen.
        mine.store(share_word(id, done, done), Ordering::Release);
    }
    (done, false)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ALL: (u32, u32) = (0, u32::MAX);

    fn words() -> (AtomicU64, AtomicU64) {
        (AtomicU64::new(0), AtomicU64::new(0))
    }

    #[test]
    fn a_receiver_alone_copies_all() {
        let (receiver, sender) = words();
        let mut offer = Offer::open(&receiver, 1, 3);
        for chunk in 0..3 {
            assert_eq!(offer.next(&receiver, &sender), Ok(Next::Copy(chunk)));
        }
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Done));
        assert_eq!(
            help((1, 3), ALL, &sender, &receiver, |_| panic!("all is done")),
            (0, false)
        );
    }

    #[test]
    fn help_comes_in_parts_and_ends_with_its_offer() {
        let (receiver, sender) = words();
        let mut offer = Offer::open(&receiver, 4, 6);
        let mut copied = Vec::new();
        let mut done = 0;
        for round in 1..=2 {
            let (now, more) = help((4, 6), (done, 2), &sender, &receiver, |chunk| {
                copied.push(chunk);
                true
            });
            assert_eq!((now, more), (2 * round, true));
            done = now;
        }
        assert_eq!(copied, [5, 4, 3, 2]);
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Copy(0)));
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Copy(1)));
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Done));
        let never = |_| panic!("all chunks are done");
        assert_eq!(
            help((4, 6), (done, 2), &sender, &receiver, never),
            (4, false)
        );
        // The next offer in this word is unrelated.
        Offer::open(&receiver, 5, 6);
        assert_eq!(
            help((4, 6), (done, 2), &sender, &receiver, never),
            (4, false)
        );
    }

    #[test]
    fn both_sides_meet() {
        let (receiver, sender) = words();
        let mut offer = Offer::open(&receiver, 7, 5);
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Copy(0)));
        let mut copied = Vec::new();
        let (helped, _) = help((7, 5), ALL, &sender, &receiver, |chunk| {
            copied.push(chunk);
            if chunk == 4 {
                assert_eq!(offer.next(&receiver, &sender), Ok(Next::Copy(1)));
            } else if chunk == 2 {
                assert_eq!(
                    offer.next(&receiver, &sender),
                    Ok(Next::Wait),
                    "the sender copies the last chunk"
                );
                assert!(offer.waits(&sender));
            }
            true
        });
        assert_eq!((helped, copied), (3, vec![4, 3, 2]));
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Done));
    }

    #[test]
    fn the_receiver_copies_what_the_sender_cannot() {
        let (receiver, sender) = words();
        let mut offer = Offer::open(&receiver, 1, 2);
        assert_eq!(help((1, 2), ALL, &sender, &receiver, |_| false), (0, false));
        assert!(!offer.waits(&sender));
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Copy(0)));
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Copy(1)));
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Done));
    }

    #[test]
    fn words_of_another_offer_are_ignored() {
        let (receiver, sender) = words();
        let mut offer = Offer::open(&receiver, 9, 2);
        assert_eq!(
            help((1, 2), ALL, &sender, &receiver, |_| panic!(
                "that offer is complete"
            )),
            (0, false)
        );
        sender.store(share_word(1, 2, 2), Ordering::Relaxed);
        assert_eq!(offer.next(&receiver, &sender), Ok(Next::Copy(0)));
    }

    #[test]
    fn a_stopped_offer_gets_no_more_help() {
        let (receiver, sender) = words();
        let mut offer = Offer::open(&receiver, 1, 4);
        let (helped, _) = help((1, 4), ALL, &sender, &receiver, |chunk| {
            assert_eq!(chunk, 3);
            offer.stop(&receiver);
            assert!(!offer.stopped(&sender), "the sender is copying");
            true
        });
        assert_eq!(helped, 1);
        assert!(offer.stopped(&sender));
    }

    #[test]
    fn impossible_words_are_detected_and_ranges_are_kept() {
        let (receiver, sender) = words();
        let mut offer = Offer::open(&receiver, 1, 3);
        for wrong in [
            share_word(1, 4, 0),
            share_word(1, 1, 2),
            share_word(1, 0xffff, 0xffff),
        ] {
            sender.store(wrong, Ordering::Relaxed);
            assert!(offer.next(&receiver, &sender).is_err(), "{wrong:#x}");
        }
        // Whatever a receiver writes, chunks are those of the offer, each at most once.
        for front in [0, 1, 2, 3, 4, 1 << 16, u32::MAX] {
            let mut copied = Vec::new();
            help(
                (1, 3),
                ALL,
                &sender,
                &AtomicU64::new(offer_word(1, front)),
                |chunk| {
                    copied.push(chunk);
                    true
                },
            );
            let expected: Vec<u32> = (front.min(3)..3).rev().collect();
            assert_eq!(copied, expected, "front {front}");
        }
    }
}
