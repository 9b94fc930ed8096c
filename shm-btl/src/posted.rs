//! Posted receives that senders fill by themselves: the side that arrives later copies (LiMIC,
//! section 4.3).
//!
//! # Difference from the paper
//! LiMIC keeps request queues and completion queues in the kernel, each protected by a lock
//! (section 4.4). Here a process could be stopped or killed while it holds a lock. So there is
//! none: a sender claims the entry of a receive by one compare-and-swap on its *claim word*, copies
//! without holding anything, and completes by a message in its own queue to the receiver
//! (`FILLED`), which is ordered and wakes the receiver. A process that stops in the middle delays
//! only the receive it has claimed.
//!
//! # The claim word
//! ```text
//! bit 63..62  0 free, 1 posted, 2 taken
//!     61..42  rank that took it
//!     41..0   number of the post: how many were posted before (modulo 2^42)
//! ```
//! A sender takes the matching receive with the lowest number, which is the oldest, as MPI's
//! matching requires (section 4.5).
//!
//! # Order of matching
//! - *No message overtakes an older one.* A sender claims only when the receiver's count of
//!   consumed messages has reached the last one it sent (`SYNC POINT consumed`): the callbacks have
//!   returned, and such a callback has withdrawn the receive that the message matched. The sender
//!   sends nothing in between, so this stays true.
//! - *No receive overtakes an older one.* A sender first reads the number of posts and ignores
//!   those that come later. All with lower numbers were posted before (`SYNC POINT posted`), so it
//!   cannot find a younger one and miss an older one posted at a place that it had passed already.
//! - *The descriptor belongs to the claim.* Address and length are read before the swap, and the
//!   swap expects the number. The owner writes the descriptor again only after it has itself
//!   changed the word from `posted`, so a successful swap proves that the descriptor belonged to
//!   that number (`SYNC POINT claim`).
//! - *Withdrawn or taken, not both.* Owner and senders change the word from `posted` by
//!   compare-and-swap only.
//!
//! # Corruption and death
//! All peers can write claim words. Before it swaps, a sender writes into its own file which
//! receive it is about to claim (`copying`), and clears that once `FILLED` is in its queue. A claim
//! that the named rank does not confirm this way, and for which it has sent no `FILLED`, is void:
//! the owner's check ([`PostedQueue::lost_claim`]) undoes it. When the rank dies, the owner ends
//! the receive with an error.

use btl::{Envelope, PostedReceive};

use crate::layout::{Common, END_BROKEN, POST_PLACES, PairHead, PostLine};
use shmem::sync::{AtomicU64, Ordering, fence};
use shmem::{Shared, SharedSlice};

const NUMBER_BITS: u32 = 42;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
const POSTED: u64 = 1 << 62;
const TAKEN: u64 = 2 << 62;
const STATE: u64 = 3 << 62;
/// Number of ranks that a claim word can name.
pub(crate) const MAX_RANKS: u32 = 1 << 20;
/// Number of bits of a post's id that hold its entry; the others hold its number.
const PLACE_BITS: u32 = POST_PLACES.next_power_of_two().trailing_zeros();

fn id_of(number: u64, place: usize) -> u64 {
    number << PLACE_BITS | place as u64
}

/// A posted receive in the owner's private memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) source: Option<u32>,
    pub(crate) token: u64,
    /// Withdrawing it failed, so the owner's program waits for the event.
    promised: bool,
    number: u64,
    place: usize,
}

impl Record {
    fn id(&self) -> u64 {
        id_of(self.number, self.place)
    }
}

/// The owner's end of its posted receives.
#[derive(Debug)]
pub(crate) struct PostedQueue {
    common: Shared<Common>,
    claims: SharedSlice<AtomicU64>,
    posted: u64,
    /// Receives by entry.
    records: [Option<Record>; POST_PLACES],
}

/// Meaning of a claim word that has changed since it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// This rank has taken the receive.
    By(u32),
    /// Impossible value. The word is free now; the claimant, if any, is found by its `copying`.
    Void,
}

