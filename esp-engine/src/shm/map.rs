//! Sealed memory files and their mappings. Not compiled under loom, where plain memory takes their place.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::layout::{About, ClientWords, EngineWords, RegionHeader, VERSION};
use super::sync::Ordering;
use super::{RegionError, RingSizes};

/// Nobody may change the length (which is what could make the other side fault), nor lift this.
pub(crate) const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Bytes of a page of this machine.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// Makes a memory file of `len` zero bytes with a fixed length. It has no name in any file system; it is gone when the
/// last descriptor and mapping are. `extra` seals are added with the others, after `before_seal` ran.
pub(crate) fn create_file<T>(
    label: &str,
    len: usize,
    extra: SealFlags,
    before_seal: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
) -> io::Result<(T, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(label, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => rustix::fs::memfd_create(label, flags)?,
        other => other?,
    };
    rustix::fs::ftruncate(&fd, len as u64)?;
    let made = before_seal(fd.as_fd())?;
    // Two steps: F_SEAL_SEAL last, and an old kernel's refusal of an extra seal is told as such.
    rustix::fs::fcntl_add_seals(&fd, FIXED.difference(SealFlags::SEAL).union(extra))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SEAL)?;
    Ok((made, fd))
}

/// Refuses a descriptor that could shrink under our mapping, or is of another length than agreed.
pub(crate) fn check_file(fd: BorrowedFd<'_>, len: usize) -> Result<(), RegionError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| RegionError::NotSealed)?;
    if !seals.contains(FIXED) {
        return Err(RegionError::NotSealed);
    }
    let found = rustix::fs::fstat(fd).map_err(io::Error::from)?.st_size;
    match u64::try_from(found) {
        Ok(found) if found == len as u64 => Ok(()),
        found => Err(RegionError::WrongLength {
            expected: len as u64,
            found: found.unwrap_or(0),
        }),
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
// SAFETY: as above; `Mapping` itself has no method that touches the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes (a multiple of the page size) that nobody may touch yet.
    pub(crate) fn reserve(len: usize) -> io::Result<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no mapping is replaced.
        let base = unsafe {
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::empty(), flags)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    /// Maps `len` bytes of the file from `offset` on at byte `at` of the reservation. All in multiples of the page size.
    pub(crate) fn place(
        &mut self,
        at: usize,
        len: usize,
        fd: BorrowedFd<'_>,
        offset: usize,
        prot: ProtFlags,
    ) -> io::Result<()> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: at <= self.len, inside the reservation.
        let target = unsafe { self.base.add(at) };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range replaced lies inside our own reservation (checked above), to which no reference exists
        // while we are `&mut`.
        unsafe {
            rustix::mm::mmap(
                target.as_ptr().cast::<c_void>(),
                len,
                prot,
                flags,
                fd,
                offset as u64,
            )?
        };
        Ok(())
    }

    /// Takes a mapping over.
    ///
    /// # Safety
    /// It is mapped there, and nobody else unmaps it.
    pub(crate) unsafe fn own(base: *mut c_void, len: usize) -> io::Result<Mapping> {
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    /// First byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes reserved.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours since `reserve`; users hold pointers only as long as they hold the mapping.
        // It can fail only for a range that is not one.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// Words at the start of a shared page.
///
/// # Safety
/// The type is `repr(C)`, consists of atomics and padding (so that all bytes are valid at any time, and may be changed
/// by others at any time), begins with [`About`], is at most 4096 bytes long and aligned to at most 4096.
pub(crate) unsafe trait Words {
    /// The page's first line.
    fn about(&self) -> &About;
    /// What `about().magic` must be.
    const MAGIC: u64;
}

// SAFETY: see layout.rs, which asserts the sizes.
unsafe impl Words for RegionHeader {
    fn about(&self) -> &About {
        &self.about.0
    }
    const MAGIC: u64 = super::layout::REGION_MAGIC;
}
// SAFETY: as above.
unsafe impl Words for ClientWords {
    fn about(&self) -> &About {
        &self.about.0
    }
    const MAGIC: u64 = super::layout::CLIENT_MAGIC;
}
// SAFETY: as above.
unsafe impl Words for EngineWords {
    fn about(&self) -> &About {
        &self.about.0
    }
    const MAGIC: u64 = super::layout::ENGINE_MAGIC;
}

/// A mapping that begins with words.
#[derive(Debug)]
pub(crate) struct Mapped<W> {
    map: Mapping,
    words: PhantomData<W>,
}

impl<W: Words> Mapped<W> {
    /// # Safety
    /// At least the first page of `map` is mapped readable to a file that cannot shrink, and it is written through the
    /// result only if it is mapped writable.
    pub(crate) unsafe fn new(map: Mapping) -> Self {
        Mapped {
            map,
            words: PhantomData,
        }
    }

    /// First byte of the mapping.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.map.base()
    }

    /// Says what this is. Called by the creator before anybody else has the file.
    pub(crate) fn introduce(&self, sizes: RingSizes) {
        let about = self.about();
        about.version.store(VERSION, Ordering::Relaxed);
        about.tx.store(sizes.tx, Ordering::Relaxed);
        about.rx.store(sizes.rx, Ordering::Relaxed);
        about.magic.store(W::MAGIC, Ordering::Relaxed);
    }

    /// Checks what the creator said. No ordering needed: the descriptor came over a socket after it was written.
    pub(crate) fn check(&self, sizes: RingSizes) -> Result<(), RegionError> {
        let about = self.about();
        let same = about.magic.load(Ordering::Relaxed) == W::MAGIC
            && about.version.load(Ordering::Relaxed) == VERSION
            && about.tx.load(Ordering::Relaxed) == sizes.tx
            && about.rx.load(Ordering::Relaxed) == sizes.rx;
        if same {
            Ok(())
        } else {
            Err(RegionError::BadHeader)
        }
    }
}

impl<W: Words> Deref for Mapped<W> {
    type Target = W;
    #[inline]
    fn deref(&self) -> &W {
        // SAFETY: `new` was promised a mapped page there, `Words` that any bytes are a W; the mapping lives as long as
        // self.
        unsafe { self.map.base().cast::<W>().as_ref() }
    }
}

/// Maps one page.
pub(crate) fn map_page<W: Words>(fd: BorrowedFd<'_>, prot: ProtFlags) -> io::Result<Mapped<W>> {
    let mut map = Mapping::reserve(page_size())?;
    let len = map.len();
    map.place(0, len, fd, 0, prot)?;
    // SAFETY: the page was mapped just now; callers make or check the file with FIXED seals.
    Ok(unsafe { Mapped::new(map) })
}
