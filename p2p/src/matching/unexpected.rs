//! Unexpected messages: those that arrived before their receive.

use super::lists::Lists;
use super::pool::Pool;
use super::{CLASSES, class, key_in, key_of};
use crate::envelope::Selector;
use crate::ids::{PeerId, TransportId};
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
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
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

#[derive(Debug)]
pub(crate) struct Unexpected {
    entries: Slab<Arrived>,
    /// One table for each class. The first is always filled, the others from the first receive of
    /// their class on.
    tables: [Lists; CLASSES],
    kept: [bool; CLASSES],
    next_age: u64,
    /// Messages that are not taken.
    count: usize,
    pub(crate) pool: Pool,
}

impl Unexpected {
    pub(crate) fn new() -> Unexpected {
        Unexpected {
            entries: Slab::with_capacity(64),
            tables: std::array::from_fn(|_| Lists::new()),
            kept: [true, false, false, false],
            next_age: 0,
            count: 0,
            pool: Pool::default(),
        }
    }

    /// Returns the number of messages to be matched.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
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
        for class in 0..CLASSES {
            if self.kept[class] {
                self.tables[class].push(key_in(class, context, source, tag), place_of(key));
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
        if !self.kept[class] {
            self.keep(class);
        }
        let place = self.tables[class].front(key_of(selector))?;
        self.entries.key_at(place)
    }

    #[cold]
    fn keep(&mut self, class: usize) {
        let mut keys: Vec<u64> = self.entries.keys().collect();
        keys.retain(|key| self.entries.get(*key).is_some_and(|entry| !entry.taken));
        keys.sort_by_key(|key| self.entries.get(*key).map(|entry| entry.age));
        for key in keys {
            if let Some(entry) = self.entries.get(key) {
                self.tables[class].push(
                    key_in(class, entry.context, entry.source, entry.tag),
                    place_of(key),
                );
            }
        }
        self.kept[class] = true;
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Arrived> {
        self.entries.get(key)
    }

    /// Removes a message from the matching, but keeps it.
    pub(crate) fn take(&mut self, key: u64) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if std::mem::replace(&mut entry.taken, true) {
            return;
        }
        let (context, source, tag) = (entry.context, entry.source, entry.tag);
        for class in 0..CLASSES {
            if self.kept[class] {
                self.tables[class].remove(key_in(class, context, source, tag), place_of(key));
            }
        }
        self.count -= 1;
    }

    /// Removes a message.
    pub(crate) fn remove(&mut self, key: u64) -> Option<Arrived> {
        self.take(key);
        self.entries.remove(key, 0)
    }

    /// Returns all messages of one sender, including taken ones.
    pub(crate) fn of(&self, source: PeerId) -> Vec<u64> {
        self.entries
            .keys()
            .filter(|key| {
                self.entries
                    .get(*key)
                    .is_some_and(|entry| entry.source == source)
            })
            .collect()
    }

    /// Returns all messages of a context that are not taken.
    pub(crate) fn in_context(&self, context: u32) -> Vec<u64> {
        let fits = |entry: &Arrived| entry.context == context && !entry.taken;
        self.entries
            .keys()
            .filter(|key| self.entries.get(*key).is_some_and(fits))
            .collect()
    }
}
