//! Rows of the benchmarks between two nodes: JSON for programs, tables for people.

use serde::Serialize;

use crate::plan::{Bench, Case, LabPlan};
use crate::protect::Protection;
use crate::samples::{Samples, median};
use crate::table::{Column, Ratio, Style, render, rounded};
use crate::task::{Carrier, Protocol, TaskResult, Wait, Work};

/// Bytes of ESP's header, which follows the EtherType (W-08).
const HEADER: u32 = 11;

/// One line of `esplab bench --json`. Fields without meaning for a benchmark are omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// Protocol: tcp, tcp-tls, tcp-no-offload, raw, lease, daemon, p2p; over the second carrier
    /// raw-udp, udp and p2p-udp.
    pub path: &'static str,
    /// Carrier of ESP and of the bare loop: raw or udp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carrier: Option<Carrier>,
    /// Waiting of the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Bytes of a message or of a write.
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
    /// Protection of packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protection: Option<Protection>,
    /// Median of all samples, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 99th percentile of all samples, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Payload in 10^9 bits per second; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// Ratio to TCP: of times or of rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_tcp: Option<Ratio>,
    /// Ratio to TCP with TLS of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_tcp_tls: Option<Ratio>,
    /// Ratio to the same protocol without protection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_unprotected: Option<Ratio>,
    /// Ratio to TCP without offload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_tcp_no_offload: Option<Ratio>,
    /// Ratio to the bare packet-socket loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_raw: Option<Ratio>,
    /// Ratio to the same protocol on a wire without loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_lossless: Option<Ratio>,
    /// CPU time of both daemons per data frame, in microseconds; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_frame: Option<f64>,
    /// CPU time of both workers and of the daemons between them per KiB received, in nanoseconds;
    /// median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_kib: Option<f64>,
    /// Ratio of that to TCP's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ratio_to_tcp: Option<Ratio>,
    /// Ratio of the CPU time per frame (of a ping-pong: of its time) to that with no other
    /// connection open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_one_connection: Option<Ratio>,
    /// Ratio to the same case with no other port leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_one_lease: Option<Ratio>,
    /// Bytes of a daemon's memory per idle connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_connection: Option<f64>,
    /// Value of each round: the median of its times in microseconds, or its Gbit/s.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f64>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Rounds measured.
    pub rounds: usize,
    /// Cores of the processes.
    pub cores: String,
}

/// Figures of one case in one round.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Times of the client.
    pub times: Samples,
    /// Gbit/s (bits per nanosecond), if bytes were counted over a time.
    pub gbit_s: Option<f64>,
    /// CPU time of both daemons during the measurement, in nanoseconds.
    pub daemon_cpu: Option<u64>,
    /// CPU time of both workers, in nanoseconds.
    pub worker_cpu: u64,
    /// Bytes received.
    pub bytes: u64,
}

impl Measured {
    /// Combines the results of both workers. One of them counted the bytes, mostly the server.
    pub fn new(client: TaskResult, server: &TaskResult) -> Measured {
        let (bytes, nanos) = if client.nanos > 0 {
            (client.bytes, client.nanos)
        } else {
            (server.bytes, server.nanos)
        };
        let gbit_s = (nanos > 0 && bytes > 0).then(|| bytes as f64 * 8.0 / nanos as f64);
        Measured {
            times: client.times,
            gbit_s,
            daemon_cpu: None,
            worker_cpu: client.cpu + server.cpu,
            bytes,
        }
    }

    /// Returns the value of which ratios are formed: Gbit/s, or the median time.
    fn value(&self, work: &Work) -> Option<f64> {
        match work {
            Work::Stream { .. } => self.gbit_s,
            _ => (!self.times.is_empty()).then(|| self.times.percentile(50.0)),
        }
    }

    /// Returns the CPU time of all processes per KiB, in nanoseconds.
    fn cpu_ns_per_kib(&self) -> Option<f64> {
        let cpu = self.worker_cpu + self.daemon_cpu.unwrap_or(0);
        (self.bytes > 0 && cpu > 0).then(|| cpu as f64 / (self.bytes as f64 / 1024.0))
    }

    /// Returns the CPU time of the daemons per frame of this payload, in microseconds.
    fn cpu_us_per_frame(&self, payload: f64) -> Option<f64> {
        let frames = self.bytes as f64 / payload;
        if self.bytes > 0 {
            Some(self.daemon_cpu? as f64 / 1000.0 / frames)
        } else {
            None
        }
    }
}

