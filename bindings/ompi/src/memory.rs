//! Raw memory: of fragments, of regions that peers use, of atomic operations.
//!
//! All numbers that peers send are checked before they become pointers: memory is touched only inside a region that this process has
//! registered and not taken back.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::wire::NARROW;

/// Flags of Open MPI: peers may read.
pub(crate) const READ: u32 = 2;
/// Peers may write.
pub(crate) const WRITE: u32 = 4;
/// Peers may use atomic operations.
pub(crate) const ATOMIC: u32 = 8;

/// Pieces of a message at most; Open MPI makes two.
pub(crate) const PIECES: usize = 16;

/// `mca_btl_base_segment_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    address: *const u8,
    length: u64,
}

/// The pieces of a message of Open MPI's, as slices.
///
/// # Safety
/// `segments` points to `count` segments of readable memory, all of it for as long as `'a`.
pub(crate) unsafe fn pieces<'a>(
    segments: *const Segment,
    count: usize,
) -> ([IoSlice<'a>; PIECES], usize) {
    let mut all = [IoSlice::new(&[]); PIECES];
    let mut used = 0;
    let segments = if count == 0 {
        &[]
    } else {
        // SAFETY: the caller says so; a null pointer comes with no segments.
        unsafe { std::slice::from_raw_parts(segments, count.min(PIECES)) }
    };
    for segment in segments {
        let length = usize::try_from(segment.length).unwrap_or(0);
        if length > 0 {
            // SAFETY: the caller says so.
            all[used] =
                IoSlice::new(unsafe { std::slice::from_raw_parts(segment.address, length) });
            used += 1;
        }
    }
    (all, used)
}

/// Memory of this process as a slice, for one message.
///
/// # Safety
/// Readable for `length` bytes for as long as `'a`.
pub(crate) unsafe fn bytes<'a>(address: usize, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), length) }
}

/// Copies bytes to memory of this process.
///
/// # Safety
/// Writable for the bytes' length.
pub(crate) unsafe fn fill(address: usize, bytes: &[u8]) {
    // SAFETY: the caller says so. It may overlap nothing: the bytes lie in a ring.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            std::ptr::with_exposed_provenance_mut(address),
            bytes.len(),
        );
    }
}

/// Copies within this process; the two may overlap.
///
/// # Safety
/// Readable, and writable, for `length` bytes.
pub(crate) unsafe fn copy(from: usize, to: usize, length: usize) {
    // SAFETY: the caller says so.
    unsafe {
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        std::ptr::copy(from, std::ptr::with_exposed_provenance_mut(to), length);
    }
}

#[derive(Clone, Copy, Debug)]
struct Region {
    base: u64,
    length: u64,
    flags: u32,
}

/// The memory that peers may use.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    all: Mutex<Option<HashMap<u64, Region>>>,
}

