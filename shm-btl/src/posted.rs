//! Posted receives that senders fill by themselves: the side that arrives later copies (LiMIC,
//! section 4.3).
//!
//! # Difference to the paper
//! LiMIC keeps request queues and completion queues in the kernel, behind one lock each (section
//! 4.4). Here a process could be stopped or killed while it holds a lock. So there is none: a
//! sender claims the place of a receive by one compare-and-swap on its *claim word*, copies without
//! holding anything, and completes by a message in its own queue to the receiver (`FILLED`), which
//! is ordered and wakes already. A process that stops in the middle delays only the receive it has
//! claimed.
//!
//! # The claim word
//! ```text
//! bit 63..62  0 free, 1 posted, 2 taken
//!     61..42  rank that took it
//!     41..0   number of the post: how many were posted before (modulo 2^42)
//! ```
//! A receiver has places for any source and for each source; a sender sees both kinds and takes the
//! matching receive with the lowest number, which is the oldest, as MPI's matching requires
//! (section 4.5).
//!
//! # Order of matching
//! - *No message overtakes an older one.* A sender claims only when the receiver's count of
//!   consumed messages has reached the last one it sent (`SYNC POINT consumed`): the callbacks have
//!   returned, and such a callback has withdrawn the receive that the message matched. The sender
//!   sends nothing meanwhile, so this stays true.
//! - *No receive overtakes an older one.* A sender first reads the number of posts and ignores
//!   those that come later. All with lower numbers were posted before (`SYNC POINT posted`), so it
//!   cannot find a younger one and miss an older one posted at a place that it had passed already.
//! - *The descriptor is the claim's.* Address and length are read before the swap, and the swap
//!   expects the number. The owner writes the descriptor again only after it has itself taken the
//!   word out of `posted`, so a successful swap proves that the descriptor belonged to that number
//!   (`SYNC POINT claim`).
//! - *Withdrawn or taken, not both.* Owner and senders change the word out of `posted` by
//!   compare-and-swap only.
//!
//! # Corruption and death
//! All peers can write claim words. Before it swaps, a sender writes into its own file which
//! receive it is about to claim (`copying`), and clears that once `FILLED` is in its queue. A claim
//! that the named rank does not confirm this way, and for which it has sent no `FILLED`, is void:
//! the owner's check ([`PostedQueue::lost_claim`]) undoes it. When the rank dies, the owner ends
//! the receive with an error.

use crate::layout::{ANY_PLACES, Common, END_BROKEN, PairHead, PostLine, SOURCE_PLACES, claims_of};
use shmem::sync::{AtomicU64, Ordering, fence};
use shmem::{Shared, SharedSlice};

const NUMBER_BITS: u32 = 42;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
const POSTED: u64 = 1 << 62;
const TAKEN: u64 = 2 << 62;
const STATE: u64 = 3 << 62;
/// Number of ranks that a claim word can name.
pub(crate) const MAX_RANKS: u32 = 1 << 20;
/// Maximum number of receives that a process has posted at a time.
const RECORDS: usize = if cfg!(loom) { 4 } else { 256 };
/// Bits of a post's id that are the index of its record.
const RECORD_BITS: u32 = 8;

fn taken_by(rank: u32) -> u64 {
    TAKEN | u64::from(rank) << NUMBER_BITS
}

/// A posted receive in the owner's private memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) source: Option<u32>,
    pub(crate) token: u64,
    /// Withdrawing it failed: the owner's program waits for the event.
    promised: bool,
    number: u64,
    claim: usize,
}

/// A receive to post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) source: Option<u32>,
    pub(crate) context: u32,
    pub(crate) tag: Option<i32>,
    pub(crate) address: u64,
    pub(crate) length: usize,
    pub(crate) token: u64,
}

/// The owner's end of its posted receives.
#[derive(Debug)]
pub(crate) struct PostedQueue {
    common: Shared<Common>,
    claims: SharedSlice<AtomicU64>,
    posted: u64,
    records: Vec<Option<Record>>,
    free: Vec<u16>,
    /// Places that have a record, by claim word.
    used: Vec<bool>,
}

/// Meaning of a claim word that is not as it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// This rank has taken the receive.
    By(u32),
    /// Impossible value. The word is free now; the claimant, if any, is found by its `copying`.
    Nonsense,
}

impl PostedQueue {
    /// Returns the end with the process's own words.
    pub(crate) fn new(common: Shared<Common>, claims: SharedSlice<AtomicU64>) -> Self {
        PostedQueue {
            used: vec![false; claims.len()],
            common,
            claims,
            posted: 0,
            records: vec![None; RECORDS],
            free: (0..RECORDS as u16).rev().collect(),
        }
    }