/// Figures of a whole benchmark.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// By case, then by round.
    pub measured: Vec<Vec<Measured>>,
    /// By case: why it was not measured.
    pub notes: Vec<Option<String>>,
    /// By lab: memory of a daemon per idle connection.
    pub bytes_per_connection: Vec<Option<f64>>,
    /// Cores of the processes.
    pub cores: String,
}

/// Returns the rows of a benchmark.
pub fn rows(bench: &Bench, results: &Results) -> Vec<Row> {
    let cases = bench.cases.iter().enumerate();
    cases
        .map(|(index, case)| row(bench, case, index, results))
        .collect()
}

fn row(bench: &Bench, case: &Case, index: usize, results: &Results) -> Row {
    let lab = bench.labs.get(case.lab).copied().unwrap_or_default();
    let payload = payload(&lab, case.path);
    let mine = rounds_of(results, index);
    let stream = matches!(case.work, Work::Stream { .. });
    let ratio = |others: Vec<usize>, value: &dyn Fn(&Measured) -> Option<f64>| {
        let best = |round: usize| {
            let values = others
                .iter()
                .filter_map(|&i| value(rounds_of(results, i).get(round)?));
            values.reduce(if stream { f64::max } else { f64::min })
        };
        let ratios = mine
            .iter()
            .enumerate()
            .filter_map(|(round, m)| Some(value(m)? / best(round)?));
        Ratio::of(&ratios.collect::<Vec<_>>())
    };
    let value = |m: &Measured| m.value(&case.work);
    let cost = |m: &Measured| m.cpu_us_per_frame(payload);
    let mut times = Samples::new();
    mine.iter().for_each(|m| times.merge(&m.times));
    // A ping-pong is measured as a round trip and reported as half of it.
    let pingpong = matches!(case.work, Work::PingPong { .. });
    let scale = if pingpong { 2000.0 } else { 1000.0 };
    let time = |percent| {
        let value = (!times.is_empty()).then(|| times.percentile(percent) / scale);
        value.and_then(rounded)
    };
    let of_rounds = |value: &dyn Fn(&Measured) -> Option<f64>| {
        let values: Vec<f64> = mine.iter().filter_map(value).collect();
        if stream {
            rounded(median(&values))
        } else {
            None
        }
    };
    let unit = if stream { 1.0 } else { scale };
    let values = |rounds: &[Measured]| {
        let values = rounds.iter().filter_map(|m| rounded(value(m)? / unit));
        values.collect()
    };
    let held = bench.labs.iter().any(|lab| lab.held > 0);
    let leases = bench.labs.iter().any(|lab| lab.leases > 0);
    let differ = |lab: &LabPlan| lab.protection != Protection::None;
    let protected = bench.labs.iter().any(differ) && case.path.carrier().is_some();
    Row {
        bench: bench.about.name,
        path: case.path.name(),
        carrier: case.path.carrier(),
        wait: Some(case.wait),
        size: match case.work {
            // The bare loop sends whole frames, whatever the size of a write.
            Work::Stream { .. } if case.path.is_bare() => None,
            Work::PingPong { size, .. } | Work::Send { size, .. } | Work::Stream { size, .. } => {
                Some(size)
            }
            Work::Hold { .. } => None,
        },
        mtu: lab.mtu,
        loss: (lab.loss_ppm > 0).then(|| f64::from(lab.loss_ppm) / 1e6),
        connections: held.then_some(lab.held + 1),
        leases: leases.then_some(lab.leases + usize::from(case.path == Protocol::Lease)),
        protection: protected.then_some(lab.protection),
        p50_us: time(50.0),
        p99_us: time(99.0),
        gbit_s: of_rounds(&|m| m.gbit_s),
        ratio_to_tcp: ratio(bench.counterparts(case, Protocol::Tcp), &value),
        ratio_to_tcp_tls: ratio(bench.counterparts(case, Protocol::TcpTls), &value),
        ratio_to_unprotected: ratio(bench.without_protection(case), &value),
        ratio_to_tcp_no_offload: ratio(bench.counterparts(case, Protocol::TcpNoOffload), &value),
        ratio_to_raw: ratio(bench.counterparts(case, case.path.bare()), &value),
        ratio_to_lossless: ratio(bench.without_loss(case), &value),
        cpu_us_per_frame: of_rounds(&cost),
        cpu_ns_per_kib: of_rounds(&Measured::cpu_ns_per_kib),
        cpu_ratio_to_tcp: if stream {
            ratio(
                bench.counterparts(case, Protocol::Tcp),
                &Measured::cpu_ns_per_kib,
            )
        } else {
            None
        },
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
        values: values(mine),
        note: results.notes.get(index).cloned().flatten(),
        rounds: mine.len(),
        cores: results.cores.clone(),
    }
}

