//! A queue that serves owners in turn, so that the entries of one do not wait for all those of
//! another.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A queue whose entries have owners. Owners with entries have turns, in a circle; the entries of
/// one are served in order. A step costs the same for any number of entries and owners.
#[derive(Debug)]
pub struct TurnQueue<T> {
    /// The entries, by owner.
    queues: Vec<VecDeque<T>>,
    /// The owners with entries. It is the first one's turn.
    turns: VecDeque<usize>,
}

impl<T> Default for TurnQueue<T> {
    fn default() -> Self {
        TurnQueue {
            queues: Vec::new(),
            turns: VecDeque::new(),
        }
    }
}

impl<T> TurnQueue<T> {
    /// Appends an entry to those of its owner. Numbers of owners should be dense.
    pub fn push(&mut self, owner: u32, entry: T) {
        let owner = owner as usize;
        if self.queues.len() <= owner {
            self.queues.resize_with(owner + 1, VecDeque::new);
        }
        if let Some(queue) = self.queues.get_mut(owner) {
            if queue.is_empty() {
                self.turns.push_back(owner);
            }
            queue.push_back(entry);
        }
    }

    fn current(&mut self) -> Option<&mut VecDeque<T>> {
        self.queues.get_mut(*self.turns.front()?)
    }

    /// Returns the first entry of the owner whose turn it is.
    pub fn front(&mut self) -> Option<&T> {
        self.current()?.front()
    }

    /// Removes that entry. The owner keeps its turn while it has more entries. Returns the entry,
    /// and true if the turn has ended.
    pub fn pop(&mut self) -> Option<(T, bool)> {
        let queue = self.current()?;
        let entry = queue.pop_front()?;
        let ended = queue.is_empty();
        if ended {
            self.turns.pop_front();
        }
        Some((entry, ended))
    }

    /// Moves the first entry to the end of its owner's entries. Returns false if there is no other
    /// one.
    pub fn rotate(&mut self) -> bool {
        match self.current() {
            Some(queue) if queue.len() > 1 => {
                queue.rotate_left(1);
                true
            }
            _ => false,
        }
    }

    /// Ends the turn of the owner that has it. Returns false if no other owner has entries.
    pub fn pass(&mut self) -> bool {
        let others = self.turns.len() > 1;
        if others {
            self.turns.rotate_left(1);
        }
        others
    }

    /// Returns the number of owners with entries.
    pub fn owners(&self) -> usize {
        self.turns.len()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_served_in_turn() {
        let mut queue = TurnQueue::default();
        for entry in 0..100 {
            queue.push(3, entry);
        }
        queue.push(0, 1000);
        queue.push(9, 2000);
        assert_eq!((queue.owners(), queue.front()), (3, Some(&0)));
        let mut served = Vec::new();
        for _ in 0..5 {
            let Some((entry, ended)) = queue.pop() else {
                break;
            };
            served.push(entry);
            if !ended {
                queue.pass();
            }
        }
        assert_eq!(served, [0, 1000, 2000, 1, 2]);
    }

    #[test]
    fn entries_of_an_owner_keep_their_order_or_are_rotated() {
        let mut queue = TurnQueue::default();
        queue.push(1, 0);
        assert!(!queue.is_empty() && !queue.rotate());
        (1..3).for_each(|entry| queue.push(1, entry));
        assert!(queue.rotate() && !queue.pass());
        let served: Vec<_> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(served, [(1, false), (2, false), (0, true)]);
        assert!(queue.is_empty() && queue.front().is_none());
        assert!(!queue.rotate() && !queue.pass());
    }
}
