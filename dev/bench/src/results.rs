//! Figures of all benchmarks in one form, and the file `results.json` of a report.
//!
//! The file may come from anywhere (`--against`), so it is checked when it is read.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::samples::median;
use crate::{engines, incast, intra, programs, rails, report};
use cli::out::{Context, Failure};

/// Name of the file in the folder of a report.
pub const FILE: &str = "results.json";
/// Version of its format.
const FORMAT: u32 = 1;
/// Maximum length of the file in bytes.
const MAX_FILE: u64 = 16 << 20;
/// Maximum number of figures in it.
const MAX_FIGURES: usize = 50_000;
/// Maximum number of rounds of a figure: that of `--rounds`.
const MAX_ROUNDS: usize = 1000;
/// Maximum length of a text in it, in bytes.
const MAX_TEXT: usize = 400;

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "µs")]
    Micros,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// 10^9 bits per second.
    #[serde(rename = "Gbit/s")]
    GbitS,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// 10^6 bytes per second.
    #[serde(rename = "MB/s")]
    MbS,
    /// Steps per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// 10^9 floating-point operations per second.
    #[serde(rename = "Gflop/s")]
    GflopS,
}

impl Unit {
    /// Returns its text.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Micros => "µs",
            Unit::Millis => "ms",
            Unit::GbitS => "Gbit/s",
            Unit::Seconds => "s",
            Unit::MbS => "MB/s",
            Unit::PerSecond => "1/s",
            Unit::GflopS => "Gflop/s",
        }
    }

    /// Returns true for a time, of which less is better.
    pub fn is_time(self) -> bool {
        matches!(self, Unit::Micros | Unit::Millis | Unit::Seconds)
    }
}

/// One measured quantity of one contender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Name of the benchmark.
    pub bench: String,
    /// Quantity and conditions, such as "half a round trip, MTU 1500, block".
    pub what: String,
    /// Bytes of a message or of a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Path, or program compared with.
    pub contender: String,
    /// Unit of all values.
    pub unit: Unit,
    /// Median of all samples of a time, of all rounds of a rate.
    pub p50: f64,
    /// 99th percentile of all samples of a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// Value of each round: the median of its samples, or its rate.
    pub rounds: Vec<f64>,
    /// Machine that it was measured on.
    pub machine: String,
}

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    format: u32,
    figures: Vec<Figure>,
}

impl Figure {
    /// Returns the smallest and the largest value of a round; `None` without rounds.
    pub fn range(&self) -> Option<(f64, f64)> {
        let ends = |f: fn(f64, f64) -> f64| self.rounds.iter().copied().reduce(f);
        Some((ends(f64::min)?, ends(f64::max)?))
    }

    /// Returns the median of the rounds.
    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }

    /// Returns true if both are the same quantity of the same contender.
    pub fn is_like(&self, other: &Figure) -> bool {
        let key = |f: &'_ Figure| (f.size, f.unit);
        key(self) == key(other)
            && self.bench == other.bench
            && self.what == other.what
            && self.contender == other.contender
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let texts = [&self.bench, &self.what, &self.contender, &self.machine];
        if texts.iter().any(|text| text.len() > MAX_TEXT) {
            return Err(format!("a text is longer than {MAX_TEXT} bytes"));
        }
        if texts.iter().any(|text| text.contains(char::is_control)) {
            return Err("a text has a control character".into());
        }
        if self.rounds.len() > MAX_ROUNDS {
            return Err(format!("more than {MAX_ROUNDS} rounds"));
        }
        let values = self.rounds.iter().chain([&self.p50]).chain(&self.p99);
        if values.into_iter().any(|v| !(0.0..=1e15).contains(v)) {
            return Err("a value is not between 0 and 10^15".into());
        }
        Ok(())
    }
}

/// Reads the figures of the report in this folder.
///
/// # Errors
/// The file is missing, too long, of another version, or not a list of figures.
pub fn read(folder: &Path) -> Result<Vec<Figure>, Failure> {
    let path = folder.join(FILE);
    let mut text = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text))
        .doing(format_args!(
            "cannot read {}, which `esplab bench --report` writes",
            path.display()
        ))?;
    parse(&text).doing(format_args!("{} is not a report", path.display()))
}

