//! Plain bytes in shared memory: a range, and a ring that is mapped twice.

use core::ptr::NonNull;
use std::sync::Arc;

use crate::copy::copy_bytes;
use crate::map::Mapping;

/// Bytes read in place; a copy in the models.
pub type View<'a> = &'a [u8];

/// A range of plain bytes in shared memory.
#[derive(Clone, Debug)]
pub struct Bytes {
    at: NonNull<u8>,
    len: usize,
    _map: Arc<Mapping>,
}

// SAFETY: as for `Mapping`; the callers guarantee which side may access the bytes.
unsafe impl Send for Bytes {}

impl Bytes {
    /// Returns the `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they are outside of the mapping.
    pub fn new(map: &Arc<Mapping>, offset: usize, len: usize) -> Self {
        Bytes {
            at: map.at(offset, len, 1),
            len,
            _map: map.clone(),
        }
    }

    /// Returns the length of the range.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `bytes` to `offset`. A range that is not inside is an error of the caller; nothing is
    /// copied.
    ///
    /// # Safety
    /// The mapping must be writable, and the protocol must give the range to the caller alone: no
    /// reference to it may exist in this process.
    #[inline]
    pub unsafe fn store(&self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        if end.is_none_or(|end| end > self.len) {
            debug_assert!(false, "outside of the bytes");
            return;
        }
        // SAFETY: inside (checked above); the caller guarantees the rest.
        unsafe {
            let to = self.at.add(offset).as_ptr();
            copy_bytes(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Copies `bytes` as [`Bytes::store`] does, but bypasses the caches if the processor supports
    /// it, which is faster for a reader whose core shares no cache with this one. The bytes are in
    /// memory on return.
    ///
    /// # Safety
    /// As for [`Bytes::store`].
    #[inline]
    pub unsafe fn store_uncached(&self, offset: usize, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
            const STEP: usize = 4 * size_of::<__m128i>();
            let whole = bytes.len() / STEP * STEP;
            let inside = offset.checked_add(whole).is_some_and(|end| end <= self.len);
            let to = self.at.as_ptr().wrapping_add(offset);
            if inside && to.addr().is_multiple_of(align_of::<__m128i>()) {
                for at in (0..whole).step_by(STEP) {
                    // SAFETY: both ranges are inside (checked above; `whole` is at most the slice's
                    // length). Reading needs no alignment; the first store's is checked, and the
                    // others are multiples of it apart. The range is the caller's. Every x86-64
                    // processor has the instructions.
                    unsafe {
                        let from = bytes.as_ptr().add(at).cast::<__m128i>();
                        let to = to.add(at).cast::<__m128i>();
                        let four = [
                            _mm_loadu_si128(from),
                            _mm_loadu_si128(from.add(1)),
                            _mm_loadu_si128(from.add(2)),
                            _mm_loadu_si128(from.add(3)),
                        ];
                        for (index, value) in four.into_iter().enumerate() {
                            _mm_stream_si128(to.add(index), value);
                        }
                    }
                }
                // SAFETY: as above. No other instruction orders such stores, not even the release
                // store that publishes them.
                unsafe { _mm_sfence() };
                let rest = bytes.get(whole..).unwrap_or_default();
                // SAFETY: a part of the caller's range.
                unsafe { self.store(offset + whole, rest) };
                return;
            }
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.store(offset, bytes) };
    }

    /// Returns a range in place, or `None` if it is not inside.
    ///
    /// Another process that breaks the protocol changes bytes under the reader. It cannot take the
    /// memory away, but the reader must not rely on reading the same value twice: copy what is
    /// parsed before parsing it.
    ///
    /// # Safety
    /// The protocol must give the range to the caller: neither this process nor another one that
    /// keeps to the protocol may write it while the slice lives.
    #[inline]
    pub unsafe fn view(&self, offset: usize, len: usize) -> Option<View<'_>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return None;
        }
        // SAFETY: inside (checked above), and mapped as long as self lives; the caller guarantees
        // the rest.
        Some(unsafe { core::slice::from_raw_parts(self.at.add(offset).as_ptr(), len) })
    }
}

/// A ring of bytes, mapped twice back to back, so that each range of up to its capacity is
/// contiguous.
#[derive(Debug)]
pub struct RingBytes {
    base: NonNull<u8>,
    capacity: usize,
    _map: Arc<Mapping>,
}

// SAFETY: as for `Bytes`.
unsafe impl Send for RingBytes {}
// SAFETY: as above.
unsafe impl Sync for RingBytes {}

impl RingBytes {
    /// Returns the ring of `capacity` bytes at `offset`, whose second mapping follows the first.
    ///
    /// # Panics
    /// If the two mappings are outside of `map`, or `capacity` is not a power of two.
    pub fn new(map: &Arc<Mapping>, offset: usize, capacity: usize) -> Self {
        assert!(capacity.is_power_of_two(), "the capacity is a power of two");
        RingBytes {
            base: map.at(offset, 2 * capacity, 1),
            capacity,
            _map: map.clone(),
        }
    }

    /// Returns the capacity of the ring, in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the address of byte `index` of the stream. `capacity` bytes are mapped at that
    /// address.
    #[inline]
    pub fn at(&self, index: u64) -> NonNull<u8> {
        #[allow(clippy::cast_possible_truncation)] // masked to the capacity
        let offset = index as usize & (self.capacity - 1);
        // SAFETY: offset < capacity, half of what `new` has checked.
        unsafe { self.base.add(offset) }
    }

    /// Copies `bytes` into the ring, starting at stream index `index`.
    ///
    /// # Safety
    /// - `bytes.len()` must be at most `capacity`, and the mapping must be writable.
    /// - The protocol must give the range to the caller alone: no other thread that keeps to it may
    ///   access the range during the call.
    #[inline]
    pub unsafe fn store(&self, index: u64, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.capacity);
        // SAFETY: `at` is followed by `capacity` mapped bytes; a slice of the caller cannot overlap
        // shared memory to which no `&mut` exists. The caller guarantees the rest.
        unsafe {
            let to = self.at(index).as_ptr();
            copy_bytes(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Copies bytes out of the ring, starting at stream index `index`.
    ///
    /// # Safety
    /// - `bytes.len()` must be at most `capacity`.
    /// - No thread that keeps to the protocol may write the range during the call.
    #[inline]
    pub unsafe fn load(&self, index: u64, bytes: &mut [u8]) {
        debug_assert!(bytes.len() <= self.capacity);
        // SAFETY: as in `store`.
        unsafe {
            let from = self.at(index).as_ptr();
            copy_bytes(from, bytes.as_mut_ptr(), bytes.len());
        }
    }
}
