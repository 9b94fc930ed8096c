//! The connections of an endpoint, by slot and by key.

use crate::addr::Port;
use crate::api::ConnId;
use crate::connection::{Connection, Key};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;
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
    /// Local port and slot of each connection.
    by_port: BTreeSet<(Port, u32)>,
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
            by_port: BTreeSet::new(),
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
        self.by_port.insert((conn.key.local_port, slot));
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
        self.by_port.remove(&(conn.key.local_port, slot));
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

    /// Returns the slots of the connections of a local port, at the cost of these alone.
    pub(super) fn of_port(&self, port: Port) -> impl Iterator<Item = u32> + '_ {
        let range = (port, 0)..=(port, u32::MAX);
        self.by_port.range(range).map(|(_, slot)| *slot)
    }

    /// Returns the connections in these slots.
    pub(super) fn range(&self, slots: Range<u32>) -> impl Iterator<Item = &Connection> {
        let end = (slots.end as usize).min(self.slots.len());
        let found = self.slots.get(slots.start as usize..end);
        let found = found.unwrap_or_default().iter();
        found.filter_map(|slot| slot.conn.as_deref())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|slot| slot.conn.as_deref())
    }

    /// Returns the highest slot ever used plus one.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::MacAddr;
    use crate::endpoint::Endpoint;
    use crate::{Buffers, ConnOptions, EndpointConfig, Instant};

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn open(endpoint: &mut Endpoint, port: Port, peer: u8) -> ConnId {
        let options = ConnOptions {
            buffers: Buffers {
                rx: 1 << 16,
                tx: 1 << 16,
            },
            key: Vec::new(),
        };
        let peer = MacAddr([2, 0, 0, 0, 0, peer]).into();
        let opened = endpoint.connect(Instant::ZERO, port, peer, 9, options);
        opened.expect("room")
    }

    #[test]
    fn a_port_names_its_connections_alone() {
        let config = EndpointConfig::default();
        let mut endpoint = Endpoint::new(config, OWN, 1500, [7; 32], 1);
        for port in 1..=500 {
            open(&mut endpoint, port, 2);
        }
        let second = open(&mut endpoint, 40, 3);
        let of = |endpoint: &Endpoint, port| endpoint.table.of_port(port).collect::<Vec<_>>();
        assert_eq!(of(&endpoint, 40), [39, second.slot]);
        assert_eq!(of(&endpoint, 501), []);
        endpoint.abort(
            Instant::ZERO,
            ConnId {
                slot: 39,
                generation: 0,
            },
            crate::ResetReason::Aborted,
        );
        assert_eq!(of(&endpoint, 40), [second.slot]);
        assert_eq!(endpoint.connections_in(38..41).count(), 2);
        assert_eq!(endpoint.connections_in(500..9999).count(), 1);
        assert_eq!(endpoint.connections_in(9000..9999).count(), 0);
    }
}
