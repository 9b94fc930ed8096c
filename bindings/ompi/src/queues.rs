//! What could not be sent at once: there was no room, no connection yet, or another thread had the transport.
//!
//! Short messages are always taken (Open MPI's own one-sided communication waits for ever if one is not), up to a bound for the whole
//! process; long ones stay where they are and are told when they have gone.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use btl::Rank;

/// One thing that waits.
#[derive(Debug)]
pub(crate) enum Item {
    /// A copy of a message; so many bytes of it are the header.
    Copy { bytes: Vec<u8>, header: usize },
    /// A descriptor of Open MPI's.
    Frag { frag: usize, tag: u8 },
    /// The rest of a put, from `at` on.
    Put {
        operation: u64,
        key: u64,
        remote: u64,
        local: usize,
        length: usize,
        at: usize,
    },
    /// The rest of what a peer gets from here, from `at` on.
    Reply {
        operation: u64,
        key: u64,
        address: u64,
        length: u64,
        at: u64,
    },
}

impl Item {
    /// Bytes that it takes and that are this component's to bound: a peer may ask and not take the answers.
    pub(crate) fn cost(&self) -> usize {
        match self {
            Item::Copy { bytes, .. } => bytes.len(),
            Item::Reply { .. } => size_of::<Item>(),
            Item::Frag { .. } | Item::Put { .. } => 0,
        }
    }
}

type Lists = HashMap<Rank, VecDeque<Item>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Queues {
    lists: Mutex<Option<Lists>>,
    /// Items that wait or are being sent.
    count: AtomicUsize,
    /// What they cost.
    bytes: AtomicUsize,
}

impl Queues {
    pub(crate) const fn new() -> Queues {
        Queues {
            lists: Mutex::new(None),
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lists>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Whether something waits for this peer.
    pub(crate) fn has(&self, peer: Rank) -> bool {
        self.lock()
            .as_ref()
            .is_some_and(|lists| lists.contains_key(&peer))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, peer: Rank, item: Item) {
        self.bytes.fetch_add(item.cost(), Ordering::Relaxed);
        self.lock()
            .get_or_insert_default()
            .entry(peer)
            .or_default()
            .push_back(item);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the first of a peer's; say afterwards whether it was [`sent`](Queues::sent) or put it [`back`](Queues::back).
    pub(crate) fn pop(&self, peer: Rank) -> Option<Item> {
        let mut lists = self.lock();
        let lists = lists.as_mut()?;
        let list = lists.get_mut(&peer)?;
        let item = list.pop_front();
        if list.is_empty() {
            lists.remove(&peer);
        }
        item
    }

    pub(crate) fn back(&self, peer: Rank, item: Item) {
        self.lock()
            .get_or_insert_default()
            .entry(peer)
            .or_default()
            .push_front(item);
    }

    /// Of this [`Item::cost`].
    pub(crate) fn sent(&self, cost: usize) {
        self.bytes.fetch_sub(cost, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Who is waited for.
    pub(crate) fn peers(&self) -> Vec<Rank> {
        self.lock()
            .as_ref()
            .map(|lists| lists.keys().copied().collect())
            .unwrap_or_default()
    }

    /// All of a peer's, which is gone.
    pub(crate) fn clear(&self, peer: Rank) -> VecDeque<Item> {
        let list = self
            .lock()
            .as_mut()
            .and_then(|lists| lists.remove(&peer))
            .unwrap_or_default();
        for item in &list {
            self.sent(item.cost());
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(length: usize) -> Item {
        Item::Copy {
            bytes: vec![0; length],
            header: 2,
        }
    }

    #[test]
    fn what_is_put_back_comes_first_again_and_the_sums_are_right() {
        let queues = Queues::new();
        assert!(queues.is_empty() && queues.pop(1).is_none());
        queues.push(1, copy(10));
        queues.push(1, copy(20));
        queues.push(2, Item::Frag { frag: 1, tag: 2 });
        assert!(queues.has(1) && queues.has(2) && queues.bytes() == 30);
        let first = queues.pop(1).unwrap();
        assert!(matches!(&first, Item::Copy { bytes, .. } if bytes.len() == 10));
        assert!(!queues.is_empty());
        queues.back(1, first);
        assert!(matches!(queues.pop(1), Some(Item::Copy { bytes, .. }) if bytes.len() == 10));
        queues.sent(10);
        assert_eq!(queues.bytes(), 20);
        let mut peers = queues.peers();
        peers.sort_unstable();
        assert_eq!(peers, [1, 2]);
        assert_eq!(
            (
                queues.clear(1).len(),
                queues.clear(2).len(),
                queues.clear(3).len()
            ),
            (1, 1, 0)
        );
        assert!(queues.is_empty() && queues.bytes() == 0);
    }

    #[test]
    fn answers_that_are_not_taken_are_counted() {
        let queues = Queues::new();
        queues.push(
            1,
            Item::Reply {
                operation: 1,
                key: 2,
                address: 3,
                length: 4,
                at: 0,
            },
        );
        assert!(queues.bytes() > 0);
        let item = queues.pop(1).unwrap();
        queues.sent(item.cost());
        assert!(queues.is_empty() && queues.bytes() == 0);
    }
}
