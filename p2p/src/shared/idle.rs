//! Steps of a wait without events: it spins, yields the CPU, then sleeps.

use std::time::{Duration, Instant};

use shmem::Yielder;

use crate::config::Config;

/// Time that a waiting thread spins, unless ranks outnumber CPUs or it is configured.
const SPIN: Duration = Duration::from_millis(1);

/// Time that it then yields the CPU before it sleeps.
const YIELD: Duration = Duration::from_millis(1);

/// Number of polls between two readings of the clock while it spins.
const CLOCK_EVERY: u32 = 64;

/// Action after a poll without events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Spin,
    Yield,
    Sleep,
}

/// State of one wait.
#[derive(Debug)]
pub(super) struct Idle<'a> {
    yielder: &'a Yielder,
    pub(super) spin: Duration,
    pub(super) polls: u32,
    pub(super) since: Option<Instant>,
    /// Last reading of the clock.
    last: Option<Instant>,
    pub(super) step: Step,
}

/// Returns the time for which waiting threads spin.
pub(super) fn spin_time(config: &Config) -> Duration {
    // Respects the affinity mask and the quota of the control group.
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = config.cpus.map_or_else(available, |cpus| cpus as usize);
    let outnumbered = config.local_ranks.max(1) as usize > cpus.max(1);
    let spin = if outnumbered { Duration::ZERO } else { SPIN };
    config.spin.unwrap_or(spin)
}

impl Idle<'_> {
    #[inline]
    pub(super) fn new(spin: Duration, yielder: &Yielder) -> Idle<'_> {
        Idle {
            yielder,
            spin,
            polls: 0,
            since: None,
            last: None,
            step: if spin.is_zero() {
                Step::Yield
            } else {
                Step::Spin
            },
        }
    }

    /// Returns the action after a poll without events.
    #[inline]
    pub(super) fn step(&mut self) -> Step {
        self.polls = self.polls.wrapping_add(1);
        if self.step != Step::Spin || self.polls.is_multiple_of(CLOCK_EVERY) {
            self.read_clock();
        }
        self.step
    }

    /// Returns the time from the first reading of the clock to the last.
    pub(super) fn waited(&self) -> Duration {
        let times = self.since.zip(self.last);
        times.map_or(Duration::ZERO, |(since, last)| {
            last.saturating_duration_since(since)
        })
    }

    #[cold]
    fn read_clock(&mut self) {
        let now = Instant::now();
        let waited = now.duration_since(*self.since.get_or_insert(now));
        if let Some(last) = self.last.replace(now)
            && self.step == Step::Spin
        {
            self.yielder.record(now.duration_since(last));
        }
        self.step = if self.yielder.is_contended() {
            Step::Sleep
        } else if waited < self.spin {
            Step::Spin
        } else if waited < self.spin.saturating_add(YIELD) {
            Step::Yield
        } else {
            Step::Sleep
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_then_yields_then_sleeps() {
        let yielder = Yielder::new();
        let after = |waited: Duration| {
            let mut idle = Idle::new(SPIN, &yielder);
            // This step reads the clock.
            idle.polls = CLOCK_EVERY - 1;
            idle.since = Instant::now().checked_sub(waited);
            idle.step()
        };
        assert_eq!(after(Duration::ZERO), Step::Spin);
        assert_eq!(after(SPIN), Step::Yield);
        assert_eq!(after(SPIN + YIELD), Step::Sleep);
        assert_eq!(Idle::new(Duration::ZERO, &yielder).step(), Step::Yield);
    }

    #[test]
    fn sleeps_at_once_on_a_contended_core() {
        let yielder = Yielder::new();
        yielder.record(Duration::from_secs(1));
        assert_eq!(Idle::new(Duration::ZERO, &yielder).step(), Step::Sleep);
        let mut idle = Idle::new(SPIN, &yielder);
        let steps = (0..=CLOCK_EVERY).map(|_| idle.step());
        assert_eq!(steps.last(), Some(Step::Sleep));
    }

    #[test]
    fn a_spinning_thread_without_its_core_notices_it() {
        let yielder = Yielder::new();
        let mut idle = Idle::new(SPIN, &yielder);
        for _ in 0..CLOCK_EVERY {
            idle.step();
        }
        assert!(!yielder.is_contended());
        idle.last = Instant::now().checked_sub(SPIN * 2);
        for _ in 0..CLOCK_EVERY {
            idle.step();
        }
        assert!(yielder.is_contended());
    }

    #[test]
    fn a_sleep_is_no_contention() {
        let yielder = Yielder::new();
        let mut idle = Idle::new(Duration::ZERO, &yielder);
        idle.since = Some(Instant::now() - Duration::from_secs(1));
        assert_eq!(idle.step(), Step::Sleep);
        idle.last = Instant::now().checked_sub(SPIN * 2);
        assert_eq!(idle.step(), Step::Sleep);
        assert!(!yielder.is_contended());
    }

    #[test]
    fn does_not_spin_if_ranks_outnumber_cpus() {
        let config = Config {
            cpus: Some(2),
            local_ranks: 3,
            ..Config::default()
        };
        assert_eq!(spin_time(&config), Duration::ZERO);
        let config = Config {
            local_ranks: 2,
            ..config
        };
        assert_eq!(spin_time(&config), SPIN);
    }
}
