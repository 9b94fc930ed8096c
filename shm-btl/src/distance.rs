//! How far away a peer's core is: what a line takes that the peer has just written.
//!
//! Cores that share a cache hand a line over in 20–60 ns, others take 80 ns and more. Topology does not tell: processes move, and a virtual
//! machine's processors move under them. From a far core it is several times slower to fetch dirty lines out of the writer's cache
//! than to read memory, so what is long is then better written past the caches ([`Bytes::store_uncached`](shmem::Bytes::store_uncached)).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use shmem::cache::{memory_latency, wait_for_loads};

/// A line that takes no longer has not come from far. (A machine on which it takes 80 to 105, and memory 140, is 1.7 times as fast through the
/// caches, one on which it takes 110 and more twice as fast past them: docs/performance.md.)
const NEAR: Duration = Duration::from_nanos(100);

/// Nor has one that takes no longer than this part of what memory takes: 4 of 5.
const OF_MEMORY: (u32, u32) = (4, 5);

/// A line that takes longer has come from a core that had better not be asked for many.
fn bound() -> Duration {
    static BOUND: OnceLock<Duration> = OnceLock::new();
    *BOUND.get_or_init(|| bound_for(memory_latency()))
}

fn bound_for(memory: Option<Duration>) -> Duration {
    memory.map_or(NEAR, |memory| NEAR.max(memory * OF_MEMORY.0 / OF_MEMORY.1))
}

/// One line in so many is timed: reading the clock three times is as much as copying 2 KiB.
const EVERY: u8 = 8;

/// What the last looks have shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Distance {
    /// One bit for each of the last eight lines: was it slow? Single ones are, by an interrupt.
    slow: u8,
    far: bool,
    /// Since one was timed.
    passed: u8,
}

impl Distance {
    /// What a peer has shown that is far away.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn far() -> Distance {
        Distance {
            slow: u8::MAX,
            far: true,
            passed: 0,
        }
    }

    /// Is the next one to be timed?
    pub(crate) fn is_due(&mut self) -> bool {
        self.passed = (self.passed + 1) % EVERY;
        self.passed == 0
    }

    /// Does something that fetches the peer's line (true: the line had changed, so it came from there), and notes how long it takes.
    pub(crate) fn watch<E>(&mut self, fetch: impl FnOnce() -> Result<bool, E>) -> Result<(), E> {
        let empty = Instant::now();
        let begin = Instant::now();
        wait_for_loads();
        let fetched = fetch()?;
        let whole = begin.elapsed();
        if fetched {
            // What reading the clock takes.
            self.note(whole.saturating_sub(begin - empty), bound());
        }
        Ok(())
    }

    fn note(&mut self, took: Duration, bound: Duration) {
        self.slow = self.slow << 1 | u8::from(took > bound);
        self.far = match self.slow.count_ones() {
            0..=2 => false,
            6.. => true,
            _ => self.far,
        };
    }

    /// Is the peer far away, as far as is known?
    pub(crate) fn is_far(self) -> bool {
        self.far
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn after(nanos: &[u64]) -> Distance {
        let mut distance = Distance::default();
        nanos
            .iter()
            .for_each(|nanos| distance.note(Duration::from_nanos(*nanos), NEAR));
        distance
    }

    #[test]
    fn slow_memory_makes_cores_nearer() {
        let bound = |nanos| bound_for(Some(Duration::from_nanos(nanos))).as_nanos();
        assert_eq!(
            [bound(0), bound(90), bound(125), bound(140)],
            [100, 100, 100, 112]
        );
        assert_eq!(bound_for(None), NEAR);
        assert_eq!(memory_latency().is_some(), cfg!(target_arch = "x86_64"));
    }

    #[test]
    fn lines_tell_how_far_and_single_ones_change_nothing() {
        assert!(!after(&[]).is_far(), "near until shown otherwise");
        assert!(!after(&[110; 5]).is_far());
        assert!(
            !after(&[95; 8]).is_far(),
            "not so far that its caches are slower than memory"
        );
        assert!(after(&[110; 6]).is_far());
        assert!(
            !after(&[35, 900, 35, 35, 35, 35, 2000, 35]).is_far(),
            "interrupts"
        );
        assert!(after(&[110, 110, 110, 110, 110, 110, 110, 30, 110]).is_far());
        let mut moved = [110; 14];
        moved[8..].fill(35);
        assert!(after(&moved[..10]).is_far(), "two are not enough");
        assert!(!after(&moved).is_far(), "it has moved");
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
    fn what_was_not_fetched_and_failures_count_for_nothing() {
        let mut distance = Distance::default();
        for _ in 0..8 {
            let slow = || {
                std::thread::sleep(Duration::from_micros(10));
                Ok::<_, ()>(false)
            };
            assert_eq!(distance.watch(slow), Ok(()));
            assert_eq!(distance.watch(|| Err(7)), Err(7));
        }
        assert!(!distance.is_far());
        for _ in 0..8 {
            let slow = || {
                std::thread::sleep(Duration::from_micros(10));
                Ok::<_, ()>(true)
            };
            assert_eq!(distance.watch(slow), Ok(()));
        }
        assert!(distance.is_far());
    }
}
