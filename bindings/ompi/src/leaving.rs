//! Long messages that were taken and have not left yet: Open MPI is told when they have.
//!
//! Over a lease this process sends by itself, and only while it calls MPI. If a send were over as soon as its bytes are in the ring, a rank
//! would compute with up to a ring full of them unsent, and its peer wait as long. (A socket's buffer is emptied by the kernel.)

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use btl::Rank;
use btl_eth::Leaving;

/// A descriptor of Open MPI's, and the position in all that was sent to its peer behind which it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    peer: Rank,
    frag: usize,
    until: u64,
}

/// Those of an interface.
#[derive(Debug)]
pub(crate) struct Departures {
    /// In the order in which they were sent.
    list: Mutex<Vec<Held>>,
    count: AtomicUsize,
}

impl Departures {
    pub(crate) const fn new() -> Departures {
        Departures {
            list: Mutex::new(Vec::new()),
            count: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// A descriptor whose message was taken just now.
    pub(crate) fn push(&self, peer: Rank, frag: usize, until: u64) {
        let mut list = self.lock();
        list.push(Held { peer, frag, until });
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// Takes those that have left. `leaving` is asked for each that has not.
    pub(crate) fn gone(&self, mut leaving: impl FnMut(Rank) -> Option<Leaving>) -> Vec<usize> {
        let has_left =
            |held: &mut Held| leaving(held.peer).is_none_or(|leaving| leaving.left >= held.until);
        let mut list = self.lock();
        let gone = list
            .extract_if(.., has_left)
            .map(|held| held.frag)
            .collect();
        self.count.store(list.len(), Ordering::Relaxed);
        gone
    }

    /// All of a peer's, which is gone itself.
    pub(crate) fn clear(&self, peer: Rank) -> Vec<usize> {
        let mut list = self.lock();
        let frags = list
            .extract_if(.., |held| held.peer == peer)
            .map(|held| held.frag)
            .collect();
        self.count.store(list.len(), Ordering::Relaxed);
        frags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_when_its_last_byte_has_left() {
        let departures = Departures::new();
        assert!(departures.is_empty());
        for (peer, frag, until) in [(1, 10, 100), (2, 20, 50), (1, 11, 300)] {
            departures.push(peer, frag, until);
        }
        let at = |left| move |_| Some(Leaving { taken: 300, left });
        assert!(departures.gone(at(49)).is_empty());
        assert_eq!(departures.gone(at(100)), [10, 20]);
        assert!(!departures.is_empty());
        assert_eq!(
            departures.gone(|_| None),
            [11],
            "nothing of this peer's waits"
        );
        assert!(departures.is_empty());
    }

    #[test]
    fn a_lost_peer_takes_only_its_own_along() {
        let departures = Departures::new();
        departures.push(1, 10, 100);
        departures.push(2, 20, 100);
        assert_eq!(
            (departures.clear(1), departures.is_empty()),
            (vec![10], false)
        );
        assert_eq!(
            (departures.clear(2), departures.is_empty()),
            (vec![20], true)
        );
    }
}
