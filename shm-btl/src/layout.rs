//! The layout of a process's two files, by cache line.
//!
//! **The data file** is written by its owner alone. Its peers map it read-only, and a seal makes
//! the kernel refuse later writable mappings: corruption of the file affects its owner's messages
//! only.
//!
//! ```text
//! Common      about: magic, version, nonce, closed      read when a peer opens the file, and for liveness
//!             sleep: odd while the owner sleeps         read by each process that sends to it
//!             posted: receives posted so far
//!             receives posted for any source
//! chunks      pool for long messages, of all peers
//! pair[rank]  one for each rank of the job:
//!   PairHead    consumed: messages from `rank` that the owner has consumed
//!               writing: state of the owner as sender to `rank`
//!               offers: messages from `rank` that both copy (`coop.rs`)
//!               shares: what the owner has copied of messages to `rank`
//!               receives posted for `rank` alone
//!   slots       messages to `rank`: one line each
//!   ring        bytes of messages to `rank` that do not fit into a line
//! ```
//!
//! **The claims file** is written by all peers: one word for each place of a posted receive, by
//! which senders claim it. It holds nothing else, and each word of it is checked (`posted.rs`).
//!
//! Both files are sparse: a rank that is never added, or never sent to, takes address space only.

use crate::coop::PLACES;
use shmem::sync::AtomicU64;
use shmem::{LINE, Line, Words};

/// Number of places for receives from any source.
pub(crate) const ANY_PLACES: usize = if cfg!(loom) { 2 } else { 64 };
/// Number of places for receives from one source.
pub(crate) const SOURCE_PLACES: usize = if cfg!(loom) { 2 } else { 16 };
/// Alignment of slot and ring offsets in bytes. The ring of a model has only a few bytes.
pub(crate) const ALIGN: usize = if cfg!(loom) { 1 } else { LINE };

/// First word of a data file.
pub(crate) const DATA_MAGIC: u64 = u64::from_le_bytes(*b"btl.shm.");
/// First word of a claims file.
pub(crate) const CLAIMS_MAGIC: u64 = u64::from_le_bytes(*b"btl.clm.");
/// Version of the layout; another one is refused.
pub(crate) const VERSION: u64 = 2;

/// Identifies the file. Written before another process has it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    pub(crate) nonce: [AtomicU64; 2],
    /// 1 after the owner has closed. It writes nothing any more, whatever its other words say.
    pub(crate) left: AtomicU64,
}

/// A receive that senders may fill, written by its owner. Valid while the claim word of its place
/// says "posted".
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct PostLine {
    /// Address of the buffer in the owner's memory.
    pub(crate) address: AtomicU64,
    pub(crate) length: AtomicU64,
    /// Context in the upper half, tag in the lower.
    pub(crate) envelope: AtomicU64,
    /// 1 if every tag that is not negative matches.
    pub(crate) any_tag: AtomicU64,
    /// The owner's name for the receive, returned when it is filled.
    pub(crate) id: AtomicU64,
}

/// Words of a process for all peers; see the drawing of this module.
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

/// State of the owner as sender to one rank.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Writing {
    /// Receive that the owner is copying to the rank: the id, plus one, of the receive it claims or
    /// fills; [`PUTTING`] while it writes to a region; 0 otherwise.
    pub(crate) copying: AtomicU64,
    /// 1 while the owner waits for room.
    pub(crate) wants_room: AtomicU64,
    /// One of the `END_` constants.
    pub(crate) end: AtomicU64,
}

/// Value of [`Writing::copying`] while the owner writes to a region.
pub(crate) const PUTTING: u64 = u64::MAX;
/// Value of [`Writing::end`] once the owner has added the rank, so that it has mapped the rank's
/// memory; 0 before.
pub(crate) const END_OPEN: u64 = 1;
/// Value of [`Writing::end`] once the owner has given the rank up. The rank then begins no copy
/// into the owner's memory.
pub(crate) const END_BROKEN: u64 = 2;
/// Value of [`Writing::end`] if the owner could not reach the rank, which should use another
/// transport.
pub(crate) const END_REFUSED: u64 = 3;

