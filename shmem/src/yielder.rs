//! Yields that notice when another thread computes on this core.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Ordering};

/// Duration of a yield, or of a few empty polls, beyond which another thread must compute on this
/// core. Switching to a process that has nothing to do takes some microseconds; time slices are
/// milliseconds.
const LONG_YIELD: Duration = Duration::from_millis(1);
/// Time for which a core counts as contended after a long yield.
const CONTENDED_TIME: Duration = Duration::from_millis(100);

/// Yields the core on behalf of threads that wait by polling.
///
/// On a core without other runnable threads, a yield returns at once. If another thread computes on
/// the core, a yield gives up the rest of the time slice and returns after milliseconds, however
/// soon an event occurs. A thread should then sleep until the event wakes it, as a thread does that
/// blocks in the kernel.
///
/// The threads of a process share one value.
#[derive(Debug)]
pub struct Yielder {
    start: Instant,
    /// Nanoseconds after `start`.
    contended_until: AtomicU64,
}

impl Yielder {
    /// Creates a value for a core that is not contended.
    #[must_use]
    pub fn new() -> Yielder {
        Yielder {
            start: Instant::now(),
            contended_until: AtomicU64::new(0),
        }
    }

    /// Returns true if a yield, or empty polls, took long recently: sleep instead.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        let until = self.contended_until.load(Ordering::Relaxed);
        until != 0 && self.now() < until
    }

    /// Yields, and records whether the core is contended.
    pub fn yield_now(&self) {
        let before = Instant::now();
        std::thread::yield_now();
        self.record(before.elapsed());
    }

    /// Records the time that a few polls without events took: if it is long, this thread did not
    /// have the core for a part of it.
    pub fn record(&self, took: Duration) {
        if took > LONG_YIELD {
            let until = self.now().saturating_add(nanos(CONTENDED_TIME));
            self.contended_until.store(until, Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }
}

impl Default for Yielder {
    fn default() -> Self {
        Yielder::new()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_yield_shows_contention_for_a_while() {
        let yielder = Yielder::new();
        assert!(!yielder.is_contended());
        yielder.record(LONG_YIELD);
        assert!(!yielder.is_contended());
        yielder.record(LONG_YIELD + Duration::from_nanos(1));
        assert!(yielder.is_contended());
        yielder.contended_until.store(1, Ordering::Relaxed);
        assert!(!yielder.is_contended(), "the time has passed");
    }
}
