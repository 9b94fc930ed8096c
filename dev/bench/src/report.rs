//! What a benchmark says: rows for programs, tables for people.

use serde::Serialize;

use crate::plan::{Bench, Case};
use crate::samples::{Samples, median};
use crate::worker::{Outcome, Path, Wait, Work};

/// One line of `esplab bench --json`. Fields without meaning for a bench are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Which bench.
    pub bench: &'static str,
    /// Over what: tcp, tcp-no-offload, raw, lease, daemon, p2p.
    pub path: &'static str,
    /// How the workers waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Bytes of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// MTU of the wire.
    pub mtu: u32,
    /// Share of frames lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Open connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Leased ports of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<usize>,
    /// Microseconds that half of the samples do not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// Microseconds that 99 % of the samples do not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Payload bits per second, in 10^9; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// This value divided by TCP's (time by time, speed by speed), median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_tcp: Option<f64>,
    /// The same with TCP without offload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_tcp_no_offload: Option<f64>,
    /// The same with the bare packet-socket loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_raw: Option<f64>,
    /// The same with the same path on a wire without loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_lossless: Option<f64>,
    /// CPU time of both daemons for each data frame, in microseconds; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_frame: Option<f64>,
    /// CPU time for each frame (of a ping-pong: its time) divided by that of the same with no other
    /// connection open, median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_one_connection: Option<f64>,
    /// This value divided by that of the same with no other port leased, median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_one_lease: Option<f64>,
    /// Bytes of memory of a daemon for each idle connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_connection: Option<f64>,
    /// Rounds measured.
    pub rounds: usize,
    /// Which core ran what.
    pub cores: String,
}

/// What a case gave in one round.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Times of the client.
    pub times: Samples,
    /// Gbit/s (bits per nanosecond), if bytes were counted over a time.
    pub gbit_s: Option<f64>,
    /// CPU time of both daemons meanwhile, in nanoseconds.
    pub daemon_cpu: Option<u64>,
    /// Bytes that arrived.
    pub bytes: u64,
}

impl Measured {
    /// From both workers' outcomes: bytes are counted by the one who can, mostly the server.
    pub fn new(client: Outcome, server: &Outcome) -> Measured {
        let mine = client.nanos > 0;
        let (bytes, nanos) = if mine {
            (client.bytes, client.nanos)
        } else {
            (server.bytes, server.nanos)
        };
        let gbit_s = (nanos > 0 && bytes > 0).then(|| bytes as f64 * 8.0 / nanos as f64);
        Measured {
            times: client.times,
            gbit_s,
            daemon_cpu: None,
            bytes,
        }
    }

    /// The one number of a round that ratios are made of.
    fn value(&self, work: &Work) -> Option<f64> {
        match work {
            Work::Stream { .. } => self.gbit_s,
            _ => (!self.times.is_empty()).then(|| self.times.percentile(50.0)),
        }
    }

    /// CPU time of the daemons for each frame of this payload, in microseconds.
    fn cpu_us_per_frame(&self, payload: f64) -> Option<f64> {
        let frames = self.bytes as f64 / payload;
        if self.bytes > 0 {
            Some(self.daemon_cpu? as f64 / 1000.0 / frames)
        } else {
            None
        }
    }
}

/// All that a bench gave.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// By case, then round.
    pub measured: Vec<Vec<Measured>>,
    /// By lab: memory of a daemon for each connection held open.
    pub bytes_per_connection: Vec<Option<f64>>,
    /// Which core ran what.
    pub cores: String,
}

/// The rows of a bench.
pub fn rows(bench: &Bench, results: &Results) -> Vec<Row> {
    bench
        .cases
        .iter()
        .enumerate()
        .map(|(index, case)| row(bench, case, index, results))
        .collect()
}

