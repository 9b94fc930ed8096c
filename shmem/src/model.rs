//! Memory in the models: plain memory, in which each byte is watched for data races. The safety
//! requirements are those of the real types of these names; the checker reports violations.
#![allow(clippy::missing_safety_doc)]

use std::sync::Arc;

use loom::cell::UnsafeCell;

/// A reference to words.
pub type Shared<T> = Arc<T>;

/// A reference to consecutive words.
pub type SharedSlice<T> = Arc<Vec<T>>;

/// Bytes read; a copy.
pub type View<'a> = Vec<u8>;

fn cells(len: usize) -> Vec<UnsafeCell<u8>> {
    (0..len).map(|_| UnsafeCell::new(0)).collect()
}

fn store<'a>(cells: impl Iterator<Item = &'a UnsafeCell<u8>>, bytes: &[u8]) {
    for (cell, byte) in cells.zip(bytes) {
        // SAFETY: the model checker watches the access.
        cell.with_mut(|p| unsafe { *p = *byte });
    }
}

fn load(cell: &UnsafeCell<u8>) -> u8 {
    // SAFETY: the model checker watches the access.
    cell.with(|p| unsafe { *p })
}

/// A range of plain bytes.
#[derive(Clone, Debug)]
pub struct Bytes {
    cells: Arc<Vec<UnsafeCell<u8>>>,
}

// SAFETY: the model checker reports any access to the cells that the protocol does not order.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Returns `len` zero bytes.
    pub fn model(len: usize) -> Self {
        let cells = Arc::new(cells(len));
        Bytes { cells }
    }

    /// Returns the length of the range.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Copies bytes in.
    pub unsafe fn store(&self, offset: usize, bytes: &[u8]) {
        store(self.cells[offset..offset + bytes.len()].iter(), bytes);
    }

    /// Copies bytes in.
    pub unsafe fn store_uncached(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.store(offset, bytes) };
    }

    /// Returns a copy of a range, or `None` if it is not inside.
    pub unsafe fn view(&self, offset: usize, len: usize) -> Option<View<'_>> {
        let cells = self.cells.get(offset..offset.checked_add(len)?)?;
        Some(cells.iter().map(load).collect())
    }
}

/// A ring of bytes.
#[derive(Debug)]
pub struct RingBytes {
    cells: Vec<UnsafeCell<u8>>,
}

// SAFETY: the model checker reports any access to the cells that the protocol does not order.
unsafe impl Send for RingBytes {}
// SAFETY: as above.
unsafe impl Sync for RingBytes {}

impl RingBytes {
    /// Returns a ring of zero bytes.
    pub fn model(capacity: usize) -> Self {
        let cells = cells(capacity);
        RingBytes { cells }
    }

    /// Returns the capacity of the ring, in bytes.
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    fn from(&self, index: u64) -> impl Iterator<Item = &UnsafeCell<u8>> {
        let cell = |index: u64| &self.cells[index as usize & (self.cells.len() - 1)];
        (index..).map(cell)
    }

    /// Copies bytes in.
    pub unsafe fn store(&self, index: u64, bytes: &[u8]) {
        store(self.from(index), bytes);
    }

    /// Copies bytes out.
    pub unsafe fn load(&self, index: u64, bytes: &mut [u8]) {
        for (byte, cell) in bytes.iter_mut().zip(self.from(index)) {
            *byte = load(cell);
        }
    }
}
