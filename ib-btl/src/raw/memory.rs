//! Memory that a device reads and writes: on separate pages, and never borrowed as a slice while
//! others may write it.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

/// Zeroed pages.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory that this value alone owns.
unsafe impl Send for Memory {}

impl Memory {
    /// Allocates `length` bytes, at least one page; `None` if there is no memory.
    pub(crate) fn new(length: usize) -> Option<Memory> {
        let layout = Layout::from_size_align(length.max(1), 4096)
            .ok()?
            .pad_to_align();
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        Some(Memory {
            start: NonNull::new(start)?,
            layout,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    pub(crate) fn length(&self) -> usize {
        self.layout.size()
    }

    fn holds(&self, at: usize, length: usize) -> bool {
        let end = at.checked_add(length);
        end.is_some_and(|end| end <= self.length())
    }

    /// Copies bytes in. Returns false, without effect, if they do not fit.
    #[must_use]
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        if !self.holds(at, bytes.len()) {
            return false;
        }
        // SAFETY: within the memory, as just checked; a device may read it at the same time, and
        // gets old or new bytes.
        unsafe {
            let start = self.start.as_ptr().add(at);
            start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        };
        true
    }

    /// Returns the address of bytes to read in place; `None` if they are outside.
    pub(crate) fn view(&self, at: usize, length: usize) -> Option<*const u8> {
        self.holds(at, length)
            .then(|| self.start.as_ptr().cast_const().wrapping_add(at))
    }

    /// Appends a copy of bytes to `out`. Returns false, without effect, if they are outside.
    #[must_use]
    pub(crate) fn read(&self, at: usize, length: usize, out: &mut Vec<u8>) -> bool {
        if !self.holds(at, length) {
            return false;
        }
        out.reserve(length);
        // SAFETY: within the memory, and the room is initialised by the copy. A hostile peer may
        // write concurrently; then the copy is as wrong as the data it wrote.
        unsafe {
            let end = out.as_mut_ptr().add(out.len());
            end.copy_from_nonoverlapping(self.start.as_ptr().add(at), length);
            out.set_len(out.len() + length);
        }
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and deregistered by its owner.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_or_written_outside() {
        let mut memory = Memory::new(5000).unwrap();
        assert!(memory.length() >= 5000 && memory.address().is_multiple_of(4096));
        let end = memory.length();
        assert!(
            memory.write(end - 3, b"abc")
                && !memory.write(end - 2, b"abc")
                && !memory.write(usize::MAX, b"a")
        );
        let mut out = vec![1];
        assert!(memory.read(end - 3, 3, &mut out) && !memory.read(end - 3, 4, &mut out));
        assert!(!memory.read(usize::MAX, 2, &mut out));
        assert_eq!(out, b"\x01abc");
    }
}
