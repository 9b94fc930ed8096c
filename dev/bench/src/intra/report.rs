//! Rows of the benchmarks within a node: JSON for programs, tables for people.

use serde::Serialize;

use super::contender::Contender;
use super::plan::{Bench, Measure};
use super::run::{Results, Rounds};
use super::work::{Answer, Work};
use crate::samples::{median, percentile};
use crate::table::{Column, Ratio, Style, render, rounded};

/// One line of `esplab bench --json`. Fields without meaning are omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// Quantity: latency, bandwidth, skew, …
    pub what: &'static str,
    /// Contender: limit, p2p, openmpi, …
    pub path: &'static str,
    /// Bytes of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Buffers used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffers: Option<&'static str>,
    /// Pairs of processes, where there may be several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    /// Microseconds that the consumer computes after each message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer_us: Option<f64>,
    /// Unexpected messages or posted receives ahead in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    /// Median in microseconds. Of short messages: of batches of round trips, halved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 99th percentile of the samples timed one by one, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Payload in 10^9 bits per second; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// Ratio to the best peer of the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_best_peer: Option<Ratio>,
    /// Ratio to the limit of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_limit: Option<Ratio>,
    /// Ratio to the same contender with two copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_two_copy: Option<Ratio>,
    /// Ratio to the same contender in the base measure: no computing consumer, a short queue,
    /// reused buffers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_base: Option<Ratio>,
    /// Value of each round: the median of its times in microseconds, or its Gbit/s.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f64>,
    /// Rounds measured.
    pub rounds: usize,
    /// Remark: not installed, oversubscribed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Returns the rows of a benchmark.
pub fn rows(bench: &Bench, results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (at, measure) in bench.measures.iter().enumerate() {
        for place in 0..measure.who.len() {
            rows.extend(row(bench, results, at, place));
        }
    }
    rows
}

/// A contender in a measure, with its answers.
struct Entry<'a> {
    measure: &'a Measure,
    who: Contender,
    work: Work,
    rounds: &'a Rounds,
}

impl<'a> Entry<'a> {
    /// Returns the contender at `place` of the measure at `at`.
    fn of(bench: &'a Bench, results: &'a Results, at: usize, place: usize) -> Option<Entry<'a>> {
        let measure = bench.measures.get(at)?;
        let who = *measure.who.get(place)?;
        Some(Entry {
            measure,
            who,
            work: measure.work_of(who)?,
            rounds: results.rounds.get(at)?.get(place)?,
        })
    }

    /// Returns the value of which ratios are formed: nanoseconds, or bytes per nanosecond of all
    /// pairs.
    fn value(&self, round: usize) -> Option<f64> {
        let answer = self.rounds.get(round)?.as_ref()?;
        let samples = if answer.batches.is_empty() {
            &answer.times
        } else {
            &answer.batches
        };
        let typical = Some(median(samples)).filter(|v| v.is_finite() && *v > 0.0)?;
        let bytes = self.work.bytes().filter(|_| self.measure.is_speed());
        Some(match bytes {
            Some(bytes) => (bytes * self.measure.pairs) as f64 / typical,
            None => typical / self.work.parts() as f64,
        })
    }

    /// Returns the values of the rounds that have one.
    fn values(&self) -> Vec<f64> {
        let rounds = 0..self.rounds.len();
        rounds.filter_map(|round| self.value(round)).collect()
    }

    /// Returns the ratio to the best of the others in each round.
    fn ratio_to(&self, others: &[Entry<'_>]) -> Option<Ratio> {
        let better = match self.measure.is_speed() {
            true => f64::max,
            false => f64::min,
        };
        let ratios = (0..self.rounds.len()).filter_map(|round| {
            let theirs = others.iter().filter_map(|other| other.value(round));
            Some(self.value(round)? / theirs.reduce(better)?)
        });
        Ratio::of(&ratios.collect::<Vec<_>>())
    }

    /// Returns median and 99th percentile of the times in microseconds.
    fn times(&self) -> [Option<f64>; 2] {
        let times = gathered(self.rounds, |a| &a.times);
        let batches = gathered(self.rounds, |a| &a.batches);
        let typical = if batches.is_empty() { &times } else { &batches };
        let scale = self.work.parts() as f64 * 1000.0;
        [(typical, 50.0), (&times, 99.0)]
            .map(|(samples, percent)| rounded(percentile(samples, percent) / scale))
    }
}

