//! Comparison with an earlier report: figures that are slower or faster beyond the noise.

use std::fmt::{self, Write};

use crate::results::Figure;

/// Ratio of the medians above which a figure is slower, if its rounds do not overlap.
const TOLERANCE: f64 = 1.10;
/// Number of rounds that show the noise of a figure.
const MIN_ROUNDS: usize = 2;

/// A figure that has changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The figure now.
    pub now: Figure,
    /// Median of the rounds before.
    pub before: f64,
    /// By which factor it is slower; less than 1: faster.
    pub slower_by: f64,
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Slower figures, the largest change first.
    pub slower: Vec<Change>,
    /// Faster figures, the largest change first.
    pub faster: Vec<Change>,
    /// Number of figures within the noise.
    pub same: usize,
    /// Number of figures that only one of the reports has.
    pub alone: usize,
    /// Number of figures with fewer rounds than show the noise, or without a value.
    pub unclear: usize,
    /// Machines of the earlier report that differ from today's.
    pub other_machines: Vec<String>,
}

/// Outcome of one pair of figures.
enum Outcome {
    Slower(f64),
    Faster(f64),
    Same,
    Unclear,
}

fn outcome(before: &Figure, now: &Figure) -> Outcome {
    let rounds = before.rounds.len().min(now.rounds.len());
    let (old, new) = (before.median(), now.median());
    let ranges = before.range().zip(now.range());
    let Some((was, is)) = ranges.filter(|_| rounds >= MIN_ROUNDS && old > 0.0 && new > 0.0) else {
        return Outcome::Unclear;
    };
    let slower_by = if now.unit.is_time() {
        new / old
    } else {
        old / new
    };
    let overlap = was.0 <= is.1 && is.0 <= was.1;
    if overlap {
        Outcome::Same
    } else if slower_by > TOLERANCE {
        Outcome::Slower(slower_by)
    } else if 1.0 / slower_by > TOLERANCE {
        Outcome::Faster(slower_by)
    } else {
        Outcome::Same
    }
}

/// Compares the current figures with those of an earlier report, for the benchmarks measured now.
pub fn compare(before: &[Figure], now: &[Figure]) -> Comparison {
    let mut all = Comparison::default();
    let is_measured = |old: &&Figure| now.iter().any(|new| new.bench == old.bench);
    let before: Vec<_> = before.iter().filter(is_measured).collect();
    for old in &before {
        let is_known = now.iter().any(|new| new.machine == old.machine);
        if !is_known && !all.other_machines.contains(&old.machine) {
            all.other_machines.push(old.machine.clone());
        }
        all.alone += usize::from(!now.iter().any(|new| new.is_like(old)));
    }
    for new in now {
        let Some(old) = before.iter().find(|old| old.is_like(new)) else {
            all.alone += 1;
            continue;
        };
        let change = |slower_by| Change {
            now: new.clone(),
            before: old.median(),
            slower_by,
        };
        match outcome(old, new) {
            Outcome::Slower(by) => all.slower.push(change(by)),
            Outcome::Faster(by) => all.faster.push(change(by)),
            Outcome::Same => all.same += 1,
            Outcome::Unclear => all.unclear += 1,
        }
    }
    all.slower
        .sort_by(|a, b| b.slower_by.total_cmp(&a.slower_by));
    all.faster
        .sort_by(|a, b| a.slower_by.total_cmp(&b.slower_by));
    all
}

