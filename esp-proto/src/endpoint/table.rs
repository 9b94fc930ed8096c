//! The connections of an endpoint, by slot and by key.

use crate::api::ConnId;
use crate::connection::{Connection, Key};
use alloc::boxed::Box;
use alloc::vec::Vec;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    conn: Option<Box<Connection>>,
}

/// Connection table. Slots are dense and reused; each use has a new generation, so an id is never
/// reused.
///
/// A slot goes through *free* → *occupied* (`insert`) → *vacated* (`remove`) → *free* (`release`).
/// A vacated slot is not reused before the host has been informed that the connection has ended.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_key: HashMap<Key, u32, FixedState>,
    /// Connections that may move to another endpoint, by their own nonce.
    by_nonce: HashMap<u64, u32, FixedState>,
    limit: usize,
}

impl Table {
    pub(super) fn new(limit: usize, hasher: FixedState) -> Self {
        let limit = limit.min(u32::MAX as usize - 1);
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::with_hasher(hasher.clone()),
            by_nonce: HashMap::with_hasher(hasher),
            limit,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.limit
    }

    pub(super) fn find(&self, key: &Key) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// Returns the id of the next inserted connection; `None` when the table is full.
    pub(super) fn next_id(&self) -> Option<ConnId> {
        if self.is_full() {
            return None;
        }
        let slot = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(slot as usize).map_or(0, |s| s.generation);
        Some(ConnId { slot, generation })
    }

    /// Inserts a connection with the id of `next_id`.
    pub(super) fn insert(&mut self, conn: Box<Connection>) {
        let slot = conn.id.slot;
        if self.free.last() == Some(&slot) {
            self.free.pop();
        } else if slot as usize == self.slots.len() {
            self.slots.push(Slot::default());
        }
        self.by_key.insert(conn.key, slot);
        if let Some(nonce) = conn.moving_nonce() {
            self.by_nonce.insert(nonce, slot);
        }
        if let Some(place) = self.slots.get_mut(slot as usize) {
            place.conn = Some(conn);
        }
    }

    /// Removes a connection. Its id becomes invalid, but its slot is not free yet.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Box<Connection>> {
        let place = self.slots.get_mut(slot as usize)?;
        let conn = place.conn.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.by_key.remove(&conn.key);
        if self.by_nonce.get(&conn.nonce) == Some(&slot) {
            self.by_nonce.remove(&conn.nonce);
        }
        Some(conn)
    }

    /// Frees a vacated slot.
    pub(super) fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(super) fn at(&self, slot: u32) -> Option<&Connection> {
        self.slots.get(slot as usize)?.conn.as_deref()
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.conn.as_deref_mut()
    }

    pub(super) fn get(&self, id: ConnId) -> Option<&Connection> {
        self.at(id.slot).filter(|conn| conn.id == id)
    }

    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.at_mut(id.slot).filter(|conn| conn.id == id)
    }

    /// Returns the connection that may move and has this nonce.
    pub(super) fn find_nonce(&self, nonce: u64) -> Option<&Connection> {
        self.at(*self.by_nonce.get(&nonce)?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|slot| slot.conn.as_deref())
    }

    /// Returns the highest slot ever used plus one.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }
}
