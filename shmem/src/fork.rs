//! Detecting that this process was forked, without a system call.

use std::io;

use crate::map::{Mapping, Shared};
use crate::sync::{AtomicU32, Ordering};

/// A mark of the process that made it. It lies in a page that the kernel zeroes in children
/// (`MADV_WIPEONFORK`, Linux 4.14).
#[derive(Debug)]
pub struct ForkMark(Shared<AtomicU32>);

impl ForkMark {
    /// Marks this process.
    ///
    /// # Errors
    /// The system has no memory, or does not support such pages.
    pub fn new() -> io::Result<ForkMark> {
        let word = Shared::<AtomicU32>::new(&Mapping::wiped_on_fork()?.into(), 0);
        word.store(1, Ordering::Relaxed);
        Ok(ForkMark(word))
    }

    /// Returns true in a process that was forked from the one that made the mark.
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}
