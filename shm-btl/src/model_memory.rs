//! What `memory.rs` is in the models: plain memory, each byte of the rings watched for data races.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use crate::layout::Slot;
use crate::sync::Ordering;

/// One thing in shared memory.
pub(crate) type Shared<T> = Arc<T>;

/// Several of them in a row.
pub(crate) type SharedSlice<T> = Arc<Vec<T>>;

/// Bytes looked at; a copy here.
pub(crate) type View<'a> = Vec<u8>;

/// Plain bytes: rings and chunks.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    cells: Arc<Vec<UnsafeCell<u8>>>,
}

// SAFETY: the model checker reports any access to the cells that the protocol does not order.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    pub(crate) fn model(len: usize) -> Self {
        Bytes {
            cells: Arc::new((0..len).map(|_| UnsafeCell::new(0)).collect()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) {
        for (cell, byte) in self.cells[offset..offset + bytes.len()].iter().zip(bytes) {
            // SAFETY: the model checker watches the access.
            cell.with_mut(|p| unsafe { *p = *byte });
        }
    }

    pub(crate) fn store_through(&self, offset: usize, bytes: &[u8]) {
        self.store(offset, bytes);
    }

    pub(crate) fn view(&self, offset: usize, len: usize) -> Option<View<'_>> {
        let cells = self.cells.get(offset..offset.checked_add(len)?)?;
        // SAFETY: the model checker watches the access.
        Some(
            cells
                .iter()
                .map(|cell| cell.with(|p| unsafe { *p }))
                .collect(),
        )
    }
}

/// See `memory.rs`. Words of slots are atomics in the models, so a wrong value shows, not a race.
pub(crate) fn store_message(slot: &Slot, header: &[u8], body: &[u8]) {
    let mut bytes = [0u8; 56];
    bytes[..header.len()].copy_from_slice(header);
    bytes[header.len()..header.len() + body.len()].copy_from_slice(body);
    let words = (header.len() + body.len()).div_ceil(8);
    for (word, eight) in slot.0[1..].iter().zip(bytes.chunks_exact(8)).take(words) {
        word.store(
            u64::from_ne_bytes(eight.try_into().expect("eight")),
            Ordering::Relaxed,
        );
    }
}

/// See `memory.rs`.
pub(crate) fn load_message(slot: &Slot) -> [u8; 56] {
    let mut bytes = [0u8; 56];
    for (word, eight) in slot.0[1..].iter().zip(bytes.chunks_exact_mut(8)) {
        eight.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    bytes
}

/// See `memory.rs`.
pub(crate) fn prefetch(_: &Slot) {}

/// Models take no time.
pub(crate) fn wait_for_loads() {}

/// Nor have they caches.
pub(crate) fn memory_latency() -> Option<std::time::Duration> {
    None
}
