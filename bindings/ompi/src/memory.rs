//! Raw memory: message segments, registered regions, atomic operations.
//!
//! Addresses that peers send are checked before they become pointers: peers access memory only
//! within a region that this process has registered.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::header::FOUR_BYTES;

/// Flag of a region (`MCA_BTL_REG_FLAG_REMOTE_READ`): peers may read.
pub(crate) const READ: u32 = 2;
/// Flag of a region: peers may write.
pub(crate) const WRITE: u32 = 4;
/// Flag of a region: peers may use atomic operations.
pub(crate) const ATOMIC: u32 = 8;

/// Maximum number of segments of a message. Open MPI uses two.
pub(crate) const MAX_SEGMENTS: usize = 16;

/// `mca_btl_base_segment_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    address: *const u8,
    length: u64,
}

/// Returns the segments of a message as slices, and their number.
///
/// # Safety
/// `segments` must be valid for reads of `count` segments, whose memory must be valid for reads
/// during `'a`.
pub(crate) unsafe fn slices<'a>(
    segments: *const Segment,
    count: usize,
) -> ([IoSlice<'a>; MAX_SEGMENTS], usize) {
    let mut all = [IoSlice::new(&[]); MAX_SEGMENTS];
    let mut used = 0;
    for at in 0..count.min(MAX_SEGMENTS) {
        // SAFETY: guaranteed by the caller.
        let segment = unsafe { segments.add(at).read() };
        let length = usize::try_from(segment.length).unwrap_or(0);
        if length > 0 {
            // SAFETY: guaranteed by the caller.
            let part = unsafe { std::slice::from_raw_parts(segment.address, length) };
            all[used] = IoSlice::new(part);
            used += 1;
        }
    }
    (all, used)
}

/// Returns memory of this process as a slice.
///
/// # Safety
/// `address` must be valid for reads of `length` bytes during `'a`.
pub(crate) unsafe fn bytes<'a>(address: usize, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), length) }
}

/// Copies bytes to memory of this process.
///
/// # Safety
/// `address` must be valid for writes of `bytes.len()` bytes, and must not overlap `bytes`.
pub(crate) unsafe fn fill(address: usize, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: guaranteed by the caller. The bytes are in a receive ring, so they do not overlap.
    unsafe { shmem::copy_bytes(bytes.as_ptr(), to, bytes.len()) };
}

/// Copies within this process. The two ranges may overlap.
///
/// # Safety
/// `from` must be valid for reads, and `to` for writes, of `length` bytes.
pub(crate) unsafe fn copy(from: usize, to: usize, length: usize) {
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy(from, std::ptr::with_exposed_provenance_mut(to), length) };
}

#[derive(Clone, Copy, Debug)]
struct Region {
    base: u64,
    length: u64,
    flags: u32,
}

/// Registered memory, by key.
#[derive(Debug, Default)]
pub(crate) struct Regions(Mutex<HashMap<u64, Region>>);

/// Regions of this process that peers may access.
pub(crate) static REGIONS: LazyLock<Regions> = LazyLock::new(Regions::default);

impl Regions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Region>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers memory. Returns false if the key is 0 or in use.
    pub(crate) fn add(&self, key: u64, base: usize, length: usize, flags: u32) -> bool {
        let region = Region {
            base: base as u64,
            length: length as u64,
            flags,
        };
        let mut all = self.lock();
        let free = key != 0 && !all.contains_key(&key);
        if free {
            all.insert(key, region);
        }
        free
    }

    pub(crate) fn remove(&self, key: u64) {
        self.lock().remove(&key);
    }

    /// Calls `f` with the address if the range lies in a region with this `right`. The region stays
    /// registered during the call.
    pub(crate) fn with<R>(
        &self,
        key: u64,
        address: u64,
        length: u64,
        right: u32,
        f: impl FnOnce(usize) -> R,
    ) -> Option<R> {
        let all = self.lock();
        let region = all.get(&key)?;
        let offset = address.checked_sub(region.base)?;
        let fits = offset <= region.length && length <= region.length - offset;
        let permitted = region.flags & right == right;
        if !fits || !permitted {
            return None;
        }
        Some(f(usize::try_from(address).ok()?))
    }
}