fn row(bench: &Bench, case: &Case, index: usize, results: &Results) -> Row {
    let lab = bench.labs.get(case.lab).copied().unwrap_or_default();
    let payload = f64::from(lab.mtu.saturating_sub(11).max(1));
    let mine = rounds_of(results, index);
    let stream = matches!(case.work, Work::Stream { .. });
    let ratio = |others: Vec<usize>, value: &dyn Fn(&Measured) -> Option<f64>| {
        let best = |round: usize| {
            let values = others
                .iter()
                .filter_map(|&i| value(rounds_of(results, i).get(round)?));
            if stream {
                values.reduce(f64::max)
            } else {
                values.reduce(f64::min)
            }
        };
        let ratios = mine
            .iter()
            .enumerate()
            .filter_map(|(round, m)| Some(value(m)? / best(round)?));
        rounded(median(&ratios.collect::<Vec<_>>()))
    };
    let value = |m: &Measured| m.value(&case.work);
    let cost = |m: &Measured| m.cpu_us_per_frame(payload);
    let mut times = Samples::new();
    mine.iter().for_each(|m| times.merge(&m.times));
    // A ping-pong is measured as a round trip and told as half of it.
    let pingpong = matches!(case.work, Work::PingPong { .. });
    let scale = if pingpong { 2000.0 } else { 1000.0 };
    let time = |percent| {
        if times.is_empty() {
            None
        } else {
            rounded(times.percentile(percent) / scale)
        }
    };
    let of_rounds = |value: &dyn Fn(&Measured) -> Option<f64>| {
        rounded(median(&mine.iter().filter_map(value).collect::<Vec<_>>()))
    };
    let held = bench.labs.iter().any(|lab| lab.held > 0);
    let leases = bench.labs.iter().any(|lab| lab.leases > 0);
    Row {
        bench: bench.name,
        path: case.path.name(),
        wait: Some(case.wait),
        size: match case.work {
            Work::PingPong { size, .. } | Work::Send { size, .. } => Some(size),
            Work::Stream { .. } | Work::Hold { .. } => None,
        },
        mtu: lab.mtu,
        loss: (lab.loss_ppm > 0).then(|| f64::from(lab.loss_ppm) / 1e6),
        connections: held.then_some(lab.held + 1),
        leases: leases.then_some(lab.leases + usize::from(case.path == Path::Lease)),
        p50_us: time(50.0),
        p99_us: time(99.0),
        gbit_s: if stream {
            of_rounds(&|m| m.gbit_s)
        } else {
            None
        },
        ratio_to_tcp: ratio(bench.beside(case, Path::Tcp), &value),
        ratio_to_tcp_no_offload: ratio(bench.beside(case, Path::TcpNoOffload), &value),
        ratio_to_raw: ratio(bench.beside(case, Path::Raw), &value),
        ratio_to_lossless: ratio(bench.without_loss(case), &value),
        cpu_us_per_frame: if stream { of_rounds(&cost) } else { None },
        ratio_to_one_connection: ratio(
            bench.without_held(case),
            if stream { &cost } else { &value },
        ),
        ratio_to_one_lease: ratio(bench.without_leases(case), &value),
        bytes_per_connection: results
            .bytes_per_connection
            .get(case.lab)
            .copied()
            .flatten()
            .and_then(rounded),
        rounds: mine.len(),
        cores: results.cores.clone(),
    }
}

fn rounds_of(results: &Results, case: usize) -> &[Measured] {
    results.measured.get(case).map_or(&[], Vec::as_slice)
}

/// Three digits behind the point, which is more than is known; nothing for what is no number.
pub(super) fn rounded(value: f64) -> Option<f64> {
    value.is_finite().then(|| (value * 1000.0).round() / 1000.0)
}

