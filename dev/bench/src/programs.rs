//! Many programs of a node through one daemon: latency of one while the others are idle, and the
//! daemons' time for a message when all are active.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::about::About;
use crate::run::{Worker, daemons_cpu};
use crate::samples::{Samples, median};
use crate::stream::{connect, listen};
use crate::table::{Column, Style, median_of, of_rounds, render, rounded};
use crate::task::{HOLDING, LISTENING, Protocol, Role};
use cli::out::{Context, Failure};
use lab::{Lab, LabOptions};

/// Name, title and limits.
pub static ABOUT: About = About {
    name: "programs",
    title: "1, 8 and 64 programs of each node through its daemon, round trips of 64 bytes, \
            MTU 1500",
    limits: "Idle programs cost a daemon nothing, because it visits only those whose doorbell is \
             set. When all are active, each message of a program wakes another process here: the \
             two cores are the limit, and a daemon that is never idle takes less time for a \
             message than one that also polls between two messages.",
    millis: [5_000, 3_000],
};

/// Paths compared.
const PATHS: [Protocol; 2] = [Protocol::Tcp, Protocol::Daemon];
/// Numbers of programs of each node.
const PROGRAMS: [u16; 3] = [1, 8, 64];
const BYTES: usize = 64;
/// Port of the first program. Each measurement uses the next ones.
const FIRST_PORT: u16 = 7200;
/// Number of ports used in turn.
const PORTS: u16 = 20_000;

/// Work of one of two programs; an argument of `esplab worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramsTask {
    /// The server returns what the client sends.
    pub programs: Role,
    /// Protocol under test.
    pub path: Protocol,
    /// Port of the server.
    pub port: u16,
    /// Milliseconds of round trips, which start at the end of the client's standard input.
    pub millis: u64,
}

/// Last line of a worker; the server's has no samples.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct ProgramsResult {
    /// Half round trips in nanoseconds.
    pub half: Samples,
}

/// Runs the task. Calls `say` with the line that precedes the result.
pub fn work(
    job: &ProgramsTask,
    say: impl FnOnce(&str) -> io::Result<()>,
) -> io::Result<ProgramsResult> {
    let mut bytes = [0x5a; BYTES];
    match job.programs {
        Role::Server => {
            let mut accept = listen(job.path, 1, job.port)?;
            say(LISTENING)?;
            let mut stream = accept()?;
            // The client ends when it has measured.
            while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
            Ok(ProgramsResult::default())
        }
        Role::Client => {
            let mut stream = connect(job.path, 1, job.port)?;
            let mut round_trip = || {
                stream.write_all(&bytes)?;
                stream.read_exact(&mut bytes)
            };
            round_trip()?;
            say(HOLDING)?;
            // Its end starts the measurement.
            io::stdin().read_to_end(&mut Vec::new())?;
            let mut result = ProgramsResult::default();
            let (start, time) = (Instant::now(), Duration::from_millis(job.millis));
            let mut last = start;
            while last.duration_since(start) < time {
                round_trip()?;
                let now = Instant::now();
                let took = now.duration_since(last);
                result
                    .half
                    .add(u64::try_from(took.as_nanos() / 2).unwrap_or(u64::MAX));
                last = now;
            }
            Ok(result)
        }
    }
}

/// Results of one measurement.
#[derive(Clone, Debug, Default)]
struct Measured {
    /// Percentiles 50 and 99 of half a round trip of one program while the others are idle, in µs.
    one: [f64; 2],
    /// Messages per second of all programs when all are active.
    rate: f64,
    /// Time of both daemons for a message then, in µs.
    daemon: Option<f64>,
}

/// One line of `esplab bench --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `programs`.
    pub bench: &'static str,
    /// Protocol under test.
    pub path: &'static str,
    /// Number of programs of each node.
    pub programs: u16,
    /// Half a round trip of one program while the others are idle, in microseconds; median of the
    /// rounds' medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_us: Option<f64>,
    /// Percentile 99 of half a round trip; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_p99_us: Option<f64>,
    /// Ratio of the latency to that of the only program in the same round; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_of_one: Option<f64>,
    /// Messages per second of all programs when all are active; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_s: Option<f64>,
    /// Time of both daemons for a message in microseconds when all are active; median of the
    /// rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_us: Option<f64>,
    /// Median of half a round trip in each round, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub half_us_values: Vec<f64>,
    /// That time of both daemons in each round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub daemon_us_values: Vec<f64>,
    /// Rounds measured.
    pub rounds: usize,
}

const COLUMNS: [Column<Row>; 7] = [
    ("path", true, |r| Some(r.path.to_owned())),
    ("programs", false, |r| Some(r.programs.to_string())),
    ("one active, µs", false, |r| {
        r.half_us.map(|v| format!("{v:.1}"))
    }),
    ("p99", false, |r| r.half_p99_us.map(|v| format!("{v:.1}"))),
    ("of one program", false, |r| {
        r.half_of_one.map(|v| format!("{v:.2}"))
    }),
    ("all active, messages/s", false, |r| {
        r.messages_s.map(|v| format!("{v:.0}"))
    }),
    ("daemons, µs a message", false, |r| {
        r.daemon_us.map(|v| format!("{v:.2}"))
    }),
];

/// Formats the rows as a table.
pub fn table(rows: &[Row], style: Style) -> String {
    render(rows, &COLUMNS, style)
}

/// Benchmark of many programs.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Number of rounds.
    pub rounds: usize,
    /// Milliseconds of each of the two parts of a measurement.
    pub millis: u64,
}

