//! The exact memory of a process's two files, by cache line.
//!
//! **The data file** is written by its owner alone. Its peers map it read-only, and a seal keeps the kernel from giving
//! anybody a later writable mapping, so a process that writes nonsense, or is made to, spoils what *it* says and nothing else.
//!
//! ```text
//! Common      about: magic, version, nonce, closed?    read when a peer opens the file, and now and then
//!             sleep: odd when the owner sleeps        read by everybody who sends to it
//!             posted: receives posted so far
//!             receives posted for any source
//! chunks      pool for messages to whomever
//! pair[rank]  one for each rank of the job:
//!   PairHead    reading: messages from `rank` that the owner has consumed
//!               writing: what the owner says as sender to `rank`
//!               offers: messages from `rank` that both may copy (`share.rs`)
//!               shares: what the owner has copied of messages to `rank`
//!               receives posted for `rank` alone
//!   slots       messages to `rank`: one line each
//!   ring        bytes of messages to `rank` that do not fit into a line
//! ```
//!
//! **The claims file** is the one that everybody may write: one word for each place of a posted receive, by which senders
//! claim it. Nothing else is there, and no word of it is believed without need (`board.rs`).
//!
//! Both files are sparse: a rank that is never added, or never sent to, costs nothing but addresses.

use crate::share::PLACES;
use shmem::sync::AtomicU64;
use shmem::{LINE, Line, Words};

/// Places for receives from any source.
pub(crate) const ANY_PLACES: usize = if cfg!(loom) { 2 } else { 64 };
/// Places for receives from one source.
pub(crate) const SOURCE_PLACES: usize = if cfg!(loom) { 2 } else { 16 };
/// Bytes that slot and ring offsets are multiples of; the ring of a model is only a few bytes long.
pub(crate) const ALIGN: usize = if cfg!(loom) { 1 } else { LINE };

/// First word of a data file.
pub(crate) const DATA_MAGIC: u64 = u64::from_le_bytes(*b"btl.shm.");
/// First word of a claims file.
pub(crate) const CLAIMS_MAGIC: u64 = u64::from_le_bytes(*b"btl.clm.");
/// Version of everything here; another one is refused.
pub(crate) const VERSION: u64 = 2;

/// What the file is. Written once, before anybody else has it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    pub(crate) nonce: [AtomicU64; 2],
    /// 1: the owner has closed in order. Nothing is written any more, by whatever of its words.
    pub(crate) left: AtomicU64,
}

/// A receive that senders may fill. All of it is the owner's word; valid while the claim word of its place says so.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct PostLine {
    /// In the owner's memory.
    pub(crate) address: AtomicU64,
    pub(crate) length: AtomicU64,
    /// Context in the upper half, tag in the lower.
    pub(crate) envelope: AtomicU64,
    /// 1: any tag that is not negative.
    pub(crate) any_tag: AtomicU64,
    /// The owner's name for it, said back when it is filled.
    pub(crate) id: AtomicU64,
}

/// See the drawing of this module.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) about: Line<About>,
    _pair: [u64; 8],
    pub(crate) sleep: Line<AtomicU64>,
    _pair2: [u64; 8],
    pub(crate) posted: Line<AtomicU64>,
    pub(crate) any: [PostLine; ANY_PLACES],
}

/// The owner as sender to one rank.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Writing {
    /// The id, plus one, of the receive it is about to take or is filling; [`PUTTING`]: it writes to a region; 0: neither.
    pub(crate) copying: AtomicU64,
    /// 1: it waits for room.
    pub(crate) wants_room: AtomicU64,
    /// One of [`END_OPEN`] and so on.
    pub(crate) end: AtomicU64,
}

/// Of a [`Writing::copying`].
pub(crate) const PUTTING: u64 = u64::MAX;
/// Of a [`Writing::end`]: the owner has added the rank, so it has mapped its memory. 0: not yet.
pub(crate) const END_OPEN: u64 = 1;
/// Of a [`Writing::end`]: given up. Who sees it does not begin to copy into the owner's memory, and looks behind `copying`.
pub(crate) const END_BROKEN: u64 = 2;
/// Of a [`Writing::end`]: the owner could not reach the rank, which should use another transport, too.
pub(crate) const END_REFUSED: u64 = 3;

/// See the drawing of this module.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PairHead {
    /// Messages consumed: their callbacks have returned.
    pub(crate) consumed: Line<AtomicU64>,
    _pair: [u64; 8],
    pub(crate) writing: Line<Writing>,
    _pair2: [u64; 8],
    pub(crate) offers: Line<[AtomicU64; PLACES]>,
    _pair3: [u64; 8],
    pub(crate) shares: Line<[AtomicU64; PLACES]>,
    _pair4: [u64; 8],
    pub(crate) posts: [PostLine; SOURCE_PLACES],
}

/// One message, or what there is to know of a longer one. `fifo/` says what the words mean.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot(pub(crate) [AtomicU64; 8]);