/// Words of a process for one rank; see the drawing of this module.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PairHead {
    /// Number of messages consumed: their callbacks have returned.
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

/// One message, or the description of a longer one. `fifo/` defines the words.
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

/// Alignment of the parts of a file in bytes, on machines of every page size up to 64 KiB.
pub(crate) const PAGE: usize = 4096;
#[cfg(not(loom))]
const COMMON_BYTES: usize = 2 * PAGE;

/// Rings and chunks begin in the middle of a page. Long buffers of programs begin at the start of
/// one, and copying between two addresses with equal low 12 bits is several times slower on some
/// processors (`rep movsb` on Zen 3 and 4).
#[cfg(not(loom))]
const HALF: usize = PAGE / 2;

/// Sizes of a process's files. They must be equal in all processes of a job.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Number of ranks of the job.
    pub(crate) size: u32,
    /// Number of slots of a pair, a power of two.
    pub(crate) slots: u32,
    /// Bytes of a pair's ring, a power of two.
    pub(crate) ring: u32,
    /// Bytes of body that fit into a chunk with every header.
    pub(crate) chunk: u32,
    /// Number of chunks of the pool.
    pub(crate) chunks: u32,
}

#[cfg(not(loom))]
impl Layout {
    /// Returns the distance of two chunks: a chunk holds a message's body and, if it is a long one,
    /// the header in a line of its own. Whole pages, see [`HALF`].
    pub(crate) fn chunk_stride(&self) -> usize {
        (self.chunk as usize + 2 * LINE).next_multiple_of(PAGE)
    }

    /// Returns the length of the longest message: [`Layout::chunk`] and a header.
    pub(crate) fn longest(&self) -> usize {
        self.chunk as usize + btl::MAX_HEADER
    }

    /// Returns the offset of the chunks.
    pub(crate) fn chunks_at(&self) -> usize {
        COMMON_BYTES + HALF
    }

    /// Returns the bytes of all chunks.
    pub(crate) fn chunks_bytes(&self) -> usize {
        self.chunks as usize * self.chunk_stride()
    }

    /// Returns the bytes that every peer maps: common words and chunks.
    pub(crate) fn shared_bytes(&self) -> usize {
        (self.chunks_at() + self.chunks_bytes()).next_multiple_of(page_size())
    }

    /// Returns the bytes of a pair.
    pub(crate) fn pair_bytes(&self) -> usize {
        (self.ring_at() + self.ring as usize).next_multiple_of(page_size())
    }

    /// Returns the offset of a rank's pair.
    pub(crate) fn pair_at(&self, rank: u32) -> usize {
        self.shared_bytes() + self.pair_bytes() * rank as usize
    }

    /// Offset of the slots in a pair.
    pub(crate) const SLOTS_AT: usize = PAGE;

    /// Returns the offset of the ring in a pair.
    pub(crate) fn ring_at(&self) -> usize {
        Self::SLOTS_AT + self.slots as usize * LINE + HALF
    }

    /// Returns the bytes of a data file.
    pub(crate) fn data_bytes(&self) -> usize {
        self.pair_at(self.size)
    }

    /// Returns the bytes of a claims file: one line that identifies it, then the words.
    pub(crate) fn claims_bytes(&self) -> usize {
        (LINE + 8 * self.claims()).next_multiple_of(page_size())
    }

    /// Returns the number of words of a claims file.
    pub(crate) fn claims(&self) -> usize {
        ANY_PLACES + SOURCE_PLACES * self.size as usize
    }
}

#[cfg(not(loom))]
fn page_size() -> usize {
    shmem::page_size().max(PAGE)
}

/// Returns the index of the first claim word of receives from one rank.
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
