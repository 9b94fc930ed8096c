//! Slab with generations: places are reused under a new key each time, so a stale key is never
//! taken for a newer one. Does not allocate once grown.

/// Reason why a key has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It never had one, or the place was reused.
    Unknown,
    /// The last value of the place was removed with this note.
    Noted(u8),
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    note: u8,
    value: Option<T>,
}

/// Values by key: place in the low half, generation in the high half. Key 0 is never used.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

/// Returns the place of a key.
#[inline]
pub(crate) fn place_of(key: u64) -> u32 {
    key as u32
}

impl<T> Slab<T> {
    /// Makes a slab with this many places.
    pub(crate) fn with_capacity(capacity: u32) -> Slab<T> {
        let places = (0..capacity)
            .map(|_| Place {
                generation: 1,
                note: 0,
                value: None,
            })
            .collect();
        Slab {
            places,
            free: (0..capacity).rev().collect(),
        }
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                // Places come from requests and bounded queues; four billion of them do not fit
                // into memory.
                let at = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
                self.places.push(Place {
                    generation: 1,
                    note: 0,
                    value: None,
                });
                at
            }
        };
        let place = &mut self.places[at as usize];
        place.value = Some(value);
        u64::from(place.generation) << 32 | u64::from(at)
    }

    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        let place = self.places.get(place_of(key) as usize)?;
        if place.generation == (key >> 32) as u32 {
            place.value.as_ref()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let place = self.places.get_mut(place_of(key) as usize)?;
        if place.generation == (key >> 32) as u32 {
            place.value.as_mut()
        } else {
            None
        }
    }

    /// Returns the key of the value in a place.
    #[inline]
    pub(crate) fn key_at(&self, at: u32) -> Option<u64> {
        let place = self.places.get(at as usize)?;
        place.value.as_ref()?;
        Some(u64::from(place.generation) << 32 | u64::from(at))
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: u64, note: u8) -> Option<T> {
        let at = place_of(key);
        let place = self.places.get_mut(at as usize)?;
        if place.generation != (key >> 32) as u32 {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1).max(1);
        place.note = note;
        self.free.push(at);
        Some(value)
    }

    /// Removes a value without returning it.
    #[inline]
    pub(crate) fn clear(&mut self, key: u64, note: u8) {
        let at = place_of(key);
        let Some(place) = self.places.get_mut(at as usize) else {
            return;
        };
        if place.generation == (key >> 32) as u32 && place.value.is_some() {
            place.value = None;
            place.generation = place.generation.wrapping_add(1).max(1);
            place.note = note;
            self.free.push(at);
        }
    }

    /// Returns why [`get`](Slab::get) finds no value.
    pub(crate) fn gone(&self, key: u64) -> Gone {
        let Some(place) = self.places.get(place_of(key) as usize) else {
            return Gone::Unknown;
        };
        let generation = (key >> 32) as u32;
        if generation != 0 && generation.wrapping_add(1).max(1) == place.generation {
            Gone::Noted(place.note)
        } else {
            Gone::Unknown
        }
    }

    /// Iterates over the keys of all values.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        (0u32..)
            .zip(&self.places)
            .filter(|(_, place)| place.value.is_some())
            .map(|(at, place)| u64::from(place.generation) << 32 | u64::from(at))
    }
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
        assert_eq!(slab.remove(a, 7), Some('a'));
        assert_eq!(slab.gone(a), Gone::Noted(7));
        let b = slab.insert('b');
        assert_eq!(place_of(a), place_of(b));
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.remove(a, 0), None);
        assert_eq!(slab.remove(b, 0), Some('b'));
        assert_eq!(slab.gone(a), Gone::Unknown);
        assert_eq!(slab.gone(0), Gone::Unknown);
        assert_eq!(slab.gone(u64::MAX), Gone::Unknown);
        let c = slab.insert('c');
        let d = slab.insert('d');
        assert_eq!(slab.keys().collect::<Vec<_>>(), [c, d]);
        assert_eq!(slab.len(), 2);
    }
}
