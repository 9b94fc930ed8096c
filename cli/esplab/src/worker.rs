//! `esplab worker`: one side of a measurement; started by the benchmarks only.

use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use bench::{incast, rails, worker};
use cli::out::{self, Doing, Failure, Verdict};

/// What benchmarks ask for.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(untagged)]
enum Job {
    Ends(worker::Job),
    Incast(incast::Job),
    Rails(rails::Job),
}

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
    match &flags.job {
        Job::Ends(job) => out::json(&worker::work(job, |line| out::line(line)).doing("worker")?)?,
        Job::Rails(job) => out::json(&rails::work(job).doing("worker")?)?,
        Job::Incast(job) => out::json(&incast::work(job, |line| out::line(line)).doing("worker")?)?,
    }
    Ok(Verdict::Done)
}
