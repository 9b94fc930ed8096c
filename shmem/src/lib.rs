//! Memory shared between processes: sealed memory files, their mappings, atomic words and bytes in
//! them, and two ways to sleep until another process has written.
//!
//! ```
//! use std::os::fd::AsFd;
//! use shmem::sync::{AtomicU64, Ordering};
//! use shmem::{Access, Shared, SharedFile};
//!
//! // One process creates the file and passes the descriptor to another one.
//! let file = SharedFile::create("example", shmem::page_size())?;
//! let mine = Shared::<AtomicU64>::new(&file.map(0, file.len(), Access::Write)?, 0);
//!
//! // The other one refuses a file that could shrink under its mapping.
//! let opened = SharedFile::open(file.as_fd(), shmem::page_size())?;
//! let theirs = Shared::<AtomicU64>::new(&opened.map(0, opened.len(), Access::Write)?, 0);
//!
//! mine.store(7, Ordering::Release);
//! assert_eq!(theirs.load(Ordering::Acquire), 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Models.** Under `cfg(loom)` the types of `sync.rs`, `futex.rs` and `model.rs` are those of the
//! model checker, so that the code of the crates above runs in the models as it is. Orderings that
//! belong together carry the same `SYNC POINT` name.
//!
//! **Trust.** Files are sealed: no process can change their length, so no access faults. The other
//! process may change the content at any time. Words are atomics, read once and then checked. Plain
//! bytes are given to one side at a time by the protocol; see [`Bytes::view`] for a process that
//! breaks it.

#[cfg(not(loom))]
mod bytes;
pub mod cache;
mod copy;
mod epoch;
#[cfg(not(loom))]
mod file;
#[cfg(not(loom))]
mod fork;
mod futex;
#[cfg(not(loom))]
mod map;
#[cfg(loom)]
mod model;
pub mod sync;
#[cfg(not(loom))]
mod yielder;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub use bytes::{Bytes, RingBytes, View};
pub use copy::{copy_bytes, copy_slice, copy_to_vec};
pub use epoch::{Fence, PeerSleep, SleepEpoch};
#[cfg(not(loom))]
pub use epoch::{global_fence, register_global_fence};
#[cfg(not(loom))]
pub use file::{FileError, SharedFile};
#[cfg(not(loom))]
pub use fork::ForkMark;
pub use futex::{FutexSleeper, FutexWord, Spin};
#[cfg(not(loom))]
pub use map::{Access, Mapping, Shared, SharedSlice};
#[cfg(loom)]
pub use model::{Bytes, RingBytes, Shared, SharedSlice, View};
#[cfg(not(loom))]
pub use yielder::Yielder;

use sync::{AtomicU32, AtomicU64};

/// Size of a cache line in bytes.
pub const LINE: usize = 64;

/// A value alone on its cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line<T>(pub T);

/// Types that may lie in shared memory.
///
/// # Safety
/// The type must be `repr(C)` or `repr(transparent)` and consist of atomics and padding only: every
/// content is valid, and other processes may change it at any time.
pub unsafe trait Words {}
// SAFETY: an atomic.
unsafe impl Words for AtomicU32 {}
// SAFETY: an atomic.
unsafe impl Words for AtomicU64 {}
// SAFETY: padding is added only.
unsafe impl<T: Words> Words for Line<T> {}
// SAFETY: nothing is added.
unsafe impl<T: Words> Words for [T] {}

/// Returns the page size of this machine in bytes.
#[cfg(not(loom))]
pub fn page_size() -> usize {
    rustix::param::page_size()
}
