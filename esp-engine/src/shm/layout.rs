//! The layout of the three kinds of shared pages, by cache line.
//!
//! One line has one writer, so that no side waits unnecessarily for a line that the other one is
//! writing. Pairs of lines have one writer as well, because processors fetch 128 bytes at a time.
//!
//! ```text
//! Region: one memfd, header page | TX ring | RX ring; an idle region touches little else than the header
//!
//!   byte   written by   words
//!      0   creator      magic, version, ring sizes           (read by the program when it opens the region)
//!     64   both         waiting: bits set by sleepers of the program, cleared by the engine
//!    128   program      tx_head: bytes written since the start; bit 63: no more will come; shift
//!    192   program      rx_tail: bytes consumed since the start
//!    256   engine       tx_tail: bytes whose storage is free again (acknowledged)
//!    320   engine       rx_head: bytes delivered since the start; bit 63: no more will come; shift
//!    384   engine       state, three wake counts (futexes)   (the program counts only to wake its own threads)
//!    448   engine       image of the connection, for the next engine
//! ```
//!
//! Byte `n` of a stream is at `n + shift`, modulo the ring's length. The writer may change the
//! shift while the ring is empty, before it publishes the next bytes: a ring that is emptied
//! repeatedly stays on its first pages, which are mapped and in the caches.
//!
//! ```text
//! ClientPage: one memfd, one page for each program
//!
//!      0   creator      magic, version
//!    128   both         doorbell summary: bit w is set when word w of the doorbell bits may be nonzero
//!    256   both         doorbell bits, 64 words (8 lines)    set by the program, cleared by the engine
//!   1024   both         event summary
//!   1152   both         event bits, 64 words (8 lines)       set by the engine, cleared by the program
//!
//! EnginePage: one memfd, one page, writable for the engine alone
//!
//!      0   creator      magic, version
//!    128   engine       asleep: not 0 if a doorbell needs the eventfd
//! ```

#[cfg(not(loom))]
use shmem::LINE;
#[cfg(not(loom))]
use shmem::sync::Ordering;
use shmem::sync::{AtomicU32, AtomicU64};
use shmem::{FutexWord, Line};

/// A 64-bit word of a region.
#[cfg(not(all(test, not(loom))))]
pub(crate) type Word = AtomicU64;
#[cfg(all(test, not(loom)))]
pub(crate) type Word = super::crash::AtomicU64;

#[cfg(not(loom))]
use super::{RegionError, RingSizes};

/// Number of slots of a program: bits of its doorbell.
pub const SLOTS: usize = if cfg!(loom) { 128 } else { 4096 };
/// Number of 64-bit words that hold [`SLOTS`] bits.
pub(crate) const WORDS: usize = SLOTS / 64;
/// Bit of `tx_head` and `rx_head`: no more bytes will come.
pub(crate) const FIN: u64 = 1 << 63;

/// First word of a region.
pub(crate) const REGION_MAGIC: u64 = u64::from_le_bytes(*b"esp.ring");
/// First word of a client page.
pub(crate) const CLIENT_MAGIC: u64 = u64::from_le_bytes(*b"esp.bell");
/// First word of an engine page.
pub(crate) const ENGINE_MAGIC: u64 = u64::from_le_bytes(*b"esp.awak");
/// Version of these layouts; another one is refused.
pub(crate) const VERSION: u32 = 3;
/// Number of words of a connection's image.
pub(crate) const IMAGE_WORDS: usize = 20;

/// Identification of a page. Written once by its creator; the engine never reads it back.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct About {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    /// Bytes of the TX ring; 0 in pages without rings.
    pub(crate) tx: AtomicU32,
    /// Bytes of the RX ring; 0 in pages without rings.
    pub(crate) rx: AtomicU32,
}

#[cfg(not(loom))]
impl About {
    /// Writes the identification of the page. Called by the creator before another process has the
    /// file.
    pub(crate) fn introduce(&self, magic: u64, sizes: RingSizes) {
        self.version.store(VERSION, Ordering::Relaxed);
        self.tx.store(sizes.tx, Ordering::Relaxed);
        self.rx.store(sizes.rx, Ordering::Relaxed);
        self.magic.store(magic, Ordering::Relaxed);
    }

