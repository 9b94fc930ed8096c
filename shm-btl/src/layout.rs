//! The layout of a process's files, by cache line.
//!
//! **The data file** is written by its owner alone. Its peers map it read-only, and a seal makes
//! the kernel refuse later writable mappings: corruption of the file affects its owner's messages
//! only.
//!
//! ```text
//! Common      about: nonce, closed                      read when a peer opens the file, and for liveness
//!             sleep: odd while the owner sleeps         read by each process that sends to it
//!             address, directory, refused, full: of open transports (`transport/open.rs`)
//! chunks      pool for long messages, of all peers
//! pair[rank]  one for each rank of the job, or for each peer of an open transport:
//!   PairHead    consumed: messages from `rank` that the owner has consumed
//!               end: state of the owner's connection to `rank`
//!               offers: messages from `rank` that both copy (`coop.rs`)
//!               shares: chunks of messages to `rank` that the owner has copied
//!   slots       messages to `rank`: one line each
//!   ring        bytes of messages to `rank` that do not fit into a line
//! ```
//!
//! **The requests file** of an open transport is written by all peers: they ask for a connection in
//! it. It holds nothing else, and each word of it is checked (`transport/open.rs`).
//!
//! The data file is sparse: a rank that is never added, or never sent to, takes address space only.

use crate::coop::PLACES;
use shmem::sync::{AtomicU64, Ordering};
use shmem::{LINE, Words};

/// Maximum number of ranks of a job.
pub(crate) const MAX_RANKS: u32 = 1 << 20;
/// Number of words of an encoded [`ShmAddress`](crate::address::ShmAddress).
pub(crate) const ADDRESS_WORDS: usize = if cfg!(loom) { 1 } else { 19 };
/// Maximum number of simultaneous peers of an open transport; fewer in unit tests.
pub(crate) const OPEN_PEERS: usize = if cfg!(loom) {
    1
} else if cfg!(test) {
    8
} else {
    256
};
/// Number of refused peers that are remembered.
pub(crate) const REFUSED: usize = if cfg!(loom) { 1 } else { 64 };
/// Maximum number of peers that ask an open transport for a connection at once.
#[cfg(not(loom))]
pub(crate) const REQUESTS: usize = 64;
/// Alignment of slot and ring offsets in bytes. The ring of a model has only a few bytes.
pub(crate) const ALIGN: usize = if cfg!(loom) { 1 } else { LINE };

/// Two lines for words that one process writes: processors fetch lines in pairs.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Apart<T>(pub(crate) T);

/// Identifies the file. Written before another process opens it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct About {
    /// Copy of the nonce in the owner's address.
    pub(crate) nonce: [AtomicU64; 2],
    /// 1 after the owner has closed. It writes nothing any more, whatever its other words contain.
    pub(crate) left: AtomicU64,
}

impl About {
    /// Writes the nonce.
    #[cfg(not(loom))]
    pub(crate) fn set_nonce(&self, nonce: [u64; 2]) {
        for (word, value) in self.nonce.iter().zip(nonce) {
            word.store(value, Ordering::Release);
        }
    }
}

/// Words of a process for all peers; see the drawing of this module.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) about: Apart<About>,
    pub(crate) sleep: Apart<AtomicU64>,
    /// The owner's address, for those that know an open transport by process and descriptor only.
    pub(crate) address: [AtomicU64; ADDRESS_WORDS],
    /// Identities of an open transport's peers, by pair; 0: none.
    pub(crate) directory: [AtomicU64; OPEN_PEERS],
    /// Identities of the peers that an open transport refused last.
    pub(crate) refused: [AtomicU64; REFUSED],
    /// 1 while an open transport can assign no further pair.
    pub(crate) full: AtomicU64,
}

/// Words of the requests file, by which peers ask an open transport for a connection.
#[cfg(not(loom))]
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Requests {
    /// Number of requests so far.
    pub(crate) count: AtomicU64,
    /// Process in the upper half, descriptor of its data file in the lower; 0: free.
    pub(crate) from: [AtomicU64; REQUESTS],
}

/// Value of [`PairHead::end`] once the owner has added the rank, so that it has mapped the rank's
/// memory; 0 before.
pub(crate) const END_OPEN: u64 = 1;
/// Value of [`PairHead::end`] once the owner has ended the connection to the rank. The rank then
/// delivers nothing that it copies from the owner's memory.
pub(crate) const END_BROKEN: u64 = 2;
/// Value of [`PairHead::end`] if the owner could not reach the rank, which should use another
/// transport.
pub(crate) const END_REFUSED: u64 = 3;

