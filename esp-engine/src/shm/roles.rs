//! The ends of regions' rings held by this process.

#[cfg(not(loom))]
use {
    std::collections::BTreeSet,
    std::io,
    std::os::fd::BorrowedFd,
    std::sync::{Mutex, PoisonError},
};

/// The four ends of a region's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    TxProducer,
    TxConsumer,
    RxProducer,
    RxConsumer,
}

/// Identifies a region's memory file, whatever its descriptors and mappings in this process. Each
/// role on it exists at most once, because it owns the bytes that it reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Roles {
    /// Device and inode, which no other file has while this one is open or mapped.
    #[cfg(not(loom))]
    file: (u64, u64),
}

/// The roles held in this process. The lock shows the next holder of a role the words as the last
/// one left them.
#[cfg(not(loom))]
static HELD: Mutex<BTreeSet<(Roles, Role)>> = Mutex::new(BTreeSet::new());

#[cfg(not(loom))]
impl Roles {
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Roles> {
        let stat = rustix::fs::fstat(file)?;
        let file = (stat.st_dev, stat.st_ino);
        Ok(Roles { file })
    }

    /// Returns true if the process holds one of the program's two roles.
    pub(crate) fn has_program(self) -> bool {
        self.has_any([Role::TxProducer, Role::RxConsumer])
    }

    /// Returns true if the process holds one of the engine's two roles.
    pub(crate) fn has_engine(self) -> bool {
        self.has_any([Role::TxConsumer, Role::RxProducer])
    }

    fn has_any(self, roles: [Role; 2]) -> bool {
        let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        roles.iter().any(|role| held.contains(&(self, *role)))
    }
}

/// A role that this process holds until it drops this, before its mapping of the region. A model
/// has each end once at a time.
#[derive(Debug)]
pub(crate) struct HeldRole {
    #[cfg(not(loom))]
    key: (Roles, Role),
}

impl Roles {
    /// Acquires a role.
    ///
    /// # Panics
    /// If the role is taken: a fault of the caller.
    #[cfg(not(loom))]
    #[allow(clippy::panic)] // not reachable by a program
    pub(crate) fn acquire(self, role: Role) -> HeldRole {
        self.try_acquire(role)
            .unwrap_or_else(|| panic!("a region has one {role:?}"))
    }

    /// Acquires a role of a region that a program brings; `None` if the role is taken. Another
    /// engine of this process may acquire it at this moment.
    #[cfg(not(loom))]
    pub(crate) fn try_acquire(self, role: Role) -> Option<HeldRole> {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self, role);
        held.insert(key).then(|| HeldRole { key })
    }

    #[cfg(loom)]
    pub(crate) fn acquire(self, _: Role) -> HeldRole {
        HeldRole {}
    }

    /// Acquires a role: a model drops the ends of one engine before it creates those of the next.
    #[cfg(loom)]
    pub(crate) fn try_acquire(self, _: Role) -> Option<HeldRole> {
        Some(HeldRole {})
    }
}

#[cfg(not(loom))]
impl Drop for HeldRole {
    fn drop(&mut self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.remove(&self.key);
    }
}