impl PostedQueue {
    /// Returns the end with the process's own words.
    pub(crate) fn new(common: Shared<Common>, claims: SharedSlice<AtomicU64>) -> Self {
        PostedQueue {
            common,
            claims,
            posted: 0,
            records: [None; POST_PLACES],
        }
    }

    /// Posts a receive and returns its id, or `None` if there is no free entry.
    pub(crate) fn post(&mut self, wanted: &PostedReceive) -> Option<u64> {
        // An entry is free when it has no record, whatever its word contains.
        let place = self.records.iter().position(Option::is_none)?;
        let number = self.posted & NUMBER;
        let id = id_of(number, place);
        let line = &self.common.posts[place];
        for (word, value) in [
            (&line.address, wanted.buffer.expose_provenance() as u64),
            (&line.length, wanted.length as u64),
            (
                &line.envelope,
                encode(Envelope {
                    context: wanted.context,
                    tag: wanted.tag.unwrap_or(0),
                }),
            ),
            (&line.any_tag, wanted.tag.is_none().into()),
            (&line.source, wanted.source.map_or(0, by_source)),
            (&line.id, id),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        // SYNC POINT claim: a sender that reads the number reads the descriptor.
        self.claims[place].store(POSTED | number, Ordering::Release);
        self.posted = self.posted.wrapping_add(1);
        // SYNC POINT posted: a sender that reads the count finds every earlier receive.
        self.common.posted.0.store(self.posted, Ordering::Release);
        self.records[place] = Some(Record {
            source: wanted.source,
            token: wanted.token,
            promised: false,
            number,
            place,
        });
        Some(id)
    }

    fn place(id: u64) -> usize {
        (id & ((1 << PLACE_BITS) - 1)) as usize
    }

    /// Returns the receive of this id, if it is posted.
    fn record(&self, id: u64) -> Option<Record> {
        (*self.records.get(Self::place(id))?).filter(|record| record.id() == id)
    }

    /// Returns true if a receive of this id was ever posted.
    fn was_posted(&self, id: u64) -> bool {
        let back = self.posted.wrapping_sub(1).wrapping_sub(id >> PLACE_BITS) & NUMBER;
        Self::place(id) < POST_PLACES && self.posted > 0 && back <= NUMBER / 2
    }

    /// Removes a receive, whatever its claim word contains.
    fn remove(&mut self, record: Record) -> Record {
        // SYNC POINT claim: after this no swap succeeds any more.
        self.claims[record.place].swap(0, Ordering::AcqRel);
        self.records[record.place] = None;
        record
    }

    /// Withdraws a receive. Returns `None` for an unknown id, `Some(true)` if the receive belongs
    /// to the caller again, and `Some(false)` if a sender has taken it. `confirms` returns whether
    /// this rank (or with `None` any rank) is filling this receive.
    pub(crate) fn withdraw(
        &mut self,
        id: u64,
        confirms: impl Fn(Option<u32>, u64) -> bool,
    ) -> Option<bool> {
        let record = self.record(id)?;
        let posted = POSTED | record.number;
        // SYNC POINT claim
        let free = match self.claims[record.place].compare_exchange(
            posted,
            0,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => true,
            Err(found) => match self.judge(&record, found) {
                // Its `FILLED` may already be in the queue. If it is not, `lost_claim` detects
                // that.
                Claim::By(_) => false,
                Claim::Void => !confirms(None, id),
            },
        };
        if free {
            self.remove(record);
        } else if let Some(record) = &mut self.records[record.place] {
            record.promised = true;
        }
        Some(free)
    }

    fn judge(&self, record: &Record, found: u64) -> Claim {
        #[allow(clippy::cast_possible_truncation)] // 20 bits
        let by = (found >> NUMBER_BITS) as u32 & (MAX_RANKS - 1);
        let eligible = record.source.is_none_or(|source| source == by);
        if found & STATE == TAKEN && found & NUMBER == record.number && eligible {
            return Claim::By(by);
        }
        // SYNC POINT claim: a sender that swaps after this fails; one that swapped before is
        // visible in its `copying`.
        self.claims[record.place].swap(0, Ordering::SeqCst);
        Claim::Void
    }

    /// Returns the claim on a receive, or `None` if there is none.
    fn claimant(&self, record: &Record) -> Option<Claim> {
        // SYNC POINT claim
        let word = self.claims[record.place].load(Ordering::Acquire);
        (word != POSTED | record.number).then(|| self.judge(record, word))
    }

    /// Handles the report of rank `by` that it has filled a receive, and removes the receive.
    /// Returns an error if `by` cannot have filled it, and `Ok(None)` if the receive no longer
    /// exists, which happens to honest processes only by corruption of a claim word.
    pub(crate) fn filled(
        &mut self,
        id: u64,
        by: u32,
        confirms: impl Fn(Option<u32>, u64) -> bool,
    ) -> Result<Option<Record>, &'static str> {
        let Some(record) = self.record(id) else {
            return if self.was_posted(id) {
                Ok(None)
            } else {
                Err("it filled a receive that was never posted")
            };
        };
        if record.source.is_some_and(|source| source != by) {
            return Err("it filled a receive that selects another source");
        }
        match self.claimant(&record) {
            Some(Claim::By(other)) if other != by && confirms(Some(other), id) => {
                Err("it filled a receive that another process has taken")
            }
            _ => Ok(Some(self.remove(record))),
        }
    }