    /// Checks the identification written by the creator. No ordering is needed, because the
    /// descriptor was received over a socket after it was written.
    pub(crate) fn check(&self, magic: u64, sizes: RingSizes) -> Result<(), RegionError> {
        let same = self.magic.load(Ordering::Relaxed) == magic
            && self.version.load(Ordering::Relaxed) == VERSION
            && self.tx.load(Ordering::Relaxed) == sizes.tx
            && self.rx.load(Ordering::Relaxed) == sizes.rx;
        if same {
            Ok(())
        } else {
            Err(RegionError::BadHeader)
        }
    }
}

/// Header of a region; see the drawing of this module.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct RegionHeader {
    pub(crate) about: Line<About>,
    pub(crate) waiting: Line<AtomicU32>,
    pub(crate) tx_head: Line<Head>,
    pub(crate) rx_tail: Line<Word>,
    pub(crate) tx_tail: Line<Word>,
    pub(crate) rx_head: Line<Head>,
    pub(crate) engine: Line<StateWords>,
    pub(crate) image: Line<ImageWords>,
}

/// State of a ring's writer.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Head {
    /// Bytes since the start, and [`FIN`].
    pub(crate) count: Word,
    /// Added to a byte's index to find its place. Changed only while the ring is empty, before the
    /// `count` that publishes the next bytes.
    pub(crate) shift: Word,
}

/// Words of the engine that change rarely.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct StateWords {
    pub(crate) state: Word,
    /// Indexed by [`super::Wake`].
    pub(crate) wakes: [FutexWord; 3],
}

/// Image of a stream's connection: two places, and the number of the valid one plus one.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct ImageWords {
    pub(crate) active: Word,
    pub(crate) places: [[Word; IMAGE_WORDS]; 2],
}

/// A bitmap with its summary, from one side to the other.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct BitmapWords {
    pub(crate) summary: Line<AtomicU64>,
    _pair: Line<u8>,
    pub(crate) words: Line<[AtomicU64; WORDS]>,
}

/// Words of a client page; see the drawing of this module.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct ClientWords {
    pub(crate) about: Line<About>,
    _pair: Line<u8>,
    pub(crate) doorbell: BitmapWords,
    _gap: [Line<u8>; 4],
    pub(crate) events: BitmapWords,
}

/// Words of an engine page; see the drawing of this module.
#[repr(C)]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct EngineWords {
    pub(crate) about: Line<About>,
    _pair: Line<u8>,
    pub(crate) asleep: Line<AtomicU32>,
}

// SAFETY: atomics and padding, `repr(C)`.
unsafe impl shmem::Words for RegionHeader {}
// SAFETY: as above.
unsafe impl shmem::Words for ClientWords {}
// SAFETY: as above.
unsafe impl shmem::Words for EngineWords {}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Line<AtomicU32>>() == LINE && size_of::<Line<Word>>() == LINE);
    assert!(size_of::<Line<Head>>() == LINE);
    assert!(size_of::<Line<About>>() == LINE && size_of::<Line<StateWords>>() == LINE);

    assert!(offset_of!(RegionHeader, about) == 0);
    assert!(offset_of!(RegionHeader, waiting) == 64);
    assert!(offset_of!(RegionHeader, tx_head) == 128);
    assert!(offset_of!(RegionHeader, rx_tail) == 192);
    assert!(offset_of!(RegionHeader, tx_tail) == 256);
    assert!(offset_of!(RegionHeader, rx_head) == 320);
    assert!(offset_of!(RegionHeader, engine) == 384);
    assert!(offset_of!(RegionHeader, image) == 448);
    assert!(size_of::<RegionHeader>() <= 4096);

    assert!(offset_of!(ClientWords, doorbell) == 128);
    assert!(offset_of!(BitmapWords, words) == 128);
    assert!(size_of::<BitmapWords>() == 640);
    assert!(offset_of!(ClientWords, events) == 1024);
    assert!(size_of::<ClientWords>() <= 4096);

    assert!(offset_of!(EngineWords, asleep) == 128);
    assert!(size_of::<EngineWords>() <= 4096);
};
