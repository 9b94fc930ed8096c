//! Items that wait until they can be sent, in order for each peer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::QueuedSend;
use crate::values::Rank;

#[derive(Debug)]
pub(super) struct SendQueue<I> {
    lists: Mutex<BTreeMap<Rank, VecDeque<I>>>,
    /// Items that wait or are being sent.
    count: AtomicUsize,
    /// Sum of their costs.
    bytes: AtomicUsize,
}

impl<I> Default for SendQueue<I> {
    fn default() -> SendQueue<I> {
        SendQueue {
            lists: Mutex::default(),
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl<I: QueuedSend> SendQueue<I> {
    fn lists(&self) -> MutexGuard<'_, BTreeMap<Rank, VecDeque<I>>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    pub(super) fn has(&self, peer: Rank) -> bool {
        self.lists().contains_key(&peer)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn push(&self, peer: Rank, item: I) {
        self.bytes.fetch_add(item.cost(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::SeqCst);
        self.lists().entry(peer).or_default().push_back(item);
    }

    /// Takes the first item of a peer. Afterwards it is [`finished`](SendQueue::finished) or
    /// [put back](SendQueue::put_back).
    pub(super) fn pop(&self, peer: Rank) -> Option<I> {
        let mut lists = self.lists();
        let list = lists.get_mut(&peer)?;
        let item = list.pop_front();
        if list.is_empty() {
            lists.remove(&peer);
        }
        item
    }

    /// Puts the rest of an item, which cost `before`, back at the front of its peer's list.
    pub(super) fn put_back(&self, peer: Rank, item: I, before: usize) {
        self.bytes.fetch_add(item.cost(), Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
        self.lists().entry(peer).or_default().push_front(item);
    }

    /// Removes an item that was taken, and cost this much, from the counts.
    pub(super) fn finished(&self, cost: usize) {
        self.bytes.fetch_sub(cost, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn peers(&self) -> Vec<Rank> {
        self.lists().keys().copied().collect()
    }

    pub(super) fn clear(&self, peer: Rank) -> VecDeque<I> {
        let list = self.lists().remove(&peer).unwrap_or_default();
        for item in &list {
            self.finished(item.cost());
        }
        list
    }
}
