//! Figures of the papers' experiments, and the file `papers.json`.
//!
//! The page is made from this file, which may have been edited, so it is checked when it is read.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Context;
use crate::results::Figure;
use crate::table::{Ratio, rounded};
use cli::out::{Context as _, Failure};

/// Name of the file.
pub const FILE: &str = "papers.json";
/// Version of its format.
const FORMAT: u32 = 1;
/// Maximum length of the file in bytes.
const MAX_FILE: u64 = 4 << 20;
/// Maximum number of runs, of facts, and of figures of a run.
const MAX_PARTS: usize = 5_000;
/// Maximum length of a text in bytes.
const MAX_TEXT: usize = 400;

/// A run and its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Name of the run.
    pub run: String,
    /// Day.
    pub date: String,
    /// True for fewer rounds, sizes and samples.
    pub quick: bool,
    /// Number of rounds.
    pub rounds: usize,
    /// Processes that were running or ready on the whole machine when the run began: the load of
    /// the last minute.
    pub load: f64,
    /// Reason for missing figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Figures.
    pub figures: Vec<Figure>,
}

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    format: u32,
    /// Labels and values that describe the machine.
    pub machine: Vec<(String, String)>,
    /// Runs, in the order of [`RUNS`](super::RUNS).
    pub runs: Vec<Measured>,
}

impl Default for Results {
    fn default() -> Results {
        Results {
            format: FORMAT,
            machine: Vec::new(),
            runs: Vec::new(),
        }
    }
}

impl Measured {
    /// Makes the record of a run from its outcome.
    pub(super) fn new(context: &Context<'_>, outcome: Result<Outcome, Failure>) -> Measured {
        let outcome = outcome.unwrap_or_else(|failure| Outcome {
            figures: Vec::new(),
            note: Some(failure.to_string()),
        });
        let shorten = |note: String| {
            let words: Vec<_> = note.split_whitespace().collect();
            let text: String = words.join(" ").chars().take(MAX_TEXT / 4).collect();
            text.replace('|', "/")
        };
        Measured {
            run: context.run.name.into(),
            date: crate::page::date(),
            quick: context.quick,
            rounds: context.rounds,
            load: 0.0,
            note: outcome.note.map(shorten),
            figures: outcome.figures,
        }
    }

    fn check(&self) -> Result<(), String> {
        let texts = [Some(&self.run), Some(&self.date), self.note.as_ref()];
        let mut texts = texts.into_iter().flatten();
        texts.try_for_each(|text| text_is_short(text))?;
        if self.figures.len() > MAX_PARTS {
            return Err(format!("more than {MAX_PARTS} figures"));
        }
        if !(0.0..=1e6).contains(&self.load) {
            return Err("its load is not between 0 and 10^6".into());
        }
        self.figures.iter().try_for_each(Figure::check)
    }

    /// Returns the figure of a contender.
    pub fn figure(&self, what: &str, size: Option<u64>, contender: &str) -> Option<&Figure> {
        self.figures
            .iter()
            .find(|f| f.what == what && f.size == size && f.contender == contender)
    }

    /// Returns the sizes of a quantity, in order.
    pub fn sizes(&self, what: &str) -> Vec<u64> {
        let mut sizes: Vec<u64> = self
            .figures
            .iter()
            .filter(|figure| figure.what == what)
            .filter_map(|figure| figure.size)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Figures of a run, and a reason for missing ones.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) figures: Vec<Figure>,
    pub(super) note: Option<String>,
}

/// Returns the ratio of two figures of the same rounds: median, smallest and largest.
pub(super) fn ratio(ours: &Figure, reference: &Figure) -> Option<Ratio> {
    let rounds = ours.rounds.iter().zip(&reference.rounds);
    let positive = rounds.filter(|(_, other)| **other > 0.0);
    Ratio::of(&positive.map(|(one, other)| one / other).collect::<Vec<_>>())
}

/// Returns the ratio of two 99th percentiles.
pub(super) fn p99_ratio(ours: &Figure, reference: &Figure) -> Option<f64> {
    let (one, other) = (ours.p99?, reference.p99?);
    rounded(one / other)
}

fn text_is_short(text: &str) -> Result<(), String> {
    if text.len() > MAX_TEXT || text.contains(char::is_control) || text.contains('|') {
        return Err(format!(
            "a text has more than {MAX_TEXT} bytes, a control character or a vertical line"
        ));
    }
    Ok(())
}