    /// Posts a receive and returns its id, or `None` if there is no place. `pair` is the process's
    /// own words for the source, if the receive names one.
    pub(crate) fn post(&mut self, wanted: &Wanted, pair: Option<&PairHead>) -> Option<u64> {
        let (lines, first): (&[PostLine], usize) = match (wanted.source, pair) {
            (Some(rank), Some(pair)) => (&pair.posts, claims_of(rank)),
            (None, None) => (&self.common.any, 0),
            _ => return None,
        };
        let claims = self.claims.get(first..first + lines.len())?;
        // A place is free when no record has it; what its word says is not asked.
        let place = self
            .used
            .get(first..first + lines.len())?
            .iter()
            .position(|used| !used)?;
        let record = self.free.pop()?;
        let number = self.posted & NUMBER;
        let id = number << RECORD_BITS | u64::from(record);
        let line = &lines[place];
        line.address.store(wanted.address, Ordering::Relaxed);
        line.length.store(wanted.length as u64, Ordering::Relaxed);
        line.envelope.store(
            envelope(wanted.context, wanted.tag.unwrap_or(0)),
            Ordering::Relaxed,
        );
        line.any_tag
            .store(u64::from(wanted.tag.is_none()), Ordering::Relaxed);
        line.id.store(id, Ordering::Relaxed);
        // SYNC POINT claim: a sender that reads the number reads the descriptor.
        claims[place].store(POSTED | number, Ordering::Release);
        self.used[first + place] = true;
        self.posted = self.posted.wrapping_add(1);
        // SYNC POINT posted: a sender that reads the count finds every earlier receive.
        self.common.posted.0.store(self.posted, Ordering::Release);
        self.records[usize::from(record)] = Some(Record {
            source: wanted.source,
            token: wanted.token,
            promised: false,
            number,
            claim: first + place,
        });
        Some(id)
    }

    fn index(id: u64) -> usize {
        (id & ((1 << RECORD_BITS) - 1)) as usize
    }

    /// Returns the receive of this id, if it is posted.
    pub(crate) fn record(&self, id: u64) -> Option<Record> {
        (*self.records.get(Self::index(id))?).filter(|r| r.number == id >> RECORD_BITS)
    }

    /// Returns true if a receive of this id was ever posted.
    pub(crate) fn was_posted(&self, id: u64) -> bool {
        let back = self.posted.wrapping_sub(1).wrapping_sub(id >> RECORD_BITS) & NUMBER;
        Self::index(id) < RECORDS && self.posted > 0 && back <= NUMBER / 2
    }

