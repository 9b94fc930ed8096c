//! Idle strategy: a waiting thread spins, then yields the CPU, then sleeps.

use std::time::{Duration, Instant};

use crate::config::Config;

/// Polls between two readings of the clock while spinning.
const CLOCK_EVERY: u32 = 64;
/// Polls between two readings of the clock while yielding.
const CLOCK_EVERY_YIELD: u32 = 8;
/// Time that a thread yields before it sleeps.
const YIELD: Duration = Duration::from_millis(1);

/// Action after a poll without events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Spin,
    Yield,
    Sleep,
}

/// Durations of spinning and yielding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strategy {
    spin: Duration,
    block: bool,
}

impl Strategy {
    /// Chooses by the configuration and the machine.
    pub(crate) fn new(config: &Config) -> Strategy {
        let cpus = config.cpus.unwrap_or_else(available_cpus).max(1);
        let oversubscribed = config.local_ranks.max(1) > cpus;
        let spin = config.spin.unwrap_or(if oversubscribed {
            Duration::ZERO
        } else {
            Duration::from_millis(1)
        });
        Strategy {
            spin,
            block: config.block,
        }
    }

    /// Returns the action after waiting for this time.
    fn after(&self, waited: Duration) -> Step {
        if waited < self.spin {
            Step::Spin
        } else if waited < self.spin.saturating_add(YIELD) || !self.block {
            Step::Yield
        } else {
            Step::Sleep
        }
    }
}

/// State of one wait.
#[derive(Debug)]
pub(crate) struct Idle {
    strategy: Strategy,
    polls: u32,
    since: Option<Instant>,
    step: Step,
}

impl Idle {
    #[inline]
    pub(crate) fn new(strategy: Strategy) -> Idle {
        let step = if strategy.spin.is_zero() {
            Step::Yield
        } else {
            Step::Spin
        };
        Idle {
            strategy,
            polls: 0,
            since: None,
            step,
        }
    }

    /// Starts again after an event.
    #[inline]
    pub(crate) fn reset(&mut self) {
        *self = Idle::new(self.strategy);
    }

    /// Returns the action after a poll without events.
    #[inline]
    pub(crate) fn step(&mut self) -> Step {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(CLOCK_EVERY)
            || (self.step == Step::Yield && self.polls.is_multiple_of(CLOCK_EVERY_YIELD))
        {
            self.read_clock();
        }
        self.step
    }

    #[cold]
    fn read_clock(&mut self) {
        let now = Instant::now();
        let waited = now.duration_since(*self.since.get_or_insert(now));
        self.step = self.strategy.after(waited);
    }
}

/// Returns the number of CPUs that this process may use at the same time, from its affinity mask
/// and the quota of its control group.
pub(crate) fn available_cpus() -> u32 {
    std::thread::available_parallelism()
        .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_then_yields_then_sleeps() {
        let ms = Duration::from_millis;
        let config = Config {
            cpus: Some(4),
            spin: Some(ms(5)),
            ..Config::default()
        };
        let steps = |config: &Config| {
            [0, 4, 5, 6, 1000].map(|waited| Strategy::new(config).after(ms(waited)))
        };
        let (spin, yields, sleep) = (Step::Spin, Step::Yield, Step::Sleep);
        assert_eq!(steps(&config), [spin, spin, yields, sleep, sleep]);
        let config = Config {
            block: false,
            ..config
        };
        assert_eq!(steps(&config), [spin, spin, yields, yields, yields]);
        let mut idle = Idle::new(Strategy::new(&Config {
            spin: Some(ms(0)),
            ..Config::default()
        }));
        assert_eq!(idle.step(), Step::Yield);
        std::thread::sleep(YIELD * 2);
        assert!((0..1000).any(|_| {
            std::thread::sleep(YIELD);
            idle.step() == Step::Sleep
        }));
        idle.reset();
        assert_eq!(idle.step(), Step::Yield);
    }

    #[test]
    fn does_not_spin_if_ranks_outnumber_cpus() {
        let config = Config {
            cpus: Some(2),
            local_ranks: 3,
            ..Config::default()
        };
        assert_eq!(Idle::new(Strategy::new(&config)).step(), Step::Yield);
        let config = Config {
            local_ranks: 2,
            ..config
        };
        assert_eq!(Idle::new(Strategy::new(&config)).step(), Step::Spin);
        assert!(available_cpus() >= 1);
    }
}