impl Results {
    /// Reads the file in this folder; empty if there is none.
    ///
    /// # Errors
    /// The file is too long, of another version, or not a list of runs.
    pub fn read(folder: &Path) -> Result<Results, Failure> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(Results::default());
        }
        let mut text = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text))
            .doing(path.display())?;
        let note = "is not a report of `esplab papers`";
        Results::parse(&text).doing(format_args!("{} {note}", path.display()))
    }

    fn parse(text: &[u8]) -> Result<Results, String> {
        if text.len() as u64 > MAX_FILE {
            return Err(format!("it is longer than {} MiB", MAX_FILE >> 20));
        }
        let results: Results = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        if results.format != FORMAT {
            let found = results.format;
            return Err(format!(
                "its format is {found}, this program reads {FORMAT}"
            ));
        }
        if results.runs.len() > MAX_PARTS || results.machine.len() > MAX_PARTS {
            return Err(format!("it has more than {MAX_PARTS} runs or facts"));
        }
        for (label, value) in &results.machine {
            text_is_short(label)?;
            text_is_short(value)?;
        }
        for run in &results.runs {
            run.check().map_err(|why| format!("{}: {why}", run.run))?;
        }
        Ok(results)
    }

    /// Puts a run in place of its earlier record. A run without figures does not replace one that
    /// has some.
    pub fn put(&mut self, measured: Measured) {
        let old = self.runs.iter().position(|run| run.run == measured.run);
        match old.and_then(|at| self.runs.get_mut(at)) {
            Some(old) if measured.figures.is_empty() && !old.figures.is_empty() => {}
            Some(old) => *old = measured,
            None => self.runs.push(measured),
        }
        let place = |run: &Measured| {
            let named = super::RUNS.iter().position(|known| known.name == run.run);
            named.unwrap_or(usize::MAX)
        };
        self.runs.sort_by_key(place);
    }

    /// Returns the record of a run.
    pub fn run(&self, name: &str) -> Option<&Measured> {
        self.runs.iter().find(|run| run.run == name)
    }

    /// Writes the file into this folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Failure> {
        let path = folder.join(FILE);
        let text = serde_json::to_string_pretty(self).doing(path.display())?;
        fs::write(&path, text + "\n").doing(path.display())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::results::Unit;

    /// Returns a figure in microseconds.
    pub(in crate::papers) fn figure(what: &str, contender: &str, rounds: &[f64]) -> Figure {
        Figure {
            bench: "copies".into(),
            what: what.into(),
            size: Some(65_536),
            contender: contender.into(),
            unit: Unit::Micros,
            p50: crate::samples::median(rounds),
            p99: Some(10.0),
            rounds: rounds.into(),
            machine: "here".into(),
        }
    }

    pub(in crate::papers) fn measured(run: &str, figures: Vec<Figure>) -> Measured {
        Measured {
            run: run.into(),
            date: "2026-01-31".into(),
            quick: false,
            rounds: 3,
            load: 0.5,
            note: None,
            figures,
        }
    }

    #[test]
    fn a_run_replaces_its_earlier_record_unless_it_has_no_figures() {
        let mut results = Results::default();
        let one = measured("copies", vec![figure("a", "x", &[1.0])]);
        results.put(measured("guest", Vec::new()));
        results.put(one.clone());
        assert_eq!(results.runs[0].run, "copies", "in the order of the runs");
        let failed = Measured {
            note: Some("not installed".into()),
            ..measured("copies", Vec::new())
        };
        results.put(failed);
        assert_eq!(results.run("copies"), Some(&one));
        let two = measured("copies", vec![figure("a", "x", &[2.0])]);
        results.put(two.clone());
        assert_eq!(results.run("copies"), Some(&two));
        assert_eq!(results.runs.len(), 2);
    }

    #[test]
    fn ratios_are_of_values_of_one_round() {
        let (one, other) = (
            figure("a", "x", &[1.0, 2.0, 9.0]),
            figure("a", "y", &[2.0, 4.0, 3.0]),
        );
        let ratio = ratio(&one, &other).expect("three rounds");
        assert_eq!((ratio.median, ratio.low, ratio.high), (0.5, 0.5, 3.0));
        assert_eq!(p99_ratio(&one, &other), Some(1.0));
    }

    #[test]
    fn the_file_is_read_as_it_was_written() -> Result<(), Failure> {
        let scratch = crate::scratch::Scratch::new()?;
        let mut results = Results::read(scratch.path())?;
        results.machine = vec![("cores".into(), "2".into())];
        results.put(measured("copies", vec![figure("a", "x", &[1.0])]));
        results.write(scratch.path())?;
        assert_eq!(Results::read(scratch.path())?, results);
        Ok(())
    }

    #[test]
    fn hostile_files_are_refused() {
        let text = |run: &str| format!(r#"{{"format":1,"machine":[],"runs":[{run}]}}"#);
        let with = |field: &str, value: serde_json::Value| {
            let mut run = serde_json::to_value(measured("copies", Vec::new())).unwrap();
            run[field] = value;
            text(&run.to_string())
        };
        for (bad, why) in [
            (String::new(), "EOF"),
            (
                r#"{"format":2,"machine":[],"runs":[]}"#.into(),
                "format is 2",
            ),
            (with("more", 1.into()), "unknown field"),
            (with("note", "a | b".into()), "vertical line"),
            (with("run", "x\u{1b}[2J".into()), "control character"),
            (with("load", (-1.0).into()), "its load"),
            (with("rounds", (-1).into()), "invalid value"),
        ] {
            let error = Results::parse(bad.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
        assert!(Results::parse(text("").as_bytes()).is_ok());
    }
}
