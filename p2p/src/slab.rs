//! Slab with generations: slots are reused under a new key each time, so a stale key never matches
//! a newer value. Does not allocate once grown.

use std::ops::{Index, IndexMut};

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// Values by key: slot in the low half, generation in the high half. Key 0 is never used.
///
/// Look up untrusted keys by [`get`](Slab::get). Indexing is for keys whose value must exist, and
/// panics otherwise.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

/// Returns the slot of a key.
#[inline]
pub(crate) fn place_of(key: u64) -> u32 {
    key as u32
}

impl<T> Slab<T> {
    /// Creates a slab that does not allocate for this many values.
    pub(crate) fn with_capacity(capacity: usize) -> Slab<T> {
        Slab {
            places: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
        }
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                generation: 1,
                value: None,
            });
            // Four billion requests do not fit into memory.
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[at as usize];
        place.value = Some(value);
        u64::from(place.generation) << 32 | u64::from(at)
    }

    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        let place = self.places.get(place_of(key) as usize)?;
        let value = place.value.as_ref()?;
        (place.generation == (key >> 32) as u32).then_some(value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let place = self.places.get_mut(place_of(key) as usize)?;
        let value = place.value.as_mut()?;
        (place.generation == (key >> 32) as u32).then_some(value)
    }

    /// Returns the key of the value in a slot.
    #[inline]
    pub(crate) fn key_at(&self, at: u32) -> Option<u64> {
        let place = self.places.get(at as usize)?;
        place.value.as_ref()?;
        Some(u64::from(place.generation) << 32 | u64::from(at))
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        self.get(key)?;
        let place = &mut self.places[place_of(key) as usize];
        place.generation = place.generation.wrapping_add(1).max(1);
        self.free.push(place_of(key));
        place.value.take()
    }

    /// Iterates over the keys of all values.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.places.len() as u32).filter_map(|at| self.key_at(at))
    }
}

impl<T> Index<u64> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, key: u64) -> &T {
        match self.get(key) {
            Some(value) => value,
            None => no_value(key),
        }
    }
}

impl<T> IndexMut<u64> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, key: u64) -> &mut T {
        match self.get_mut(key) {
            Some(value) => value,
            None => no_value(key),
        }
    }
}

#[cold]
#[allow(clippy::panic, reason = "a mistake of this layer, not of its input")]
fn no_value(key: u64) -> ! {
    panic!("no value has the key {key:#x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_used_once() {
        let mut slab = Slab::with_capacity(1);
        let a = slab.insert('a');
        assert_ne!(a, 0);
        assert_eq!(slab.get(a), Some(&'a'));
        assert_eq!(slab.remove(a), Some('a'));
        let b = slab.insert('b');
        assert_eq!(place_of(a), place_of(b));
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab[b], 'b');
        assert_eq!(slab.remove(b), Some('b'));
        for key in [0, a, b, u64::MAX] {
            assert_eq!(slab.get(key), None);
        }
        let c = slab.insert('c');
        let d = slab.insert('d');
        assert_eq!(slab.keys().collect::<Vec<_>>(), [c, d]);
        assert_eq!(slab.len(), 2);
    }

    #[test]
    #[should_panic(expected = "no value has the key")]
    fn a_key_without_a_value_panics() {
        let _ = Slab::<u8>::with_capacity(1)[1];
    }
}
