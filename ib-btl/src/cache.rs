//! The registration cache: memory stays registered after use (lazy memory engine of VIA-RPI,
//! section 3.2; pin-down cache of MPICH2 over VAPI, section III-H).
//!
//! *Tree.* Registrations that can be found are ordered by their start. None contains another, so
//! their ends are in the same order, and only the last one that starts at or before a range can
//! contain it. A new one replaces old ones that it contains; disjoint and overlapping ones coexist.
//!
//! *Use.* Each has a use count. Unused ones are also ordered by last use. When kept and new bytes
//! exceed the limit, or the system refuses, the least recently used ones end.
//!
//! *Validity.* Memory may be unmapped and mapped again while its registration is kept. [`Watch`]
//! detects that. A range that cannot be watched is registered for one use; without userfaultfd all
//! are.

use std::collections::{BTreeMap, HashMap};

use btl::RegisterError;

use crate::error::explain;
use crate::nic::{Nic, NicError, Registered};
use crate::raw::watch::{Moving, Watch};

/// Counters of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Registrations made with the device.
    pub registered: u64,
    /// Uses that found a registration.
    pub hits: u64,
    /// Registrations ended because their memory was unmapped.
    pub stale: u64,
    /// Registrations ended to make room.
    pub evicted: u64,
}

#[derive(Debug)]
struct Entry {
    start: usize,
    end: usize,
    nic: Registered,
    uses: u32,
    /// Key of the entry in `unused`.
    stamp: u64,
    /// The entry is in `tree`, so it can be found.
    findable: bool,
}

impl Entry {
    /// Returns the registration with its id in the cache.
    fn held(&self, id: u64) -> Registered {
        Registered { id, ..self.nic }
    }
}

#[derive(Debug)]
pub(crate) struct Cache {
    watch: Option<Watch>,
    limit: u64,
    entries: HashMap<u64, Entry>,
    tree: BTreeMap<usize, u64>,
    unused: BTreeMap<u64, u64>,
    /// Bytes of the registrations in `tree`.
    bytes: u64,
    clock: u64,
    stats: CacheStats,
}

impl Cache {
    /// Creates a cache of at most `limit` bytes; without `watch` it keeps nothing.
    pub(crate) fn new(watch: Option<Watch>, limit: u64) -> Cache {
        Cache {
            watch: watch.filter(|_| limit > 0),
            limit,
            entries: HashMap::new(),
            tree: BTreeMap::new(),
            unused: BTreeMap::new(),
            bytes: 0,
            clock: 0,
            stats: CacheStats::default(),
        }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        self.stats
    }

    pub(crate) fn keeps(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns a registration of `length` bytes (not 0) in use until [`Cache::release`]: a kept one
    /// or a new one.
    ///
    /// # Safety
    /// As for [`Nic::register`], until the release.
    #[allow(unsafe_code)] // The memory is the caller's, and only passed on.
    pub(crate) unsafe fn acquire(
        &mut self,
        nic: &mut dyn Nic,
        address: usize,
        length: usize,
    ) -> Result<Registered, RegisterError> {
        let (start, end) = pages(address, length).ok_or_else(|| {
            RegisterError::Refused("memory that ends after the last address".into())
        })?;
        let watched = self.watch.as_ref().map(|watch| watch.holds(start, end));
        let keep = match watched {
            None | Some(Err(Moving::Yes)) => false,
            Some(Ok(())) => {
                self.forget_gone(nic);
                if let Some(held) = self.find(start, end) {
                    self.stats.hits += 1;
                    return Ok(held);
                }
                true
            }
            Some(Err(Moving::No)) => {
                self.forget_gone(nic);
                self.forget_unwatched(nic, start, end);
                let watch = self.watch.as_ref();
                watch.is_some_and(|watch| watch.add(start, end).is_ok())
            }
        } && (end - start) as u64 <= self.limit;
        let (from, to) = if keep {
            self.evict(nic, (end - start) as u64);
            (start, end)
        } else {
            (address, address + length)
        };
        // SAFETY: guaranteed by the caller; a page is mapped if a byte of it is.
        let mut result = unsafe { nic.register(from, to - from, true) };
        // Unused registrations make room. Memory that cannot be registered at all evicts nothing.
        let full =
            |error: &NicError| [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC].contains(&error.errno);
        if result.as_ref().is_err_and(full) && !self.unused.is_empty() {
            self.evict(nic, u64::MAX);
            // SAFETY: as above.
            result = unsafe { nic.register(from, to - from, true) };
        }
        let made = result.map_err(|error| RegisterError::Refused(explain(&error)))?;
        self.stats.registered += 1;
        Ok(self.insert(nic, from, to, made, keep))
    }

    fn insert(
        &mut self,
        nic: &mut dyn Nic,
        start: usize,
        end: usize,
        made: Registered,
        keep: bool,
    ) -> Registered {
        self.clock += 1;
        let id = self.clock;
        if keep {
            // The new registration replaces those that it contains.
            let inside: Vec<u64> = self
                .tree
                .range(start..end)
                .map(|(_, id)| *id)
                .filter(|id| self.entries.get(id).is_some_and(|entry| entry.end <= end))
                .collect();
            inside.into_iter().for_each(|old| self.hide(nic, old));
            self.tree.insert(start, id);
            self.bytes += (end - start) as u64;
        }
        let entry = Entry {
            start,
            end,
            nic: made,
            uses: 1,
            stamp: 0,
            findable: keep,
        };
        let held = entry.held(id);
        self.entries.insert(id, entry);
        held
    }

    /// Ends a use.
    pub(crate) fn release(&mut self, nic: &mut dyn Nic, id: u64) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses > 0 {
            return;
        }
        if entry.findable {
            self.clock += 1;
            entry.stamp = self.clock;
            self.unused.insert(self.clock, id);
            self.evict(nic, 0);
        } else if let Some(entry) = self.entries.remove(&id) {
            nic.deregister(entry.nic.id);
        }
    }

