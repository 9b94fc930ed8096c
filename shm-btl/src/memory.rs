//! Sealed memory files, their mappings, and typed views of them. With `cma.rs` the only place where memory is touched by
//! address. Not compiled under loom, where `model_memory.rs` takes its place.

use core::ffi::c_void;
use core::ops::Deref;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::layout::{About, Common, Line, PairHead, Slot};
use crate::sync::{AtomicU64, Ordering};

/// Nobody may change the length (which is what could make another process fault), nor lift this.
pub(crate) const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Makes a memory file of `len` zero bytes, mapped writable, its length fixed. It has no name in any file system; it is gone
/// when the last descriptor and mapping are. `private`: only this mapping will ever be writable (Linux 5.1; older kernels
/// cannot promise that, and the file is then as good as its peers are).
pub(crate) fn create_file(
    label: &str,
    len: usize,
    private: bool,
) -> io::Result<(Arc<Mapping>, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(label, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => rustix::fs::memfd_create(label, flags)?,
        other => other?,
    };
    // Beyond this limit a signal would end the process, which is not ours.
    if rustix::process::getrlimit(rustix::process::Resource::Fsize)
        .current
        .is_some_and(|limit| limit < len as u64)
    {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the limit of file sizes (ulimit -f) is too low",
        ));
    }
    rustix::fs::ftruncate(&fd, len as u64)?;
    let map = Mapping::of(fd.as_fd(), 0, len, ProtFlags::READ | ProtFlags::WRITE)?;
    if private {
        match rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    rustix::fs::fcntl_add_seals(&fd, FIXED)?;
    Ok((Arc::new(map), fd))
}

/// Is it a memory file of this length, for good? In words what is wrong.
pub(crate) fn check_file(fd: BorrowedFd<'_>, len: usize) -> Result<(), &'static str> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| "it is no memory file")?;
    if !seals.contains(FIXED) {
        return Err("its length could change");
    }
    match rustix::fs::fstat(fd) {
        Ok(found) if u64::try_from(found.st_size) == Ok(len as u64) => Ok(()),
        _ => Err("it has another length than agreed"),
    }
}

/// A stretch of address space; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; what is done with the memory is the users' matter.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file from `offset` on, both multiples of the page size.
    pub(crate) fn of(
        fd: BorrowedFd<'_>,
        offset: usize,
        len: usize,
        prot: ProtFlags,
    ) -> io::Result<Mapping> {
        let at = core::ptr::null_mut();
        // SAFETY: no address is asked for, so no mapping is replaced.
        let base = unsafe { rustix::mm::mmap(at, len, prot, MapFlags::SHARED, fd, offset as u64)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    /// Brings a range into memory now rather than by a fault at first use. Kernels that cannot are let be.
    pub(crate) fn populate(&self, offset: usize, len: usize, writable: bool) {
        let advice = if writable {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            // SAFETY: inside the mapping; the advice changes no content.
            let _ = unsafe {
                rustix::mm::madvise(self.base.add(offset).as_ptr().cast::<c_void>(), len, advice)
            };
        }
    }

    fn at(&self, offset: usize, bytes: usize, align: usize) -> NonNull<u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.len);
        assert!(
            inside && offset.is_multiple_of(align),
            "the layout lies inside the mapping"
        );
        // SAFETY: just checked.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours since `of`; views hold the mapping. It can fail only for a range that is not one.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// Types that may lie in shared memory.
///
/// # Safety
/// `repr(C)`, nothing but atomics and padding: every content is valid, and may be changed by others at any time.
pub(crate) unsafe trait Words {}
// SAFETY: see layout.rs.
unsafe impl Words for Common {}
// SAFETY: as above.
unsafe impl Words for PairHead {}
// SAFETY: as above.
unsafe impl Words for Slot {}
// SAFETY: as above.
unsafe impl Words for Line<About> {}
// SAFETY: an atomic.
unsafe impl Words for AtomicU64 {}

/// One thing in shared memory. It must not be written through a mapping that is read-only: the protocol's types see to that.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    at: NonNull<T>,
    map: Arc<Mapping>,
}

// SAFETY: only atomics are behind it.
unsafe impl<T: Words> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Words> Sync for Shared<T> {}

impl<T: Words> Shared<T> {
    /// At this offset. The layout is checked before; a wrong one panics.
    pub(crate) fn new(map: &Arc<Mapping>, offset: usize) -> Self {
        Shared {
            at: map.at(offset, size_of::<T>(), align_of::<T>()).cast(),
            map: map.clone(),
        }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared {
            at: self.at,
            map: self.map.clone(),
        }
    }
}

