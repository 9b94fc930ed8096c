//! The event queue, ordered by (time, insertion number): equal instants keep the order of
//! insertion.

use esp_proto::Instant;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    number: u64,
    item: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<T> Eq for Entry<T> {}
impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Entry<T> {
    /// Reversed: the standard heap returns its greatest item first, we need the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Queue of events in time order.
#[derive(Debug)]
pub struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    inserted: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue {
            heap: BinaryHeap::new(),
            inserted: 0,
        }
    }
}

impl<T> Queue<T> {
    /// Adds an item.
    pub fn push(&mut self, at: Instant, item: T) {
        self.heap.push(Entry {
            at,
            number: self.inserted,
            item,
        });
        self.inserted += 1;
    }

    /// Returns the time of the next item.
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Takes the next item.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        self.heap.pop().map(|entry| (entry.at, entry.item))
    }

    /// Returns the number of waiting items.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns true when no item waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_first_and_equal_ones_in_order_of_insertion() {
        let mut queue = Queue::default();
        for (at, item) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (4, 'e')] {
            queue.push(Instant::from_nanos(at), item);
        }
        assert_eq!(
            (queue.len(), queue.next_at()),
            (5, Some(Instant::from_nanos(3)))
        );
        let order: String = std::iter::from_fn(|| queue.pop())
            .map(|(_, item)| item)
            .collect();
        assert_eq!(order, "bdeac");
        assert!(queue.is_empty());
    }
}
