//! The ends of a region's rings held by this process, through any of its mappings.

use std::sync::Arc;

use shmem::sync::{AtomicU8, Ordering};

#[cfg(not(loom))]
use {
    std::collections::BTreeMap,
    std::io,
    std::os::fd::BorrowedFd,
    std::sync::{Mutex, PoisonError, Weak},
};

/// The four ends of a region's rings.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Role {
    TxProducer = 1,
    TxConsumer = 2,
    RxProducer = 4,
    RxConsumer = 8,
}

/// The roles held in this process on one memory file; all of its mappings share one value. Each
/// role exists at most once, because it owns the bytes that it reads or writes.
#[derive(Debug)]
pub(crate) struct Roles {
    held: AtomicU8,
    #[cfg(not(loom))]
    file: FileId,
}

/// Device and inode: equal for two descriptors of one file, while either is open or mapped.
#[cfg(not(loom))]
type FileId = (u64, u64);

/// The files with a [`Roles`] in this process.
#[cfg(not(loom))]
static FILES: Mutex<BTreeMap<FileId, Weak<Roles>>> = Mutex::new(BTreeMap::new());

impl Roles {
    /// Returns the one value of this memory file.
    #[cfg(not(loom))]
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Arc<Roles>> {
        let stat = rustix::fs::fstat(file)?;
        let file = (stat.st_dev, stat.st_ino);
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(roles) = files.get(&file).and_then(Weak::upgrade) {
            return Ok(roles);
        }
        let held = AtomicU8::new(0);
        let roles = Arc::new(Roles { held, file });
        files.insert(file, Arc::downgrade(&roles));
        Ok(roles)
    }

    /// Returns a value of its own for a model.
    #[cfg(loom)]
    pub(crate) fn model() -> Arc<Roles> {
        let held = AtomicU8::new(0);
        Arc::new(Roles { held })
    }

    /// Returns true if the process holds one of the program's two roles.
    #[cfg(not(loom))]
    pub(crate) fn has_program(&self) -> bool {
        let program = Role::TxProducer as u8 | Role::RxConsumer as u8;
        self.held.load(Ordering::Relaxed) & program != 0
    }

    /// Acquires a role.
    ///
    /// # Panics
    /// If the role is taken: a fault of the caller.
    pub(crate) fn acquire(&self, role: Role) {
        // SYNC POINT role
        let held = self.held.fetch_or(role as u8, Ordering::Acquire);
        assert!(held & role as u8 == 0, "a region has one {role:?}");
    }

    /// Releases a role.
    pub(crate) fn release(&self, role: Role) {
        // A model that has failed cannot take another step; its message would be lost.
        #[cfg(loom)]
        if std::thread::panicking() {
            return;
        }
        // SYNC POINT role: the next holder of the role finds the words as this one left them.
        self.held.fetch_and(!(role as u8), Ordering::Release);
    }
}

#[cfg(not(loom))]
impl Drop for Roles {
    fn drop(&mut self) {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have opened the file again since the last reference was dropped.
        if files
            .get(&self.file)
            .is_some_and(|weak| weak.strong_count() == 0)
        {
            files.remove(&self.file);
        }
    }
}
