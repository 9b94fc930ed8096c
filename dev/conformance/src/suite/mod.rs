//! The conformance suite: every transport instantiates it, and it tests every promise of
//! [`contract`](btl::contract).
//!
//! # Shape
//! A [`Case`] is a function that every rank of a job executes, each with its own [`Run`]: the
//! transport, an event log that checks what always holds (exactly one completion, no message after
//! a failure, …), and a way to meet the other ranks that does not use the transport. The ranks are
//! threads ([`threads()`]) or processes ([`processes()`]).
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
//! The test's own binary is started once for each rank and executes the same test again, alone:
//! ```no_run
//! # use std::process::Command;
//! # use btl_conformance::suite::{self, ProcessHarness, Place};
//! # struct Shm;
//! # impl ProcessHarness for Shm { fn name(&self) -> String { "shm".into() } }
//! # fn make(_: &Place) -> Result<Box<dyn btl::Btl>, String> { Err("".into()) }
//! // #[test]
//! fn shm_conforms() {
//!     if let Some(child) = conformance::child() {
//!         child.run(|place| make(place)); // does not return
//!     }
//!     conformance::processes("shm_conforms", &Shm).verdict().unwrap();
//! }
//! ```
//! [`ProcessHarness::command`] may start the rank elsewhere (in a network namespace) or give it
//! environment variables. Children are ended by process id when the time of a case is over.
//!
//! # What is said
//! One line for each case: `ok`, `skipped: no capability get`, or `FAILED: …` with the rank.
//! [`Report::verdict`] fails when a case failed, and when none ran. `BTL_CASE=name` runs the cases
//! whose name contains that, `BTL_SEED=n` repeats the sizes of a run.

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
pub use self::log::{Got, Log, Received};
pub use self::meeting::Meeting;
pub use self::memory::{Buffer, Outcome as Operation, Posted, Remote, Wanted};
pub use self::processes::{ProcessHarness, processes};
pub use self::report::{Outcome, Report};
pub use self::run::{Event, Failure, Run};
pub use self::stream::Sizes;
pub use self::threads::{Harness, Job, threads};

use btl::{Capabilities, Rank};

/// One test that all ranks of a job execute.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Short and stable.
    pub name: &'static str,
    /// Without these it is skipped, and the report says which was missing.
    pub needs: &'static [Need],
    /// How many ranks; [`MANY`] for [`Options::peers`].
    pub ranks: u32,
    /// Whether the ranks are added to each other before `run`; else the case does it.
    pub added: bool,
    /// What each rank does.
    pub run: fn(&mut Run) -> Result<(), Failure>,
}

/// [`Case::ranks`]: as many as [`Options::peers`] says.
pub const MANY: u32 = 0;

/// What a case cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// [`Capabilities::get`]
    Get,
    /// [`Capabilities::put`]
    Put,
    /// [`Capabilities::posted_receives`]
    PostedReceives,
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
    /// Why a case with this need is skipped, if it is.
    fn missing(self, capabilities: Capabilities, kill: bool) -> Option<&'static str> {
        let (there, name) = match self {
            Need::Get => (capabilities.get, "no capability get"),
            Need::Put => (capabilities.put, "no capability put"),
            Need::PostedReceives => (capabilities.posted_receives, "no posted receives"),
            Need::Held => (capabilities.held_from.is_some(), "no capability held"),
            Need::Blocking => (capabilities.blocking, "no capability blocking"),
            Need::Death => (capabilities.detects_death, "no capability detects_death"),
            Need::Kill => (kill, "the harness cannot kill a rank"),
        };
        (!there).then_some(name)
    }
}

/// How much of everything.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time for one case; a rank that still runs then has failed. For hangs only: make it long.
    pub limit: Duration,
    /// Messages each way of the long case.
    pub messages: u32,
    /// Rounds of the cases that repeat something short.
    pub rounds: u32,
    /// Ranks of the cases with [`MANY`], 4 to 16.
    pub peers: u32,
    /// Sizes and choices come from this. `BTL_SEED` overrides it.
    pub seed: u64,
    /// Cases that this transport is known to fail or that make no sense for it, each with a reason
    /// that is printed.
    pub skip: Vec<(&'static str, String)>,
    /// Only the case of this name. Else `BTL_CASE` says a part of the names.
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
            only: None,
        }
    }
}

impl Options {
    /// With what the environment says.
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

    /// The cases to run, in order.
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

    /// Why a case is not run, if so.
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

/// Which rank of which job.
#[derive(Clone, Debug)]
pub struct Place {
    /// From 0.
    pub rank: Rank,
    /// Of the job.
    pub size: u32,
    /// Name of the job, different for each case and run.
    pub job: String,
    /// Name of the case.
    pub case: String,
}
