//! Memory that the peers of endpoints may access.
//!
//! Endpoints share a registry. Every access is checked against it by the process that owns the
//! memory, which copies with the registry locked: when [`withdraw`](Regions::withdraw) returns,
//! nothing accesses the memory any more.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::atomics::{AtomicOp, AtomicType, MAX_SIZE, replacement};
use crate::memory::Memory;

/// Memory to be exposed.
#[derive(Clone, Copy, Debug)]
pub struct Exposure {
    /// Start of the memory.
    pub at: *mut u8,
    /// Length, in bytes.
    pub length: usize,
    /// Address that peers use for the first byte.
    pub address: u64,
    /// Peers may read it.
    pub readable: bool,
    /// Peers may write it.
    pub writable: bool,
}

/// Reason why a process refuses an access to its memory, which was not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The process has no region with this key.
    #[error("it has no region with this key")]
    UnknownKey,
    /// The region does not allow this access.
    #[error("the region does not allow this access")]
    NotAllowed,
    /// A part of the access is outside the region.
    #[error("a part of the access is outside the region")]
    Outside,
    /// The operation does not exist for these values.
    #[error("there is no such operation")]
    Unsupported,
}

impl Refusal {
    const ALL: [Refusal; 4] = [
        Refusal::UnknownKey,
        Refusal::NotAllowed,
        Refusal::Outside,
        Refusal::Unsupported,
    ];

    /// Returns the number on the wire.
    pub(crate) fn status(refusal: Option<Refusal>) -> u16 {
        refusal.map_or(0, |refusal| refusal as u16 + 1)
    }

    /// Returns the refusal for a number on the wire; `None` for 0; an error if the number is
    /// unknown.
    pub(crate) fn of_status(status: u16) -> Result<Option<Refusal>, u16> {
        match usize::from(status).checked_sub(1) {
            None => Ok(None),
            Some(place) => Refusal::ALL.get(place).copied().map(Some).ok_or(status),
        }
    }
}

/// Part of the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: u64,
    pub(crate) address: u64,
    pub(crate) length: usize,
}

/// Rights that an access needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Rights {
    pub(crate) const READ: Rights = Rights {
        read: true,
        write: false,
    };
    pub(crate) const WRITE: Rights = Rights {
        read: false,
        write: true,
    };
}

#[derive(Debug)]
struct Region {
    memory: Exposure,
    reported: bool,
}

// SAFETY: the promise of `expose` holds on every thread.
unsafe impl Send for Region {}
// SAFETY: as above; copies are made with the registry locked, see `Regions`.
unsafe impl Sync for Region {}

/// Registry of the memory that peers may access, by key.
///
/// Copies hold the lock for reading; atomic operations and changes of the registry for writing. So
/// atomic operations of all endpoints that share the registry exclude each other and every copy.
#[derive(Debug, Default)]
pub struct Regions(RwLock<HashMap<u64, Region>>);

