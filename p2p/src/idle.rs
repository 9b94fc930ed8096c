//! How a thread waits: it spins, then yields the CPU, then sleeps; and which CPUs there are.

use std::time::{Duration, Instant};

use crate::config::Config;

/// Turns between looks at the clock.
const LOOK: u32 = 64;

/// What to do after a turn in which nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Spin,
    Yield,
    Sleep,
}

/// How long each way of waiting is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strategy {
    spin: Duration,
    yields: Duration,
    block: bool,
}

impl Strategy {
    /// From the configuration and the machine.
    pub(crate) fn new(config: &Config) -> Strategy {
        let cpus = config.cpus.unwrap_or_else(available_cpus).max(1);
        let crowded = config.local_ranks.max(1) > cpus;
        let spin = config.spin.unwrap_or(if crowded {
            Duration::ZERO
        } else {
            Duration::from_millis(1)
        });
        Strategy {
            spin,
            yields: config.yields,
            block: config.block,
        }
    }

    /// What to do after waiting so long.
    fn after(&self, waited: Duration) -> Step {
        if waited < self.spin {
            Step::Spin
        } else if waited < self.spin.saturating_add(self.yields) || !self.block {
            Step::Yield
        } else {
            Step::Sleep
        }
    }
}

/// One wait.
#[derive(Debug)]
pub(crate) struct Idle {
    strategy: Strategy,
    turns: u32,
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
            turns: 0,
            since: None,
            step,
        }
    }

    /// Something happened: from the beginning.
    #[inline]
    pub(crate) fn reset(&mut self) {
        *self = Idle::new(self.strategy);
    }

    /// Nothing happened.
    #[inline]
    pub(crate) fn step(&mut self) -> Step {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LOOK)
            || (self.step == Step::Yield && self.turns.is_multiple_of(8))
        {
            self.look();
        }
        self.step
    }

    #[cold]
    fn look(&mut self) {
        let now = Instant::now();
        let waited = now.duration_since(*self.since.get_or_insert(now));
        self.step = self.strategy.after(waited);
    }
}

/// CPUs this process may use at the same time: its affinity mask, and the quota of its control group. The standard library reads both.
pub(crate) fn available_cpus() -> u32 {
    std::thread::available_parallelism()
        .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_then_yields_then_sleeps() {
        let ms = Duration::from_millis;
        let config = Config {
            cpus: Some(4),
            spin: Some(ms(5)),
            yields: ms(5),
            ..Config::default()
        };
        let steps = |config: &Config| {
            [0, 4, 5, 9, 10, 1000].map(|waited| Strategy::new(config).after(ms(waited)))
        };
        let (spin, yields, sleep) = (Step::Spin, Step::Yield, Step::Sleep);
        assert_eq!(steps(&config), [spin, spin, yields, yields, sleep, sleep]);
        let config = Config {
            block: false,
            ..config
        };
        assert_eq!(steps(&config), [spin, spin, yields, yields, yields, yields]);
        let mut idle = Idle::new(Strategy::new(&Config {
            spin: Some(ms(0)),
            yields: ms(0),
            ..Config::default()
        }));
        assert!(
            (0..1000).any(|_| idle.step() == Step::Sleep),
            "the clock is looked at"
        );
        idle.reset();
        assert_eq!(idle.step(), Step::Yield);
    }

    #[test]
    fn no_spinning_where_ranks_outnumber_cpus() {
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
