//! Replay window (W-144).

/// Number of counters below the highest one that are still distinguished.
const WIDTH: u64 = 1024;
const WORDS: usize = (WIDTH / 64) as usize;

/// Counters of received packets: the highest one, and which of the preceding ones were received
/// (RFC 6479). A counter is accepted once.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// One above the highest counter.
    next: u64,
    /// Bit `counter % WIDTH` of each counter in `next - WIDTH .. next`.
    seen: [u64; WORDS],
}

impl Window {
    /// Returns a window in which all counters below `next` were received.
    pub(super) fn starting_at(next: u64) -> Window {
        Window {
            next,
            seen: [u64::MAX; WORDS],
        }
    }

    /// Returns true if the counter is above the highest one, or within the window and not received.
    pub(super) fn is_new(&self, counter: u64) -> bool {
        if counter >= self.next {
            return counter < u64::MAX;
        }
        self.next - counter <= WIDTH && self.word(counter) & bit(counter) == 0
    }

    /// Records a counter for which [`is_new`](Self::is_new) is true.
    pub(super) fn record(&mut self, counter: u64) {
        if counter >= self.next {
            let skipped = (counter - self.next).min(WIDTH);
            for older in counter - skipped..counter {
                self.set(older, false);
            }
            self.next = counter.saturating_add(1);
        }
        self.set(counter, true);
    }

    fn word(&self, counter: u64) -> u64 {
        self.seen.get(index(counter)).copied().unwrap_or(u64::MAX)
    }

    fn set(&mut self, counter: u64, received: bool) {
        if let Some(word) = self.seen.get_mut(index(counter)) {
            match received {
                true => *word |= bit(counter),
                false => *word &= !bit(counter),
            }
        }
    }
}

fn index(counter: u64) -> usize {
    (counter / 64) as usize % WORDS
}

fn bit(counter: u64) -> u64 {
    1 << (counter % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    #[test]
    fn a_counter_is_accepted_once() {
        let mut window = Window::default();
        for counter in [0, 5, 3, 1024, 2000, 977] {
            assert!(window.is_new(counter), "{counter}");
            window.record(counter);
            assert!(!window.is_new(counter), "{counter}");
        }
        assert!(!window.is_new(976), "older than the window");
        assert!(window.is_new(1999));
    }

    #[test]
    fn the_last_counter_is_never_accepted() {
        let mut window = Window::default();
        assert!(!window.is_new(u64::MAX));
        window.record(u64::MAX - 1);
        assert!(!window.is_new(u64::MAX - 1) && !window.is_new(u64::MAX));
    }

    #[test]
    fn a_window_may_start_late() {
        let mut window = Window::starting_at(7);
        assert!(!window.is_new(6) && window.is_new(7));
        window.record(9);
        assert!(window.is_new(7) && window.is_new(8) && !window.is_new(6));
    }

    proptest! {
        #[test]
        fn no_counter_twice_and_none_refused_that_is_recent(
            steps in proptest::collection::vec((0u64..40, 0u64..1100), 1..400),
        ) {
            let (mut window, mut seen, mut high) = (Window::default(), BTreeSet::new(), 0);
            for (ahead, behind) in steps {
                let counter = (high + ahead).saturating_sub(behind);
                let new = window.is_new(counter);
                let known = seen.contains(&counter) || counter + WIDTH <= high;
                prop_assert_eq!(new, !known);
                if new {
                    window.record(counter);
                    seen.insert(counter);
                    high = high.max(counter);
                }
            }
        }
    }
}
