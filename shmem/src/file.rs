//! Memory files: created with a fixed length, and refused when opened without it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::map::{Access, Mapping};

/// Seals by which no process can change the length, which could make the other side fault, or add
/// further seals.
const FIXED_LENGTH: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A memory file of fixed length. It has no name in any file system, and is freed with its last
/// descriptor and mapping.
#[derive(Debug)]
pub struct SharedFile<F = OwnedFd> {
    fd: F,
    len: usize,
}

/// A descriptor is not the memory file that was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The length is not sealed: the file's owner could make an access of this process fault.
    #[error("its length could change")]
    NotSealed,
    /// The file has another length than agreed.
    #[error("its length is {found} bytes instead of {expected}")]
    WrongLength {
        /// Bytes agreed on.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
}

impl SharedFile {
    /// Creates a file of `len` zero bytes. `label` is shown in `/proc`. The descriptor is
    /// close-on-exec.
    ///
    /// # Errors
    /// Errors of the system calls; a limit of file sizes below `len`.
    pub fn create(label: &str, len: usize) -> io::Result<SharedFile> {
        let file = SharedFile::unsealed(label, len)?;
        rustix::fs::fcntl_add_seals(&file.fd, FIXED_LENGTH)?;
        Ok(file)
    }

    /// Creates a file as [`SharedFile::create`] does, which can be written only through the
    /// returned mapping of all of it: the kernel refuses later writable mappings (Linux 5.1).
    ///
    /// # Errors
    /// As for [`SharedFile::create`].
    pub fn create_private(label: &str, len: usize) -> io::Result<(SharedFile, Arc<Mapping>)> {
        let file = SharedFile::unsealed(label, len)?;
        let map = file.map(0, len, Access::Write)?;
        // In two steps, because F_SEAL_SEAL has to be last.
        rustix::fs::fcntl_add_seals(&file.fd, SealFlags::FUTURE_WRITE)?;
        rustix::fs::fcntl_add_seals(&file.fd, FIXED_LENGTH)?;
        Ok((file, map))
    }

    fn unsealed(label: &str, len: usize) -> io::Result<SharedFile> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create(label, flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3.
            Err(Errno::INVAL) => rustix::fs::memfd_create(label, flags)?,
            other => other?,
        };
        // Beyond this limit the kernel sends a signal that ends the process.
        if getrlimit(Resource::Fsize)
            .current
            .is_some_and(|limit| limit < len as u64)
        {
            let what = "the limit of file sizes (ulimit -f) is too low";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        rustix::fs::ftruncate(&fd, len as u64)?;
        Ok(SharedFile { fd, len })
    }

    /// Returns the descriptor.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl<F: AsFd> SharedFile<F> {
    /// Checks that `fd` is a memory file of `len` bytes whose length cannot change.
    ///
    /// # Errors
    /// If it is not.
    pub fn open(fd: F, len: usize) -> Result<SharedFile<F>, FileError> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| FileError::NotSealed)?;
        if !seals.contains(FIXED_LENGTH) {
            return Err(FileError::NotSealed);
        }
        let found = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_size);
        match u64::try_from(found) {
            Ok(found) if found == len as u64 => Ok(SharedFile { fd, len }),
            found => Err(FileError::WrongLength {
                expected: len as u64,
                found: found.unwrap_or(0),
            }),
        }
    }

    /// Maps the `len` bytes at `offset`, which must be a multiple of the page size.
    ///
    /// # Errors
    /// A range outside of the file, or an error of the system.
    pub fn map(&self, offset: usize, len: usize, access: Access) -> io::Result<Arc<Mapping>> {
        self.map_parts(&[(offset, len)], access)
    }

    /// Maps several ranges of the file, each an offset and a length, contiguously. All lengths but
    /// the last must be multiples of the page size.
    ///
    /// # Errors
    /// As for [`SharedFile::map`].
    pub fn map_parts(&self, parts: &[(usize, usize)], access: Access) -> io::Result<Arc<Mapping>> {
        let inside = |(offset, len): &(usize, usize)| {
            offset.checked_add(*len).is_some_and(|end| end <= self.len)
        };
        if !parts.iter().all(inside) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: each range is inside of the file, whose length is sealed, or will be before
        // another process has the descriptor.
        unsafe { Mapping::of_file(self.fd.as_fd(), parts, access) }.map(Arc::new)
    }

    /// Returns the length of the file in bytes.
    #[allow(clippy::len_without_is_empty)] // a file of no bytes cannot be mapped
    pub fn len(&self) -> usize {
        self.len
    }
}

impl<F: AsFd> AsFd for SharedFile<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