/// A column of a table: its heading, whether it is text (to the left) or numbers (to the right),
/// and a row's text for it.
pub(super) type Column<R> = (&'static str, bool, fn(&R) -> Option<String>);

/// All columns; those that no row fills are left out.
const COLUMNS: [Column<Row>; 18] = [
    ("path", true, |r| Some(r.path.to_owned())),
    ("wait", true, |r| {
        r.wait
            .map(|w| if w == Wait::Block { "block" } else { "poll" }.to_owned())
    }),
    ("size", false, |r| r.size.map(|s| s.to_string())),
    ("MTU", false, |r| Some(r.mtu.to_string())),
    ("loss", false, |r| {
        r.loss.map(|l| format!("{} %", l * 100.0))
    }),
    ("connections", false, |r| {
        r.connections.map(|n| n.to_string())
    }),
    ("leases", false, |r| r.leases.map(|n| n.to_string())),
    ("p50 µs", false, |r| r.p50_us.map(|v| format!("{v:.2}"))),
    ("p99 µs", false, |r| r.p99_us.map(|v| format!("{v:.2}"))),
    ("Gbit/s", false, |r| r.gbit_s.map(|v| format!("{v:.2}"))),
    ("/ tcp", false, |r| {
        r.ratio_to_tcp.map(|v| format!("{v:.2}"))
    }),
    ("/ tcp no offload", false, |r| {
        r.ratio_to_tcp_no_offload.map(|v| format!("{v:.2}"))
    }),
    ("/ raw", false, |r| {
        r.ratio_to_raw.map(|v| format!("{v:.2}"))
    }),
    ("/ lossless", false, |r| {
        r.ratio_to_lossless.map(|v| format!("{v:.2}"))
    }),
    ("daemons' µs/frame", false, |r| {
        r.cpu_us_per_frame.map(|v| format!("{v:.2}"))
    }),
    ("/ 1 connection", false, |r| {
        r.ratio_to_one_connection.map(|v| format!("{v:.2}"))
    }),
    ("/ no other lease", false, |r| {
        r.ratio_to_one_lease.map(|v| format!("{v:.2}"))
    }),
    ("bytes/connection", false, |r| {
        r.bytes_per_connection.map(|v| format!("{v:.0}"))
    }),
];

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    text_table(rows, &COLUMNS)
}

