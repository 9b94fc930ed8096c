//! The event queue: a calendar queue, which takes and inserts in constant time.
//!
//! A wheel of buckets covers the next millisecond. Later events, which are timers and therefore
//! few, wait in a heap. A bucket is sorted when its time comes. Events of one instant keep the
//! order of their insertion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Binary logarithm of the nanoseconds of a bucket.
const WIDTH: u32 = 7;
/// Number of buckets.
const BUCKETS: u64 = 8192;

/// Queue of events, each a number, in the order of their times.
#[derive(Debug)]
pub struct Queue {
    wheel: Vec<Vec<(u64, u32)>>,
    /// Number of the bucket being taken, counted from time zero.
    turn: u64,
    /// The rest of that bucket, sorted so that the next event is the last entry.
    current: Vec<(u64, u32)>,
    /// Events later than the wheel covers: time, insertion number, event.
    far: BinaryHeap<Reverse<(u64, u64, u32)>>,
    inserted: u64,
    len: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            wheel: (0..BUCKETS).map(|_| Vec::new()).collect(),
            turn: 0,
            current: Vec::new(),
            far: BinaryHeap::new(),
            inserted: 0,
            len: 0,
        }
    }
}

impl Queue {
    /// Adds an event at a time in nanoseconds. A time that has passed counts as now.
    pub fn push(&mut self, at: u64, event: u32) {
        self.len += 1;
        let turn = at >> WIDTH;
        if turn <= self.turn {
            let place = self.current.partition_point(|(other, _)| *other > at);
            self.current.insert(place, (at, event));
        } else if turn < self.turn + BUCKETS {
            self.wheel[(turn % BUCKETS) as usize].push((at, event));
        } else {
            self.inserted += 1;
            self.far.push(Reverse((at, self.inserted, event)));
        }
    }

    /// Takes the next event and its time.
    pub fn pop(&mut self) -> Option<(u64, u32)> {
        while self.current.is_empty() {
            self.advance()?;
        }
        self.len -= 1;
        self.current.pop()
    }

    /// Returns the number of waiting events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true when no event waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Turns the wheel to the next bucket; `None` when no event waits.
    fn advance(&mut self) -> Option<()> {
        if self.len == 0 {
            return None;
        }
        // With an empty wheel the next event is the first of the heap.
        self.turn = match self.far.peek() {
            Some(Reverse((at, ..))) if self.far.len() == self.len => at >> WIDTH,
            _ => self.turn + 1,
        };
        while let Some(Reverse((at, _, event))) = self.far.peek().copied() {
            let turn = at >> WIDTH;
            if turn >= self.turn + BUCKETS {
                break;
            }
            self.far.pop();
            self.wheel[(turn % BUCKETS) as usize].push((at, event));
        }
        let bucket = &mut self.wheel[(self.turn % BUCKETS) as usize];
        std::mem::swap(&mut self.current, bucket);
        // Stable, and reversed twice: equal times keep their order.
        self.current.reverse();
        self.current.sort_by_key(|(at, _)| Reverse(*at));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esp_sim::rng::Rng;

    #[test]
    fn earlier_first_and_equal_ones_in_order_of_insertion() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 1), (3, 2), (5, 3), (3, 4), (4, 5), (900_000_000, 6)] {
            queue.push(at, event);
        }
        assert_eq!((queue.len(), queue.is_empty()), (6, false));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|e| e.1).collect();
        assert_eq!(order, [2, 4, 5, 1, 3, 6]);
        assert!(queue.is_empty());
    }

    #[test]
    fn agrees_with_a_sorted_list() {
        let mut rng = Rng::new(7);
        let mut queue = Queue::default();
        let mut list: Vec<(u64, u32)> = Vec::new();
        let mut now = 0;
        for number in 0..20_000 {
            let ahead = rng.magnitude(0, 10_000_000);
            // Times on a grid, so that many are equal.
            let at = now + ahead / 64 * 64;
            queue.push(at, number);
            list.push((at, number));
            if rng.chance(500_000) {
                let first = *list.iter().min().unwrap();
                list.retain(|entry| *entry != first);
                assert_eq!(queue.pop(), Some(first));
                now = first.0;
            }
        }
        list.sort_unstable();
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), list);
    }
}
