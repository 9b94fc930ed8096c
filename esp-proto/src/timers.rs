//! Timers: a small table in each connection, and a heap with one entry for each connection.

use crate::time::Instant;
use alloc::vec::Vec;

macro_rules! timers {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Timers of a connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Timer {
            $($(#[$doc])* $name,)*
        }

        const ALL: [Timer; TIMER_COUNT] = [$(Timer::$name,)*];
        /// Number of timers of a connection.
        pub(crate) const TIMER_COUNT: usize = [$(Timer::$name,)*].len();
    };
}

timers! {
    /// Repeats SYN or SYN+ACK.
    Syn,
    /// Gives up opening.
    Connect,
    /// Retransmits everything outstanding.
    Retransmit,
    /// Sends the tail-loss probe after silence.
    TailProbe,
    /// Declares frames lost that were sent before an acknowledged one.
    Loss,
    /// Sends a delayed acknowledgement.
    Ack,
    /// Asks for credit again.
    Persist,
    /// Probes an idle peer.
    KeepAlive,
    /// Repeats the path probe.
    Path,
    /// Declares a peer that owes an answer dead.
    PeerDead,
    /// Asks for another path, or repeats GO.
    Move,
    /// Ends TIME-WAIT.
    TimeWait,
}

const UNSET: Instant = Instant::from_nanos(u64::MAX);

/// The deadlines of one connection.
#[derive(Clone, Debug)]
pub(crate) struct TimerTable([Instant; TIMER_COUNT]);

impl TimerTable {
    pub(crate) const fn new() -> Self {
        TimerTable([UNSET; TIMER_COUNT])
    }

    fn slot(&mut self, timer: Timer) -> Option<&mut Instant> {
        self.0.get_mut(timer as usize)
    }

    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        if let Some(slot) = self.slot(timer) {
            *slot = at;
        }
    }

    /// Sets the timer unless it is running.
    pub(crate) fn start(&mut self, timer: Timer, at: Instant) {
        if let Some(slot) = self.slot(timer).filter(|slot| **slot == UNSET) {
            *slot = at;
        }
    }

    /// Sets the expiry of a running timer to `at` if it is later than that. Returns whether it was.
    pub(crate) fn shorten(&mut self, timer: Timer, at: Instant) -> bool {
        let later = |slot: &&mut Instant| **slot != UNSET && **slot > at;
        match self.slot(timer).filter(later) {
            Some(slot) => {
                *slot = at;
                true
            }
            None => false,
        }
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        self.set(timer, UNSET);
    }

    pub(crate) fn stop_all(&mut self) {
        self.0 = [UNSET; TIMER_COUNT];
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.0.get(timer as usize).is_some_and(|at| *at != UNSET)
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.iter().copied().min().filter(|at| *at != UNSET)
    }

    /// Takes one timer that is due. For one instant, at most `TIMER_COUNT` calls return a timer.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let mut timers = ALL.into_iter().zip(&mut self.0);
        let (timer, at) = timers.find(|(_, at)| **at <= now && **at != UNSET)?;
        *at = UNSET;
        Some(timer)
    }
}

const NOT_QUEUED: u32 = u32::MAX;

/// Binary heap of connection slots by deadline, with at most one entry for each slot.
///
/// An entry may be earlier than the connection's actual deadline, but never later. Deadlines are
/// mostly postponed, and moving the entry each time would cost more than one early wake-up.
/// [`DeadlineHeap::defer`] corrects it.
#[derive(Debug, Default)]
pub(crate) struct DeadlineHeap {
    heap: Vec<(Instant, u32)>,
    /// Position of each slot in `heap`.
    position: Vec<u32>,
}

impl DeadlineHeap {
    pub(crate) fn peek(&self) -> Option<(Instant, u32)> {
        self.heap.first().copied()
    }

    fn position(&self, slot: u32) -> Option<usize> {
        self.position
            .get(slot as usize)
            .copied()
            .filter(|p| *p != NOT_QUEUED)
            .map(|p| p as usize)
    }

