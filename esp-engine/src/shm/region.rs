//! The memory of one stream or datagram socket.

use std::sync::Arc;

use super::layout::RegionHeader;
#[cfg(not(loom))]
use super::map::{self, Mapped, Mapping};
use super::roles::Roles;
use super::sync::RingBytes;
use super::{RegionError, RingSizes};

#[cfg(not(loom))]
use {
    rustix::fs::SealFlags,
    rustix::mm::ProtFlags,
    std::io,
    std::os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Smallest ring, in bytes (the page size where that is larger).
pub const MIN_RING: u32 = 4096;
/// Largest ring, in bytes.
pub const MAX_RING: u32 = 64 << 20;

impl RingSizes {
    /// Both powers of two within [`MIN_RING`] (and the page size) and [`MAX_RING`]?
    pub fn check(self) -> Result<(), RegionError> {
        #[cfg(not(loom))]
        let least = map::page_size().max(MIN_RING as usize);
        #[cfg(loom)]
        let least = 1;
        let good = |n: u32| n.is_power_of_two() && n <= MAX_RING && n as usize >= least;
        if good(self.tx) && good(self.rx) {
            Ok(())
        } else {
            Err(RegionError::BadSizes(self))
        }
    }
}

/// Status words, TX ring and RX ring of one stream or datagram socket, mapped. `layout.rs` draws them.
///
/// An idle region costs one page of memory for its header, 4 KiB, whatever its ring sizes: pages of the rings come with
/// their first use and stay. Page tables add about 2 KiB on each side (with rings of 256 KiB). Each side has three
/// mappings, of the 65530 that Linux gives a process by default, over `page + 2 * (tx + rx)` bytes of address space.
///
/// Unmapped on drop. The file has no name, so nothing is left when both sides are gone, however they went.
#[derive(Debug)]
pub struct Region {
    #[cfg(not(loom))]
    words: Mapped<RegionHeader>,
    #[cfg(loom)]
    words: RegionHeader,
    tx: RingBytes,
    rx: RingBytes,
    sizes: RingSizes,
    roles: Arc<Roles>,
}

// SAFETY: the header consists of atomics. The ring bytes are reached only through the four role types: each exists at
// most once per memory file in this process (`Roles`), and touches only the range that the indices give to its side.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The engine's side: makes the memory. The descriptor is for the program; it is close-on-exec.
    #[cfg(not(loom))]
    pub fn create(sizes: RingSizes) -> io::Result<(Arc<Region>, OwnedFd)> {
        sizes
            .check()
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let ((), fd) =
            map::create_file(
                "esp-region",
                file_len(sizes),
                SealFlags::empty(),
                |_| Ok(()),
            )?;
        let region = Region::map(fd.as_fd(), sizes)?;
        region.words.introduce(sizes);
        Ok((Arc::new(region), fd))
    }

    /// The program's side: maps what came over the control socket. The descriptor may be closed afterwards.
    #[cfg(not(loom))]
    ///
    /// # Errors
    /// Sizes or a file that are not as agreed, what the system refused, or a file of which this
    /// process has the program's ends already.
    pub fn open(fd: BorrowedFd<'_>, sizes: RingSizes) -> Result<Arc<Region>, RegionError> {
        sizes.check()?;
        map::check_file(fd, file_len(sizes))?;
        let region = Region::map(fd, sizes)?;
        region.words.check(sizes)?;
        if region.roles.has_program() {
            return Err(RegionError::InUse);
        }
        Ok(Arc::new(region))
    }

    /// Header and TX ring, TX ring again and RX ring, RX ring again: each ring is there twice back to back, in three
    /// mappings, because the ones that lie together in the file need only one.
    #[cfg(not(loom))]
    fn map(fd: BorrowedFd<'_>, sizes: RingSizes) -> io::Result<Region> {
        let (page, tx, rx) = (map::page_size(), sizes.tx as usize, sizes.rx as usize);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let mut mapping = Mapping::reserve(page + 2 * tx + 2 * rx)?;
        mapping.place(0, page + tx, fd, 0, prot)?;
        mapping.place(page + tx, tx + rx, fd, page, prot)?;
        mapping.place(page + 2 * tx + rx, rx, fd, page + tx, prot)?;
        // SAFETY: all of the mapping is placed, readable and writable; the file cannot shrink (made by `create_file`
        // or checked by `check_file`).
        let words = unsafe { Mapped::<RegionHeader>::new(mapping) };
        // SAFETY: 2 * tx mapped bytes lie there, second half and first half of the same file range; `words`, which
        // owns the mapping, lives in the same struct as the RingBytes.
        let tx_bytes = unsafe { RingBytes::new(words.base().add(page), tx) };
        // SAFETY: as above, for rx.
        let rx_bytes = unsafe { RingBytes::new(words.base().add(page + 2 * tx), rx) };
        Ok(Region {
            words,
            tx: tx_bytes,
            rx: rx_bytes,
            sizes,
            roles: Roles::of(fd)?,
        })
    }

    /// Both sides' memory for a model.
    #[cfg(loom)]
    pub(crate) fn model(tx: u32, rx: u32) -> Arc<Region> {
        Arc::new(Region {
            words: RegionHeader::new(),
            tx: RingBytes::new(tx as usize),
            rx: RingBytes::new(rx as usize),
            sizes: RingSizes { tx, rx },
            roles: Roles::model(),
        })
    }

    /// Bytes of the two rings.
    pub fn sizes(&self) -> RingSizes {
        self.sizes
    }

    #[inline]
    pub(crate) fn words(&self) -> &RegionHeader {
        &self.words
    }

    #[inline]
    pub(crate) fn tx(&self) -> &RingBytes {
        &self.tx
    }

    #[inline]
    pub(crate) fn rx(&self) -> &RingBytes {
        &self.rx
    }

    /// The ends of the rings that this process holds.
    pub(crate) fn roles(&self) -> &Roles {
        &self.roles
    }
}

/// Bytes of a region's file.
#[cfg(not(loom))]
fn file_len(sizes: RingSizes) -> usize {
    map::page_size() + sizes.tx as usize + sizes.rx as usize
}
