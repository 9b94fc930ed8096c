//! `esplab worker`: one side of a measurement, started by the benchmarks.

use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use bench::{incast, rails, worker};
use cli::out::{self, Doing, Failure, Verdict};

/// Argument of the command: the task of one of the benchmark families.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(untagged)]
enum AnyTask {
    Ends(worker::Task),
    Incast(incast::IncastTask),
    Rails(rails::RailsTask),
}

#[derive(Debug, Args)]
pub(super) struct Flags {
    #[arg(value_parser = parse_task)]
    task: AnyTask,
}

fn parse_task(text: &str) -> Result<AnyTask, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    // A worker that outlives its benchmark would keep the network namespace of its node alive.
    set_parent_process_death_signal(Some(Signal::KILL)).doing("worker")?;
    match &flags.task {
        AnyTask::Ends(task) => {
            out::json(&worker::work(task, |line| out::line(line)).doing("worker")?)?;
        }
        AnyTask::Rails(task) => out::json(&rails::work(task).doing("worker")?)?,
        AnyTask::Incast(task) => {
            out::json(&incast::work(task, |line| out::line(line)).doing("worker")?)?;
        }
    }
    Ok(Verdict::Done)
}