    /// Drops the registrations whose memory was unmapped.
    pub(crate) fn forget_gone(&mut self, nic: &mut dyn Nic) {
        let mut gone = Vec::new();
        if let Some(watch) = &self.watch {
            watch.gone(|range| gone.push(range));
        }
        for (start, end) in gone {
            for id in self.overlapping(start, end) {
                self.stats.stale += 1;
                self.hide(nic, id);
            }
        }
    }

    /// Ends the registrations in a range that are no longer watched, before the range is watched
    /// again.
    fn forget_unwatched(&mut self, nic: &mut dyn Nic, start: usize, end: usize) {
        for id in self.overlapping(start, end) {
            let Some(entry) = self.entries.get(&id) else {
                continue;
            };
            let (from, to) = (entry.start.max(start), entry.end.min(end));
            let watch = self.watch.as_ref();
            if watch.is_none_or(|watch| watch.holds(from, to).is_err()) {
                self.stats.stale += 1;
                self.hide(nic, id);
            }
        }
    }

    /// Lists the registrations in the tree that overlap the range, from the last to the first.
    fn overlapping(&self, start: usize, end: usize) -> Vec<u64> {
        // Ends are in the order of starts, so the first that ends too early ends the search.
        let ends_after = |id: &u64| self.entries.get(id).is_some_and(|entry| entry.end > start);
        self.tree
            .range(..end)
            .rev()
            .map(|(_, id)| *id)
            .take_while(ends_after)
            .collect()
    }

    /// Returns the registration that contains the range, and counts one more use.
    fn find(&mut self, start: usize, end: usize) -> Option<Registered> {
        let (_, &id) = self.tree.range(..=start).next_back()?;
        let entry = self.entries.get_mut(&id).filter(|entry| entry.end >= end)?;
        if entry.uses == 0 {
            self.unused.remove(&entry.stamp);
        }
        entry.uses += 1;
        Some(entry.held(id))
    }

    /// Removes a registration from the tree. It ends with its last use.
    fn hide(&mut self, nic: &mut dyn Nic, id: u64) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.findable) else {
            return;
        };
        entry.findable = false;
        self.tree.remove(&entry.start);
        self.bytes -= (entry.end - entry.start) as u64;
        if entry.uses == 0 {
            self.unused.remove(&entry.stamp);
            nic.deregister(entry.nic.id);
            self.entries.remove(&id);
        }
    }

    /// Evicts unused registrations until there is room for `more` bytes or none remain.
    fn evict(&mut self, nic: &mut dyn Nic, more: u64) {
        while self.bytes.saturating_add(more) > self.limit {
            let Some((_, id)) = self.unused.pop_first() else {
                return;
            };
            self.stats.evicted += 1;
            self.hide(nic, id);
        }
    }
}

/// Returns the page range that contains a range; `None` if it exceeds the address space.
fn pages(address: usize, length: usize) -> Option<(usize, usize)> {
    let page = rustix::param::page_size();
    let end = address
        .checked_add(length)?
        .checked_next_multiple_of(page)?;
    Some((address / page * page, end))
}

#[cfg(test)]
mod tests;