/// Returns the bytes of a stream that a packet of ESP has at most.
fn payload(lab: &LabPlan, path: Protocol) -> f64 {
    let carrier = match path.carrier() {
        // The headers of IPv4 and UDP, and the EtherType.
        Some(Carrier::Udp) => 20 + 8 + 2,
        _ => 0,
    };
    let headers = carrier + HEADER + lab.protection.overhead();
    f64::from(lab.mtu.saturating_sub(headers).max(1))
}

fn rounds_of(results: &Results, case: usize) -> &[Measured] {
    results.measured.get(case).map_or(&[], Vec::as_slice)
}

const COLUMNS: [Column<Row>; 24] = [
    ("path", true, |r| Some(r.path.to_owned())),
    ("wait", true, |r| r.wait.map(|w| w.name().to_owned())),
    ("size", false, |r| r.size.map(|s| s.to_string())),
    ("MTU", false, |r| Some(r.mtu.to_string())),
    ("loss", false, |r| {
        r.loss.map(|l| format!("{} %", l * 100.0))
    }),
    ("connections", false, |r| {
        r.connections.map(|n| n.to_string())
    }),
    ("leases", false, |r| r.leases.map(|n| n.to_string())),
    ("protection", true, |r| {
        r.protection.map(|p| p.name().to_owned())
    }),
    ("p50 µs", false, |r| r.p50_us.map(|v| format!("{v:.2}"))),
    ("p99 µs", false, |r| r.p99_us.map(|v| format!("{v:.2}"))),
    ("Gbit/s", false, |r| r.gbit_s.map(|v| format!("{v:.2}"))),
    ("/ tcp", false, |r| r.ratio_to_tcp.map(|v| v.to_string())),
    ("/ tcp-tls", false, |r| {
        r.ratio_to_tcp_tls.map(|v| v.to_string())
    }),
    ("/ none", false, |r| {
        r.ratio_to_unprotected.map(|v| v.to_string())
    }),
    ("/ tcp no offload", false, |r| {
        r.ratio_to_tcp_no_offload.map(|v| v.to_string())
    }),
    ("/ raw", false, |r| r.ratio_to_raw.map(|v| v.to_string())),
    ("/ lossless", false, |r| {
        r.ratio_to_lossless.map(|v| v.to_string())
    }),
    ("daemons' µs/frame", false, |r| {
        r.cpu_us_per_frame.map(|v| format!("{v:.2}"))
    }),
    ("CPU ns/KiB", false, |r| {
        r.cpu_ns_per_kib.map(|v| format!("{v:.0}"))
    }),
    ("CPU / tcp", false, |r| {
        r.cpu_ratio_to_tcp.map(|v| v.to_string())
    }),
    ("/ 1 connection", false, |r| {
        r.ratio_to_one_connection.map(|v| v.to_string())
    }),
    ("/ no other lease", false, |r| {
        r.ratio_to_one_lease.map(|v| v.to_string())
    }),
    ("bytes/connection", false, |r| {
        r.bytes_per_connection.map(|v| format!("{v:.0}"))
    }),
    ("note", true, |r| r.note.clone()),
];