impl Comparison {
    /// Returns true if at least one figure is in both reports.
    pub fn has_common(&self) -> bool {
        self.slower.len() + self.faster.len() + self.same + self.unclear > 0
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for machine in &self.other_machines {
            writeln!(
                text,
                "the earlier figures are of another machine: {machine}"
            )?;
        }
        let headings = [
            "",
            "bench",
            "what",
            ">size",
            "contender",
            ">before",
            ">now",
            "unit",
            ">ratio",
        ];
        let row = |word: &str, change: &Change| {
            let figure = &change.now;
            vec![
                word.to_owned(),
                figure.bench.clone(),
                figure.what.clone(),
                figure.size.map_or_else(|| "-".into(), |n| n.to_string()),
                figure.contender.clone(),
                format!("{:.3}", change.before),
                format!("{:.3}", figure.median()),
                figure.unit.name().to_owned(),
                format!("{:.2}", figure.median() / change.before),
            ]
        };
        let slower = self.slower.iter().map(|change| row("slower", change));
        let faster = self.faster.iter().map(|change| row("faster", change));
        if !self.slower.is_empty() || !self.faster.is_empty() {
            text.push_str(&cli::table::text(&headings, slower.chain(faster)));
        }
        writeln!(
            text,
            "{} slower, {} faster, {} within the noise, {} unclear (one round, or no value), \
             {} in one report only",
            self.slower.len(),
            self.faster.len(),
            self.same,
            self.unclear,
            self.alone
        )?;
        f.write_str(text.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Unit;
    use crate::results::tests::latency;

    fn of(before: &[f64], now: &[f64]) -> Comparison {
        compare(&[latency("lease", before)], &[latency("lease", now)])
    }

    fn counts(all: &Comparison) -> [usize; 5] {
        let (slower, faster) = (all.slower.len(), all.faster.len());
        [slower, faster, all.same, all.unclear, all.alone]
    }

    #[test]
    fn a_change_beyond_the_noise_is_slower_or_faster() {
        let slower = of(&[4.0, 4.1, 4.2], &[5.0, 5.1, 5.2]);
        assert_eq!(counts(&slower), [1, 0, 0, 0, 0]);
        assert!((slower.slower[0].slower_by - 5.1 / 4.1).abs() < 1e-9);
        let faster = of(&[5.0, 5.1, 5.2], &[4.0, 4.1, 4.2]);
        assert_eq!(counts(&faster), [0, 1, 0, 0, 0]);
    }

    #[test]
    fn overlapping_rounds_and_small_changes_are_noise() {
        assert_eq!(counts(&of(&[4.0, 4.1, 6.0], &[5.9, 7.0, 8.0]))[2], 1);
        assert_eq!(counts(&of(&[4.0, 4.1], &[4.2, 4.3]))[2], 1, "1.05 times");
        assert_eq!(counts(&of(&[4.0, 4.0], &[4.0, 9.0]))[2], 1, "they touch");
    }

    #[test]
    fn one_round_or_no_value_shows_nothing() {
        assert_eq!(counts(&of(&[4.0], &[9.0, 9.0])), [0, 0, 0, 1, 0]);
        assert_eq!(counts(&of(&[], &[9.0, 9.0])), [0, 0, 0, 1, 0]);
        assert_eq!(counts(&of(&[0.0, 0.0], &[9.0, 9.0])), [0, 0, 0, 1, 0]);
    }

    #[test]
    fn less_of_a_rate_is_slower() {
        let rate = |rounds: &[f64]| Figure {
            unit: Unit::GbitS,
            ..latency("lease", rounds)
        };
        let all = compare(&[rate(&[20.0, 21.0])], &[rate(&[10.0, 11.0])]);
        assert_eq!(counts(&all), [1, 0, 0, 0, 0]);
        assert!(all.to_string().contains("0.51"), "{all}");
    }

    #[test]
    fn figures_of_one_report_are_counted() {
        let before = [latency("lease", &[1.0, 1.0]), latency("udp", &[1.0, 1.0])];
        let unmeasured = Figure {
            bench: "stream".into(),
            ..latency("tcp", &[1.0, 1.0])
        };
        let now = [latency("lease", &[1.0, 1.0]), latency("tcp", &[1.0, 1.0])];
        let all = compare(&[&before[..], &[unmeasured]].concat(), &now);
        assert_eq!(counts(&all), [0, 0, 1, 0, 2]);
        assert!(all.has_common());
        assert!(!compare(&[], &now).has_common());
    }

    #[test]
    fn changes_and_other_machines_are_printed() {
        let old = Figure {
            machine: "another".into(),
            ..latency("lease", &[4.0, 4.0])
        };
        let text = compare(&[old], &[latency("lease", &[6.0, 6.0])]).to_string();
        for part in [
            "another machine: another",
            "slower",
            "half a round trip, MTU 1500, block",
            "4.000",
            "6.000",
            "1.50",
            "1 slower, 0 faster",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
