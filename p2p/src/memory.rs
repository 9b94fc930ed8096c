//! Memory of the program while requests use it, and values as bytes.

use std::slice;

/// Memory of one request: a send reads it, a receive fills it. The conditions are those of
/// [`to_read`](Memory::to_read) and [`to_write`](Memory::to_write).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    at: *mut u8,
    length: usize,
    writable: bool,
}

// SAFETY: the guarantee of the constructors holds on every thread: the memory is valid and unused
// by others until the request is complete. The engine that uses it is behind a lock.
unsafe impl Send for Memory {}

impl Memory {
    /// Lends memory to a send.
    ///
    /// # Safety
    /// `at` must be valid for reads of `length` bytes, and the bytes must not change, until the
    /// request made with this memory is complete.
    pub(crate) unsafe fn to_read(at: *const u8, length: usize) -> Memory {
        let dangling = std::ptr::NonNull::dangling().as_ptr();
        Memory {
            at: if length == 0 { dangling } else { at.cast_mut() },
            length,
            writable: false,
        }
    }

    /// Lends memory to a receive.
    ///
    /// # Safety
    /// `at` must be valid for writes of `length` bytes, and the bytes must not be accessed by
    /// others, until the request made with this memory is complete.
    pub(crate) unsafe fn to_write(at: *mut u8, length: usize) -> Memory {
        // SAFETY: the caller guarantees this and more.
        let memory = unsafe { Memory::to_read(at, length) };
        Memory {
            writable: true,
            ..memory
        }
    }

    pub(crate) fn len(self) -> usize {
        self.length
    }

    /// Returns true if the memory belongs to a receive.
    pub(crate) fn is_writable(self) -> bool {
        self.writable
    }

    /// Returns the address at `offset`, for transports that access the memory themselves.
    pub(crate) fn at(self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.length);
        self.at.wrapping_add(offset)
    }

    /// Returns the whole memory of a send as a slice, or an empty one for a receive.
    ///
    /// # Safety
    /// The slice must not be used after the request made with this memory is complete.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        debug_assert!(!self.writable);
        if self.writable {
            return &[];
        }
        // SAFETY: readable and not written to until the request is complete, as guaranteed to
        // `to_read`.
        unsafe { slice::from_raw_parts(self.at, self.length) }
    }

    /// Copies the part of `bytes` that fits into a receive's memory at `offset`.
    pub(crate) fn fill(self, offset: usize, bytes: &[u8]) {
        let length = bytes.len().min(self.length.saturating_sub(offset));
        debug_assert!(self.writable);
        if self.writable && length != 0 {
            // SAFETY: `offset + length` is within the memory, which is writable and unused by
            // others as guaranteed to `to_write`, so it does not overlap `bytes` either.
            unsafe { shmem::copy_bytes(bytes.as_ptr(), self.at.add(offset), length) };
        }
    }
}

mod sealed {
    /// Plain numbers: no padding, every bit pattern is a value.
    pub trait Plain: Copy + Default + Send + Sync + 'static {}
}
use sealed::Plain;

/// Element type of collectives: plain numbers. All ranks must have one byte order.
pub trait Datum: Plain + PartialOrd + std::fmt::Debug {}

macro_rules! plain {
    ($($t:ty),*) => { $(impl Plain for $t {} impl Datum for $t {})* };
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize, f32, f64);

/// Returns values as bytes.
pub(crate) fn bytes_of<T: Datum>(values: &[T]) -> &[u8] {
    // SAFETY: `Datum` has no padding (sealed above), so every byte is initialized; memory, length
    // and lifetime are those of `values`.
    unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Returns values as writable bytes.
pub(crate) fn bytes_of_mut<T: Datum>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every bit pattern is a valid value.
    unsafe { slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
