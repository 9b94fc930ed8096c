//! The memory of one stream or datagram socket.

use std::sync::Arc;

use shmem::{RingBytes, Shared};

#[cfg(not(loom))]
use super::layout::REGION_MAGIC;
use super::layout::RegionHeader;
use super::roles::Roles;

use super::{RegionError, RingSizes};

#[cfg(not(loom))]
use {
    shmem::{Access, SharedFile, page_size},
    std::io,
    std::os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Minimum length of a ring in bytes, or the page size if that is larger.
pub const MIN_RING: u32 = 4096;
/// Type of the file system of memory files (TMPFS_MAGIC).
#[cfg(not(loom))]
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
/// Maximum length of a ring in bytes.
pub const MAX_RING: u32 = 64 << 20;

impl RingSizes {
    /// Checks that both sizes are powers of two within [`MIN_RING`] (and the page size) and
    /// [`MAX_RING`].
    ///
    /// # Errors
    /// [`RegionError::BadSizes`] otherwise.
    pub fn check(self) -> Result<(), RegionError> {
        #[cfg(not(loom))]
        let least = page_size().max(MIN_RING as usize);
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

/// Status words, TX ring and RX ring of one stream or datagram socket, mapped. `layout.rs` has a
/// drawing.
///
/// An idle region costs one page of memory for its header, 4 KiB, whatever its ring sizes: pages of
/// the rings come with their first use and stay. Page tables add about 2 KiB on each side (with
/// rings of 256 KiB). Each side has three mappings, of the 65530 that Linux allows a process by
/// default, over `page + 2 * (tx + rx)` bytes of address space.
///
/// Unmapped on drop. The file has no name, so its memory is freed when both sides have ended.
#[derive(Debug)]
pub struct Region {
    words: Shared<RegionHeader>,
    tx: RingBytes,
    rx: RingBytes,
    sizes: RingSizes,
    roles: Roles,
}

impl Region {
    /// Creates the memory, on the engine's side. The descriptor is for the program; it is
    /// close-on-exec.
    ///
    /// # Errors
    /// The sizes are out of range, or a system call failed.
    #[cfg(not(loom))]
    pub fn create(sizes: RingSizes) -> io::Result<(Arc<Region>, OwnedFd)> {
        sizes
            .check()
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let file = SharedFile::create("esp-region", file_len(sizes))?;
        let region = Region::map(&file, sizes)?;
        region.words.about.0.introduce(REGION_MAGIC, sizes);
        Ok((Arc::new(region), file.into_fd()))
    }

    /// Maps the memory, on the program's side. `fd` came over the control socket, and may be closed
    /// afterwards.
    ///
    /// # Errors
    /// The sizes are out of range or the file is another one, a system call failed, or this process
    /// has the program's ends already.
    #[cfg(not(loom))]
    pub fn open(fd: BorrowedFd<'_>, sizes: RingSizes) -> Result<Arc<Region>, RegionError> {
        sizes.check()?;
        let region = Region::map(&SharedFile::open(fd, file_len(sizes))?, sizes)?;
        region.words.about.0.check(REGION_MAGIC, sizes)?;
        if region.roles.has_program() {
            return Err(RegionError::InUse);
        }
        Ok(Arc::new(region))
    }

    /// Maps the memory that a program brings from an earlier engine, on the engine's side. Nothing
    /// in it is trusted: the file must be on tmpfs and sealed against resizing.
    ///
    /// # Errors
    /// As for [`Region::open`], if this process has the engine's ends already.
    #[cfg(not(loom))]
    pub fn adopt(fd: BorrowedFd<'_>, sizes: RingSizes) -> Result<Arc<Region>, RegionError> {
        sizes.check()?;
        // Memory of another kind (huge pages, secret memory) could fail at an access.
        if rustix::fs::fstatfs(fd).map_err(io::Error::from)?.f_type != TMPFS {
            return Err(RegionError::BadHeader);
        }
        let region = Region::map(&SharedFile::open(fd, file_len(sizes))?, sizes)?;
        region.words.about.0.check(REGION_MAGIC, sizes)?;
        if region.roles.has_engine() {
            return Err(RegionError::InUse);
        }
        Ok(Arc::new(region))
    }

    /// Maps each ring twice back to back, in three mappings of contiguous parts of the file: header
    /// and TX ring, TX ring and RX ring, RX ring.
    #[cfg(not(loom))]
    fn map<F: AsFd>(file: &SharedFile<F>, sizes: RingSizes) -> io::Result<Region> {
        let (page, tx, rx) = (page_size(), sizes.tx as usize, sizes.rx as usize);
        let parts = [(0, page + tx), (page, tx + rx), (page + tx, rx)];
        let map = file.map_parts(&parts, Access::Write)?;
        Ok(Region {
            words: Shared::new(&map, 0),
            tx: RingBytes::new(&map, page, tx),
            rx: RingBytes::new(&map, page + 2 * tx, rx),
            sizes,
            roles: Roles::of(file.as_fd())?,
        })
    }

    /// Returns both sides' memory for a model.
    #[cfg(loom)]
    pub(crate) fn model(tx: u32, rx: u32) -> Arc<Region> {
        Arc::new(Region {
            words: Arc::default(),
            tx: RingBytes::model(tx as usize),
            rx: RingBytes::model(rx as usize),
            sizes: RingSizes { tx, rx },
            roles: Roles {},
        })
    }

    /// Returns the bytes of the two rings.
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

    /// Returns the key of the roles that this process holds.
    pub(crate) fn roles(&self) -> Roles {
        self.roles
    }
}

/// Returns the bytes of a region's file.
#[cfg(not(loom))]
fn file_len(sizes: RingSizes) -> usize {
    page_size() + sizes.tx as usize + sizes.rx as usize
}
