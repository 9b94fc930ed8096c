//! The experiments of five papers, repeated: for each the paper's figure, what is run in its place,
//! and our figure compared with that of the paper's reference transport.
//!
//! A *run* measures once for all rows that need it, in alternating rounds. The rows of a paper name
//! the run and the figures that they show, so that the page follows from the figures alone.
//!
//! | module | contents |
//! |---|---|
//! | [`experiment`] | papers, rows and runs as data |
//! | `esp`, `limic`, `hybrid`, `via`, `vapi` | one paper each |
//! | `runs` | all runs, and how each is measured |
//! | `within` | measures within a node |
//! | `between` | sockets of two nodes |
//! | `mpi` | programs of Open MPI over the nodes of a lab |
//! | `kernels`, `hpl`, `abinit` | these programs, and how their output is read |
//! | `guest` | measurements in the soft-RoCE guest |
//! | [`results`] | `papers.json` |
//! | [`page`] | `papers.md` |
//! | `charts` | its charts |

mod abinit;
mod between;
mod charts;
mod esp;
pub mod experiment;
mod guest;
mod hpl;
mod hybrid;
mod kernels;
mod limic;
mod mpi;
pub mod page;
pub mod results;
mod runs;
mod vapi;
mod via;
mod within;

use std::time::Duration;

use experiment::{Paper, Run};
use results::Measured;

pub use runs::RUNS;

/// The papers, in the order of the page.
pub static PAPERS: [&Paper; 5] = [
    &esp::PAPER,
    &limic::PAPER,
    &hybrid::PAPER,
    &via::PAPER,
    &vapi::PAPER,
];

/// Selected papers, and how long to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Papers whose rows are measured.
    pub papers: Vec<&'static Paper>,
    /// With fewer rounds, sizes and samples.
    pub quick: bool,
    /// Number of rounds of each run, in place of its own.
    pub rounds: Option<usize>,
}

impl Plan {
    /// Returns the runs that the papers need, each once.
    pub fn runs(&self) -> Vec<&'static Run> {
        let rows = || self.papers.iter().flat_map(|paper| paper.rows);
        let needed = |run: &&Run| rows().any(|row| row.take.run() == Some(run.name));
        let all = RUNS.iter().filter(needed);
        all.filter(|run| !self.quick || run.seconds[1] > 0)
            .collect()
    }

    /// Returns the usual time of a run.
    pub fn time(&self, run: &Run) -> Duration {
        let [full, quick] = run.seconds;
        Duration::from_secs(if self.quick { quick } else { full })
    }

    /// Returns the number of rounds of a run.
    fn rounds(&self, run: &Run) -> usize {
        let [full, quick] = run.rounds;
        self.rounds.unwrap_or(if self.quick { quick } else { full })
    }

    /// Measures a run. `step` is called with the part of it that is done, from 0 to 1. The reason
    /// for missing figures becomes the note of the run.
    pub fn measure(&self, run: &'static Run, step: &dyn Fn(f64)) -> Measured {
        let context = Context {
            run,
            quick: self.quick,
            rounds: self.rounds(run),
            step,
        };
        let load = load();
        let outcome = runs::measure(&context);
        Measured {
            load,
            ..Measured::new(&context, outcome)
        }
    }
}

/// Returns the facts that a figure depends on.
pub fn machine() -> Vec<(String, String)> {
    let facts = crate::page::facts(&crate::cores::Cores::here());
    let owned = |(label, value): (&str, String)| (label.to_owned(), value.replace('|', "/"));
    facts.into_iter().map(owned).collect()
}

/// Returns the load of the last minute; 0 if it cannot be read.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split_whitespace().next().and_then(|n| n.parse().ok());
    load.filter(|load| (0.0..1e6).contains(load))
        .unwrap_or_default()
}

/// Settings of a run.
struct Context<'a> {
    run: &'static Run,
    quick: bool,
    rounds: usize,
    /// Called with the part of the run that is done.
    step: &'a dyn Fn(f64),
}

impl Context<'_> {
    /// Returns a function that counts to `all` steps.
    fn counter(&self, all: usize) -> impl Fn() {
        let done = std::cell::Cell::new(0usize);
        move || {
            done.set(done.get() + 1);
            (self.step)((done.get() as f64 / all.max(1) as f64).min(1.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(quick: bool) -> Plan {
        Plan {
            papers: PAPERS.to_vec(),
            quick,
            rounds: None,
        }
    }

    #[test]
    fn every_row_names_a_run_and_every_run_has_a_row() {
        let rows: Vec<_> = PAPERS.iter().flat_map(|paper| paper.rows).collect();
        for row in &rows {
            let run = row.take.run();
            assert!(
                run.is_none_or(|run| RUNS.iter().any(|known| known.name == run)),
                "{}: {run:?}",
                row.experiment
            );
        }
        let names: Vec<_> = whole(false).runs().iter().map(|run| run.name).collect();
        assert_eq!(names, RUNS.each_ref().map(|run| run.name));
    }

    #[test]
    fn charts_show_runs_of_their_paper() {
        for paper in PAPERS {
            for chart in paper.charts {
                let run = chart.run;
                assert!(
                    paper.rows.iter().any(|row| row.take.run() == Some(run)),
                    "{}: {run}",
                    paper.key
                );
            }
        }
    }

    #[test]
    fn a_whole_run_takes_twenty_minutes_at_most_and_a_quick_one_five() {
        for (quick, minutes) in [(false, 20), (true, 5)] {
            let plan = whole(quick);
            let time: Duration = plan.runs().iter().map(|run| plan.time(run)).sum();
            assert!(time <= Duration::from_secs(60 * minutes), "{time:?}");
        }
    }

    #[test]
    fn a_paper_needs_its_own_runs_only() {
        let plan = Plan {
            papers: vec![&limic::PAPER],
            ..whole(false)
        };
        let names: Vec<_> = plan.runs().iter().map(|run| run.name).collect();
        assert!(names.contains(&"copies") && !names.contains(&"abinit"));
    }

    #[test]
    fn ratios_of_papers_are_positive_and_sentences_end() {
        for row in PAPERS.iter().flat_map(|paper| paper.rows) {
            assert!(row.ratio.is_none_or(|r| r > 0.0 && r < 100.0), "{row:?}");
            for text in [row.less, row.more] {
                assert!(text.is_empty() || text.ends_with('.'), "{row:?}");
            }
        }
    }
}
