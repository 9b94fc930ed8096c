//! The bytes of a slot after its word 0.

use shmem::sync::Ordering;

use crate::layout::Slot;

/// Bytes of a slot after word 0.
pub(crate) const INLINE_BYTES: usize = 56;

/// Writes `header` and `body`, one after the other, after word 0 of a slot. They fit (checked).
///
/// # Safety
/// The slot must be in a writable mapping and, by the protocol, belong to the caller, which
/// publishes it by word 0.
#[cfg(not(loom))]
#[inline]
pub(super) unsafe fn store_message(slot: &Slot, header: &[u8], body: &[u8]) {
    if header.len() + body.len() > INLINE_BYTES {
        debug_assert!(false, "longer than a slot");
        return;
    }
    let slot = core::ptr::from_ref(slot).cast_mut().cast::<u8>();
    // SAFETY: that many bytes of atomics lie after word 0 (checked above), and may be written
    // through a shared reference. No process that follows the protocol reads the slot now; any
    // other process affects only the data that it reads itself.
    unsafe {
        let at = slot.add(8);
        store_short(at, header);
        store_short(at.add(header.len()), body);
    }
}

/// Copies bytes, the usual lengths without a call.
///
/// # Safety
/// `to` must be valid for writes of `bytes.len()` bytes, and nothing else may access them.
#[cfg(not(loom))]
#[inline]
unsafe fn store_short(to: *mut u8, bytes: &[u8]) {
    let from = bytes.as_ptr();
    // SAFETY: guaranteed by the caller; each length is the slice's.
    unsafe {
        match bytes.len() {
            0 => {}
            8 => core::ptr::copy_nonoverlapping(from, to, 8),
            16 => core::ptr::copy_nonoverlapping(from, to, 16),
            length => core::ptr::copy_nonoverlapping(from, to, length),
        }
    }
}

/// Writes a message in a model, where the words of slots are atomics: the model detects a wrong
/// value, not a race.
///
/// # Safety
/// None, in contrast to the real function.
#[cfg(loom)]
pub(super) unsafe fn store_message(slot: &Slot, header: &[u8], body: &[u8]) {
    let mut bytes = [0u8; INLINE_BYTES];
    bytes[..header.len()].copy_from_slice(header);
    bytes[header.len()..header.len() + body.len()].copy_from_slice(body);
    let words = (header.len() + body.len()).div_ceil(8);
    for (word, eight) in slot.0[1..].iter().zip(bytes.chunks_exact(8)).take(words) {
        let eight = eight.try_into().expect("eight");
        word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
    }
}

/// Reads all bytes after word 0 of a slot, once.
#[inline]
pub(super) fn load_message(slot: &Slot) -> [u8; INLINE_BYTES] {
    let mut bytes = [0; INLINE_BYTES];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(&slot.0[1..]) {
        // Relaxed: word 0 was read with Acquire before.
        eight.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    bytes
}
