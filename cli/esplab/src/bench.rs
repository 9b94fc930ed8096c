//! `esplab bench`.

use clap::Args;

use bench::plan::{self, Bench};
use bench::report;
use bench::run::Rig;
use bench::{incast, intra, rails};
use cli::out::{self, Failure, Verdict};

/// Measure ESP beside TCP and a bare packet-socket loop, and shared memory beside Open MPI, MPICH
/// and UCX, in alternating rounds of one run
///
/// Each path has the same wire, the same cores and the same rounds; compare ratios, not times of
/// different days. Peers that are not installed have rows that say so.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Shorter and noisier
    #[arg(long)]
    quick: bool,
    /// Only this bench (may be repeated): pingpong, send, send-idle, stream, loss, idle, leases,
    /// incast, rails, shm, papers, sharing, matching
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Within a node, only messages of these sizes, in bytes, separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Within a node, so many rounds
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// One JSON object per row
    #[arg(long)]
    json: bool,
}

/// What was asked for: between nodes, and within one.
struct Wanted {
    nodes: Vec<Bench>,
    incast: Option<incast::Bench>,
    rails: Option<rails::Bench>,
    intra: Vec<intra::plan::Bench>,
}

impl Flags {
    fn wanted(&self) -> Result<Wanted, String> {
        let all = plan::NAMES
            .iter()
            .chain([&incast::NAME, &rails::NAME])
            .chain(&intra::plan::NAMES)
            .map(|(name, _)| *name);
        if let Some(unknown) = self
            .only
            .iter()
            .find(|only| !all.clone().any(|name| name == *only))
        {
            let known = all.collect::<Vec<_>>().join(", ");
            return Err(format!("no bench `{unknown}` (there are: {known})"));
        }
        let within = |name: &&String| {
            [incast::NAME.0, rails::NAME.0].contains(&name.as_str())
                || intra::plan::NAMES.iter().any(|(known, _)| known == *name)
        };
        let between: Vec<String> = self
            .only
            .iter()
            .filter(|name| !within(name))
            .cloned()
            .collect();
        let chosen = |name: &&'static str| {
            self.only.is_empty() || self.only.iter().any(|only| only == *name)
        };
        let incast = chosen(&incast::NAME.0).then(|| incast::Bench::new(self.quick));
        let rails = chosen(&rails::NAME.0).then(|| rails::Bench::new(self.quick));
        let names = intra::plan::NAMES
            .iter()
            .map(|(name, _)| *name)
            .filter(chosen);
        let mut intra: Vec<_> = names
            .filter_map(|name| intra::plan::bench(name, self.quick))
            .collect();
        for bench in &mut intra {
            bench.only_sizes(&self.sizes);
            bench.rounds = self.rounds.map_or(bench.rounds, usize::from);
        }
        intra.retain(|bench| !bench.measures.is_empty());
        let nodes = if between.is_empty() && !self.only.is_empty() {
            Vec::new()
        } else {
            plan::plan(self.quick, &between)?
        };
        Ok(Wanted {
            nodes,
            incast,
            rails,
            intra,
        })
    }
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let wanted = flags.wanted().map_err(Failure::new)?;
    let steps: usize = wanted.nodes.iter().map(|b| b.rounds * b.cases.len()).sum();
    let many = wanted.incast.map_or(0, |bench| bench.steps())
        + wanted.rails.map_or(0, |bench| bench.steps());
    let more: usize = wanted.intra.iter().map(intra::run::Rig::steps).sum();
    let bar = out::progress(
        (steps + many + more) as u64,
        "{spinner} {msg} [{bar:30}] {pos}/{len} {eta} left",
    );
    let result = between_nodes(flags, &wanted.nodes, &bar)
        .and_then(|()| to_one_node(flags, wanted.incast, &bar))
        .and_then(|()| over_two_links(flags, wanted.rails, &bar))
        .and_then(|()| within_node(flags, &wanted.intra, &bar));
    bar.finish_and_clear();
    result
}