/// Returns `None` for a figure that this contender does not have.
fn row(bench: &Bench, results: &Results, at: usize, place: usize) -> Option<Row> {
    let mine = Entry::of(bench, results, at, place)?;
    let (measure, who) = (mine.measure, mine.who);
    let note = results.notes.get(&who).cloned();
    if note.is_none() && mine.rounds.iter().all(Option::is_none) {
        return None;
    }
    let ratio_to = |wanted: &dyn Fn(Contender) -> bool| {
        let all = (0..measure.who.len()).filter_map(|place| Entry::of(bench, results, at, place));
        let others = all.filter(|other| other.who != who && wanted(other.who));
        mine.ratio_to(&others.collect::<Vec<_>>())
    };
    let base = measure
        .base
        .and_then(|base| Entry::of(bench, results, base, place));
    let fast = measure.is_speed();
    let values = mine.values();
    let [p50_us, p99_us] = if fast { [None; 2] } else { mine.times() };
    Some(Row {
        bench: bench.about.name,
        what: measure.what,
        path: if who == Contender::Limit {
            limit_name(&mine.work)
        } else {
            who.name()
        },
        size: measure.work.size(),
        buffers: measure.buffers,
        pairs: matches!(measure.what, "multi-pair" | "sharing").then_some(measure.pairs),
        consumer_us: match measure.work {
            Work::Skew { consume, .. } => Some(consume as f64 / 1000.0),
            _ => None,
        },
        queue: match measure.work {
            Work::Unexpected { backlog, .. } | Work::Posted { backlog, .. } => Some(backlog),
            _ => None,
        },
        p50_us,
        p99_us,
        gbit_s: if fast {
            rounded(median(&values) * 8.0)
        } else {
            None
        },
        ratio_to_best_peer: ratio_to(&|other| who.is_ours() && other.is_peer()),
        ratio_to_limit: ratio_to(&|other| other == Contender::Limit),
        ratio_to_two_copy: ratio_to(&|other| other == who.two_copy()),
        ratio_to_base: base.and_then(|base| mine.ratio_to(&[base])),
        // Of nanoseconds, or of bytes per nanosecond.
        values: values
            .iter()
            .filter_map(|v| rounded(if fast { v * 8.0 } else { v / 1000.0 }))
            .collect(),
        rounds: mine.rounds.iter().flatten().count(),
        note: note.or_else(|| crowd(measure, results)),
    })
}

/// Returns a remark if the machine has fewer cores than the measure has processes.
fn crowd(measure: &Measure, results: &Results) -> Option<String> {
    let (processes, cores) = (2 * measure.pairs, results.cores);
    (processes > cores).then(|| format!("oversubscribed: {processes} processes on {cores} cores"))
}

fn limit_name(work: &Work) -> &'static str {
    match work {
        Work::Line { .. } => "limit: cache line",
        Work::Trap { .. } => "limit: system call",
        _ => "limit: memcpy",
    }
}

fn gathered(rounds: &Rounds, part: fn(&Answer) -> &Vec<f64>) -> Vec<f64> {
    rounds
        .iter()
        .flatten()
        .flat_map(|answer| part(answer).iter().copied())
        .collect()
}

const COLUMNS: [Column<Row>; 15] = [
    ("what", true, |r| Some(r.what.to_owned())),
    ("size", false, |r| r.size.map(|n| n.to_string())),
    ("buffers", true, |r| r.buffers.map(ToOwned::to_owned)),
    ("pairs", false, |r| r.pairs.map(|n| n.to_string())),
    ("consumer µs", false, |r| {
        r.consumer_us.map(|v| format!("{v:.0}"))
    }),
    ("queue", false, |r| r.queue.map(|n| n.to_string())),
    ("path", true, |r| Some(r.path.to_owned())),
    ("p50 µs", false, |r| r.p50_us.map(|v| format!("{v:.3}"))),
    ("p99 µs", false, |r| r.p99_us.map(|v| format!("{v:.3}"))),
    ("GB/s", false, |r| {
        r.gbit_s.map(|v| format!("{:.2}", v / 8.0))
    }),
    ("/ best peer", false, |r| {
        r.ratio_to_best_peer.map(|v| v.to_string())
    }),
    ("/ limit", false, |r| {
        r.ratio_to_limit.map(|v| v.to_string())
    }),
    ("/ two copies", false, |r| {
        r.ratio_to_two_copy.map(|v| v.to_string())
    }),
    ("/ base", false, |r| r.ratio_to_base.map(|v| v.to_string())),
    ("", true, |r| r.note.clone()),
];

