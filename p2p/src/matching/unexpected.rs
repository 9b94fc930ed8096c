//! Unexpected messages: those that arrived before their receive.

use super::lists::Lists;
use super::{Class, key_of};
use crate::ids::{Label, PeerId, Selector, TransportId};
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
    /// Eager. The sender of a synchronous message waits for FIN with this number.
    Eager { body: Vec<u8>, sync: Option<u64> },
    /// RTS: the sender's request, and the key for a `get` over `transport` (may be empty).
    Rts {
        length: usize,
        remote: u64,
        key: RegionKey,
        transport: TransportId,
    },
    /// From this rank itself: number of the send.
    Own { length: usize, send: u64 },
}

/// Unexpected message.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) context: u32,
    pub(crate) source: PeerId,
    pub(crate) tag: u64,
    data: Option<u64>,
    pub(crate) arrival: Arrival,
    /// Cost charged to the sender.
    pub(crate) cost: usize,
    /// Order of arrival.
    age: u64,
    /// Removed from the matching by a probe.
    pub(crate) taken: bool,
}

impl Arrived {
    pub(crate) fn label(&self) -> Label {
        Label {
            context: self.context,
            tag: self.tag,
            data: self.data,
        }
    }

    pub(crate) fn length(&self) -> usize {
        match &self.arrival {
            Arrival::Eager { body, .. } => body.len(),
            Arrival::Rts { length, .. } | Arrival::Own { length, .. } => *length,
        }
    }
}

/// Capacity of the buffers that are reused, in bytes: the cost of an envelope without its body.
const SHORT: usize = 256;
/// Maximum number of tables. Each costs every message an insertion.
const CLASSES: usize = 8;
/// Maximum number of unused buffers that are kept.
const SPARE: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Unexpected {
    entries: Slab<Arrived>,
    /// One table for each class for which a receive was posted, at most [`CLASSES`].
    tables: Vec<(Class, Lists)>,
    /// Index of the table that is replaced next when there are too many.
    replaced: usize,
    next_age: u64,
    /// Messages that are not taken.
    count: usize,
    /// Buffers of short messages, for reuse.
    spare: Vec<Vec<u8>>,
}

impl Unexpected {
    pub(crate) fn new() -> Unexpected {
        Unexpected {
            entries: Slab::with_capacity(64),
            tables: vec![(Class::EXACT, Lists::new())],
            replaced: 0,
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

    /// Returns a copy of a body. Copies of short messages do not allocate once enough have arrived.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        if bytes.is_empty() || bytes.len() > SHORT {
            return shmem::copy_to_vec(bytes);
        }
        let spare = self.spare.pop();
        let mut buffer = spare.unwrap_or_else(|| Vec::with_capacity(SHORT));
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Keeps a buffer of [`copy`](Unexpected::copy) for reuse.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() == SHORT && self.spare.len() < SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    pub(crate) fn add(
        &mut self,
        source: PeerId,
        label: Label,
        arrival: Arrival,
        cost: usize,
    ) -> u64 {
        let Label { context, tag, data } = label;
        let age = self.next_age;
        self.next_age += 1;
        let key = self.entries.insert(Arrived {
            context,
            source,
            tag,
            data,
            arrival,
            cost,
            age,
            taken: false,
        });
        for (class, table) in &mut self.tables {
            table.push(class.key(context, source, tag), place_of(key));
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
        let class = Class::of(selector);
        let place = self.tables.iter().position(|table| table.0 == class);
        let place = place.unwrap_or_else(|| self.fill_table(class));
        let table = &self.tables.get(place)?.1;
        self.entries.key_at(table.front(key_of(selector))?)
    }

    /// Creates the table of a class. Returns its index.
    #[cold]
    fn fill_table(&mut self, class: Class) -> usize {
        let mut keys = self.keys(|entry| !entry.taken);
        keys.sort_by_key(|key| self.entries[*key].age);
        let mut table = Lists::new();
        for key in keys {
            let entry = &self.entries[key];
            let place = class.key(entry.context, entry.source, entry.tag);
            table.push(place, place_of(key));
        }
        if self.tables.len() < CLASSES {
            self.tables.push((class, table));
            return self.tables.len() - 1;
        }
        let place = self.replaced;
        self.replaced = (place + 1) % CLASSES;
        self.tables[place] = (class, table);
        place
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
        for (class, table) in &mut self.tables {
            table.remove(class.key(context, source, tag), place_of(key));
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