    /// Removes a receive, whatever its claim word says.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Record> {
        let record = self.record(id)?;
        // SYNC POINT claim: after this no swap succeeds any more.
        self.claims[record.claim].swap(0, Ordering::AcqRel);
        self.records[Self::index(id)] = None;
        self.used[record.claim] = false;
        #[allow(clippy::cast_possible_truncation)] // 8 bits
        self.free.push(Self::index(id) as u16);
        Some(record)
    }

    /// Withdraws a receive. Returns `None` for an unknown id, `Some(true)` if the receive is the
    /// caller's again, and `Some(false)` if a sender has taken it. `confirms` says whether this
    /// rank (or with `None` any rank) is filling this receive.
    pub(crate) fn withdraw(
        &mut self,
        id: u64,
        confirms: impl Fn(Option<u32>, u64) -> bool,
    ) -> Option<bool> {
        let record = self.record(id)?;
        let word = &self.claims[record.claim];
        // SYNC POINT claim
        let free = match word.compare_exchange(
            POSTED | record.number,
            0,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => true,
            Err(found) => match self.judge(&record, found) {
                // Its `FILLED` may be in the queue already. If it is not, `lost_claim` finds out.
                Claim::By(_) => false,
                Claim::Nonsense => !confirms(None, id),
            },
        };
        if free {
            self.remove(id);
        } else if let Some(Some(record)) = self.records.get_mut(Self::index(id)) {
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
        // SYNC POINT claim: a sender that swaps after this fails; one that swapped before shows in
        // its `copying`.
        self.claims[record.claim].swap(0, Ordering::SeqCst);
        Claim::Nonsense
    }

    /// Returns the claim on a receive, or `None` if there is none.
    fn claimant(&self, record: &Record) -> Option<Claim> {
        // SYNC POINT claim
        let word = self.claims[record.claim].load(Ordering::Acquire);
        (word != POSTED | record.number).then(|| self.judge(record, word))
    }

    /// Handles the message of rank `by` that it has filled a receive, and removes that. Returns an
    /// error if `by` cannot have filled it, and `Ok(None)` if the receive is gone, which happens to
    /// honest processes only by corruption of a claim word.
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
            return Err("it filled a receive of another source");
        }
        match self.claimant(&record) {
            Some(Claim::By(other)) if other != by && confirms(Some(other), id) => {
                Err("it filled a receive that another process has taken")
            }
            _ => Ok(self.remove(id)),
        }
    }

    fn ids(&self) -> impl Iterator<Item = (u64, Record)> + '_ {
        let number = |(index, record): (usize, &Option<Record>)| {
            record.map(|record| (record.number << RECORD_BITS | index as u64, record))
        };
        self.records.iter().enumerate().filter_map(number)
    }

    /// Removes and returns a receive that rank `dead` has taken and will not fill. To be called
    /// until it returns `None`.
    pub(crate) fn taken_by_dead(
        &mut self,
        dead: u32,
        confirmed: impl Fn(u64) -> bool,
    ) -> Option<Record> {
        let (id, _) = self
            .ids()
            .find(|(id, record)| match self.claimant(record) {
                None => false,
                Some(Claim::By(by)) => by == dead,
                Some(Claim::Nonsense) => confirmed(*id),
            })?;
        self.remove(id)
    }

    /// Undoes claims that no rank confirms: posts the receive again or, if the program waits for it
    /// already, removes and returns it. To be called until it returns `None`. `at_work` says
    /// whether this rank (or with `None` any rank) confirms the claim, or may have sent `FILLED` in
    /// a message not read yet.
    pub(crate) fn lost_claim(
        &mut self,
        at_work: impl Fn(Option<u32>, u64) -> bool,
    ) -> Option<Record> {
        let lost = |(id, record): &(u64, Record)| match self.claimant(record) {
            None => false,
            Some(Claim::By(by)) => !at_work(Some(by), *id),
            Some(Claim::Nonsense) => !at_work(None, *id),
        };
        let lost: Vec<(u64, Record)> = self.ids().filter(lost).collect();
        let mut promised = None;
        for (id, record) in lost {
            if record.promised {
                promised = Some(id);
            } else {
                self.claims[record.claim].store(POSTED | record.number, Ordering::Release);
            }
        }
        self.remove(promised?)
    }

    /// Removes all receives. Returns the ids of those that senders may still be filling.
    pub(crate) fn clear(&mut self) -> Vec<u64> {
        let all: Vec<(u64, Record)> = self.ids().collect();
        let claimed = all.into_iter().filter_map(|(id, record)| {
            // SYNC POINT claim: after this no swap succeeds any more.
            let word = self.claims[record.claim].swap(0, Ordering::SeqCst);
            (word != POSTED | record.number).then_some(id)
        });
        let claimed = claimed.collect();
        self.records.fill(None);
        claimed
    }

    /// Returns the number of posted receives.
    pub(crate) fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }
}

/// Encodes context and tag as one word.
pub(crate) fn envelope(context: u32, tag: i32) -> u64 {
    u64::from(context) << 32 | u64::from(tag.cast_unsigned())
}

/// Decodes context and tag.
pub(crate) fn open_envelope(word: u64) -> (u32, i32) {
    #[allow(clippy::cast_possible_truncation)] // the two halves
    let (context, tag) = ((word >> 32) as u32, word as u32);
    (context, tag.cast_signed())
}

fn fits(line: &PostLine, message: u64) -> bool {
    let wanted = line.envelope.load(Ordering::Relaxed);
    if line.any_tag.load(Ordering::Relaxed) == 0 {
        return wanted == message;
    }
    wanted >> 32 == message >> 32 && open_envelope(message).1 >= 0
}

/// A receive that a sender has claimed, and must fill and report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// Claims the oldest posted receive of a peer that the message matches, if there is one. The caller
/// has found that the peer has consumed all earlier messages.
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
    let own = claims_of(me);
    let places = || {
        let any = claims.iter().take(ANY_PLACES).zip(&common.any);
        any.chain(
            claims
                .iter()
                .skip(own)
                .take(SOURCE_PLACES)
                .zip(&theirs.posts),
        )
    };
    // An honest owner gives each place once at most; a corrupt one must not keep us here.
    for _ in 0..ANY_PLACES + SOURCE_PLACES {
        let mut best: Option<(u64, &AtomicU64, &PostLine, u64)> = None;
        for (claim, line) in places() {
            // SYNC POINT claim
            let word = claim.load(Ordering::Acquire);
            let age = posted.wrapping_sub(1).wrapping_sub(word) & NUMBER;
            let visible = word & STATE == POSTED && age <= NUMBER / 2;
            if visible && best.is_none_or(|(_, _, _, oldest)| age > oldest) && fits(line, message) {
                best = Some((word, claim, line, age));
            }
        }
        let (word, claim, line, _) = best?;
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
            end_copy(mine);
            return None;
        }
        let taken = taken_by(me) | word & NUMBER;
        // SYNC POINT claim
        if claim
            .compare_exchange(word, taken, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return Some(claimed);
        }
        end_copy(mine);
    }
    None
}

/// Returns true if the owner of these words has given this process up. To be called after `copying`
/// was set: the owner reads that after giving up.
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
