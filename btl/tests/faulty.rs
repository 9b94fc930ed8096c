//! The conformance suite over the loopback transport with faults, and the faults that no conforming transport makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use btl::conformance::{Harness, Job, Options, threads};
use btl::faulty::{Faults, Faulty};
use btl::loopback::{self, Limits};

struct FaultyLoopback {
    name: String,
    limits: Limits,
    faults: Faults,
    /// A different one for each rank of each job.
    seed: AtomicU64,
}

impl Harness for FaultyLoopback {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn job(&self, size: u32) -> Result<Job, String> {
        let ranks = loopback::job(size, self.limits);
        let killer = ranks[0].killer();
        let mut job = Job::new(ranks.into_iter().map(|rank| {
            let seed = self.seed.fetch_add(1, Ordering::Relaxed);
            Faulty::new(Box::new(rank), seed, self.faults)
        }));
        job.kill = Some(Arc::new(move |rank| killer.kill(rank)));
        Ok(job)
    }

    fn options(&self) -> Options {
        Options { messages: 4000, rounds: 400, ..Options::default() }
    }
}

/// All limits, three seeds each.
fn conforms(sort: &str, limits: Limits) {
    for seed in [1, 1000, 77_777] {
        let name = format!("faulty loopback, {sort}, seed {seed}");
        let seed = AtomicU64::new(seed);
        threads(&FaultyLoopback { name, limits, faults: Faults::allowed(), seed }).verdict().unwrap();
    }
}

#[test]
fn with_room() {
    conforms("with room", Limits::default());
}

#[test]
fn tight() {
    conforms("tight", Limits::tight());
}

#[test]
fn done_becomes_pending() {
    conforms("one-sided at once", Limits { pending: false, ..Limits::default() });
}

/// Only here are messages held back at the receiver.
#[test]
fn messages_only() {
    conforms("messages only", Limits::default().plain());
}
