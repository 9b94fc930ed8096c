//! Commands that the lab, `esplab mpirun` and the benchmarks start in separate processes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rustix::process::{Signal, set_parent_process_death_signal};

use bench::intra::bare::Bare;
use bench::intra::contender::Contender;
use bench::intra::{join, ours};
use bench::task::Task;
use bench::{engines, incast, programs, rails, worker};
use cli::out::{self, Context, Failure, Verdict};
use lab::{ProcessRef, UserNs, Watch};

/// `esplab hold`: keeps a namespace alive as long as the lab or the switch exists.
#[derive(Debug, Args)]
pub(super) struct Hold {
    #[arg(long, conflicts_with = "user_of")]
    new_user: bool,
    #[arg(long, value_name = "PID:START", value_parser = parse_process)]
    user_of: Option<ProcessRef>,
    #[arg(long, value_name = "DIR", conflicts_with = "switch")]
    lab: Option<PathBuf>,
    #[arg(long, value_name = "PID:START", value_parser = parse_process)]
    switch: Option<ProcessRef>,
}

/// `esplab enter`: runs a tool in the namespaces of a holder.
#[derive(Debug, Args)]
pub(super) struct Enter {
    #[arg(value_parser = parse_process)]
    holder: ProcessRef,
    #[arg(long)]
    user: bool,
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// `esplab offload`: sets the segmentation offload of the node that it runs in.
#[derive(Debug, Args)]
pub(super) struct Offload {
    state: Switch,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// `esplab worker`: one side of a measurement.
#[derive(Debug, Args)]
pub(super) struct Worker {
    #[arg(value_parser = parse_task)]
    task: AnyTask,
}

/// A task of one of the benchmark families.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(untagged)]
enum AnyTask {
    Ends(Task),
    Incast(incast::IncastTask),
    Rails(rails::RailsTask),
    Programs(programs::ProgramsTask),
    Engines(engines::EnginesTask),
}

/// `esplab rank`: one process of a benchmark within a node.
#[derive(Debug, Args)]
pub(super) struct Rank {
    /// Name of the contender
    #[arg(long = "as", value_parser = contender)]
    contender: Contender,
    /// Core of each rank
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// The benchmark's socket
    socket: PathBuf,
}

/// Parses a process as `PID:START`.
pub(super) fn parse_process(text: &str) -> Result<ProcessRef, String> {
    let parse = || {
        let (pid, start) = text.split_once(':')?;
        Some(ProcessRef {
            pid: pid.parse().ok()?,
            start: start.parse().ok()?,
        })
    };
    parse().ok_or_else(|| format!("`{text}` is not PID:START"))
}

fn parse_task(text: &str) -> Result<AnyTask, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

fn contender(name: &str) -> Result<Contender, String> {
    let found = Contender::OURS
        .into_iter()
        .find(|contender| contender.name() == name);
    found.ok_or_else(|| format!("unknown contender `{name}`"))
}

pub(super) fn hold(flags: Hold) -> Result<Verdict, Failure> {
    let user = match flags.user_of {
        Some(holder) => UserNs::Of(holder),
        None if flags.new_user => UserNs::New,
        None => UserNs::Same,
    };
    let watch = match (flags.lab, flags.switch) {
        (Some(dir), _) => Watch::Lab(dir),
        (None, Some(switch)) => Watch::Switch(switch),
        (None, None) => return Err(Failure::new("hold: neither --lab nor --switch was given")),
    };
    lab::hold(user, &watch).doing("holding a namespace")?;
    Ok(Verdict::Done)
}

pub(super) fn enter(flags: &Enter) -> Result<Verdict, Failure> {
    Err(lab::enter_holder(flags.holder, flags.user, &flags.command).into())
}

pub(super) fn offload(flags: &Offload) -> Result<Verdict, Failure> {
    lab::set_segmentation_offload("eth0", matches!(flags.state, Switch::On)).doing("eth0")?;
    Ok(Verdict::Done)
}

pub(super) fn worker(flags: &Worker) -> Result<Verdict, Failure> {
    // A worker that outlived its benchmark would keep the network namespace of its node alive.
    set_parent_process_death_signal(Some(Signal::KILL)).doing("worker")?;
    let say = |line: &dyn std::fmt::Display| out::line(line);
    match &flags.task {
        AnyTask::Ends(task) => out::json(&worker::work(task, |line| say(&line)).doing("worker")?),
        AnyTask::Rails(task) => out::json(&rails::work(task).doing("worker")?),
        AnyTask::Programs(task) => {
            out::json(&programs::work(task, |line| say(&line)).doing("worker")?)
        }
        AnyTask::Engines(task) => {
            out::json(&engines::work(task, |line| say(&line)).doing("worker")?)
        }
        AnyTask::Incast(task) => out::json(&incast::work(task, |line| say(&line)).doing("worker")?),
    }?;
    Ok(Verdict::Done)
}

pub(super) fn rank(flags: &Rank) -> Result<Verdict, Failure> {
    // A killed benchmark must leave no ranks behind.
    set_parent_process_death_signal(Some(Signal::KILL)).doing("rank")?;
    let rank = std::env::var("ESP_JOB_RANK")
        .ok()
        .and_then(|rank| rank.parse::<usize>().ok());
    if let Some(core) = rank.and_then(|rank| flags.cores.get(rank)) {
        lab::pin(&[*core])?;
    }
    if flags.contender == Contender::Transport {
        let (mut transport, rank) = join::bare()?;
        let mut bare = Bare::new(&mut transport, rank);
        ours::serve(rank, &flags.socket, |work| bare.run(work))?;
    } else {
        let cores: BTreeSet<_> = flags.cores.iter().collect();
        let job = join::job(flags.contender, cores.len())?;
        let world = job.world();
        ours::serve(world.rank(), &flags.socket, |work| {
            ours::run(&world, work).map_err(|e| e.to_string())
        })?;
        if std::env::var("ESP_BTL_VERBOSE").is_ok_and(|v| v == "1") {
            out::note(format_args!(
                "rank {}: {:?}",
                world.rank(),
                job.p2p().stats()
            ));
        }
        // A peer may have left already, and nothing more is sent.
        let _ = job.finalize();
    }
    Ok(Verdict::Done)
}
