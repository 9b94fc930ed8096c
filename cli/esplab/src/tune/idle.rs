//! What the daemon's idle strategy depends on: how long a wake-up takes.
//!
//! The rule is that of ski rental: to stay awake as long as a wake-up costs is never more than twice as bad as knowing
//! the future. Yielding is cheaper for others than spinning, so it may last several wake-ups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Wake-ups measured; the median counts.
const ROUNDS: usize = 2000;
/// Yields measured.
const YIELDS: u32 = 20_000;
/// Yielding lasts this many wake-ups.
const YIELD_WAKES: u32 = 4;
/// Below that many CPUs the engine never has one of its own beside the programs, so it does not spin.
const CPUS_FOR_SPINNING: usize = 4;

/// What was measured.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// CPUs this process may use.
    cpus: usize,
    /// From waking a sleeping thread until it runs, median.
    wake: Duration,
    /// A yield when nobody else wants the core, mean.
    yielding: Duration,
}

/// What follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen {
    spin: Duration,
    yield_for: Duration,
}

fn choose(measured: Measured) -> Chosen {
    let spin = if measured.cpus < CPUS_FOR_SPINNING {
        Duration::ZERO
    } else {
        measured.wake
    };
    let yield_for =
        (measured.wake * YIELD_WAKES).clamp(Duration::from_micros(10), Duration::from_micros(200));
    Chosen { spin, yield_for }
}

/// Two threads wake each other in turn; half a round trip is one wake-up.
fn measure_wake() -> Duration {
    let turn = Arc::new(AtomicU32::new(0));
    let main = thread::current();
    let seen = Arc::clone(&turn);
    let partner = thread::spawn(move || {
        for round in 0..ROUNDS as u32 {
            while seen.load(Ordering::Acquire) != 2 * round + 1 {
                thread::park();
            }
            seen.store(2 * round + 2, Ordering::Release);
            main.unpark();
        }
    });
    let mut samples = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS as u32 {
        let start = Instant::now();
        turn.store(2 * round + 1, Ordering::Release);
        partner.thread().unpark();
        while turn.load(Ordering::Acquire) != 2 * round + 2 {
            thread::park();
        }
        samples.push(start.elapsed() / 2);
    }
    // The partner has counted the last round, so it ends.
    let _ = partner.join();
    samples.sort_unstable();
    samples.get(ROUNDS / 2).copied().unwrap_or_default()
}

fn measure_yield() -> Duration {
    let start = Instant::now();
    for _ in 0..YIELDS {
        thread::yield_now();
    }
    start.elapsed() / YIELDS
}

fn text(measured: Measured, chosen: Chosen) -> String {
    let spinning = if chosen.spin.is_zero() {
        format!(
            "no spinning: with {} CPUs the engine has none of its own beside the programs",
            measured.cpus
        )
    } else {
        "spin as long as a wake-up takes".into()
    };
    format!(
        "# Written by `esplab tune`.\n\
         # Measured: {} CPUs; waking a sleeping thread {:.1} µs (median); a yield {:.2} µs.\n\
         # Chosen: {spinning}; yield as long as {YIELD_WAKES} wake-ups (10 to 200 µs).\n\
         [idle]\n\
         spin = \"{}ns\"\n\
         yield_for = \"{}ns\"\n",
        measured.cpus,
        measured.wake.as_nanos() as f64 / 1e3,
        measured.yielding.as_nanos() as f64 / 1e3,
        chosen.spin.as_nanos(),
        chosen.yield_for.as_nanos(),
    )
}

/// Measures, and gives the table `idle` of the daemon's configuration.
pub(super) fn tune() -> String {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let measured = Measured {
        cpus,
        wake: measure_wake(),
        yielding: measure_yield(),
    };
    text(measured, choose(measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cpus: usize, micros: u64) -> Measured {
        Measured {
            cpus,
            wake: Duration::from_micros(micros),
            yielding: Duration::from_nanos(300),
        }
    }

    #[test]
    fn few_cpus_do_not_spin_and_yielding_is_bounded() {
        assert_eq!(choose(measured(2, 10)).spin, Duration::ZERO);
        assert_eq!(choose(measured(8, 10)).spin, Duration::from_micros(10));
        assert_eq!(choose(measured(8, 10)).yield_for, Duration::from_micros(40));
        assert_eq!(
            choose(measured(8, 900)).yield_for,
            Duration::from_micros(200)
        );
        assert_eq!(choose(measured(8, 0)).yield_for, Duration::from_micros(10));
    }

    #[test]
    fn the_text_says_what_and_why() {
        let m = measured(2, 12);
        let text = text(m, choose(m));
        assert!(
            text.contains("spin = \"0ns\"") && text.contains("yield_for = \"48000ns\""),
            "{text}"
        );
        assert!(text.contains("12.0 µs"), "{text}");
    }
}
