//! Shared memory between one program and the node's engine: rings, doorbells, wake-ups.
//!
//! | memory | one for each | program's types | engine's types |
//! |---|---|---|---|
//! | [`Region`] | stream or datagram socket | [`TxProducer`], [`RxConsumer`], [`RxView`], [`Status`] | [`TxConsumer`], [`RxProducer`], [`Region`] |
//! | [`ClientPage`] | program | [`Doorbell`], [`Events`] | [`ClientPage`] |
//! | [`EnginePage`] | engine | [`EngineView`] | [`EnginePage`] |
//!
//! **Life cycle.** The engine's side creates the memory ([`Region::create`]) and passes the
//! descriptor over the control socket; the program maps it ([`Region::open`]). The program keeps
//! the descriptor to pass it to the next engine if this one ends ([`Region::adopt`]). The memory
//! has no name, so it is gone when both have unmapped it or died.
//!
//! **Trust.** The engine does not trust memory that a program can write. It keeps its own indices,
//! reads each word once, and accepts an index only if it is possible (forward, within the ring);
//! otherwise it returns [`Corruption`], and the program is disconnected. The files are sealed, so
//! that no access faults. A program can damage only its own data. The program trusts the engine
//! with its data, but clamps every index, so that a broken engine does not crash it.
//!
//! **Indices** are bytes since the start of the stream, `u64`: they never wrap, and stream offset
//! and ring index are one number. The writer chooses the position of a byte in the ring: it
//! restarts at the first page if the ring is empty and the next bytes would lie on another page.
//! The first access to a page costs microseconds, and a recently used page is in the caches. Each
//! ring is mapped twice back to back, so any range up to its capacity is contiguous.
//!
//! **Waking.** A side that publishes makes a system call only if the other side sleeps:
//! [`Doorbell::ring`] returns true if the engine's eventfd must be written; [`Region::wake`]
//! wakes threads of the program through futexes, and returns whether the program asked for its
//! notify eventfd instead. `doorbell.rs` and `shmem/src/futex.rs` explain why no wake-up is lost;
//! the models in `model.rs` check it (`RUSTFLAGS="--cfg loom" cargo test -p esp-engine --lib
//! --target-dir target/loom loom`). Paired orderings have one `SYNC POINT` name.

mod doorbell;
mod engine_page;
mod image;
mod layout;
pub mod record;
mod region;
mod roles;
mod rx;
mod status;
mod tx;

#[cfg(all(test, not(loom)))]
pub(crate) mod crash;
#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

pub use doorbell::{ClientPage, Doorbell, Events, SlotSet};
pub use engine_page::{EnginePage, EngineView};
pub use layout::SLOTS;
pub use region::{MAX_RING, MIN_RING, Region};
pub use rx::{RxConsumer, RxProducer, RxView};
#[cfg(not(loom))]
pub use shmem::ForkMark;
pub use shmem::Spin;
pub use status::{Status, StreamState, Wake, Woken};
pub use tx::{TxConsumer, TxProducer, TxView};

/// Bytes of the two rings of a region: powers of two, from [`MIN_RING`] (or the page size) to
/// [`MAX_RING`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingSizes {
    /// Bytes of the ring from the program to the engine.
    pub tx: u32,
    /// Bytes of the ring from the engine to the program.
    pub rx: u32,
}

/// Returns true if `n` bytes (at least one) starting at `place` extend beyond the page of the byte
/// before them.
#[inline]
fn crosses_page(place: u64, n: usize) -> bool {
    // One byte in models, so that every byte crosses one.
    const PAGE: u64 = if cfg!(loom) { 1 } else { 4096 };
    place.wrapping_sub(1) / PAGE != place.wrapping_add(n as u64).wrapping_sub(1) / PAGE
}

impl RingSizes {
    /// Sizes of a page without rings.
    #[cfg(not(loom))]
    const NONE: RingSizes = RingSizes { tx: 0, rx: 0 };
}

/// Error of mapping shared memory.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The ring sizes are out of range; see [`RingSizes`].
    #[error("ring sizes {0:?} are not powers of two between 4 KiB (or a page) and 64 MiB")]
    BadSizes(RingSizes),
    /// The descriptor is not the memory file that was agreed on.
    #[cfg(not(loom))]
    #[error("the memory file is refused: {0}")]
    File(#[from] shmem::FileError),
    /// The first line is not the expected one.
    #[error("the memory file is of another kind, version or ring size")]
    BadHeader,
    /// This process already holds the program's ends of the rings in this file.
    #[error("the memory file is in use by this process already")]
    InUse,
    /// Error of the system.
    #[error("mapping shared memory: {0}")]
    Io(#[from] std::io::Error),
}

/// A program wrote an impossible value into its shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({value:#x})")]
pub struct Corruption {
    /// Description of the violation, for the log.
    pub what: &'static str,
    /// The value found.
    pub value: u64,
}

/// Error for a second engine's end of a region in one process.
pub(crate) const IN_USE: Corruption = Corruption {
    what: "the region is in use by this engine already",
    value: 0,
};
