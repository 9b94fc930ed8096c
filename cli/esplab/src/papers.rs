//! `esplab papers`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use bench::papers::experiment::Run;
use bench::papers::results::Results;
use bench::papers::{self, PAPERS, Plan, RUNS, page};
use cli::out::{self, Failure, Verdict};

/// Repeat the experiments of the five papers, with the transports that they compared
///
/// Programs of Open MPI run over ESP and over TCP in turn, messages within a node are copied once
/// and twice, and RDMA runs in the guest of tests/vm if it is set up. Compare the ratios with those
/// of the papers. A program that is not installed has a row that names the package to install.
#[derive(Debug, Default, Args)]
#[command(after_long_help = explained())]
pub(super) struct Flags {
    /// Only this paper or run (may be repeated): esp, limic, hybrid, via, vapi, or one of the runs
    /// below
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Number of rounds of each run
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Fewer rounds, sizes and samples, and no runs in the guest
    #[arg(long)]
    quick: bool,
    /// Write a report: DIR/papers.md with charts in DIR/papers/, and all figures in
    /// DIR/papers.json. Of an existing report, only the measured runs are replaced
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "docs")]
    report: Option<PathBuf>,
}

/// Returns the list of papers and runs with their times, for `--help`.
fn explained() -> String {
    let plan = |quick| Plan {
        papers: PAPERS.to_vec(),
        quick,
        rounds: None,
    };
    let [full, quick] = [plan(false), plan(true)];
    let mut text = "Papers:".to_owned();
    for paper in PAPERS {
        text += &format!("\n  {:<12} {}", paper.key, paper.title);
    }
    text += "\n\nRuns, with their usual time on two cores, in full and --quick:";
    for run in &RUNS {
        let [full, quick] = [&full, &quick].map(|plan| show(plan.time(run)));
        text += &format!("\n  {:<12} {full:>7} {quick:>7}  {}", run.name, run.title);
    }
    let whole = |plan: &Plan| show(plan.runs().iter().map(|run| plan.time(run)).sum());
    let [full, quick] = [&full, &quick].map(whole);
    text + &format!("\n  {:<12} {full:>7} {quick:>7}", "all")
}