/// Executes an atomic operation and returns the previous value; `None` if the operator is unknown
/// or the address misaligned.
///
/// # Safety
/// `address` must be valid for reads and writes of eight bytes, or four with [`FOUR_BYTES`].
pub(crate) unsafe fn atomic(
    address: usize,
    operator: u8,
    [operand, compare]: [u64; 2],
) -> Option<u64> {
    macro_rules! operate {
        ($atomic:ty, $unsigned:ty, $signed:ty) => {{
            if address == 0 || address % size_of::<$unsigned>() != 0 {
                return None;
            }
            // Operations on four bytes use the low half of the numbers.
            #[allow(clippy::cast_possible_truncation)]
            let (operand, compare) = (operand as $unsigned, compare as $unsigned);
            let cell = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: guaranteed by the caller, and aligned. If the program accesses it
            // non-atomically at the same time, the race is the program's.
            let cell = unsafe { <$atomic>::from_ptr(cell) };
            let order = Ordering::SeqCst;
            let signed = |value: $unsigned| value.cast_signed();
            let by = |f: fn($signed, $signed) -> $signed| {
                let next = |old: $unsigned| Some(f(signed(old), signed(operand)).cast_unsigned());
                cell.fetch_update(order, order, next)
                    .unwrap_or_else(|old| old)
            };
            let old: $unsigned = match operator & !FOUR_BYTES {
                0 => cell
                    .compare_exchange(compare, operand, order, order)
                    .unwrap_or_else(|old| old),
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
    if operator & FOUR_BYTES == 0 {
        operate!(AtomicU64, u64, i64)
    } else {
        operate!(AtomicU32, u32, i32)
    }
}

/// Stores the previous value of an atomic operation; nothing if `address` is 0.
///
/// # Safety
/// `address` must be 0 or valid for writes of eight bytes, or four if `four_bytes`.
pub(crate) unsafe fn store(address: usize, value: u64, four_bytes: bool) {
    if address != 0 {
        let length = if four_bytes { 4 } else { 8 };
        // SAFETY: guaranteed by the caller.
        unsafe { fill(address, &value.to_ne_bytes()[..length]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registered_memory_is_accessible() {
        let regions = Regions::default();
        assert!(regions.add(7, 1000, 100, READ | WRITE));
        assert!(!regions.add(7, 1, 1, READ) && !regions.add(0, 1, 1, READ));
        let access =
            |key, address, length, right| regions.with(key, address, length, right, |at| at);
        assert_eq!(access(7, 1000, 100, READ), Some(1000));
        assert_eq!(access(7, 1100, 0, WRITE), Some(1100));
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
                access(key, address, length, right),
                None,
                "{key} {address} {length} {right}"
            );
        }
        regions.remove(7);
        assert_eq!(access(7, 1000, 1, READ), None);
    }

    #[test]
    fn atomic_operations_return_the_previous_value() {
        let cell = AtomicU64::new(10);
        let address = cell.as_ptr().expose_provenance();
        // SAFETY: the cell is alive and aligned.
        let run =
            |operator, operand, compare| unsafe { atomic(address, operator, [operand, compare]) };
        for (operator, operand, compare, after) in [
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
            assert_eq!(
                run(operator, operand, compare),
                Some(before),
                "{operator:#x}"
            );
            assert_eq!(cell.load(Ordering::SeqCst), after, "{operator:#x}");
        }
        assert_eq!(run(0x33, 1, 1), None);
        // SAFETY: a misaligned address is not accessed.
        assert_eq!(unsafe { atomic(address + 1, 0x01, [1, 0]) }, None);
        cell.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(run(FOUR_BYTES | 0x01, 2, 0), Some(u64::from(u32::MAX)));
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