/// Formats the rows as a table.
pub fn table(rows: &[Row], style: Style) -> String {
    render(rows, &COLUMNS, style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intra::contender::Ours;
    use crate::intra::plan;

    fn answer(nanos: f64) -> Option<Answer> {
        Some(Answer {
            times: vec![nanos; 10],
            batches: Vec::new(),
        })
    }

    /// Two rounds; in the second all contenders take twice the time.
    fn results(bench: &Bench, nanos: impl Fn(&Measure, Contender) -> Option<f64>) -> Results {
        let rounds = |m: &Measure, who: &Contender| {
            let nanos = nanos(m, *who);
            vec![nanos.and_then(answer), nanos.and_then(|n| answer(2.0 * n))]
        };
        let measures = bench.measures.iter();
        Results {
            rounds: measures
                .map(|m| m.who.iter().map(|who| rounds(m, who)).collect())
                .collect(),
            cores: 2,
            ..Results::default()
        }
    }

    #[test]
    fn ratios_are_to_the_best_peer_and_the_limit_of_the_same_round() -> Result<(), String> {
        let bench = plan::bench("shm", true).ok_or("no bench")?;
        let results = results(&bench, |_, who| match who {
            Contender::Limit => Some(100.0),
            Contender::P2p(_) => Some(200.0),
            Contender::OpenMpi { .. } => Some(400.0),
            _ => Some(1000.0),
        });
        let rows = rows(&bench, &results);
        let ours = rows
            .iter()
            .find(|r| r.what == "latency" && r.path == "p2p")
            .ok_or("no row")?;
        assert_eq!(
            (
                ours.ratio_to_best_peer.map(|r| r.median),
                ours.ratio_to_limit.map(|r| r.median)
            ),
            (Some(0.5), Some(2.0))
        );
        assert_eq!((ours.size, ours.gbit_s, ours.rounds), (Some(8), None, 2));
        assert_eq!(ours.p50_us, Some(0.1), "half a round trip of 200 ns");
        let ours = rows
            .iter()
            .find(|r| r.what == "bandwidth" && r.path == "p2p")
            .ok_or("no row")?;
        assert_eq!(
            (
                ours.ratio_to_best_peer.map(|r| r.median),
                ours.ratio_to_limit.map(|r| r.median)
            ),
            (Some(2.0), Some(0.5))
        );
        assert!(ours.p50_us.is_none() && ours.gbit_s.is_some());
        Ok(())
    }

    #[test]
    fn missing_peers_have_rows_with_a_note() -> Result<(), String> {
        let bench = plan::bench("matching", true).ok_or("no bench")?;
        let mut results = results(&bench, |m, who| match (who, &m.work) {
            (Contender::Mpich, _) => None,
            (
                _,
                Work::Unexpected {
                    backlog: 10_000, ..
                },
            ) => Some(300.0),
            _ => Some(100.0),
        });
        results
            .notes
            .insert(Contender::Mpich, "not installed: it".into());
        let rows = rows(&bench, &results);
        let mpich: Vec<_> = rows.iter().filter(|r| r.path == "mpich").collect();
        assert_eq!(mpich.len(), bench.measures.len());
        assert!(
            mpich
                .iter()
                .all(|r| r.rounds == 0 && r.note.as_deref() == Some("not installed: it"))
        );
        let ours = rows
            .iter()
            .find(|r| r.path == "p2p" && r.queue == Some(10_000))
            .ok_or("no row")?;
        assert_eq!(
            (
                ours.ratio_to_base.map(|r| r.median),
                ours.ratio_to_best_peer.map(|r| r.median)
            ),
            (Some(3.0), Some(1.0))
        );
        assert!(!results.ours_failed());
        results
            .notes
            .insert(Contender::P2p(Ours::Set), "it fell over".into());
        assert!(results.ours_failed());
        assert!(table(&rows, Style::Text).contains("not installed: it"));
        Ok(())
    }

    #[test]
    fn rows_name_oversubscription_and_add_rates() -> Result<(), String> {
        let bench = plan::bench("papers", true).ok_or("no bench")?;
        let results = results(&bench, |_, _| Some(1000.0));
        let rows = rows(&bench, &results);
        let of = |pairs| {
            rows.iter()
                .find(|r| r.path == "p2p" && r.pairs == Some(pairs))
                .ok_or("no row")
        };
        let (one, two) = (of(1)?, of(2)?);
        assert_eq!(one.gbit_s.map(|v| 2.0 * v), two.gbit_s);
        assert_eq!(one.note, None);
        assert_eq!(
            two.note.as_deref(),
            Some("oversubscribed: 4 processes on 2 cores")
        );
        Ok(())
    }
}
