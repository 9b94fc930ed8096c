//! Unexpected messages: those that arrived before their receive.

use super::lists::Lists;
use super::{CLASSES, class, key_in, key_of};
use crate::ids::{PeerId, Selector, TransportId};
use crate::slab::{Slab, place_of};

/// Key of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionKey {
    bytes: [u8; btl::MAX_KEY],
    length: u8,
}

impl RegionKey {
    pub(crate) const NONE: RegionKey = RegionKey {
        bytes: [0; btl::MAX_KEY],
        length: 0,
    };

    /// Copies a key; `None` if it is too long.
    pub(crate) fn of(key: &[u8]) -> Option<RegionKey> {
        let mut bytes = [0; btl::MAX_KEY];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(RegionKey {
            bytes,
            length: u8::try_from(key.len()).ok()?,
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Form in which a message arrived.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Eager. The sender of a synchronous message waits for FIN under this number.
    Eager { body: Vec<u8>, sync: Option<u64> },
    /// RTS: the sender's request, and the key to get the bytes by (may be empty) over `transport`.
    Rts {
        length: usize,
        remote: u64,
        key: RegionKey,
        transport: TransportId,
    },
    /// From the own rank: number of the send.
    Own { length: usize, send: u64 },
}

/// Unexpected message.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) context: u32,
    pub(crate) source: PeerId,
    pub(crate) tag: i32,
    pub(crate) arrival: Arrival,
    /// Cost that its sender is charged.
    pub(crate) cost: usize,
    /// Order of arrival.
    age: u64,
    /// Removed from the matching by a probe.
    pub(crate) taken: bool,
}

impl Arrived {
    pub(crate) fn length(&self) -> usize {
        match &self.arrival {
            Arrival::Eager { body, .. } => body.len(),
            Arrival::Rts { length, .. } | Arrival::Own { length, .. } => *length,
        }
    }
}

/// Capacity of the buffers that are used again, in bytes: what an envelope costs without its body.
const SHORT: usize = 256;
/// Maximum number of unused buffers that are kept.
const SPARE: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Unexpected {
    entries: Slab<Arrived>,
    /// One table for each class. The first is always there, the others from the first receive of
    /// their class on.
    tables: [Option<Lists>; CLASSES],
    next_age: u64,
    /// Messages that are not taken.
    count: usize,
    /// Buffers of short messages that are used again.
    spare: Vec<Vec<u8>>,
}

impl Unexpected {
    pub(crate) fn new() -> Unexpected {
        Unexpected {
            entries: Slab::with_capacity(64),
            tables: [Some(Lists::new()), None, None, None],
            next_age: 0,
            count: 0,
            spare: Vec::new(),
        }
    }

    /// Returns the number of messages to be matched.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns a copy of a body. That of a short message allocates nothing once enough have come.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        if bytes.is_empty() || bytes.len() > SHORT {
            return bytes.to_vec();
        }
        let spare = self.spare.pop();
        let mut buffer = spare.unwrap_or_else(|| Vec::with_capacity(SHORT));
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes back a buffer of [`copy`](Unexpected::copy).
    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() == SHORT && self.spare.len() < SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    pub(crate) fn add(
        &mut self,
        context: u32,
        source: PeerId,
        tag: i32,
        arrival: Arrival,
        cost: usize,
    ) -> u64 {
        let age = self.next_age;
        self.next_age += 1;
        let key = self.entries.insert(Arrived {
            context,
            source,
            tag,
            arrival,
            cost,
            age,
            taken: false,
        });
        for (class, table) in self.tables.iter_mut().enumerate() {
            if let Some(table) = table {
                table.push(key_in(class, context, source, tag), place_of(key));
            }
        }
        self.count += 1;
        key
    }

    /// Returns the oldest message that matches.
    #[inline]
    pub(crate) fn find(&mut self, selector: &Selector) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let class = class(selector);
        if self.tables[class].is_none() {
            self.fill_table(class);
        }
        let table = self.tables[class].as_ref()?;
        self.entries.key_at(table.front(key_of(selector))?)
    }

    #[cold]
    fn fill_table(&mut self, class: usize) {
        let mut keys = self.keys(|entry| !entry.taken);
        keys.sort_by_key(|key| self.entries[*key].age);
        let mut table = Lists::new();
        for key in keys {
            let entry = &self.entries[key];
            let place = key_in(class, entry.context, entry.source, entry.tag);
            table.push(place, place_of(key));
        }
        self.tables[class] = Some(table);
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Arrived> {
        self.entries.get(key)
    }

    /// Removes a message from the matching, but keeps it.
    pub(crate) fn take(&mut self, key: u64) {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| !entry.taken) else {
            return;
        };
        entry.taken = true;
        let (context, source, tag) = (entry.context, entry.source, entry.tag);
        for (class, table) in self.tables.iter_mut().enumerate() {
            if let Some(table) = table {
                table.remove(key_in(class, context, source, tag), place_of(key));
            }
        }
        self.count -= 1;
    }

    /// Removes a message.
    pub(crate) fn remove(&mut self, key: u64) -> Option<Arrived> {
        self.take(key);
        self.entries.remove(key)
    }

    /// Returns the messages for which `f` is true, including taken ones.
    pub(crate) fn keys(&self, f: impl Fn(&Arrived) -> bool) -> Vec<u64> {
        let keys = self.entries.keys();
        keys.filter(|key| f(&self.entries[*key])).collect()
    }
}