impl<T: Words> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: mapped as long as `map` lives, large enough and aligned (checked in `new`), any content is valid (`Words`).
        unsafe { self.at.as_ref() }
    }
}

/// Several of them in a row.
#[derive(Debug)]
pub(crate) struct SharedSlice<T> {
    at: NonNull<T>,
    len: usize,
    map: Arc<Mapping>,
}

// SAFETY: only atomics are behind it.
unsafe impl<T: Words> Send for SharedSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Words> Sync for SharedSlice<T> {}

impl<T: Words> SharedSlice<T> {
    /// `len` of them from this offset on. The layout is checked before; a wrong one panics.
    pub(crate) fn new(map: &Arc<Mapping>, offset: usize, len: usize) -> Self {
        let at = map.at(offset, size_of::<T>() * len, align_of::<T>()).cast();
        SharedSlice {
            at,
            len,
            map: map.clone(),
        }
    }
}

impl<T> Clone for SharedSlice<T> {
    fn clone(&self) -> Self {
        SharedSlice {
            at: self.at,
            len: self.len,
            map: self.map.clone(),
        }
    }
}

impl<T: Words> Deref for SharedSlice<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: as for `Shared`.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

/// Plain bytes in shared memory: rings and chunks.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    at: NonNull<u8>,
    len: usize,
    _map: Arc<Mapping>,
}

// SAFETY: as for `Mapping`; what may be touched when is the protocol's matter, see `store` and `view`.
unsafe impl Send for Bytes {}

impl Bytes {
    /// `len` bytes from this offset on.
    pub(crate) fn new(map: &Arc<Mapping>, offset: usize, len: usize) -> Self {
        Bytes {
            at: map.at(offset, len, 1),
            len,
            _map: map.clone(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes in. The protocol gives the range to the caller alone. Nothing happens outside of the bytes.
    #[inline]
    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) {
        if offset
            .checked_add(bytes.len())
            .is_none_or(|end| end > self.len)
        {
            debug_assert!(false, "outside of the ring or chunk");
            return;
        }
        // SAFETY: inside (checked above), mapped writable where the protocol stores (own file); no reference to the range
        // exists in this process: the receiver's views of it (`view`), in whichever process, lie behind the consumer index.
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.at.add(offset).as_ptr(),
                bytes.len(),
            )
        }
    }

    /// As [`Bytes::store`], but past the caches where the processor can: for a reader whose core shares none with this one, and
    /// who would have to fetch every line out of this core's. In memory when this returns.
    #[inline]
    pub(crate) fn store_through(&self, offset: usize, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
            const STEP: usize = 4 * size_of::<__m128i>();
            let whole = bytes.len() / STEP * STEP;
            let inside = offset.checked_add(whole).is_some_and(|end| end <= self.len);
            let to = self.at.as_ptr().wrapping_add(offset);
            if inside && to.addr().is_multiple_of(align_of::<__m128i>()) {
                for at in (0..whole).step_by(STEP) {
                    // SAFETY: both inside (checked above, `whole` is no more than there is); reading needs no alignment, and what is
                    // written to has it: checked for the first, and the others are multiples of it apart. The range is the
                    // caller's as for `store`. Every x86-64 processor has the instructions.
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
                // SAFETY: as above. Such stores are ordered by nothing else, not even by the release that publishes them.
                unsafe { _mm_sfence() };
                self.store(offset + whole, bytes.get(whole..).unwrap_or_default());
                return;
            }
        }
        self.store(offset, bytes);
    }

    /// Looks at bytes in place; `None` outside.
    ///
    /// The protocol gives the range to the caller: an honest peer does not write it before the consumer index has passed. A
    /// peer that breaks this changes bytes under the reader, who therefore must not rely on reading the same twice; it
    /// cannot take the memory away.
    #[inline]
    pub(crate) fn view(&self, offset: usize, len: usize) -> Option<View<'_>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return None;
        }
        // SAFETY: inside (checked above) and mapped as long as self lives; this process never stores through the mapping it
        // views (a peer's, read-only), or, as its own peer, behind the consumer index only.
        Some(unsafe { core::slice::from_raw_parts(self.at.add(offset).as_ptr(), len) })
    }
}

/// Bytes looked at in place.
pub(crate) type View<'a> = &'a [u8];

