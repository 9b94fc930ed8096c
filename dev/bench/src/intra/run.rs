//! Runs a benchmark in alternating rounds.

use std::collections::BTreeMap;

use super::contender::{Contender, Workshop};
use super::group::Group;
use super::plan::{Bench, Measure};
use super::ucx;
use super::work::Answer;
use crate::cores;
use cli::out::Failure;

/// Number of rounds after which processes are restarted, because the placement of their memory is
/// part of the result.
const FRESH: usize = 3;

/// Runs benchmarks within this node.
#[derive(Debug)]
pub struct Rig {
    cores: Vec<usize>,
    workshop: Workshop,
}

impl Default for Rig {
    fn default() -> Rig {
        Rig {
            cores: cores::allowed(),
            workshop: Workshop::default(),
        }
    }
}

/// Answers of a contender by round of a measure; `None` if it failed.
pub(super) type Rounds = Vec<Option<Answer>>;

/// Results of a benchmark.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Answers by measure, then by contender in the measure's order.
    pub(super) rounds: Vec<Vec<Rounds>>,
    /// Reasons for missing answers of a contender.
    pub(super) notes: BTreeMap<Contender, String>,
    /// Number of cores.
    pub(super) cores: usize,
}

impl Results {
    /// Returns true if one of our contenders failed.
    pub fn ours_failed(&self) -> bool {
        self.notes.keys().any(|who| who.is_ours())
    }
}

/// Waiting processes by contender and number.
type Groups = BTreeMap<(Contender, usize), Group>;

impl Rig {
    /// Formats the two cores of a pair.
    pub fn cores(&self) -> String {
        match self.cores.as_slice() {
            [] => "anywhere".into(),
            [one] => format!("both on core {one}"),
            [a, b, ..] => format!("{a} and {b}"),
        }
    }

    /// Returns the number of measurements of a benchmark.
    pub fn steps(bench: &Bench) -> usize {
        bench.rounds * bench.measures.iter().map(|m| m.who.len()).sum::<usize>()
    }

    /// Runs all rounds. Calls `step` after each measurement. A contender that fails takes no part
    /// in the rest, and gets a note.
    pub fn run(&mut self, bench: &Bench, step: impl Fn()) -> Results {
        let blank = |m: &Measure| m.who.iter().map(|_| Vec::new()).collect();
        let mut results = Results {
            rounds: bench.measures.iter().map(blank).collect(),
            cores: self.cores.len(),
            ..Results::default()
        };
        let mut groups = Groups::new();
        for round in 0..bench.rounds {
            if round % FRESH == 0 {
                groups.clear();
            }
            for (measure, rounds) in bench.measures.iter().zip(&mut results.rounds) {
                groups.retain(|(_, ranks), _| *ranks == 2 * measure.pairs);
                for (who, rounds) in measure.who.iter().zip(rounds) {
                    let answer = if results.notes.contains_key(who) {
                        None
                    } else {
                        match self.measure(measure, *who, &mut groups) {
                            Ok(answer) => answer,
                            Err(e) => {
                                groups.retain(|(of, _), _| of != who);
                                results.notes.insert(*who, e.to_string());
                                None
                            }
                        }
                    };
                    rounds.push(answer);
                    step();
                }
            }
        }
        results
    }

    /// Measures a contender once; `None` if it has no such figure.
    fn measure(
        &mut self,
        measure: &Measure,
        who: Contender,
        groups: &mut Groups,
    ) -> Result<Option<Answer>, Failure> {
        let Some(work) = measure.work_of(who) else {
            return Ok(None);
        };
        if who == Contender::Ucx {
            return ucx::run(&work, &self.cores).transpose();
        }
        // One program measures both limits.
        let program = if who == Contender::KernelCopy {
            Contender::Limit
        } else {
            who
        };
        let key = (program, 2 * measure.pairs);
        let group = match groups.remove(&key) {
            Some(group) => group,
            None => self.workshop.start(program, key.1, &self.cores)?,
        };
        groups.entry(key).or_insert(group).run(&work).map(Some)
    }
}