impl Bench {
    /// Creates the benchmark; `quick`: shorter and noisier.
    pub fn new(quick: bool) -> Bench {
        if quick {
            Bench {
                rounds: 3,
                millis: 300,
            }
        } else {
            Bench {
                rounds: 5,
                millis: 1_000,
            }
        }
    }

    /// Returns the number of measurements.
    pub fn steps(&self) -> usize {
        self.rounds * PATHS.len() * PROGRAMS.len()
    }

    /// Runs it in a lab of its own. Calls `step` after each measurement.
    ///
    /// # Errors
    /// The lab cannot be created, or a process fails.
    pub fn run(&self, step: impl Fn()) -> Result<Vec<Row>, Failure> {
        let lab = Lab::create(&LabOptions::new(2))?;
        let cases: Vec<_> = PATHS
            .into_iter()
            .flat_map(|path| PROGRAMS.map(|programs| (path, programs)))
            .collect();
        let mut outcomes: Vec<Vec<Measured>> = cases.iter().map(|_| Vec::new()).collect();
        let mut port = 0;
        for _ in 0..self.rounds {
            for (&(path, programs), outcomes) in cases.iter().zip(&mut outcomes) {
                let name = path.name();
                let doing = format_args!("bench programs, path {name}, {programs} programs");
                outcomes.push(self.measure(&lab, path, programs, &mut port).doing(doing)?);
                step();
            }
        }
        let rows = cases.iter().zip(&outcomes).map(|(case, here)| {
            let alone = cases.iter().position(|other| *other == (case.0, 1));
            row(*case, here, alone.and_then(|at| outcomes.get(at)))
        });
        Ok(rows.collect())
    }

    fn measure(
        &self,
        lab: &Lab,
        path: Protocol,
        programs: u16,
        port: &mut u16,
    ) -> Result<Measured, Failure> {
        let mut pair = |millis| {
            let job = ProgramsTask {
                programs: Role::Server,
                path,
                port: FIRST_PORT + *port % PORTS,
                millis,
            };
            *port = port.wrapping_add(1);
            Pair::start(lab, &job)
        };
        let others = (1..programs).map(|_| pair(self.millis));
        let mut all = others.collect::<Result<Vec<_>, _>>()?;
        let one = pair(self.millis)?.measured()?;
        all.push(pair(self.millis)?);
        let before = daemons_cpu(lab);
        for pair in &mut all {
            pair.client.end_input();
        }
        let mut count = 0;
        for mut pair in all {
            count += 2 * pair.measured()?.half.len();
        }
        let spent = daemons_cpu(lab).zip(before);
        let spent = spent.filter(|_| path.by_daemons());
        let per_message = |nanos: u64| nanos as f64 / 1e3 / count.max(1) as f64;
        Ok(Measured {
            one: [50.0, 99.0].map(|percent| one.half.percentile(percent) / 1e3),
            rate: count as f64 * 1e3 / self.millis as f64,
            daemon: spent.map(|(after, before)| per_message(after.saturating_sub(before))),
        })
    }
}

/// A program of node 0 that is connected to one of node 1.
struct Pair {
    client: Worker,
    server: Worker,
}

impl Pair {
    fn start(lab: &Lab, job: &ProgramsTask) -> Result<Pair, Failure> {
        let mut server = Worker::start(lab, 1, &[], job)?;
        server.expect(LISTENING)?;
        let job = ProgramsTask {
            programs: Role::Client,
            ..*job
        };
        let mut client = Worker::start(lab, 0, &[], &job)?;
        client.expect(HOLDING)?;
        Ok(Pair { client, server })
    }

    /// Lets the client measure, and returns its result when both have ended.
    fn measured(&mut self) -> Result<ProgramsResult, Failure> {
        self.client.end_input();
        let result = self.client.outcome()?;
        self.server.outcome::<ProgramsResult>()?;
        Ok(result)
    }
}

fn row((path, programs): (Protocol, u16), here: &[Measured], alone: Option<&Vec<Measured>>) -> Row {
    let half = |m: &Measured| Some(m.one[0]);
    let pairs = here.iter().zip(alone.map_or(&[][..], Vec::as_slice));
    let ratios: Vec<_> = pairs
        .map(|(here, alone)| here.one[0] / alone.one[0])
        .collect();
    Row {
        bench: ABOUT.name,
        path: path.name(),
        programs,
        half_us: median_of(here, half),
        half_p99_us: median_of(here, |m| Some(m.one[1])),
        half_of_one: (programs > 1).then(|| rounded(median(&ratios))).flatten(),
        messages_s: median_of(here, |m| Some(m.rate)),
        daemon_us: median_of(here, |m| m.daemon),
        half_us_values: of_rounds(here, half),
        daemon_us_values: of_rounds(here, |m| m.daemon),
        rounds: here.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_compare_with_one_program_of_the_same_round() {
        let measured = |half, daemon| Measured {
            one: [half, 2.0 * half],
            rate: 1000.0,
            daemon,
        };
        let alone = vec![measured(10.0, Some(3.0)), measured(20.0, Some(3.0))];
        let many = [measured(11.0, Some(2.0)), measured(24.0, Some(2.0))];
        let row = row((Protocol::Daemon, 8), &many, Some(&alone));
        assert_eq!((row.half_of_one, row.daemon_us), (Some(1.15), Some(2.0)));
        assert_eq!(row.half_us_values, [11.0, 24.0]);
        let tcp = super::row((Protocol::Tcp, 1), &[measured(5.0, None)], None);
        assert_eq!((tcp.half_of_one, tcp.daemon_us), (None, None));
        assert!(table(&[row, tcp], Style::Text).contains("1.15"));
    }
}
