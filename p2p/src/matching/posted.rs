//! Posted receives, by the index of their request.

use super::lists::Lists;
use super::{Class, key_of};
use crate::ids::{PeerId, Selector};

#[derive(Debug)]
pub(crate) struct Posted {
    /// The classes needed so far. An empty table may be reused for another class.
    tables: Vec<(Class, Lists)>,
    /// Age by number, compared between tables.
    ages: Vec<u64>,
    next_age: u64,
    count: usize,
}

impl Posted {
    pub(crate) fn new() -> Posted {
        Posted {
            tables: vec![(Class::EXACT, Lists::new())],
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
        let place = self.place_for(Class::of(selector));
        self.tables[place].1.push(key_of(selector), number);
    }

    /// Returns the index of the table of a class, creating it if there is none.
    #[inline]
    fn place_for(&mut self, class: Class) -> usize {
        let found = self.tables.iter().position(|table| table.0 == class);
        found.unwrap_or_else(|| self.add_table(class))
    }

    #[cold]
    fn add_table(&mut self, class: Class) -> usize {
        let mut tables = self.tables.iter();
        if let Some(unused) = tables.position(|(_, lists)| lists.is_empty()) {
            self.tables[unused].0 = class;
            return unused;
        }
        self.tables.push((class, Lists::new()));
        self.tables.len() - 1
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: u32, selector: &Selector) {
        let place = self.place_for(Class::of(selector));
        self.tables[place].1.remove(key_of(selector), number);
        self.count -= 1;
    }

    /// Returns the oldest receive that matches a message.
    #[inline]
    pub(crate) fn find(&self, context: u32, source: PeerId, tag: u64) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let mut best = None;
        let mut age = u64::MAX;
        for (class, table) in &self.tables {
            if table.is_empty() {
                continue;
            }
            if let Some(number) = table.front(class.key(context, source, tag)) {
                let its = self.ages[number as usize];
                if its < age {
                    (best, age) = (Some(number), its);
                }
            }
        }
        best
    }
}
