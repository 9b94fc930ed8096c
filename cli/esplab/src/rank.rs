//! `esplab rank`: one process of a benchmark within a node; started by the benchmarks only.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use bench::intra::bare::Bare;
use bench::intra::contender::Contender;
use bench::intra::{join, ours};

use cli::out::{self, Doing, Failure, Verdict};

#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Name of the contender
    #[arg(long = "as", value_parser = contender)]
    who: Contender,
    /// Core of each rank
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// The benchmark's socket
    socket: PathBuf,
}

fn contender(name: &str) -> Result<Contender, String> {
    Contender::OURS
        .into_iter()
        .find(|who| who.name() == name)
        .ok_or_else(|| format!("unknown contender `{name}`"))
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    // A benchmark that is killed leaves no ranks behind.
    set_parent_process_death_signal(Some(Signal::KILL)).doing("rank")?;
    let rank = std::env::var("ESP_JOB_RANK")
        .ok()
        .and_then(|rank| rank.parse::<usize>().ok());
    if let Some(core) = rank.and_then(|rank| flags.cores.get(rank)) {
        lab::pin(&[*core])?;
    }
    if flags.who == Contender::Transport {
        let (mut transport, rank) = join::bare()?;
        let mut bare = Bare::new(&mut transport, rank);
        ours::serve(rank, &flags.socket, |work| bare.run(work))?;
    } else {
        let cores: BTreeSet<_> = flags.cores.iter().collect();
        let job = join::job(flags.who, cores.len())?;
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
        // A peer may have left already: nothing is sent any more.
        let _ = job.finalize();
    }
    Ok(Verdict::Done)
}