impl Regions {
    pub(crate) const fn new() -> Regions {
        Regions {
            all: Mutex::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, Region>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers memory under a key that no peer can guess from another.
    pub(crate) fn add(&self, key: u64, base: usize, length: usize, flags: u32) -> bool {
        let region = Region {
            base: base as u64,
            length: length as u64,
            flags,
        };
        let mut all = self.lock();
        let all = all.get_or_insert_default();
        let free = key != 0 && !all.contains_key(&key);
        if free {
            all.insert(key, region);
        }
        free
    }

    pub(crate) fn remove(&self, key: u64) {
        if let Some(all) = self.lock().as_mut() {
            all.remove(&key);
        }
    }

    /// Calls `f` with the address, if all of it is a peer's to use so. The region stays registered meanwhile.
    pub(crate) fn with<R>(
        &self,
        key: u64,
        address: u64,
        length: u64,
        right: u32,
        f: impl FnOnce(usize) -> R,
    ) -> Option<R> {
        let all = self.lock();
        let region = all.as_ref()?.get(&key)?;
        let offset = address.checked_sub(region.base)?;
        let fits = offset <= region.length && length <= region.length - offset;
        // Open MPI registers with all rights, or with those that it needs.
        let may = region.flags & right == right;
        if !fits || !may {
            return None;
        }
        Some(f(usize::try_from(address).ok()?))
    }
}

/// Does an atomic operation; returns the value before. `None`: no such operation, or a crooked address.
///
/// # Safety
/// Readable and writable for eight bytes, or four with [`NARROW`].
pub(crate) unsafe fn atomic(address: usize, what: u8, operand: u64, compare: u64) -> Option<u64> {
    macro_rules! operate {
        ($atomic:ty, $unsigned:ty, $signed:ty) => {{
            if address == 0 || address % size_of::<$unsigned>() != 0 {
                return None;
            }
            // Only the low bytes of a number count where it is narrow.
            #[allow(clippy::cast_possible_truncation)]
            let (operand, compare) = (operand as $unsigned, compare as $unsigned);
            // SAFETY: the caller says so, and it is aligned. Others use it by atomic operations, too (or the program has a race).
            let cell = unsafe { <$atomic>::from_ptr(std::ptr::with_exposed_provenance_mut(address)) };
            let order = Ordering::SeqCst;
            let signed = |value: $unsigned| value.cast_signed();
            let by = |f: fn($signed, $signed) -> $signed| {
                let next = |old: $unsigned| Some(f(signed(old), signed(operand)).cast_unsigned());
                cell.fetch_update(order, order, next).unwrap_or_else(|old| old)
            };
            let old: $unsigned = match what & !NARROW {
                0 => cell.compare_exchange(compare, operand, order, order).unwrap_or_else(|old| old),
                0x01 => cell.fetch_add(operand, order),
                0x11 => cell.fetch_and(operand, order),
                0x12 => cell.fetch_or(operand, order),
                0x14 => cell.fetch_xor(operand, order),
                0x1a => cell.swap(operand, order),
                0x20 => by(<$signed>::min),
                0x21 => by(<$signed>::max),
                _ => return None,
            };
            Some(u64::from(old))
        }};
    }
    if what & NARROW == 0 {
        operate!(AtomicU64, u64, i64)
    } else {
        operate!(AtomicU32, u32, i32)
    }
}

/// Writes the value before an atomic operation where the program wants it.
///
/// # Safety
/// Null, or writable for eight bytes, or four if `narrow`.
pub(crate) unsafe fn store(address: usize, value: u64, narrow: bool) {
    if address != 0 {
        let length = if narrow { 4 } else { 8 };
        // SAFETY: the caller says so.
        unsafe { fill(address, &value.to_ne_bytes()[..length]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_registered_can_be_used() {
        let regions = Regions::new();
        assert!(regions.add(7, 1000, 100, READ | WRITE));
        assert!(!regions.add(7, 1, 1, READ) && !regions.add(0, 1, 1, READ));
        let may = |key, address, length, right| regions.with(key, address, length, right, |at| at);
        assert_eq!(may(7, 1000, 100, READ), Some(1000));
        assert_eq!(may(7, 1100, 0, WRITE), Some(1100));
        for (key, address, length, right) in [
            (8, 1000, 1, READ),
            (7, 999, 1, READ),
            (7, 1000, 101, READ),
            (7, 1050, 51, READ),
            (7, 1101, 0, READ),
            (7, u64::MAX, 2, READ),
            (7, 1001, u64::MAX, READ),
            (7, 1000, 8, ATOMIC),
        ] {
            assert_eq!(
                may(key, address, length, right),
                None,
                "{key} {address} {length} {right}"
            );
        }
        regions.remove(7);
        assert_eq!(may(7, 1000, 1, READ), None);
    }

    #[test]
    fn atomic_operations_do_what_their_names_say() {
        let cell = AtomicU64::new(10);
        let address = cell.as_ptr().expose_provenance();
        // SAFETY: the cell is there.
        let run = |what, operand, compare| unsafe { atomic(address, what, operand, compare) };
        for (what, operand, compare, after) in [
            (0x01, 5, 0, 15u64),
            (0x01, u64::MAX, 0, 14),
            (0x11, 12, 0, 12),
            (0x12, 3, 0, 15),
            (0x14, 1, 0, 14),
            (0x20, (-1i64).cast_unsigned(), 0, u64::MAX),
            (0x21, 9, 0, 9),
            (0x1a, 77, 0, 77),
            (0, 1, 78, 77),
            (0, 1, 77, 1),
        ] {
            let before = cell.load(Ordering::SeqCst);
            assert_eq!(run(what, operand, compare), Some(before), "{what:#x}");
            assert_eq!(cell.load(Ordering::SeqCst), after, "{what:#x}");
        }
        assert_eq!(run(0x33, 1, 1), None);
        // SAFETY: nothing is touched at a crooked address.
        assert_eq!(unsafe { atomic(address + 1, 0x01, 1, 0) }, None);
        cell.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(run(NARROW | 0x01, 2, 0), Some(u64::from(u32::MAX)));
        assert_eq!(
            cell.load(Ordering::SeqCst),
            if cfg!(target_endian = "little") {
                u64::MAX << 32 | 1
            } else {
                0
            }
        );
    }
}
