//! Memory of the program while requests use it, and values as bytes.

use std::slice;

/// Memory that a send reads, under the conditions of [`ReadMem::new`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadMem {
    at: *const u8,
    length: usize,
}

/// Memory that a receive fills, under the conditions of [`WriteMem::new`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteMem {
    at: *mut u8,
    length: usize,
}

// SAFETY: the promise of `new` holds on every thread: the memory is valid and unused by others
// until the request is over. The engine that uses it is behind a lock.
unsafe impl Send for ReadMem {}
// SAFETY: as above.
unsafe impl Send for WriteMem {}

impl ReadMem {
    /// Lends memory to a send.
    ///
    /// # Safety
    /// `length` bytes at `at` are readable and not written until the request made with this memory
    /// is over.
    pub(crate) unsafe fn new(at: *const u8, length: usize) -> ReadMem {
        ReadMem {
            at: if length == 0 {
                std::ptr::NonNull::dangling().as_ptr()
            } else {
                at
            },
            length,
        }
    }

    pub(crate) fn len(self) -> usize {
        self.length
    }

    /// Returns the address at `offset`, for transports that read by themselves.
    pub(crate) fn at(self, offset: usize) -> *const u8 {
        debug_assert!(offset <= self.length);
        self.at.wrapping_add(offset)
    }

    /// Returns all of the memory as a slice.
    ///
    /// # Safety
    /// The slice is used only until the request made with this memory is over.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: readable and not written to until the request is over, by the promise of `new`.
        unsafe { slice::from_raw_parts(self.at, self.length) }
    }

    /// Returns the part `offset..offset + length` as a slice; empty if it exceeds the memory.
    ///
    /// # Safety
    /// As for [`bytes`](ReadMem::bytes).
    pub(crate) unsafe fn part<'a>(self, offset: usize, length: usize) -> &'a [u8] {
        // SAFETY: the caller promises the same.
        unsafe { self.bytes() }
            .get(offset..offset.saturating_add(length))
            .unwrap_or_default()
    }
}

impl WriteMem {
    /// Lends memory to a receive.
    ///
    /// # Safety
    /// `length` bytes at `at` are writable, and not read or written by others, until the request
    /// made with this memory is over.
    pub(crate) unsafe fn new(at: *mut u8, length: usize) -> WriteMem {
        WriteMem {
            at: if length == 0 {
                std::ptr::NonNull::dangling().as_ptr()
            } else {
                at
            },
            length,
        }
    }

    pub(crate) fn len(self) -> usize {
        self.length
    }

    /// Returns the address at `offset`, for transports that write by themselves.
    pub(crate) fn at(self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.length);
        self.at.wrapping_add(offset)
    }

    /// Copies the part of `bytes` that fits, from `offset` on. Returns its length.
    pub(crate) fn fill(self, offset: usize, bytes: &[u8]) -> usize {
        let length = bytes.len().min(self.length.saturating_sub(offset));
        if length != 0 {
            // SAFETY: `offset + length` is within the memory, which is writable and unused by
            // others by the promise of `new`, so it does not overlap `bytes` either.
            unsafe {
                self.at
                    .add(offset)
                    .copy_from_nonoverlapping(bytes.as_ptr(), length);
            };
        }
        length
    }
}

mod sealed {
    /// Plain numbers: no padding, every bit pattern is a value.
    pub trait Plain: Copy + Default + Send + Sync + 'static {}
}
use sealed::Plain;

/// Element type of collectives: plain numbers. All ranks have the same byte order.
pub trait Datum: Plain + PartialOrd + std::fmt::Debug {}

macro_rules! plain {
    ($($t:ty),*) => { $(impl Plain for $t {} impl Datum for $t {})* };
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize, f32, f64);

/// Returns values as bytes.
pub(crate) fn bytes_of<T: Datum>(values: &[T]) -> &[u8] {
    // SAFETY: `Datum` has no padding (sealed above), so every byte is initialized; same memory,
    // same length, same lifetime.
    unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Returns values as writable bytes.
pub(crate) fn bytes_of_mut<T: Datum>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every bit pattern is a value.
    unsafe { slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
