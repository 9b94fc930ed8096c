//! Knowing that this process was forked from the one that made something, without a system call.

use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::map::{Mapping, page_size};
use super::sync::{AtomicU32, Ordering};

/// Made by a process; in one forked from it, [`ForkMark::is_child`] says true. A page that the kernel empties in children
/// (`MADV_WIPEONFORK`, Linux 4.14).
#[derive(Debug)]
pub struct ForkMark(Mapping);

impl ForkMark {
    /// Made by this process.
    ///
    /// # Errors
    /// The system has no memory, or does not know such pages.
    pub fn new() -> io::Result<ForkMark> {
        let len = page_size();
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: no address is asked for, so no mapping is replaced.
        let base = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, prot, flags)? };
        // SAFETY: `base` and `len` are the mapping of the line above, which nobody else has.
        let map = unsafe { Mapping::own(base, len)? };
        // SAFETY: the advice concerns our own page, and touches it in children only, where `is_child` reads it.
        unsafe { rustix::mm::madvise(map.base().as_ptr().cast(), len, Advice::LinuxWipeOnFork)? };
        let mark = ForkMark(map);
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a readable and writable page, aligned as pages are, mapped as long as self; all bytes are a valid value.
        unsafe { self.0.base().cast::<AtomicU32>().as_ref() }
    }

    /// True in a process forked from the one that made it.
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }
}
