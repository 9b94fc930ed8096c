//! Lists by key: a hash table whose entries are the ends of linked lists. Adding, finding the
//! oldest number of a key, and removing take constant time. Does not allocate once grown.

use std::hash::{BuildHasher, RandomState};

const NIL: u32 = u32::MAX;

/// Key of a list. A field that is a wildcard in the table is 0 in all its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) context: u32,
    pub(crate) tag: u64,
    pub(crate) source: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: Key,
    /// `NIL`: the slot is empty.
    head: u32,
    tail: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

const EMPTY: Slot = Slot {
    key: Key {
        context: 0,
        tag: 0,
        source: 0,
    },
    head: NIL,
    tail: NIL,
};

/// Lists of numbers by key.
#[derive(Debug)]
pub(crate) struct Lists {
    /// Slots: a power of two, at most half in use, linear probing.
    slots: Vec<Slot>,
    used: usize,
    /// Links by number.
    links: Vec<Link>,
    /// Seed of the hash, unknown to peers, which therefore cannot force collisions.
    seed: u64,
}

impl Lists {
    pub(crate) fn new() -> Lists {
        Lists {
            slots: vec![EMPTY; 64],
            used: 0,
            links: Vec::new(),
            seed: RandomState::new().hash_one(0u8),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    #[inline]
    fn home(&self, key: Key) -> usize {
        let low = key.tag ^ self.seed;
        let places = u64::from(key.context) << 32 | u64::from(key.source);
        let high = places ^ 0x9E37_79B9_7F4A_7C15 ^ self.seed.rotate_left(32);
        let product = u128::from(low) * u128::from(high | 1);
        let folded = (product as u64 ^ (product >> 64) as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (folded >> 32) as usize & (self.slots.len() - 1)
    }

    /// Returns the slot of the key, or the empty slot for it.
    #[inline]
    fn find(&self, key: Key) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        loop {
            let slot = &self.slots[at];
            if slot.head == NIL || slot.key == key {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// Returns the oldest number with this key.
    #[inline]
    pub(crate) fn front(&self, key: Key) -> Option<u32> {
        let head = self.slots[self.find(key)].head;
        (head != NIL).then_some(head)
    }

    /// Adds a number that is in no list of this table.
    #[inline]
    pub(crate) fn push(&mut self, key: Key, number: u32) {
        if self.links.len() <= number as usize {
            self.links.resize(
                number as usize + 1,
                Link {
                    previous: NIL,
                    next: NIL,
                },
            );
        }
        let at = self.find(key);
        let slot = &mut self.slots[at];
        if slot.head == NIL {
            *slot = Slot {
                key,
                head: number,
                tail: number,
            };
            self.links[number as usize] = Link {
                previous: NIL,
                next: NIL,
            };
            self.used += 1;
            if self.used * 2 > self.slots.len() {
                self.grow();
            }
        } else {
            let tail = std::mem::replace(&mut slot.tail, number);
            self.links[tail as usize].next = number;
            self.links[number as usize] = Link {
                previous: tail,
                next: NIL,
            };
        }
    }

    /// Removes a number that is in the list of this key.
    #[inline]
    pub(crate) fn remove(&mut self, key: Key, number: u32) {
        let at = self.find(key);
        let Link { previous, next } = self.links[number as usize];
        if previous != NIL {
            self.links[previous as usize].next = next;
        }
        if next != NIL {
            self.links[next as usize].previous = previous;
        }
        let slot = &mut self.slots[at];
        if slot.head == number {
            slot.head = next;
        }
        if slot.tail == number {
            slot.tail = previous;
        }
        if slot.head == NIL {
            self.used -= 1;
            self.close_gap(at);
        }
    }

    /// Moves entries up that probing would not find beyond the empty slot.
    #[inline]
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.head == NIL {
                break;
            }
            let home = self.home(slot.key);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = EMPTY;
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![EMPTY; self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, larger);
        for slot in old.into_iter().filter(|slot| slot.head != NIL) {
            let at = self.find(slot.key);
            self.slots[at] = slot;
        }
    }
}