fn parse(text: &[u8]) -> Result<Vec<Figure>, String> {
    if text.len() as u64 > MAX_FILE {
        return Err(format!("it is longer than {} MiB", MAX_FILE >> 20));
    }
    let results: Results = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if results.format != FORMAT {
        return Err(format!(
            "its format is {}, this program reads {FORMAT}",
            results.format
        ));
    }
    if results.figures.len() > MAX_FIGURES {
        return Err(format!("it has more than {MAX_FIGURES} figures"));
    }
    for (place, figure) in results.figures.iter().enumerate() {
        figure
            .check()
            .map_err(|why| format!("figure {}: {why}", place + 1))?;
    }
    Ok(results.figures)
}

/// Reads the figures of the report in this folder; none if there is no report yet.
///
/// # Errors
/// The file is not a report.
pub fn existing(folder: &Path) -> Result<Vec<Figure>, Failure> {
    if folder.join(FILE).exists() {
        read(folder)
    } else {
        Ok(Vec::new())
    }
}

/// Puts the figures into the report in this folder, in place of earlier ones of these benchmarks.
/// Returns all figures of the report.
///
/// # Errors
/// The file is not a report, or cannot be written.
pub(crate) fn update(
    folder: &Path,
    benches: &[&str],
    figures: Vec<Figure>,
) -> Result<Vec<Figure>, Failure> {
    let path = folder.join(FILE);
    let mut all = existing(folder)?;
    all.retain(|figure| !benches.contains(&figure.bench.as_str()));
    all.extend(figures);
    let results = Results {
        format: FORMAT,
        figures: all,
    };
    let text = serde_json::to_string_pretty(&results).doing(path.display())?;
    fs::write(&path, text + "\n").doing(path.display())?;
    Ok(results.figures)
}

