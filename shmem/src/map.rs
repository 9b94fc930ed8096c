//! Mappings, and typed references into them.

use core::ffi::c_void;
use core::ops::Deref;
use core::ptr::NonNull;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::Words;

/// Access rights of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

impl Access {
    fn prot(self) -> ProtFlags {
        match self {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// A range of mapped memory, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: a mapping belongs to the process, not to a thread; references into it follow rules of
// their own.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method touches the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps ranges of a file contiguously.
    ///
    /// # Safety
    /// The ranges must lie within the file for as long as the mapping lives.
    pub(crate) unsafe fn of_file(
        fd: BorrowedFd<'_>,
        parts: &[(usize, usize)],
        access: Access,
    ) -> io::Result<Mapping> {
        let len = parts.iter().map(|(_, len)| len).sum();
        // The whole range is reserved first, so that nothing else is mapped between the parts.
        let map = Mapping::anonymous(len, ProtFlags::empty(), access)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let mut at = map.base.as_ptr();
        for (offset, len) in parts {
            // SAFETY: the range lies in the reservation, which nothing refers to yet.
            unsafe {
                let (start, offset) = (at.cast::<c_void>(), *offset as u64);
                rustix::mm::mmap(start, *len, access.prot(), flags, fd, offset)?;
            }
            at = at.wrapping_add(*len);
        }
        let start = map.base.as_ptr().cast::<c_void>();
        // A core dump would hold the data of other users' processes.
        // SAFETY: the advice concerns the mapping above, and changes no content.
        unsafe { rustix::mm::madvise(start, map.len, Advice::LinuxDontDump)? };
        Ok(map)
    }

    fn anonymous(len: usize, prot: ProtFlags, access: Access) -> io::Result<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is requested, so no mapping is replaced.
        let base = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, prot, flags)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len, access })
    }

    /// Maps a page that belongs to this process alone, and is zeroed in processes forked from it.
    pub(crate) fn wiped_on_fork() -> io::Result<Mapping> {
        let access = Access::Write;
        let map = Mapping::anonymous(crate::page_size(), access.prot(), access)?;
        let start = map.base.as_ptr().cast::<c_void>();
        // SAFETY: the advice concerns our own page, and touches it in children only.
        unsafe { rustix::mm::madvise(start, map.len, Advice::LinuxWipeOnFork)? };
        Ok(map)
    }

    /// Faults a range in now instead of at its first use. Does nothing on kernels that do not
    /// support this (before Linux 5.14), or for a range outside of the mapping.
    pub fn populate(&self, offset: usize, len: usize) {
        let advice = match self.access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::Write => Advice::LinuxPopulateWrite,
        };
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            // SAFETY: inside of the mapping; the advice changes no content.
            let _ = unsafe {
                rustix::mm::madvise(self.base.add(offset).as_ptr().cast::<c_void>(), len, advice)
            };
        }
    }

    /// Returns the address of `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// If they are outside of the mapping, or not aligned.
    pub(crate) fn at(&self, offset: usize, bytes: usize, align: usize) -> NonNull<u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.len);
        assert!(
            inside && offset.is_multiple_of(align),
            "the layout lies inside the mapping"
        );
        // SAFETY: checked above.
        unsafe { self.base.add(offset) }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.access == Access::Write
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us, and references to it hold the mapping. The call fails
        // only for an invalid range.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// A reference to words in shared memory, which keeps the mapping.
#[derive(Debug)]
pub struct Shared<T: ?Sized> {
    at: NonNull<T>,
    map: Arc<Mapping>,
}

/// A reference to consecutive words.
pub type SharedSlice<T> = Shared<[T]>;

// SAFETY: `T` consists of atomics.
unsafe impl<T: Words + ?Sized> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Words + ?Sized> Sync for Shared<T> {}

impl<T: Words> Shared<T> {
    /// Returns a reference to the words at `offset`.
    ///
    /// # Panics
    /// If they are outside of the mapping or not aligned, or the mapping is read-only.
    pub fn new(map: &Arc<Mapping>, offset: usize) -> Self {
        assert!(map.is_writable(), "words may be written");
        // SAFETY: the mapping is writable.
        unsafe { Shared::read_only(map, offset) }
    }

    /// Returns a reference into a mapping that may be read-only.
    ///
    /// # Panics
    /// If the words are outside of the mapping or not aligned.
    ///
    /// # Safety
    /// Nothing may be stored through the reference unless the mapping is writable.
    pub unsafe fn read_only(map: &Arc<Mapping>, offset: usize) -> Self {
        Shared {
            at: map.at(offset, size_of::<T>(), align_of::<T>()).cast(),
            map: map.clone(),
        }
    }
}

impl<T: Words> SharedSlice<T> {
    /// Returns a reference to the `len` words at `offset`.
    ///
    /// # Panics
    /// As for [`Shared::new`].
    pub fn slice(map: &Arc<Mapping>, offset: usize, len: usize) -> Self {
        assert!(map.is_writable(), "words may be written");
        // SAFETY: the mapping is writable.
        unsafe { SharedSlice::read_only_slice(map, offset, len) }
    }

    /// Returns a reference into a mapping that may be read-only.
    ///
    /// # Panics
    /// If the words are outside of the mapping or not aligned.
    ///
    /// # Safety
    /// Nothing may be stored through the reference unless the mapping is writable.
    pub unsafe fn read_only_slice(map: &Arc<Mapping>, offset: usize, len: usize) -> Self {
        let bytes = size_of::<T>().saturating_mul(len);
        let first = map.at(offset, bytes, align_of::<T>()).cast();
        Shared {
            at: NonNull::slice_from_raw_parts(first, len),
            map: map.clone(),
        }
    }
}

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared {
            at: self.at,
            map: self.map.clone(),
        }
    }
}

impl<T: Words + ?Sized> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: mapped as long as `map` lives, large enough and aligned (checked when made); any
        // content is valid (`Words`).
        unsafe { self.at.as_ref() }
    }
}
