//! Posted receives, by the place of their request.

use super::lists::Lists;
use super::{CLASSES, class, key_in, key_of};
use crate::ids::{PeerId, Selector};

#[derive(Debug)]
pub(crate) struct Posted {
    tables: [Lists; CLASSES],
    /// Age by number, to compare between tables.
    ages: Vec<u64>,
    next_age: u64,
    count: usize,
}

impl Posted {
    pub(crate) fn new() -> Posted {
        Posted {
            tables: std::array::from_fn(|_| Lists::new()),
            ages: Vec::new(),
            next_age: 0,
            count: 0,
        }
    }

    /// Returns the number of receives.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn post(&mut self, number: u32, selector: &Selector) {
        if self.ages.len() <= number as usize {
            self.ages.resize(number as usize + 1, 0);
        }
        self.ages[number as usize] = self.next_age;
        self.next_age += 1;
        self.count += 1;
        self.tables[class(selector)].push(key_of(selector), number);
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: u32, selector: &Selector) {
        self.tables[class(selector)].remove(key_of(selector), number);
        self.count -= 1;
    }

    /// Returns the oldest receive that matches such a message.
    #[inline]
    pub(crate) fn find(&self, context: u32, source: PeerId, tag: i32) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let mut best = None;
        let mut age = u64::MAX;
        for (class, table) in self.tables.iter().enumerate() {
            if table.is_empty() {
                continue;
            }
            if let Some(number) = table.front(key_in(class, context, source, tag)) {
                let its = self.ages[number as usize];
                if its < age {
                    (best, age) = (Some(number), its);
                }
            }
        }
        best
    }
}