fn between_nodes(
    flags: &Flags,
    benches: &[Bench],
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure> {
    if benches.is_empty() {
        return Ok(());
    }
    let mut rig = Rig::default();
    if !flags.json {
        bar.suspend(|| out::line(format_args!("cores: {}", rig.cores())))?;
    }
    for bench in benches {
        bar.set_message(bench.name);
        let results = rig.run(bench, || bar.inc(1))?;
        let rows = report::rows(bench, &results);
        show(
            flags,
            (bench.name, bench.title),
            bench.rounds,
            &rows,
            report::table,
            bar,
        )?;
    }
    Ok(())
}

fn to_one_node(
    flags: &Flags,
    bench: Option<incast::Bench>,
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure> {
    let Some(bench) = bench else { return Ok(()) };
    bar.set_message(incast::NAME.0);
    let rows = bench.run(|| bar.inc(1))?;
    show(flags, incast::NAME, bench.rounds, &rows, incast::table, bar)
}

fn over_two_links(
    flags: &Flags,
    bench: Option<rails::Bench>,
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure> {
    let Some(bench) = bench else { return Ok(()) };
    bar.set_message(rails::NAME.0);
    let rows = bench.run(|| bar.inc(1))?;
    show(flags, rails::NAME, bench.rounds, &rows, rails::table, bar)
}

/// Rows as JSON, or as a table under their title.
fn show<R: serde::Serialize>(
    flags: &Flags,
    (name, title): (&str, &str),
    rounds: usize,
    rows: &[R],
    table: impl FnOnce(&[R]) -> String,
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure> {
    bar.suspend(|| {
        if flags.json {
            return Ok(rows.iter().try_for_each(out::json)?);
        }
        Ok(titled(name, title, rounds, &table(rows))?)
    })
}

fn within_node(
    flags: &Flags,
    benches: &[intra::plan::Bench],
    bar: &indicatif::ProgressBar,
) -> Result<Verdict, Failure> {
    let mut verdict = Verdict::Done;
    let mut rig = intra::run::Rig::default();
    if !flags.json && !benches.is_empty() {
        let thresholds = intra::join::thresholds()?;
        bar.suspend(|| {
            out::line(format_args!(
                "cores of a pair of processes: {}; our thresholds: {thresholds}",
                rig.cores()
            ))
        })?;
        if cfg!(debug_assertions) {
            out::note(
                "esplab bench: this program was built without optimisation, ours are slower than they are",
            );
        }
    }
    for bench in benches {
        bar.set_message(bench.name);
        let results = rig.run(bench, || bar.inc(1));
        let rows = intra::report::rows(bench, &results);
        show(
            flags,
            (bench.name, bench.title),
            bench.rounds,
            &rows,
            intra::report::table,
            bar,
        )?;
        if results.ours_failed() {
            verdict = Verdict::Partly;
        }
    }
    Ok(verdict)
}

fn titled(name: &str, title: &str, rounds: usize, table: &str) -> std::io::Result<()> {
    out::line(format_args!(
        "\n{name}: {title}, {rounds} rounds\n{}",
        table.trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        flags: Flags,
    }

    #[test]
    fn the_help_names_all_benches() {
        let help = Only::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let names = plan::NAMES
            .iter()
            .chain([&incast::NAME, &rails::NAME])
            .chain(&intra::plan::NAMES)
            .map(|(name, _)| *name)
            .collect::<Vec<_>>();
        let names = names.join(", ");
        assert!(help.contains(&names), "{names} in {help}");
    }

    #[test]
    fn only_what_was_named_runs() -> Result<(), String> {
        let wanted = |args: &[&str]| {
            let args = ["bench"].iter().chain(args);
            let wanted = Only::try_parse_from(args)
                .map_err(|e| e.to_string())?
                .flags
                .wanted()?;
            let nodes = wanted
                .nodes
                .iter()
                .map(|b| b.name)
                .chain(wanted.incast.map(|_| incast::NAME.0));
            let nodes = nodes.chain(wanted.rails.map(|_| rails::NAME.0));
            Ok::<_, String>(
                nodes
                    .chain(wanted.intra.iter().map(|b| b.name))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            wanted(&[])?.len(),
            plan::NAMES.len() + 2 + intra::plan::NAMES.len()
        );
        assert_eq!(wanted(&["--only", "matching"])?, ["matching"]);
        assert_eq!(
            wanted(&["--only", "shm", "--only", "send"])?,
            ["send", "shm"]
        );
        assert!(wanted(&["--only", "shm", "--only", "speed"]).is_err_and(|e| e.contains("speed")));
        Ok(())
    }
}
