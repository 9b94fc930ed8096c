//! One interface and two between two nodes: bandwidth of long messages and latency of short ones.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use p2p::Comm;
use serde::{Deserialize, Serialize};

use crate::about::About;
use crate::run::Worker;
use crate::samples::{Samples, median};
use crate::scratch::Scratch;
use crate::table::{Column, Style, render, rounded};
use crate::task::{Protocol, Role};
use cli::out::{Context, Failure};
use lab::{Lab, LabOptions, WireOptions};

/// Name, title and limits.
pub static ABOUT: About = About {
    name: "rails",
    title: "a job over one and over two links of 200 Mbit/s, messages of 4 MiB and of 1 byte",
    limits: "The two links are the limit of long messages, which are split between them. A short \
             message uses one link and gains nothing by the second.",
    millis: [2_700, 2_700],
};

/// Paths compared.
const PATHS: [Protocol; 2] = [Protocol::Lease, Protocol::Daemon];
/// Links compared.
const LINKS: [usize; 2] = [1, 2];
/// Bits per second of a link, Ethernet headers included.
const RATE: u64 = 200_000_000;
/// Bytes of a long message.
const LONG: usize = 4 << 20;
/// Tag of all messages.
const TAG: i32 = 1;

/// Work of one of the two processes; an argument of `esplab worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailsTask {
    /// The client sends, the server receives and checks.
    pub rails: Role,
    /// Maximum number of rails.
    pub links: usize,
    /// Number of short round trips.
    pub pings: u32,
    /// Number of long messages before the measured ones.
    pub warm: u32,
    /// Number of measured long messages.
    pub count: u32,
}

/// Traffic of one rail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailTraffic {
    /// The two interfaces.
    pub interfaces: String,
    /// Bytes of fragments sent during the measured time.
    pub sent: u64,
}

/// Report of the client.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct RailsResult {
    /// Nanoseconds of the measured long messages.
    pub nanos: u64,
    /// Bytes of the measured long messages.
    pub bytes: u64,
    /// Half round trips of short messages.
    pub half: Samples,
    /// Rails to the other node, if there are several.
    pub rails: Vec<RailTraffic>,
}

impl fmt::Debug for RailsResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RailsResult")
            .field("nanos", &self.nanos)
            .field("bytes", &self.bytes)
            .field("rails", &self.rails)
            .finish_non_exhaustive()
    }
}

/// Runs one of the two processes.
///
/// # Errors
/// The job does not start, or a message is wrong or lost.
pub fn work(job: &RailsTask) -> io::Result<RailsResult> {
    let mut options = job::Options::from_env().map_err(io::Error::other)?;
    (options.transports, options.rails) = (vec![job::Transport::Eth], job.links);
    let joined = job::join_with(options).map_err(io::Error::other)?;
    let world = joined.world();
    let outcome = match job.rails {
        Role::Client => send(job, &joined, &world),
        Role::Server => receive(job, &world),
    };
    drop(world);
    let outcome = outcome.map_err(io::Error::other)?;
    joined.finalize().map_err(io::Error::other)?;
    Ok(outcome)
}

/// First bytes of each part of a long message, so that a part in the wrong place is detected.
const PART: usize = 1 << 10;

fn mark(buffer: &mut [u8], number: u32) {
    for (part, bytes) in (0u64..).zip(buffer.chunks_mut(PART)) {
        let word = (u64::from(number) << 32 | part).to_le_bytes();
        if let Some(start) = bytes.get_mut(..8) {
            start.copy_from_slice(&word);
        }
    }
}

fn is_marked(buffer: &[u8], number: u32) -> bool {
    let right = |(part, bytes): (u64, &[u8])| {
        bytes.get(..8) == Some(&(u64::from(number) << 32 | part).to_le_bytes()[..])
    };
    (0u64..).zip(buffer.chunks(PART)).all(right)
}

fn send(job: &RailsTask, joined: &job::Job, world: &Comm) -> Result<RailsResult, p2p::Error> {
    let peer = 1 - world.rank();
    let mut outcome = RailsResult::default();
    let mut byte = [7];
    for round in 0..job.pings {
        let start = Instant::now();
        world.send(&[7], peer, TAG)?;
        world.recv(&mut byte, peer, TAG)?;
        // The first messages connect the ranks.
        if round >= job.pings / 10 {
            outcome.half.add(nanos(start.elapsed()) / 2);
        }
    }
    let mut buffer = vec![0x5a; LONG];
    let mut before = Vec::new();
    let mut start = Instant::now();
    for number in 0..job.warm + job.count {
        if number == job.warm {
            before = rails(joined);
            start = Instant::now();
        }
        mark(&mut buffer, number);
        world.send(&buffer, peer, TAG)?;
    }
    world.recv(&mut byte, peer, TAG)?;
    (outcome.nanos, outcome.bytes) = (nanos(start.elapsed()), LONG as u64 * u64::from(job.count));
    outcome.rails = rails(joined);
    for (rail, before) in outcome.rails.iter_mut().zip(before) {
        rail.sent = rail.sent.saturating_sub(before.sent);
    }
    Ok(outcome)
}