    /// Removes and returns a receive that rank `dead` has taken and will not fill. Call it until it
    /// returns `None`.
    pub(crate) fn taken_by_dead(
        &mut self,
        dead: u32,
        confirmed: impl Fn(u64) -> bool,
    ) -> Option<Record> {
        let taken = |record: &&Record| match self.claimant(record) {
            None => false,
            Some(Claim::By(by)) => by == dead,
            Some(Claim::Void) => confirmed(record.id()),
        };
        let record = *self.records.iter().flatten().find(taken)?;
        Some(self.remove(record))
    }

    /// Undoes claims that no rank confirms: posts the receive again or, if the program already
    /// waits for it, removes and returns it. Call it until it returns `None`. `at_work` returns
    /// whether this rank (or with `None` any rank) confirms the claim, or may have sent `FILLED` in
    /// a message that is not read yet.
    pub(crate) fn lost_claim(
        &mut self,
        at_work: impl Fn(Option<u32>, u64) -> bool,
    ) -> Option<Record> {
        for place in 0..POST_PLACES {
            let Some(record) = self.records[place] else {
                continue;
            };
            let claimant = match self.claimant(&record) {
                None => continue,
                Some(Claim::By(by)) => Some(by),
                Some(Claim::Void) => None,
            };
            if at_work(claimant, record.id()) {
                continue;
            }
            if record.promised {
                return Some(self.remove(record));
            }
            self.claims[place].store(POSTED | record.number, Ordering::Release);
        }
        None
    }

    /// Removes all receives. Returns the ids of those that senders may still be filling.
    pub(crate) fn clear(&mut self) -> Vec<u64> {
        let records = std::mem::replace(&mut self.records, [None; POST_PLACES]);
        let claimed = |record: &Record| {
            // SYNC POINT claim: after this no swap succeeds any more.
            let word = self.claims[record.place].swap(0, Ordering::SeqCst);
            (word != POSTED | record.number).then(|| record.id())
        };
        records.iter().flatten().filter_map(claimed).collect()
    }

    /// Returns true if no receive is posted.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.iter().all(Option::is_none)
    }
}

/// Encodes an envelope as one word.
pub(crate) fn encode(envelope: Envelope) -> u64 {
    u64::from(envelope.context) << 32 | u64::from(envelope.tag.cast_unsigned())
}

/// Decodes an envelope.
pub(crate) fn decode(word: u64) -> Envelope {
    #[allow(clippy::cast_possible_truncation)] // the two halves
    let (context, tag) = ((word >> 32) as u32, (word as u32).cast_signed());
    Envelope { context, tag }
}

