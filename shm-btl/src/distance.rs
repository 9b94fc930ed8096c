//! Distance of a peer's core, measured by the time it takes to fetch a line that the peer has just
//! written.
//!
//! Cores that share a cache transfer a line in 20–60 ns, others in 80 ns or more. The topology does
//! not show which: processes move, and the processors of a virtual machine move as well. From a far
//! core it is several times slower to fetch modified lines out of the writer's cache than to read
//! memory, so long messages are then written past the caches
//! ([`Bytes::store_uncached`](shmem::Bytes::store_uncached)). Without that, two copies of 64 KiB
//! dropped from 60 to 16 Gbit/s whenever a virtual machine's two processors were far apart.

use std::time::{Duration, Instant};

use shmem::cache::wait_for_loads;

/// Maximum latency of a line from a near core. Measured: cores 80 to 105 ns apart are 1.7 times as
/// fast through the caches, cores 110 ns or more apart are twice as fast past them.
const NEAR: Duration = Duration::from_nanos(107);

/// One of this many lines is timed: reading the clock three times costs as much as copying 2 KiB.
const EVERY: u8 = 8;

/// The latest measurements of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Distance {
    /// One bit for each of the last eight timed lines: 1 if it was slow. Single lines are slow
    /// because of interrupts.
    slow: u8,
    /// Number of lines since the last timed one.
    passed: u8,
}

impl Distance {
    /// Returns the state of a far peer.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn far() -> Distance {
        Distance {
            slow: u8::MAX,
            passed: 0,
        }
    }

    /// Returns true if the next line should be timed.
    pub(crate) fn is_due(&mut self) -> bool {
        self.passed = (self.passed + 1) % EVERY;
        self.passed == 0
    }

    /// Times `fetch`, which fetches the peer's line and returns true if the line had changed, so
    /// that it came from the peer.
    pub(crate) fn time<E>(&mut self, fetch: impl FnOnce() -> Result<bool, E>) -> Result<(), E> {
        let empty = Instant::now();
        let begin = Instant::now();
        wait_for_loads();
        let fetched = fetch()?;
        let whole = begin.elapsed();
        if fetched {
            // Cost of reading the clock.
            self.note(whole.saturating_sub(begin - empty));
        }
        Ok(())
    }

    fn note(&mut self, took: Duration) {
        self.slow = self.slow << 1 | u8::from(took > NEAR);
    }

    /// Returns true if the peer is far away: most lines were slow.
    pub(crate) fn is_far(self) -> bool {
        self.slow.count_ones() > 4
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn after(nanos: &[u64]) -> Distance {
        let mut distance = Distance::default();
        nanos
            .iter()
            .for_each(|nanos| distance.note(Duration::from_nanos(*nanos)));
        distance
    }

    #[test]
    fn distance_follows_the_majority_of_lines() {
        assert!(!after(&[]).is_far(), "near until measured otherwise");
        assert!(!after(&[110; 4]).is_far());
        assert!(
            !after(&[105; 8]).is_far(),
            "not so far that its caches are slower than memory"
        );
        assert!(after(&[110; 5]).is_far());
        assert!(
            !after(&[35, 900, 35, 35, 35, 35, 2000, 35]).is_far(),
            "interrupts"
        );
        assert!(after(&[110, 110, 110, 110, 110, 110, 110, 30, 110]).is_far());
        let mut moved = [110; 14];
        moved[8..].fill(35);
        assert!(after(&moved[..10]).is_far(), "two lines are not enough");
        assert!(!after(&moved).is_far(), "the peer has moved");
    }

    #[test]
    fn one_in_eight_is_timed() {
        let mut distance = Distance::default();
        let due: Vec<bool> = (0..24).map(|_| distance.is_due()).collect();
        assert_eq!(
            due,
            [[false, false, false, false, false, false, false, true]; 3].concat()
        );
    }

    #[test]
    fn unchanged_lines_and_failures_do_not_count() {
        let mut distance = Distance::default();
        for _ in 0..8 {
            let slow = || {
                std::thread::sleep(Duration::from_micros(10));
                Ok::<_, ()>(false)
            };
            assert_eq!(distance.time(slow), Ok(()));
            assert_eq!(distance.time(|| Err(7)), Err(7));
        }
        assert!(!distance.is_far());
        for _ in 0..8 {
            let slow = || {
                std::thread::sleep(Duration::from_micros(10));
                Ok::<_, ()>(true)
            };
            assert_eq!(distance.time(slow), Ok(()));
        }
        assert!(distance.is_far());
    }
}