// SAFETY: atomics and padding, `repr(C)`.
unsafe impl Words for About {}
// SAFETY: as above.
unsafe impl Words for Common {}
// SAFETY: as above.
unsafe impl Words for PairHead {}
// SAFETY: as above.
unsafe impl Words for Slot {}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == LINE);
    assert!(size_of::<PostLine>() == LINE);
    assert!(size_of::<Common>() == (5 + ANY_PLACES) * LINE && size_of::<Common>() <= COMMON_BYTES);
    assert!(size_of::<PairHead>() == (8 + SOURCE_PLACES) * LINE && size_of::<PairHead>() <= PAGE);
    assert!(
        core::mem::offset_of!(Common, sleep) == 128 && core::mem::offset_of!(Common, posted) == 256
    );
    assert!(core::mem::offset_of!(PairHead, writing) == 128);
};

/// Offsets are in multiples of this, whatever the machine's page size is: up to 64 KiB pages can be mapped.
pub(crate) const PAGE: usize = 4096;
#[cfg(not(loom))]
const COMMON_BYTES: usize = 2 * PAGE;

/// Rings and chunks begin in the middle of a page. Programs' long buffers begin at its start, and copying between two places with
/// the same low 12 bits of their addresses is several times slower on some processors (`rep movsb` on Zen 3 and 4).
#[cfg(not(loom))]
const HALF: usize = PAGE / 2;

/// How a process's files are divided. Equal in all processes of a job, or they do not reach each other.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Ranks of the job.
    pub(crate) size: u32,
    /// Slots of a pair, a power of two.
    pub(crate) slots: u32,
    /// Bytes of a pair's ring, a power of two.
    pub(crate) ring: u32,
    /// Bytes of a body that a chunk takes whatever the header is.
    pub(crate) chunk: u32,
    /// Chunks of the pool.
    pub(crate) chunks: u32,
}

#[cfg(not(loom))]
impl Layout {
    /// A chunk holds a message's body and, if it is a long one, the header in a line of its own. Whole pages, see [`HALF`].
    pub(crate) fn chunk_stride(&self) -> usize {
        (self.chunk as usize + 2 * LINE).next_multiple_of(PAGE)
    }

    /// The longest message: [`Layout::chunk`] and a header.
    pub(crate) fn longest(&self) -> usize {
        self.chunk as usize + btl::MAX_HEADER
    }

    /// Where the chunks begin.
    pub(crate) fn chunks_at(&self) -> usize {
        COMMON_BYTES + HALF
    }

    /// Bytes of all chunks.
    pub(crate) fn chunks_bytes(&self) -> usize {
        self.chunks as usize * self.chunk_stride()
    }

    /// Bytes that everybody maps: common words and chunks.
    pub(crate) fn shared_bytes(&self) -> usize {
        (self.chunks_at() + self.chunks_bytes()).next_multiple_of(page_size())
    }

    /// Bytes of a pair.
    pub(crate) fn pair_bytes(&self) -> usize {
        (self.ring_at() + self.ring as usize).next_multiple_of(page_size())
    }

    /// Where a pair begins.
    pub(crate) fn pair_at(&self, rank: u32) -> usize {
        self.shared_bytes() + self.pair_bytes() * rank as usize
    }

    /// Where in a pair its slots begin.
    pub(crate) const SLOTS_AT: usize = PAGE;

    /// Where in a pair its ring begins.
    pub(crate) fn ring_at(&self) -> usize {
        Self::SLOTS_AT + self.slots as usize * LINE + HALF
    }

    /// Bytes of a data file.
    pub(crate) fn data_bytes(&self) -> usize {
        self.pair_at(self.size)
    }

    /// Bytes of a claims file: one line about itself, then the words.
    pub(crate) fn claims_bytes(&self) -> usize {
        (LINE + 8 * self.claims()).next_multiple_of(page_size())
    }

    /// Words of a claims file.
    pub(crate) fn claims(&self) -> usize {
        ANY_PLACES + SOURCE_PLACES * self.size as usize
    }
}

#[cfg(not(loom))]
fn page_size() -> usize {
    shmem::page_size().max(PAGE)
}

/// Where the claim words of receives from one rank begin.
pub(crate) fn claims_of(rank: u32) -> usize {
    ANY_PLACES + SOURCE_PLACES * rank as usize
}

#[cfg(all(test, loom))]
impl Common {
    pub(crate) fn model(
        about: Line<About>,
        sleep: Line<AtomicU64>,
        posted: Line<AtomicU64>,
        any: [PostLine; ANY_PLACES],
    ) -> Self {
        Common {
            about,
            _pair: [0; 8],
            sleep,
            _pair2: [0; 8],
            posted,
            any,
        }
    }
}

#[cfg(all(test, loom))]
impl PairHead {
    pub(crate) fn model(
        consumed: Line<AtomicU64>,
        writing: Line<Writing>,
        posts: [PostLine; SOURCE_PLACES],
    ) -> Self {
        let words = || Line(core::array::from_fn(|_| AtomicU64::new(0)));
        PairHead {
            consumed,
            _pair: [0; 8],
            writing,
            _pair2: [0; 8],
            offers: words(),
            _pair3: [0; 8],
            shares: words(),
            _pair4: [0; 8],
            posts,
        }
    }
}