/// Encodes a source, so that 0 means any.
fn by_source(rank: u32) -> u64 {
    u64::from(rank) + 1
}

fn fits(line: &PostLine, me: u32, message: u64) -> bool {
    let source = line.source.load(Ordering::Relaxed);
    let wanted = line.envelope.load(Ordering::Relaxed);
    let envelope = if line.any_tag.load(Ordering::Relaxed) == 0 {
        wanted == message
    } else {
        wanted >> 32 == message >> 32 && decode(message).tag >= 0
    };
    envelope && (source == 0 || source == by_source(me))
}

/// A receive that a sender has claimed, and must fill and report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// Claims the oldest posted receive of a peer that the message matches, if there is one. The caller
/// has checked that the peer has consumed all earlier messages.
///
/// `mine` is the process's own words for the peer (`copying` is set when a receive was claimed,
/// until [`end_copy`]); `theirs` is the peer's words for this process.
pub(crate) fn claim(
    me: u32,
    message: u64,
    mine: &PairHead,
    (common, theirs, claims): (&Common, &PairHead, &[AtomicU64]),
) -> Option<Claimed> {
    // SYNC POINT posted
    let posted = common.posted.0.load(Ordering::Acquire);
    // An honest owner uses each entry at most once; a corrupt one must not extend the loop.
    for _ in 0..POST_PLACES {
        let mut best: Option<(usize, u64, u64)> = None;
        for (place, (claim, line)) in claims.iter().zip(&common.posts).enumerate() {
            // SYNC POINT claim
            let word = claim.load(Ordering::Acquire);
            let age = posted.wrapping_sub(1).wrapping_sub(word) & NUMBER;
            let visible = word & STATE == POSTED && age <= NUMBER / 2;
            if visible && best.is_none_or(|(_, _, oldest)| age > oldest) && fits(line, me, message)
            {
                best = Some((place, word, age));
            }
        }
        let Some((place, word, _)) = best else {
            break;
        };
        let line = &common.posts[place];
        let claimed = Claimed {
            id: line.id.load(Ordering::Relaxed),
            address: line.address.load(Ordering::Relaxed),
            length: line.length.load(Ordering::Relaxed),
        };
        mine.writing
            .0
            .copying
            .store(claimed.id.wrapping_add(1), Ordering::Release);
        if is_revoked(theirs) {
            break;
        }
        let taken = TAKEN | u64::from(me) << NUMBER_BITS | word & NUMBER;
        // SYNC POINT claim
        if claims[place]
            .compare_exchange(word, taken, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return Some(claimed);
        }
    }
    end_copy(mine);
    None
}

/// Ends the connection to a peer: the peer starts no further copy into this process's memory, and
/// delivers nothing that it copies from there. `mine` is the process's own words for the peer.
pub(crate) fn revoke(mine: &PairHead) {
    mine.writing.0.end.store(END_BROKEN, Ordering::Release);
    // SYNC POINT revoke: comes before the check whether the peer is copying, and before this
    // process uses the memory for something else.
    fence(Ordering::SeqCst);
}

/// Returns true if the owner of these words has ended the connection to this process. Call it after
/// `copying` was set, which the owner reads after ending the connection, or after a copy of the
/// owner's memory.
pub(crate) fn is_revoked(theirs: &PairHead) -> bool {
    // SYNC POINT revoke
    fence(Ordering::SeqCst);
    theirs.writing.0.end.load(Ordering::Acquire) == END_BROKEN
}

/// Clears `copying`: the `FILLED` of the receive is in the queue.
pub(crate) fn end_copy(mine: &PairHead) {
    mine.writing.0.copying.store(0, Ordering::Release);
}

/// Returns true if the sender with these words confirms its claim of `id`.
pub(crate) fn confirms(theirs: &PairHead, id: u64) -> bool {
    // SYNC POINT claim: set before the swap that we have seen, and cleared after `FILLED`, which is
    // then visible.
    theirs.writing.0.copying.load(Ordering::SeqCst) == id.wrapping_add(1)
}