impl Regions {
    /// Exposes memory. Returns false if the key is in use.
    ///
    /// # Safety
    /// Until [`withdraw`](Regions::withdraw) returns, the memory must be valid for the accesses
    /// that the rights allow, and the program must tolerate that other threads make them at any
    /// time.
    pub unsafe fn expose(&self, key: u64, memory: Exposure) -> bool {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                let reported = false;
                free.insert(Region { memory, reported });
                true
            }
        }
    }

    /// Takes memory back. Afterwards no peer accesses it.
    pub fn withdraw(&self, key: u64) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&key);
    }

    /// Requests a report of each access of a peer to this memory.
    pub fn report(&self, key: u64) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = all.get_mut(&key) {
            region.reported = true;
        }
    }

    fn read_lock(&self) -> RwLockReadGuard<'_, HashMap<u64, Region>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks an access. Returns true if it is to be reported.
    pub(crate) fn check(&self, place: &Place, rights: Rights) -> Result<bool, Refusal> {
        let all = self.read_lock();
        find(&all, place, rights)?;
        Ok(all.get(&place.key).is_some_and(|region| region.reported))
    }

    /// Checks a write to the whole place, and copies the bytes to an offset of it.
    pub(crate) fn write(&self, place: &Place, offset: usize, bytes: &[u8]) -> Result<(), Refusal> {
        let all = self.read_lock();
        let at = find(&all, place, Rights::WRITE)?;
        if offset > place.length || bytes.len() > place.length - offset {
            return Err(Refusal::Outside);
        }
        // SAFETY: the range was checked; it is valid while the registry is locked. The bytes are a
        // message of a peer, not memory of the program.
        unsafe { shmem::copy_bytes(bytes.as_ptr(), at.add(offset), bytes.len()) };
        Ok(())
    }

    /// Checks a read of the whole place, and copies the bytes at an offset of it.
    pub(crate) fn read(
        &self,
        place: &Place,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        let all = self.read_lock();
        let at = find(&all, place, Rights::READ)?;
        if offset > place.length || into.len() > place.length - offset {
            return Err(Refusal::Outside);
        }
        // SAFETY: as in `write`.
        unsafe { shmem::copy_bytes(at.add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies between a place of this process and memory of a request, of equal length.
    pub(crate) fn copy_own(&self, place: &Place, memory: Memory) -> Result<(), Refusal> {
        let all = self.read_lock();
        let reads = memory.is_writable();
        let rights = if reads { Rights::READ } else { Rights::WRITE };
        let at = find(&all, place, rights)?;
        if memory.len() != place.length {
            return Err(Refusal::Outside);
        }
        let local = memory.at(0);
        // SAFETY: the range was checked, and the memory is lent to the request. They may overlap.
        unsafe {
            if reads {
                local.copy_from(at, place.length);
            } else {
                at.copy_from(local, place.length);
            }
        }
        Ok(())
    }

    /// Applies an atomic operation to each value of a place, and appends the previous values to
    /// `before`. `operands` has as many bytes for each operand as the place.
    pub(crate) fn update(
        &self,
        place: &Place,
        (op, number, rights): (AtomicOp, AtomicType, Rights),
        operands: &[u8],
        before: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let size = number.size();
        if !number.supports(op)
            || !place.length.is_multiple_of(size)
            || operands.len() != place.length * op.operands()
        {
            return Err(Refusal::Unsupported);
        }
        // Locked for writing, because other endpoints may share the memory.
        let all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let at = find(&all, place, rights)?;
        let (first, second) = operands.split_at(place.length.min(operands.len()));
        let of = |operands: &[u8], offset: usize| {
            let mut value = [0; MAX_SIZE];
            if let Some(bytes) = operands.get(offset..offset + size) {
                value[..size].copy_from_slice(bytes);
            }
            value
        };
        for offset in (0..place.length).step_by(size) {
            let mut value = [0; MAX_SIZE];
            // SAFETY: the range was checked, and is valid while the registry is locked.
            unsafe { value.as_mut_ptr().copy_from(at.add(offset), size) };
            before.extend_from_slice(&value[..size]);
            let operands = [of(first, offset), of(second, offset)];
            // A value that stays is not written: the program may change it at the same time.
            if let Some(new) = replacement(op, number, value, operands) {
                // SAFETY: as above.
                unsafe { at.add(offset).copy_from(new.as_ptr(), size) };
            }
        }
        Ok(())
    }
}

/// Returns the start of a place that may be accessed.
fn find(all: &HashMap<u64, Region>, place: &Place, rights: Rights) -> Result<*mut u8, Refusal> {
    let region = all.get(&place.key).ok_or(Refusal::UnknownKey)?;
    let memory = &region.memory;
    if (rights.read && !memory.readable) || (rights.write && !memory.writable) {
        return Err(Refusal::NotAllowed);
    }
    let offset = place.address.checked_sub(memory.address);
    let offset = offset.and_then(|offset| usize::try_from(offset).ok());
    let offset = offset.filter(|offset| *offset <= memory.length);
    let offset = offset.ok_or(Refusal::Outside)?;
    if place.length > memory.length - offset {
        return Err(Refusal::Outside);
    }
    Ok(memory.at.wrapping_add(offset))
}

#[cfg(test)]
pub(crate) mod tests;
