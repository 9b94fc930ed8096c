//! Runs many seeds on all cores, and prints how to repeat one that failed.
//!
//! `ESP_SIM_SEED=N` runs exactly that seed, `ESP_SIM_SEEDS=N` runs N seeds from the given start (or
//! from `ESP_SIM_SEED`), and `ESP_SIM_TRACE=1` prints every frame.

use crate::scenario::Scenario;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A seed that violated a rule.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The violation.
    pub what: String,
}

/// Totals of a run over many seeds, to detect a run that tested nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Frames checked.
    pub frames: u64,
    /// Frames checked that were UDP datagrams.
    pub datagrams: u64,
    /// Connections opened.
    pub connections: u64,
    /// Packets retransmitted.
    pub retransmits: u64,
    /// Congestion marks reported by receivers and accepted by senders.
    pub marks: u64,
    /// Connections resumed after a loss of state.
    pub resumptions: u64,
    /// Moves to other interfaces.
    pub moves: u64,
    /// Protected packets taken.
    pub opened: u64,
    /// Packets dropped by their protection.
    pub refused: u64,
    /// Frames sent by the station that forges.
    pub forged: u64,
}

impl Summary {
    fn add(&mut self, one: &Summary) {
        self.seeds += one.seeds;
        self.frames += one.frames;
        self.datagrams += one.datagrams;
        self.connections += one.connections;
        self.retransmits += one.retransmits;
        self.marks += one.marks;
        self.resumptions += one.resumptions;
        self.moves += one.moves;
        self.opened += one.opened;
        self.refused += one.refused;
        self.forged += one.forged;
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = text
        .strip_prefix("0x")
        .map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(parsed.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Returns the seeds to run: those of the environment, or `count` seeds that start with `first`.
pub fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let chosen = number("ESP_SIM_SEED");
    let count = number("ESP_SIM_SEEDS").unwrap_or(if chosen.is_some() { 1 } else { count });
    let first = chosen.unwrap_or(first);
    first..first + count
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "panic".into())
}

/// Runs one seed.
pub fn run_one(seed: u64) -> Result<Summary, Failure> {
    let run = catch_unwind(AssertUnwindSafe(|| {
        let scenario = Scenario::new(seed);
        let world = scenario.run();
        let nodes = 0..world.net().len();
        let counters = nodes.map(|node| *world.endpoint(node).counters());
        counters.fold(
            Summary {
                seeds: 1,
                frames: world.checked(),
                datagrams: u64::from(scenario.carrier.is_udp()) * world.checked(),
                opened: world.opened(),
                refused: world.refused(),
                forged: world.forged(),
                ..Summary::default()
            },
            |sum, c| Summary {
                connections: sum.connections + c.connections_opened,
                retransmits: sum.retransmits + c.tx_retransmits,
                marks: sum.marks + c.rx_ecn_reported,
                resumptions: sum.resumptions + c.connections_resumed,
                moves: sum.moves + c.connections_moved,
                ..sum
            },
        )
    }));
    run.map_err(|panic| Failure {
        seed,
        what: text(panic.as_ref()),
    })
}

/// Runs all seeds; panics with the first that fails, and the command that repeats it.
///
/// `package_and_test` are the arguments of `cargo test` that run the caller again.
pub fn run_all(seeds: std::ops::Range<u64>, package_and_test: &str) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let result = Mutex::new((Summary::default(), Vec::<Failure>::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = run_one(seed);
                    let mut result = result.lock().expect("no thread panics with the lock");
                    match outcome {
                        Ok(one) => result.0.add(&one),
                        Err(failure) => {
                            result.1.push(failure);
                            next.store(seeds.end, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let (summary, mut failures) = result.into_inner().expect("no thread panics with the lock");
    failures.sort_by_key(|failure| failure.seed);
    if let Some(Failure { seed, what }) = failures.first() {
        panic!(
            "seed {seed} failed: {what}\nscenario: {:?}\nrepeat: ESP_SIM_SEED={seed} cargo test {package_and_test}\n\
             see every frame: ESP_SIM_TRACE=1 as well",
            Scenario::new(*seed)
        );
    }
    summary
}
