//! The conformance suite: every transport instantiates it, and it tests every promise of the
//! [`contract`](btl::contract).
//!
//! # Shape
//! A [`Case`] is a function that every rank of a job executes, each with its own [`Run`]: the
//! transport, an event log that checks the invariants (exactly one completion, no message after a
//! failure, …), and a way to meet the other ranks without the transport. The ranks are threads
//! ([`threads()`]) or processes ([`processes()`]).
//!
//! # A transport whose ranks can be threads of one process
//! ```
//! use std::sync::Arc;
//! use btl_conformance::suite::{Harness, Job, threads};
//! use btl_conformance::loopback::{self, Limits};
//!
//! struct Loopback;
//!
//! impl Harness for Loopback {
//!     fn name(&self) -> String {
//!         "loopback".into()
//!     }
//!     fn job(&self, size: u32) -> Result<Job, String> {
//!         let ranks = loopback::job(size, Limits::default());
//!         let killer = ranks[0].killer();
//!         let mut job = Job::new(ranks);
//!         job.kill = Some(Arc::new(move |rank| killer.kill(rank)));
//!         Ok(job)
//!     }
//!     # fn options(&self) -> btl_conformance::suite::Options { btl_conformance::suite::Options { messages: 500, ..Default::default() } }
//! }
//!
//! threads(&Loopback).verdict().unwrap();
//! ```
//!
//! # A transport whose ranks must be processes
//! The test binary is started once per rank, and each process executes only the calling test:
//! ```no_run
//! # use std::process::Command;
//! # use btl_conformance::suite::{self, ProcessHarness, Place};
//! # struct Shm;
//! # impl ProcessHarness for Shm { fn name(&self) -> String { "shm".into() } }
//! # fn make(_: &Place) -> Result<Box<dyn btl::Btl>, String> { Err("".into()) }
//! // #[test]
//! fn shm_conforms() {
//!     if let Some(child) = suite::child() {
//!         child.run(|place| make(place)); // does not return
//!     }
//!     suite::processes("shm_conforms", &Shm).verdict().unwrap();
//! }
//! ```
//! [`ProcessHarness::command`] may start the rank elsewhere (in a network namespace) or set
//! environment variables. Children are killed by process id at the time limit of a case.
//!
//! # Output
//! One line for each case: `ok`, `skipped: no capability get`, or `FAILED: …` with the rank.
//! [`Report::verdict`] fails if a case failed or none ran. `BTL_CASE=name` runs the cases whose
//! name contains the text; `BTL_SEED=n` repeats the sizes of a run.

mod cases;
mod child;
mod log;
mod meeting;
mod memory;
mod processes;
mod report;
mod run;
mod stream;
mod threads;

use std::time::Duration;

pub use self::cases::CASES;
pub use self::child::{Child, child};
pub use self::log::{Got, Log};
pub use self::meeting::Meeting;
pub use self::memory::{Buffer, Outcome as Operation, Remote};
pub use self::processes::{ProcessHarness, processes};
pub use self::report::{Outcome, Report};
pub use self::run::{Event, Failure, Run};
pub use self::stream::Sizes;
pub use self::threads::{Harness, Job, threads};

use btl::{Capabilities, Rank};

/// One test that all ranks of a job execute.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name of the case; stable.
    pub name: &'static str,
    /// Requirements. The case is skipped if one is missing, and the report names it.
    pub needs: &'static [Need],
    /// Number of ranks; [`MANY`] for [`Options::peers`].
    pub ranks: u32,
    /// The ranks are added to each other before `run`. Otherwise the case adds them.
    pub added: bool,
    /// Function that each rank executes.
    pub run: fn(&mut Run) -> Result<(), Failure>,
}

/// Value of [`Case::ranks`] that stands for [`Options::peers`].
pub const MANY: u32 = 0;

/// Requirement of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// [`Capabilities::get`]
    Get,
    /// [`Capabilities::put`]
    Put,
    /// [`Capabilities::held_from`]
    Held,
    /// [`Capabilities::blocking`]
    Blocking,
    /// [`Capabilities::detects_death`]
    Death,
    /// The harness can kill a rank: processes always, threads with [`Job::kill`].
    Kill,
}

impl Need {
    /// Returns why a case with this need is skipped, or `None` if it can run.
    fn missing(self, capabilities: Capabilities, kill: bool) -> Option<&'static str> {
        let (there, name) = match self {
            Need::Get => (capabilities.get, "no capability get"),
            Need::Put => (capabilities.put, "no capability put"),
            Need::Held => (capabilities.held_from.is_some(), "no capability held"),
            Need::Blocking => (capabilities.blocking, "no capability blocking"),
            Need::Death => (capabilities.detects_death, "no capability detects_death"),
            Need::Kill => (kill, "the harness cannot kill a rank"),
        };
        (!there).then_some(name)
    }
}

/// Extent of a run: limits and selection of cases.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time limit of one case, after which a running rank has failed. It detects hangs: make it
    /// long.
    pub limit: Duration,
    /// Number of messages in each direction of the long case.
    pub messages: u32,
    /// Number of rounds of the cases that repeat a short exchange.
    pub rounds: u32,
    /// Number of ranks of the cases with [`MANY`], 4 to 16.
    pub peers: u32,
    /// Seed of sizes and choices. `BTL_SEED` overrides it.
    pub seed: u64,
    /// Cases to skip for this transport, each with the reason, which is printed.
    pub skip: Vec<(&'static str, String)>,
    /// True if ranks that are processes run the cases that kill a rank concurrently, after the
    /// other cases. For a transport that detects a death by a timeout.
    pub deaths_at_once: bool,
    /// True if the transport ends connections that are not used. A peer that ends without one may
    /// be reported as `Gone`, even if there was a connection earlier.
    pub ends_connections: bool,
    /// Name of the only case to run. Without it, `BTL_CASE` selects by a part of the name.
    pub only: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            limit: Duration::from_secs(60),
            messages: 100_000,
            rounds: 2000,
            peers: 12,
            seed: 1,
            skip: Vec::new(),
            deaths_at_once: false,
            ends_connections: false,
            only: None,
        }
    }
}

impl Options {
    /// Applies the environment variables.
    fn resolved(mut self) -> Options {
        if let Some(seed) = std::env::var("BTL_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
        {
            self.seed = seed;
        }
        self.peers = self.peers.clamp(4, 16);
        self
    }

    /// Lists the cases to run, in order.
    fn cases(&self) -> Vec<&'static Case> {
        let part = if self.only.is_some() {
            String::new()
        } else {
            std::env::var("BTL_CASE").unwrap_or_default()
        };
        CASES
            .iter()
            .flat_map(|group| group.iter())
            .filter(|case| {
                case.name.contains(&part) && self.only.is_none_or(|only| only == case.name)
            })
            .collect()
    }

    /// Returns why a case is skipped, or `None`.
    fn skipped(&self, case: &Case) -> Option<String> {
        self.skip
            .iter()
            .find(|(name, _)| *name == case.name)
            .map(|(_, reason)| reason.clone())
    }

    fn ranks(&self, case: &Case) -> u32 {
        if case.ranks == MANY {
            self.peers
        } else {
            case.ranks
        }
    }
}

/// Rank and job of one execution of a case.
#[derive(Clone, Debug)]
pub struct Place {
    /// Rank, from 0.
    pub rank: Rank,
    /// Number of ranks in the job.
    pub size: u32,
    /// Name of the job, different for each case and run.
    pub job: String,
    /// Name of the case.
    pub case: String,
}
