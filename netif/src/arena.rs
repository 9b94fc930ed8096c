//! Memory whose address is passed to the kernel.

use std::ptr::NonNull;

/// A zeroed slice at a fixed address, reached only through one raw pointer.
///
/// Message headers of a batch hold addresses of its other arrays for as long as the batch lives. A
/// `Box<[T]>` would claim exclusive access to its elements at each use and so invalidate them; this
/// type does not.
pub(crate) struct Arena<T: Copy> {
    start: NonNull<T>,
    len: usize,
}

impl<T: Copy> Arena<T> {
    /// Allocates `len` zeroed elements.
    ///
    /// # Safety
    /// All-zero bytes must be a valid `T`.
    pub(crate) unsafe fn zeroed(len: usize) -> Arena<T> {
        // SAFETY: the caller guarantees that zero is a valid element.
        let zero: T = unsafe { std::mem::zeroed() };
        let items = vec![zero; len].into_boxed_slice();
        let start = NonNull::from(Box::leak(items)).cast::<T>();
        Arena { start, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of an element, valid until the arena is dropped.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.len, "arena index {index} of {}", self.len);
        // SAFETY: within the allocation, as just checked.
        unsafe { self.start.as_ptr().add(index) }
    }

    /// Returns a part of the slice, truncated at its end.
    pub(crate) fn slice(&self, from: usize, len: usize) -> &[T] {
        let from = from.min(self.len);
        let len = len.min(self.len - from);
        // SAFETY: within the allocation, initialised since `zeroed`; not written while `self` is
        // borrowed, because letting the kernel write (`recvmmsg`) requires `&mut` of the arena's
        // owner.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(from), len) }
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        // SAFETY: within the allocation; `&mut self` makes it the only reference.
        (index < self.len).then(|| unsafe { &mut *self.start.as_ptr().add(index) })
    }
}

impl<T: Copy> Drop for Arena<T> {
    fn drop(&mut self) {
        let items = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len);
        // SAFETY: leaked from such a box in `zeroed`, and freed once.
        drop(unsafe { Box::from_raw(items) });
    }
}

// SAFETY: owns its elements; a shared reference only reads.
unsafe impl<T: Copy + Send> Send for Arena<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for Arena<T> {}