/// A table with the columns that some row fills.
pub(super) fn text_table<R>(rows: &[R], columns: &[Column<R>]) -> String {
    let columns: Vec<(&str, bool, Vec<String>)> = columns
        .iter()
        .map(|(name, left, text)| (*name, *left, rows.iter().map(text).collect::<Vec<_>>()))
        .filter(|(_, _, cells)| cells.iter().any(Option::is_some))
        .map(|(name, left, cells)| {
            (
                name,
                left,
                cells
                    .into_iter()
                    .map(|c| c.unwrap_or_else(|| "-".into()))
                    .collect(),
            )
        })
        .collect();
    let width = |name: &str, cells: &[String]| {
        cells
            .iter()
            .map(|c| c.chars().count())
            .chain([name.chars().count()])
            .max()
            .unwrap_or(0)
    };
    let mut text = String::new();
    let mut add = |cell: &dyn Fn(&str, &[String]) -> String| {
        let cells = columns.iter().map(|(name, left, cells)| {
            let (cell, width) = (cell(name, cells), width(name, cells));
            if *left {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    };
    add(&|name, _| name.to_owned());
    for i in 0..rows.len() {
        add(&|_, cells| cells.get(i).cloned().unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;

    fn measured(nanos: u64, gbit_s: f64) -> Measured {
        let mut times = Samples::new();
        (0..100).for_each(|_| times.add(nanos));
        Measured {
            times,
            gbit_s: Some(gbit_s),
            daemon_cpu: Some(1_000_000),
            bytes: 1_489_000,
        }
    }

    fn results(bench: &Bench, rounds: impl Fn(&Case) -> Vec<Measured>) -> Results {
        Results {
            measured: bench.cases.iter().map(rounds).collect(),
            ..Results::default()
        }
    }

    #[test]
    fn half_round_trips_and_ratios_of_the_same_rounds() -> Result<(), String> {
        let bench = plan(true, &["pingpong".into()])?.remove(0);
        // TCP 20 µs in the first round and 40 in the second; the others always half of it.
        let results = results(&bench, |case| {
            let part = if case.path == Path::Tcp { 1 } else { 2 };
            vec![measured(20_000 / part, 0.0), measured(40_000 / part, 0.0)]
        });
        let rows = rows(&bench, &results);
        let daemon = rows.iter().find(|r| r.path == "daemon").ok_or("no row")?;
        assert_eq!(
            (daemon.ratio_to_tcp, daemon.ratio_to_raw),
            (Some(0.5), Some(1.0))
        );
        assert!(
            (daemon.p50_us.unwrap_or(0.0) - 5.0).abs() < 0.1,
            "{daemon:?}"
        );
        assert_eq!(
            (daemon.gbit_s, daemon.wait, daemon.size),
            (None, Some(Wait::Block), Some(1))
        );
        assert_eq!(
            rows.iter()
                .find(|r| r.path == "tcp")
                .and_then(|r| r.ratio_to_tcp),
            None
        );
        Ok(())
    }

    #[test]
    fn streams_are_told_by_speed_and_cost() -> Result<(), String> {
        let bench = plan(true, &["stream".into()])?.remove(0);
        let results = results(&bench, |case| {
            vec![measured(
                1,
                if case.path == Path::Daemon { 8.0 } else { 10.0 },
            )]
        });
        let rows = rows(&bench, &results);
        let daemon = rows
            .iter()
            .find(|r| r.path == "daemon" && r.mtu == 1500)
            .ok_or("no row")?;
        assert_eq!(
            (
                daemon.gbit_s,
                daemon.ratio_to_tcp,
                daemon.ratio_to_raw,
                daemon.size
            ),
            (Some(8.0), Some(0.8), Some(0.8), None)
        );
        // 1,489,000 bytes are 1000 frames; 1 ms for them.
        assert_eq!(daemon.cpu_us_per_frame, Some(1.0));
        Ok(())
    }

    #[test]
    fn idle_connections_are_told_by_their_cost() -> Result<(), String> {
        let bench = plan(true, &["idle".into()])?.remove(0);
        let mut results = results(&bench, |case| {
            let one = measured(1000, 1.0);
            vec![Measured {
                daemon_cpu: one
                    .daemon_cpu
                    .map(|cpu| if case.lab == 1 { cpu * 2 } else { cpu }),
                ..one
            }]
        });
        results.bytes_per_connection = vec![None, Some(5000.0)];
        let rows = rows(&bench, &results);
        let many = rows
            .iter()
            .find(|r| r.connections == Some(1000) && r.gbit_s.is_some())
            .ok_or("no row")?;
        assert_eq!(
            (many.ratio_to_one_connection, many.bytes_per_connection),
            (Some(2.0), Some(5000.0))
        );
        assert!(
            rows.iter()
                .any(|r| r.connections == Some(1) && r.bytes_per_connection.is_none())
        );
        Ok(())
    }

    #[test]
    fn rows_leave_out_what_has_no_meaning() -> Result<(), serde_json::Error> {
        let row = Row {
            bench: "stream",
            path: "tcp",
            mtu: 1500,
            gbit_s: Some(1.5),
            rounds: 3,
            ..Row::default()
        };
        let text = serde_json::to_string(&row)?;
        assert_eq!(
            text,
            r#"{"bench":"stream","path":"tcp","mtu":1500,"gbit_s":1.5,"rounds":3,"cores":""}"#
        );
        Ok(())
    }

    #[test]
    fn tables_show_only_filled_columns() {
        let row = |path, gbit_s| Row {
            bench: "stream",
            path,
            mtu: 1500,
            gbit_s,
            ..Row::default()
        };
        let text = table(&[row("tcp", Some(1.5)), row("daemon", None)]);
        assert_eq!(
            text,
            "path     MTU  Gbit/s\ntcp     1500    1.50\ndaemon  1500       -\n"
        );
    }
}