/// Returns the traffic of each rail so far. The job has one other process.
fn rails(joined: &job::Job) -> Vec<RailTraffic> {
    let traffic = |rail: p2p::RailReport| RailTraffic {
        interfaces: rail
            .reason
            .split(": ")
            .next()
            .unwrap_or_default()
            .to_owned(),
        sent: rail.sent,
    };
    joined.p2p().rails().into_iter().map(traffic).collect()
}

fn receive(job: &RailsTask, world: &Comm) -> Result<RailsResult, p2p::Error> {
    let peer = 1 - world.rank();
    let mut byte = [0];
    for _ in 0..job.pings {
        world.recv(&mut byte, peer, TAG)?;
        world.send(&byte, peer, TAG)?;
    }
    let mut buffer = vec![0; LONG];
    for number in 0..job.warm + job.count {
        let length = world.recv(&mut buffer, peer, TAG)?.length;
        if length != LONG || !is_marked(&buffer, number) {
            return Err(p2p::Error::InvalidArgument(
                "a long message is not what was sent",
            ));
        }
    }
    world.send(&byte, peer, TAG)?;
    Ok(RailsResult {
        bytes: LONG as u64 * u64::from(job.warm + job.count),
        ..RailsResult::default()
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Runs the two processes in nodes 0 (client) and 1 of a lab. Returns the report of the client.
///
/// # Errors
/// A process fails.
pub fn measure(lab: &Lab, path: Protocol, job: RailsTask) -> Result<RailsResult, Failure> {
    let meet = Scratch::new()?;
    let env = [("ESP_PATH", path.name())];
    let start = |node, job: &RailsTask| Worker::start_in(lab, node, &[], job, Some(&meet), &env);
    let mut server = start(
        1,
        &RailsTask {
            rails: Role::Server,
            ..job
        },
    )?;
    let mut client = start(
        0,
        &RailsTask {
            rails: Role::Client,
            ..job
        },
    )?;
    let outcome: RailsResult = client.outcome()?;
    server.outcome::<RailsResult>()?;
    Ok(outcome)
}

/// One line of `esplab bench --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `rails`.
    pub bench: &'static str,
    /// Path of the frames: daemon or lease.
    pub path: &'static str,
    /// Number of links.
    pub links: usize,
    /// Payload of long messages in 10^9 bits per second; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// Ratio of the rate to that of one link in the same round; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_one: Option<f64>,
    /// Share of the bytes that the busier link carried; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busier: Option<f64>,
    /// Half a round trip of 1 byte in microseconds; median of the rounds' medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_us: Option<f64>,
    /// Ratio of the latency to that of one link in the same round; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_of_one: Option<f64>,
    /// That rate in each round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gbit_s_values: Vec<f64>,
    /// Median of half a round trip in each round, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub half_us_values: Vec<f64>,
    /// Rounds measured.
    pub rounds: usize,
}

const COLUMNS: [Column<Row>; 7] = [
    ("path", true, |r| Some(r.path.to_owned())),
    ("links", false, |r| Some(r.links.to_string())),
    ("Gbit/s", false, |r| r.gbit_s.map(|v| format!("{v:.3}"))),
    ("of one link", false, |r| {
        r.of_one.map(|v| format!("{v:.2}"))
    }),
    ("busier link", false, |r| {
        r.busier.map(|v| format!("{v:.2}"))
    }),
    ("1 B µs", false, |r| r.half_us.map(|v| format!("{v:.1}"))),
    ("of one link", false, |r| {
        r.half_of_one.map(|v| format!("{v:.2}"))
    }),
];

/// Formats the rows as a table.
pub fn table(rows: &[Row], style: Style) -> String {
    render(rows, &COLUMNS, style)
}

/// Benchmark of jobs over several links.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Number of rounds.
    pub rounds: usize,
    /// Number of measured long messages.
    pub count: u32,
}

impl Bench {
    /// Creates the benchmark; `quick`: shorter and noisier.
    pub fn new(quick: bool) -> Bench {
        if quick {
            Bench {
                rounds: 3,
                count: 8,
            }
        } else {
            Bench {
                rounds: 7,
                count: 12,
            }
        }
    }

    /// Returns the number of measurements.
    pub fn steps(&self) -> usize {
        self.rounds * PATHS.len() * LINKS.len()
    }

    /// Runs the benchmark in its own lab. Calls `step` after each measurement.
    ///
    /// # Errors
    /// The lab cannot be created, or a process fails.
    pub fn run(&self, step: impl Fn()) -> Result<Vec<Row>, Failure> {
        let wire = WireOptions {
            rate: Some(RATE),
            ..LabOptions::new(2).wire
        };
        let mut options = LabOptions::new(2).with_wire(wire);
        options.rails = 2;
        options
            .daemon_config
            .push_str("\n[lease]\nallow = \"all\"\n");
        let lab = Lab::create(&options)?;
        let cases: Vec<(Protocol, usize)> = PATHS
            .into_iter()
            .flat_map(|path| LINKS.map(|links| (path, links)))
            .collect();
        let mut outcomes: Vec<Vec<RailsResult>> = cases.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.rounds {
            for ((path, links), outcomes) in cases.iter().zip(&mut outcomes) {
                let job = RailsTask {
                    rails: Role::Client,
                    links: *links,
                    pings: 2000,
                    warm: 4,
                    count: self.count,
                };
                let doing = format_args!("bench rails, path {}, {links} links", path.name());
                outcomes.push(measure(&lab, *path, job).doing(doing)?);
                step();
            }
        }
        let one = |path: Protocol| cases.iter().position(|case| *case == (path, 1));
        let rows = cases.iter().zip(&outcomes).map(|((path, links), here)| {
            let alone = one(*path)
                .and_then(|at| outcomes.get(at))
                .map_or(&[][..], |all| all);
            row(*path, *links, here, alone)
        });
        Ok(rows.collect())
    }
}

fn row(path: Protocol, links: usize, here: &[RailsResult], alone: &[RailsResult]) -> Row {
    let gbit_s = |o: &RailsResult| o.bytes as f64 * 8.0 / o.nanos.max(1) as f64;
    let half = |o: &RailsResult| o.half.percentile(50.0) / 1e3;
    let all = |value: &dyn Fn(&RailsResult) -> f64| {
        let values = here.iter().filter_map(|o| rounded(value(o)));
        values.collect()
    };
    let of = |value: &dyn Fn(&RailsResult) -> f64| {
        rounded(median(&here.iter().map(value).collect::<Vec<_>>()))
    };
    let ratio = |value: &dyn Fn(&RailsResult) -> f64| {
        let pairs = here
            .iter()
            .zip(alone)
            .map(|(here, alone)| value(here) / value(alone));
        (links > 1)
            .then(|| rounded(median(&pairs.collect::<Vec<_>>())))
            .flatten()
    };
    let busier = |o: &RailsResult| {
        let most = o.rails.iter().map(|rail| rail.sent).max().unwrap_or(0);
        most as f64 / o.rails.iter().map(|rail| rail.sent).sum::<u64>().max(1) as f64
    };
    Row {
        bench: ABOUT.name,
        path: path.name(),
        links,
        gbit_s: of(&gbit_s),
        of_one: ratio(&gbit_s),
        busier: if links > 1 { of(&busier) } else { None },
        half_us: of(&half),
        half_of_one: ratio(&half),
        gbit_s_values: all(&gbit_s),
        half_us_values: all(&half),
        rounds: here.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misplaced_parts_are_detected() {
        let mut buffer = vec![0; 8 * PART];
        mark(&mut buffer, 5);
        assert!(is_marked(&buffer, 5) && !is_marked(&buffer, 4));
        let (first, second) = buffer.split_at_mut(PART);
        first.swap_with_slice(&mut second[..PART]);
        assert!(!is_marked(&buffer, 5));
    }

    #[test]
    fn rows_compare_rounds_with_the_same_round() {
        let outcome = |nanos, sent: [u64; 2], half| {
            let mut all = RailsResult {
                nanos,
                bytes: 1000,
                ..RailsResult::default()
            };
            all.half.add(half);
            all.rails = sent
                .map(|sent| RailTraffic {
                    sent,
                    ..RailTraffic::default()
                })
                .to_vec();
            all
        };
        let alone = [outcome(8000, [0, 0], 10_000), outcome(4000, [0, 0], 20_000)];
        let both = [
            outcome(4000, [600, 400], 10_000),
            outcome(2000, [600, 400], 20_000),
        ];
        let row = row(Protocol::Lease, 2, &both, &alone);
        assert_eq!(
            (row.of_one, row.half_of_one, row.busier, row.rounds),
            (Some(2.0), Some(1.0), Some(0.6), 2)
        );
    }
}