/// Words of a process for one rank; see the drawing of this module.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PairHead {
    /// Number of messages consumed: their callbacks have returned.
    pub(crate) consumed: Apart<AtomicU64>,
    /// One of the `END_` constants, or 0.
    pub(crate) end: Apart<AtomicU64>,
    pub(crate) offers: Apart<[AtomicU64; PLACES]>,
    pub(crate) shares: Apart<[AtomicU64; PLACES]>,
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
#[cfg(not(loom))]
unsafe impl Words for Requests {}
// SAFETY: as above.
unsafe impl Words for Slot {}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == LINE);
    assert!(size_of::<Common>() <= COMMON_BYTES && size_of::<PairHead>() <= PAGE);
};

/// Alignment of the parts of a file in bytes, on machines of every page size up to 64 KiB.
pub(crate) const PAGE: usize = 4096;
#[cfg(not(loom))]
const COMMON_BYTES: usize = PAGE;

/// Rings and chunks begin in the middle of a page. Long buffers of programs begin at the start of
/// one, and copying between two addresses with equal low 12 bits is several times slower on some
/// processors (`rep movsb` on Zen 3 and 4).
#[cfg(not(loom))]
const HALF: usize = PAGE / 2;

/// Bytes of body that fit into a chunk with every header. A caller that splits long messages into
/// bodies of this length keeps their alignment.
#[cfg(not(loom))]
const CHUNK: usize = 32 << 10;
/// Distance of two chunks: the body, and a long header in a separate line.
#[cfg(not(loom))]
pub(crate) const CHUNK_STRIDE: usize = (CHUNK + 2 * LINE).next_multiple_of(PAGE);
/// Maximum length of a message, in bytes.
#[cfg(not(loom))]
pub(crate) const MAX_MESSAGE: usize = CHUNK + btl::MAX_HEADER;

/// Sizes of a process's files. They follow from the number of ranks.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    size: usize,
    /// Number of slots of a pair, a power of two: the maximum number of messages in flight.
    pub(crate) slots: usize,
    /// Bytes of a pair's ring for messages of medium length, a power of two.
    pub(crate) ring: usize,
    /// Number of chunks of the pool.
    pub(crate) chunks: usize,
}

#[cfg(not(loom))]
impl Layout {
    /// Returns the sizes in a job of this many ranks, at most [`MAX_RANKS`].
    pub(crate) fn of(size: u32) -> Layout {
        let size = size as usize;
        let (slots, ring) = if size > 64 {
            (64, 16 << 10)
        } else {
            (256, 64 << 10)
        };
        Layout {
            size,
            slots,
            ring,
            // Address space only: a chunk uses memory once it is written.
            chunks: (size * 64).clamp(128, 512).max(size * 2).min(65_536),
        }
    }

    /// Returns the sizes of an open transport.
    pub(crate) fn open() -> Layout {
        Layout {
            size: OPEN_PEERS,
            slots: 256,
            ring: 64 << 10,
            chunks: 512,
        }
    }

    /// Returns the offset of the chunks.
    pub(crate) fn chunks_at(&self) -> usize {
        COMMON_BYTES + HALF
    }

    /// Returns the bytes that every peer maps: common words and chunks.
    pub(crate) fn shared_bytes(&self) -> usize {
        (self.chunks_at() + self.chunks * CHUNK_STRIDE).next_multiple_of(page_size())
    }

    /// Returns the bytes of a pair.
    pub(crate) fn pair_bytes(&self) -> usize {
        (self.ring_at() + self.ring).next_multiple_of(page_size())
    }

    /// Returns the offset of a rank's pair.
    pub(crate) fn pair_at(&self, rank: u32) -> usize {
        self.shared_bytes() + self.pair_bytes() * rank as usize
    }

    /// Offset of the slots in a pair.
    pub(crate) const SLOTS_AT: usize = PAGE;

    /// Returns the offset of the ring in a pair.
    pub(crate) fn ring_at(&self) -> usize {
        Self::SLOTS_AT + self.slots * LINE + HALF
    }

    /// Returns the bytes of a data file.
    pub(crate) fn data_bytes(&self) -> usize {
        self.shared_bytes() + self.pair_bytes() * self.size
    }

    /// Offset of the requests in a requests file.
    pub(crate) const REQUESTS_AT: usize = LINE;

    /// Returns the bytes of a requests file: one line that identifies it, and the requests.
    pub(crate) fn requests_bytes() -> usize {
        (Self::REQUESTS_AT + size_of::<Requests>()).next_multiple_of(page_size())
    }
}

#[cfg(not(loom))]
fn page_size() -> usize {
    shmem::page_size().max(PAGE)
}