/// Formats the rows as a table.
pub fn table(rows: &[Row], style: Style) -> String {
    render(rows, &COLUMNS, style)
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
            worker_cpu: 2_000_000,
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
            let part = if case.path == Protocol::Tcp { 1 } else { 2 };
            vec![measured(20_000 / part, 0.0), measured(40_000 / part, 0.0)]
        });
        let rows = rows(&bench, &results);
        let daemon = rows.iter().find(|r| r.path == "daemon").ok_or("no row")?;
        assert_eq!(
            (
                daemon.ratio_to_tcp.map(|r| r.median),
                daemon.ratio_to_raw.map(|r| r.median)
            ),
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
    fn ratios_have_their_range() {
        let ratio = Ratio::of(&[0.5, 0.75, 0.625]).map(|r| r.to_string());
        assert_eq!(ratio.as_deref(), Some("0.62 (0.50–0.75)"));
        assert_eq!(Ratio::of(&[]), None);
    }

    #[test]
    fn streams_have_a_rate_and_a_cost() -> Result<(), String> {
        let bench = plan(true, &["stream".into()])?.remove(0);
        let results = results(&bench, |case| {
            vec![measured(
                1,
                if case.path == Protocol::Daemon {
                    8.0
                } else {
                    10.0
                },
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
                daemon.ratio_to_tcp.map(|r| r.median),
                daemon.ratio_to_raw.map(|r| r.median),
                daemon.size
            ),
            (Some(8.0), Some(0.8), Some(0.8), Some(256 << 10))
        );
        // 1,489,000 bytes are 1000 frames; 1 ms for them.
        assert_eq!(daemon.cpu_us_per_frame, Some(1.0));
        // 3 ms for 1454 KiB.
        assert_eq!(daemon.cpu_ns_per_kib.map(f64::round), Some(2063.0));
        assert_eq!(daemon.cpu_ratio_to_tcp.map(|r| r.median), Some(1.0));
        Ok(())
    }

    #[test]
    fn the_payload_of_a_packet_is_what_headers_leave() {
        let of = |protection, path| {
            let lab = LabPlan {
                mtu: 1500,
                protection,
                ..LabPlan::default()
            };
            payload(&lab, path)
        };
        assert_eq!(of(Protection::None, Protocol::Daemon), 1489.0);
        assert_eq!(of(Protection::None, Protocol::UdpDaemon), 1459.0);
        assert_eq!(of(Protection::Encrypt, Protocol::Daemon), 1461.0);
        assert_eq!(of(Protection::Checksum, Protocol::UdpDaemon), 1431.0);
    }

    #[test]
    fn idle_connections_are_reported_by_their_cost() -> Result<(), String> {
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
            (
                many.ratio_to_one_connection.map(|r| r.median),
                many.bytes_per_connection
            ),
            (Some(2.0), Some(5000.0))
        );
        assert!(
            rows.iter()
                .any(|r| r.connections == Some(1) && r.bytes_per_connection.is_none())
        );
        Ok(())
    }

    #[test]
    fn protection_is_compared_with_none_and_with_tls() -> Result<(), String> {
        let bench = plan(true, &["protect".into()])?.remove(0);
        let mut results = results(&bench, |case| {
            let rate = match (case.path, bench.labs[case.lab].protection) {
                (Protocol::Tcp, _) => 10.0,
                (Protocol::TcpTls, _) => 4.0,
                (_, Protection::Encrypt) => 1.0,
                _ => 2.0,
            };
            vec![measured(1000, rate)]
        });
        let all = rows(&bench, &results);
        let median = |ratio: Option<Ratio>| ratio.map(|r| r.median);
        let encrypted = |r: &&Row| r.protection == Some(Protection::Encrypt);
        let streams = all.iter().filter(encrypted).filter(|r| r.gbit_s.is_some());
        for row in streams.clone() {
            assert_eq!(median(row.ratio_to_tcp), Some(0.1), "{row:?}");
            assert_eq!(median(row.ratio_to_tcp_tls), Some(0.25), "{row:?}");
            assert_eq!(median(row.ratio_to_unprotected), Some(0.5), "{row:?}");
        }
        // Two carriers, two MTUs.
        assert_eq!(streams.count(), 4);
        let tls = |r: &&Row| r.path == "tcp-tls";
        assert_eq!(all.iter().filter(tls).count(), 6);
        assert!(all.iter().filter(tls).all(|r| r.protection.is_none()));
        for (case, measured) in bench.cases.iter().zip(&mut results.measured) {
            let is_tls = case.path == Protocol::TcpTls;
            let note = is_tls.then(|| "no TLS".to_owned());
            if note.is_some() {
                measured.clear();
            }
            results.notes.push(note);
        }
        let all = rows(&bench, &results);
        for row in &all {
            assert_eq!(row.note.is_some(), row.path == "tcp-tls");
            assert_eq!(row.rounds, usize::from(row.note.is_none()));
            assert_eq!(row.ratio_to_tcp_tls, None);
        }
        assert!(table(&all, Style::Text).contains("no TLS"));
        Ok(())
    }

    #[test]
    fn json_leaves_out_empty_fields() -> Result<(), serde_json::Error> {
        let row = Row {
            bench: "stream",
            path: "tcp",
            carrier: None,
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
        let rows = [row("tcp", Some(1.5)), row("daemon", None)];
        assert_eq!(
            table(&rows, Style::Text),
            "path     MTU  Gbit/s\ntcp     1500    1.50\ndaemon  1500       -\n"
        );
        assert_eq!(
            table(&rows, Style::Markdown),
            "| path | MTU | Gbit/s |\n| --- | ---: | ---: |\n| tcp | 1500 | 1.50 |\n\
             | daemon | 1500 | - |\n"
        );
    }
}