/// Formats a time as `40 s` or `3 min`; zero, for a run that is skipped, as a dash.
fn show(time: Duration) -> String {
    match time.as_secs() {
        0 => "-".into(),
        seconds if seconds < 100 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

impl Flags {
    /// Returns the plan and the runs selected.
    fn selection(&self) -> Result<(Plan, Vec<&'static Run>), String> {
        let is_paper = |name: &str| PAPERS.iter().any(|paper| paper.key == name);
        let is_run = |name: &str| RUNS.iter().any(|run| run.name == name);
        let known = |name: &&String| !is_paper(name) && !is_run(name);
        if let Some(unknown) = self.only.iter().find(known) {
            let papers = PAPERS.iter().map(|paper| paper.key);
            let names: Vec<_> = papers.chain(RUNS.iter().map(|run| run.name)).collect();
            return Err(format!(
                "unknown paper or run `{unknown}`: write one of {}",
                names.join(", ")
            ));
        }
        let named = |name: &str| self.only.iter().any(|only| only == name);
        let mut plan = Plan {
            papers: PAPERS.to_vec(),
            quick: self.quick,
            rounds: self.rounds.map(usize::from),
        };
        let mut runs = plan.runs();
        if !self.only.is_empty() {
            let needs = |paper: &papers::experiment::Paper, run: &Run| {
                let mut rows = paper.rows.iter();
                rows.any(|row| row.take.run() == Some(run.name))
            };
            let of_papers = PAPERS.iter().filter(|paper| named(paper.key));
            let of_papers: Vec<_> = of_papers.collect();
            runs.retain(|run| named(run.name) || of_papers.iter().any(|paper| needs(paper, run)));
            plan.papers.retain(|paper| {
                named(paper.key) || runs.iter().any(|r| named(r.name) && needs(paper, r))
            });
        }
        Ok((plan, runs))
    }
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let (plan, runs) = flags.selection().map_err(Failure::new)?;
    let mut results = match &flags.report {
        // Read before anything is measured, because it may be a file of another program.
        Some(folder) => Results::read(folder)?,
        None => Results::default(),
    };
    if cfg!(debug_assertions) {
        out::note("esplab papers: built without optimisation, our figures are too low");
    }
    let whole: Duration = runs.iter().map(|run| plan.time(run)).sum();
    let bar = out::progress(
        millis(whole),
        "{spinner} {msg} [{bar:30}] {percent} % {elapsed}, {eta} left",
    );
    results.machine = papers::machine();
    let mut before = 0;
    let mut verdict = Verdict::Done;
    for run in runs {
        bar.set_message(run.name);
        if !io::stderr().is_terminal() {
            let percent = 100 * before / millis(whole).max(1);
            out::note(format_args!(
                "esplab papers: {} ({percent} % done)",
                run.name
            ));
        }
        let time = millis(plan.time(run));
        let step = |done: f64| bar.set_position(before + (done * time as f64) as u64);
        let measured = plan.measure(run, &step);
        before += time;
        bar.set_position(before);
        if let Some(note) = &measured.note {
            bar.suspend(|| out::note(format_args!("esplab papers: {}: {note}", run.name)));
            verdict = Verdict::Partly;
        }
        results.put(measured);
        if let Some(folder) = &flags.report {
            // Written after each run, so that its figures are kept if a later run is interrupted.
            page::write(folder, &results)?;
        }
    }
    bar.finish_and_clear();
    match &flags.report {
        Some(folder) => out::line(page::write(folder, &results)?.display())?,
        None => out::line(page::text(&plan.papers, &results).trim_end())?,
    }
    Ok(verdict)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        flags: Flags,
    }

    fn selected(args: &[&str]) -> Result<(Vec<&'static str>, Vec<&'static str>), String> {
        let args = ["papers"].iter().chain(args);
        let only = Only::try_parse_from(args).map_err(|e| e.to_string())?;
        let (plan, runs) = only.flags.selection()?;
        let papers = plan.papers.iter().map(|paper| paper.key);
        Ok((papers.collect(), runs.iter().map(|run| run.name).collect()))
    }

    #[test]
    fn papers_and_runs_are_selected_by_name() -> Result<(), String> {
        let all: Vec<_> = RUNS.iter().map(|run| run.name).collect();
        assert_eq!(selected(&[])?.1, all);
        let quick = selected(&["--quick"])?.1;
        assert!(!quick.contains(&"guest") && quick.len() + 1 == all.len());
        let (papers, runs) = selected(&["--only", "via"])?;
        assert_eq!(papers, ["via"]);
        assert_eq!(runs, ["sockets", "mpi", "guest"]);
        let (papers, runs) = selected(&["--only", "keys"])?;
        assert_eq!((papers, runs), (vec!["limic", "hybrid"], vec!["keys"]));
        let unknown = selected(&["--only", "speed"]);
        assert!(unknown.is_err_and(|e| e.contains("`speed`") && e.contains("limic")));
        Ok(())
    }

    #[test]
    fn the_help_lists_papers_and_runs_with_their_times() {
        let help = Only::command().render_long_help().to_string();
        assert!(help.lines().last().is_some_and(|l| l.contains("all ")));
        // Long lines are wrapped.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for paper in PAPERS {
            assert!(help.contains(paper.title), "{} in {help}", paper.title);
        }
        for run in &RUNS {
            assert!(help.contains(run.title), "{} in {help}", run.title);
        }
    }

    #[test]
    fn times_have_a_unit_for_their_size() {
        for (seconds, text) in [(0, "-"), (99, "99 s"), (100, "2 min"), (960, "16 min")] {
            assert_eq!(show(Duration::from_secs(seconds)), text);
        }
    }
}