/// Writes header and body of a short message behind word 0 of a slot, one behind the other; they fit (checked). The protocol gives
/// the slot to the caller, who publishes it by word 0.
#[inline]
pub(crate) fn store_message(slot: &Slot, header: &[u8], body: &[u8]) {
    let bytes = header.len() + body.len();
    if bytes > size_of_val(&slot.0) - 8 {
        debug_assert!(false, "longer than a slot");
        return;
    }
    let slot = core::ptr::from_ref(slot).cast_mut().cast::<u8>();
    // SAFETY: behind word 0 are as many bytes (checked above), of atomics, which may be written through a shared reference; the slot
    // is in the own file, mapped writable, and nobody who keeps to the protocol reads it now. One who does not spoils but what it reads.
    unsafe {
        let at = slot.add(8);
        store_short(at, header);
        store_short(at.add(header.len()), body);
    }
}

/// Copies; the usual lengths without a call.
///
/// # Safety
/// `to` is writable for so many bytes, and they are the caller's.
#[inline]
unsafe fn store_short(to: *mut u8, bytes: &[u8]) {
    let from = bytes.as_ptr();
    // SAFETY: as promised to us; each length is the slice's.
    unsafe {
        match bytes.len() {
            0 => {}
            8 => core::ptr::copy_nonoverlapping(from, to, 8),
            16 => core::ptr::copy_nonoverlapping(from, to, 16),
            length => core::ptr::copy_nonoverlapping(from, to, length),
        }
    }
}

/// Nothing behind it begins before every read in front of it is over: a processor that looks ahead would otherwise fetch a line while
/// something in front is still going on, and have it at once when that is timed.
#[inline]
pub(crate) fn wait_for_loads() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it touches nothing; every x86-64 processor has it.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
}

/// What reading a line takes that is in no cache; `None`: this processor has no way to ask. Some ten microseconds.
pub(crate) fn memory_latency() -> Option<std::time::Duration> {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_mm_clflush, _mm_lfence, _mm_mfence};
        use std::time::Instant;
        const LINES: usize = 64;
        let lines = [const { Line([0u8; crate::layout::LINE]) }; LINES];
        let mut times = lines.each_ref().map(|line| {
            let at = core::ptr::from_ref(line).cast::<u8>();
            // SAFETY: throwing a line of our own out of the caches changes nothing, and fences touch nothing; every x86-64 processor has
            // all three.
            unsafe {
                _mm_clflush(at);
                _mm_mfence();
            }
            let (empty, begin) = (Instant::now(), Instant::now());
            // SAFETY: as above; the read is of a live value.
            unsafe {
                _mm_lfence();
                at.read_volatile();
                _mm_lfence();
            }
            begin.elapsed().saturating_sub(begin - empty)
        });
        times.sort_unstable();
        // Interrupts and other cores' traffic make some slower, nothing makes one faster.
        Some(times[LINES / 4])
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Has a slot's line fetched, if it is not here.
#[inline]
pub(crate) fn prefetch(slot: &Slot) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that changes nothing, of memory that is mapped.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
            core::ptr::from_ref(slot).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slot;
}

/// Reads what is behind word 0 of a slot, all of it, once.
#[inline]
pub(crate) fn load_message(slot: &Slot) -> [u8; 56] {
    let mut bytes = [0; 56];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(&slot.0[1..]) {
        // Relaxed: word 0 was read with Acquire before.
        eight.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_past_the_caches_are_stores() {
        let (map, _fd) = create_file("shm-btl-test", 8192, true).expect("a memory file");
        let whole = Bytes::new(&map, 0, 8192);
        let source: Vec<u8> = (0..4200u32).map(|i| (i % 251) as u8 | 1).collect();
        for (offset, from, length) in [
            (2048, 0, 4096),
            (2048, 3, 4096),
            (2112, 1, 64),
            (2112, 1, 63),
            (2064, 5, 4100),
            (2049, 0, 1000),
            (4096, 0, 0),
            (8192 - 192, 7, 192),
        ] {
            whole.store(0, &[0; 8192]);
            let body = &source[from..from + length];
            whole.store_through(offset, body);
            let now = whole.view(0, 8192).expect("inside");
            assert_eq!(&now[offset..offset + length], body, "{length} at {offset}");
            let around = now[..offset].iter().chain(&now[offset + length..]);
            assert_eq!(
                around.filter(|byte| **byte != 0).count(),
                0,
                "{length} at {offset}: nothing else"
            );
        }
    }
}
