//! `esplab worker`: one side of a measurement; started by the benchmarks only.

use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::bench::worker::{self, Job};
use crate::out::{self, Doing, Failure, Verdict};

#[derive(Debug, Args)]
pub(super) struct Flags {
    #[arg(value_parser = parse_job)]
    job: Job,
}

fn parse_job(text: &str) -> Result<Job, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    // A benchmark that is killed leaves no workers behind, which would keep their nodes alive.
    set_parent_process_death_signal(Some(Signal::KILL)).doing("worker")?;
    let outcome = worker::work(&flags.job, |line| out::line(line)).doing("worker")?;
    out::json(&outcome)?;
    Ok(Verdict::Done)
}