/// Rounds to six digits after the point, which is finer than the measurement.
fn short(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Returns a figure of these rounds, without size and percentile; `None` without rounds.
fn figure(
    (bench, what, contender): (&str, String, &str),
    unit: Unit,
    rounds: &[f64],
    machine: &str,
) -> Option<Figure> {
    if rounds.is_empty() || !rounds.iter().all(|v| v.is_finite()) {
        return None;
    }
    Some(Figure {
        bench: bench.into(),
        what,
        size: None,
        contender: contender.into(),
        unit,
        p50: short(median(rounds)),
        p99: None,
        rounds: rounds.iter().copied().map(short).collect(),
        machine: machine.into(),
    })
}

/// Returns a figure of a size: a time if there are percentiles (p50 and p99), otherwise a rate.
fn sized(
    key: (&str, String, &str),
    size: Option<usize>,
    percentiles: Option<(Option<f64>, Option<f64>)>,
    rounds: &[f64],
    machine: &str,
) -> Option<Figure> {
    let unit = match percentiles {
        Some(_) => Unit::Micros,
        None => Unit::GbitS,
    };
    let figure = figure(key, unit, rounds, machine)?;
    let (p50, p99) = percentiles.unwrap_or_default();
    Some(Figure {
        size: size.map(|size| size as u64),
        p50: p50.unwrap_or(figure.p50),
        p99,
        ..figure
    })
}

/// Joins the parts that are not `None`.
fn joined(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns the figures of a benchmark between two nodes.
pub(crate) fn between_nodes(rows: &[report::Row], machine: &str) -> Vec<Figure> {
    let of = |row: &report::Row| {
        let quantity = match row.bench {
            "send" | "send-idle" => "send call",
            _ if row.gbit_s.is_some() => "bandwidth",
            _ => "half a round trip",
        };
        let what = joined([
            Some(quantity.into()),
            Some(format!("MTU {}", row.mtu)),
            row.wait.map(|wait| wait.name().into()),
            row.loss.map(|loss| format!("{} % lost", loss * 100.0)),
            row.connections.map(|n| format!("{n} connections")),
            row.leases.map(|n| format!("{n} leases")),
            row.protection.map(|p| format!("protection: {}", p.name())),
        ]);
        let key = (row.bench, what, row.path);
        let percentiles = row.gbit_s.is_none().then_some((row.p50_us, row.p99_us));
        sized(key, row.size, percentiles, &row.values, machine)
    };
    rows.iter().filter_map(of).collect()
}

/// Returns the figures of a benchmark within a node.
pub(crate) fn within_node(rows: &[intra::report::Row], machine: &str) -> Vec<Figure> {
    let of = |row: &intra::report::Row| {
        let what = joined([
            Some(row.what.into()),
            row.buffers.map(|buffers| format!("buffers: {buffers}")),
            row.pairs.map(|n| format!("{n} pairs")),
            row.consumer_us.map(|us| format!("consumer {us} µs")),
            row.queue.map(|n| format!("queue {n}")),
        ]);
        let key = (row.bench, what, row.path);
        let percentiles = row.gbit_s.is_none().then_some((row.p50_us, row.p99_us));
        sized(key, row.size, percentiles, &row.values, machine)
    };
    rows.iter().filter_map(of).collect()
}

/// Returns the figures of [`mod@incast`].
pub(crate) fn incast(rows: &[incast::Row], machine: &str) -> Vec<Figure> {
    let of = |row: &incast::Row| {
        let key = |what: &str| (row.bench, what.to_owned(), row.path);
        [
            figure(key("bandwidth"), Unit::GbitS, &row.gbit_s_values, machine),
            figure(
                key("longest time without data for some flow"),
                Unit::Millis,
                &row.stall_ms_values,
                machine,
            ),
        ]
    };
    rows.iter().flat_map(of).flatten().collect()
}

/// Returns the figures of [`mod@rails`].
pub(crate) fn rails(rows: &[rails::Row], machine: &str) -> Vec<Figure> {
    let of = |row: &rails::Row| {
        let key = |what: &str| (row.bench, format!("{what}, {} links", row.links), row.path);
        let long = figure(key("bandwidth"), Unit::GbitS, &row.gbit_s_values, machine);
        let half = key("half a round trip of 1 byte");
        [
            long,
            figure(half, Unit::Micros, &row.half_us_values, machine),
        ]
    };
    rows.iter().flat_map(of).flatten().collect()
}

/// Returns the figures of [`mod@programs`].
pub(crate) fn programs(rows: &[programs::Row], machine: &str) -> Vec<Figure> {
    let of = |row: &programs::Row| {
        let key = |what: &str| {
            let what = format!("{what}, {} programs", row.programs);
            (row.bench, what, row.path)
        };
        let half = key("half a round trip of 64 bytes, one active");
        let daemon = key("time of the daemons for a message, all active");
        [
            figure(half, Unit::Micros, &row.half_us_values, machine),
            figure(daemon, Unit::Micros, &row.daemon_us_values, machine),
        ]
    };
    rows.iter().flat_map(of).flatten().collect()
}

/// Returns the figures of [`mod@engines`].
pub(crate) fn engines(rows: &[engines::Row], machine: &str) -> Vec<Figure> {
    let of = |row: &engines::Row| {
        let key = |what: &str| {
            let what = format!("{what}, {} engines", row.engines);
            (row.bench, what, "daemon")
        };
        let frame = key("time of the daemons for a frame");
        [
            figure(key("rate"), Unit::GbitS, &row.gbit_s_values, machine),
            figure(frame, Unit::Micros, &row.frame_us_values, machine),
        ]
    };
    rows.iter().flat_map(of).flatten().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::task::Wait;

    /// Returns the figure of a ping-pong of 64 bytes.
    pub(crate) fn latency(contender: &str, rounds: &[f64]) -> Figure {
        Figure {
            bench: "pingpong".into(),
            what: "half a round trip, MTU 1500, block".into(),
            size: Some(64),
            contender: contender.into(),
            unit: Unit::Micros,
            p50: median(rounds),
            p99: Some(2.0 * median(rounds)),
            rounds: rounds.into(),
            machine: "here".into(),
        }
    }

    #[test]
    fn rows_become_figures_with_their_conditions_and_rounds() {
        let time = report::Row {
            bench: "pingpong",
            path: "lease",
            wait: Some(Wait::Block),
            size: Some(64),
            mtu: 1500,
            p50_us: Some(4.0),
            p99_us: Some(9.0),
            values: vec![4.0, 3.5, 4.123_456_789],
            ..report::Row::default()
        };
        let rate = report::Row {
            bench: "loss",
            path: "tcp",
            mtu: 1500,
            loss: Some(0.01),
            gbit_s: Some(2.0),
            p50_us: Some(7.0),
            values: vec![1.0, 3.0],
            ..report::Row::default()
        };
        let failed = report::Row::default();
        let [latency, bandwidth] = between_nodes(&[time, rate, failed], "here")
            .try_into()
            .expect("two figures");
        assert_eq!(latency.what, "half a round trip, MTU 1500, block");
        assert_eq!(
            (latency.size, latency.unit, latency.p50, latency.p99),
            (Some(64), Unit::Micros, 4.0, Some(9.0))
        );
        assert_eq!(latency.rounds, [4.0, 3.5, 4.123_457]);
        assert_eq!(bandwidth.what, "bandwidth, MTU 1500, 1 % lost");
        assert_eq!(
            (bandwidth.unit, bandwidth.p50, bandwidth.p99),
            (Unit::GbitS, 2.0, None)
        );
    }

    #[test]
    fn a_report_is_updated_by_benchmark() -> Result<(), Failure> {
        let scratch = crate::scratch::Scratch::new()?;
        let other = Figure {
            bench: "stream".into(),
            unit: Unit::GbitS,
            p99: None,
            ..latency("tcp", &[1.0])
        };
        let old = vec![latency("tcp", &[1.0]), other.clone()];
        update(scratch.path(), &["pingpong", "stream"], old)?;
        let new = vec![latency("tcp", &[2.0, 3.0])];
        let all = update(scratch.path(), &["pingpong"], new)?;
        assert_eq!(all, [other, latency("tcp", &[2.0, 3.0])]);
        assert_eq!(read(scratch.path())?, all);
        Ok(())
    }

    #[test]
    fn hostile_files_are_refused() {
        let text = |figures: &str| format!(r#"{{"format":1,"figures":[{figures}]}}"#);
        let with = |field: &str, value: &str| {
            let mut figure = serde_json::to_value(latency("tcp", &[1.0])).unwrap();
            figure[field] = serde_json::Value::Null;
            text(&figure.to_string().replace("null", value))
        };
        assert_eq!(
            parse(text("").as_bytes()).map(|all| all.len()),
            Ok(0),
            "an empty report"
        );
        let long = format!("\"{}\"", "x".repeat(500));
        let many = format!("[{}]", vec!["1"; 1001].join(","));
        for (bad, why) in [
            (String::new(), "EOF"),
            ("[".repeat(100_000), "invalid type"),
            ("{}".into(), "missing field"),
            (r#"{"format":2,"figures":[]}"#.into(), "format is 2"),
            (r#"{"format":1,"figures":[],"more":1}"#.into(), "unknown"),
            (with("rounds", "[1e999]"), "out of range"),
            (with("rounds", "[-1]"), "figure 1: a value"),
            (with("rounds", "[1e300]"), "figure 1: a value"),
            (with("rounds", &many), "1000 rounds"),
            (with("p50", "\"NaN\""), "invalid type"),
            (with("p99", "-0.5"), "figure 1: a value"),
            (with("unit", "\"furlong\""), "unknown variant"),
            (with("size", "-1"), "invalid value"),
            (with("size", "1e30"), "invalid type"),
            (with("machine", &long), "400 bytes"),
            (with("contender", "\"\\u001b[2J\""), "control character"),
        ] {
            let error = parse(bad.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
        assert!(parse(&[0xff, 0xfe]).is_err());
        let endless = vec![b' '; usize::try_from(MAX_FILE).unwrap() + 1];
        assert!(parse(&endless).unwrap_err().contains("longer"));
        let figure = serde_json::to_string(&latency("tcp", &[])).unwrap();
        let crowd = vec![figure.as_str(); MAX_FIGURES + 1].join(",");
        assert!(parse(text(&crowd).as_bytes()).is_err());
    }
}