    /// Ensures that the slot's entry is not later than `at`.
    pub(crate) fn schedule(&mut self, slot: u32, at: Instant) {
        if let Some(index) = self.position(slot) {
            if let Some(entry) = self.heap.get_mut(index).filter(|entry| at < entry.0) {
                entry.0 = at;
                self.rise(index);
            }
            return;
        }
        if self.position.len() <= slot as usize {
            self.position.resize(slot as usize + 1, NOT_QUEUED);
        }
        self.heap.push((at, slot));
        let last = self.heap.len() - 1;
        self.note(last);
        self.rise(last);
    }

    /// Postpones the slot's entry to `at`.
    pub(crate) fn defer(&mut self, slot: u32, at: Instant) {
        if let Some(index) = self.position(slot) {
            if let Some(entry) = self.heap.get_mut(index) {
                entry.0 = at;
            }
            self.sink(index);
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(index) = self.position(slot) else {
            return;
        };
        self.heap.swap_remove(index);
        if let Some(p) = self.position.get_mut(slot as usize) {
            *p = NOT_QUEUED;
        }
        if index < self.heap.len() {
            self.note(index);
            self.rise(index);
            self.sink(index);
        }
    }

    fn key(&self, index: usize) -> Option<Instant> {
        self.heap.get(index).map(|entry| entry.0)
    }

    fn note(&mut self, index: usize) {
        if let Some(p) = self
            .heap
            .get(index)
            .map(|entry| entry.1 as usize)
            .and_then(|slot| self.position.get_mut(slot))
        {
            *p = index as u32; // as many entries as slots, which are u32
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note(a);
        self.note(b);
    }

    fn rise(&mut self, mut index: usize) {
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.key(parent) <= self.key(index) {
                return;
            }
            self.swap(parent, index);
            index = parent;
        }
    }

    fn sink(&mut self, mut index: usize) {
        loop {
            let (left, right) = (2 * index + 1, 2 * index + 2);
            let Some(left_key) = self.key(left) else {
                return;
            };
            let child = if self.key(right).is_some_and(|key| key < left_key) {
                right
            } else {
                left
            };
            if self.key(index) <= self.key(child) {
                return;
            }
            self.swap(index, child);
            index = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn table_gives_each_due_timer_once() {
        let mut table = TimerTable::new();
        assert_eq!(table.next(), None);
        table.set(Timer::Ack, at(5));
        table.start(Timer::Ack, at(3));
        table.start(Timer::Retransmit, at(7));
        assert_eq!(table.next(), Some(at(5)));
        assert_eq!(table.take_due(at(4)), None);
        assert_eq!(table.take_due(at(7)), Some(Timer::Retransmit));
        assert_eq!(table.take_due(at(7)), Some(Timer::Ack));
        assert_eq!(table.take_due(at(7)), None);
        assert!(!table.is_set(Timer::Ack));
    }

    #[test]
    fn only_a_running_timer_is_shortened_and_all_are_stopped() {
        let mut table = TimerTable::new();
        assert!(!table.shorten(Timer::Ack, at(5)));
        table.set(Timer::Ack, at(5));
        assert!(!table.shorten(Timer::Ack, at(5)) && !table.shorten(Timer::Ack, at(6)));
        assert!(table.shorten(Timer::Ack, at(4)));
        table.set(Timer::Path, at(9));
        assert_eq!(table.next(), Some(at(4)));
        table.stop_all();
        assert_eq!(table.next(), None);
    }

    proptest! {
        #[test]
        fn heap_is_a_priority_queue(
            ops in proptest::collection::vec((0u32..20, 0u64..100, 0u8..4), 0..200)
        ) {
            let mut heap = DeadlineHeap::default();
            let mut model = std::collections::BTreeMap::<u32, u64>::new();
            for (slot, time, op) in ops {
                match op {
                    0 | 1 => {
                        heap.schedule(slot, at(time));
                        let entry = model.entry(slot).or_insert(time);
                        *entry = (*entry).min(time);
                    }
                    2 => {
                        if let Some(entry) = model.get_mut(&slot) {
                            *entry += time;
                            heap.defer(slot, at(*entry));
                        }
                    }
                    _ => {
                        heap.remove(slot);
                        model.remove(&slot);
                    }
                }
                prop_assert_eq!(heap.heap.len(), model.len());
                prop_assert_eq!(heap.peek().map(|e| e.0), model.values().min().map(|t| at(*t)));
                if let Some((time, slot)) = heap.peek() {
                    prop_assert_eq!(model.get(&slot).map(|t| at(*t)), Some(time));
                }
            }
        }
    }
}
