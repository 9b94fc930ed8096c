//! Memory lent by one thread and copied by another. Contains all unsafe code of the loopback
//! transport.

/// A piece of memory that its owner has lent to the transport by contract ([`btl::Btl::register`],
/// [`btl::Tx::get`], [`btl::Tx::put`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pointer: *mut u8,
    length: usize,
}

// SAFETY: a `Memory` is only used to copy while the job's lock is held, and the lender keeps the
// memory valid until it takes it back under that lock.
unsafe impl Send for Memory {}

impl Memory {
    /// Borrows memory that may be written.
    ///
    /// # Safety
    /// `pointer` must be valid for reads and writes of `length` bytes until the transport has given
    /// it back.
    pub(super) unsafe fn new(pointer: *mut u8, length: usize) -> Memory {
        Memory { pointer, length }
    }

    /// Borrows memory that is only the source of a copy.
    ///
    /// # Safety
    /// `pointer` must be valid for reads of `length` bytes until the transport has given it back,
    /// and the value must never be the target of [`copy`].
    pub(super) unsafe fn source(pointer: *const u8, length: usize) -> Memory {
        Memory {
            pointer: pointer.cast_mut(),
            length,
        }
    }

    /// Returns a copy of the bytes. The lender must be waiting.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        if self.length > 0 {
            // SAFETY: lent for this number of bytes, see above.
            unsafe { std::ptr::copy_nonoverlapping(self.pointer, bytes.as_mut_ptr(), self.length) };
        }
        bytes
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Returns a part, if it lies within the memory.
    pub(super) fn part(&self, offset: usize, length: usize) -> Option<Memory> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        Some(Memory {
            pointer: self.pointer.wrapping_add(offset),
            length,
        })
    }
}

/// Copies as much as fits; the ranges may overlap. Call it under the job's lock only.
pub(super) fn copy(from: Memory, to: Memory) -> usize {
    let length = from.length.min(to.length);
    if length > 0 {
        // SAFETY: both were lent for at least `length` bytes and are still lent, see `Memory`.
        unsafe { std::ptr::copy(from.pointer, to.pointer, length) };
    }
    length
}
