//! One daemon with several engines: rate of the streams of many programs, and the engines' time for
//! a frame.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::about::About;
use crate::run::{Worker, daemon_threads_cpu};
use crate::samples::median;
use crate::stream::{connect, listen};
use crate::table::{Column, Style, median_of, of_rounds, render, rounded};
use crate::task::{HOLDING, LISTENING, Protocol, Role};
use cli::out::{Context, Failure};
use lab::{Lab, LabOptions};

/// Name, title and limits.
pub static ABOUT: About = About {
    name: "engines",
    title: "8 programs of each node stream one way through its daemon with 1, 2 and 4 engines, \
            MTU 1500",
    limits: "With one engine its thread is the limit. With several, all threads together take no \
             more time for a frame, and the busiest thread takes only the share of the programs \
             that it serves. If there are cores for all threads, the rate can grow accordingly. \
             That is calculated, because here the engines of both nodes and all programs share \
             two cores, whose time is the limit.",
    millis: [4_000, 3_000],
};

/// Numbers of engines of each daemon.
const ENGINES: [u8; 3] = [1, 2, 4];
/// Number of programs of each node.
const PROGRAMS: u16 = 8;
/// Bytes of a write.
const BLOCK: usize = 128 << 10;
/// Payload of a full frame in bytes.
const PAYLOAD: f64 = 1489.0;
/// First of the ports used in turn. Each engine owns a block of them.
const FIRST_PORT: u16 = 33_000;
const PORTS: u16 = 32_000;

/// Work of one of two programs; an argument of `esplab worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnginesTask {
    /// The client sends, the server receives.
    pub engines: Role,
    /// Port of the server.
    pub port: u16,
    /// Milliseconds of sending, which starts at the end of the client's standard input.
    pub millis: u64,
}

/// Last line of a worker.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct EnginesResult {
    /// Bytes sent or received.
    pub bytes: u64,
}

/// Runs the task. Calls `say` with the line that precedes the result.
pub fn work(
    job: &EnginesTask,
    say: impl FnOnce(&str) -> io::Result<()>,
) -> io::Result<EnginesResult> {
    let mut block = vec![0x5a; BLOCK];
    let mut bytes = 0;
    match job.engines {
        Role::Server => {
            let mut accept = listen(Protocol::Daemon, 1, job.port)?;
            say(LISTENING)?;
            let mut stream = accept()?;
            loop {
                match stream.read(&mut block)? {
                    0 => break,
                    count => bytes += count as u64,
                }
            }
        }
        Role::Client => {
            let mut stream = connect(Protocol::Daemon, 1, job.port)?;
            say(HOLDING)?;
            // Its end starts the measurement.
            io::stdin().read_to_end(&mut Vec::new())?;
            let (start, time) = (Instant::now(), Duration::from_millis(job.millis));
            while start.elapsed() < time {
                stream.write_all(&block)?;
                bytes += BLOCK as u64;
            }
        }
    }
    Ok(EnginesResult { bytes })
}

/// Results of one measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    gbit_s: f64,
    /// Time of all threads of both daemons for a full frame, and of the busiest one, in µs.
    frame: Option<[f64; 2]>,
}

/// One line of `esplab bench --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `engines`.
    pub bench: &'static str,
    /// Number of engines of each daemon.
    pub engines: u8,
    /// Rate of all streams; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// Ratio to the rate with one engine in the same round; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_of_one: Option<f64>,
    /// Time of both daemons for a full frame in microseconds; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_us: Option<f64>,
    /// Time of the busiest thread of both daemons for a full frame in microseconds; median of the
    /// rounds. Its inverse limits the frames per second where there are cores for all threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_us: Option<f64>,
    /// Rate in each round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gbit_s_values: Vec<f64>,
    /// That time of both daemons in each round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frame_us_values: Vec<f64>,
    /// Rounds measured.
    pub rounds: usize,
}

const COLUMNS: [Column<Row>; 5] = [
    ("engines", false, |r| Some(r.engines.to_string())),
    ("Gbit/s", false, |r| r.gbit_s.map(|v| format!("{v:.2}"))),
    ("of one engine", false, |r| {
        r.rate_of_one.map(|v| format!("{v:.2}"))
    }),
    ("daemons, µs a frame", false, |r| {
        r.frame_us.map(|v| format!("{v:.2}"))
    }),
    ("busiest thread", false, |r| {
        r.busiest_us.map(|v| format!("{v:.2}"))
    }),
];

/// Formats the rows as a table.
pub fn table(rows: &[Row], style: Style) -> String {
    render(rows, &COLUMNS, style)
}

/// Benchmark of several engines.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Number of rounds.
    pub rounds: usize,
    /// Milliseconds of a measurement.
    pub millis: u64,
}

impl Bench {
    /// Creates the benchmark; `quick`: shorter and noisier.
    pub fn new(quick: bool) -> Bench {
        if quick {
            Bench {
                rounds: 3,
                millis: 700,
            }
        } else {
            Bench {
                rounds: 7,
                millis: 2_000,
            }
        }
    }

    /// Returns the number of measurements.
    pub fn steps(&self) -> usize {
        self.rounds * ENGINES.len()
    }

    /// Runs it in a lab for each number of engines. Calls `step` after each measurement.
    ///
    /// # Errors
    /// A lab cannot be created, or a process fails.
    pub fn run(&self, step: impl Fn()) -> Result<Vec<Row>, Failure> {
        let lab = |engines: u8| {
            let mut options = LabOptions::new(2);
            options.daemon_config = format!("engines = {engines}\n");
            Lab::create(&options)
        };
        let labs: Vec<Lab> = ENGINES.into_iter().map(lab).collect::<Result<_, _>>()?;
        let mut outcomes = ENGINES.map(|_| Vec::new());
        let mut port = 0;
        for _ in 0..self.rounds {
            for ((engines, lab), outcomes) in ENGINES.iter().zip(&labs).zip(&mut outcomes) {
                let doing = format_args!("bench engines, {engines} engines");
                outcomes.push(self.measure(lab, &mut port).doing(doing)?);
                step();
            }
        }
        let rows = ENGINES.iter().zip(&outcomes);
        Ok(rows
            .map(|(engines, here)| row(*engines, here, &outcomes[0]))
            .collect())
    }

    fn measure(&self, lab: &Lab, port: &mut u16) -> Result<Measured, Failure> {
        let pair = |_| {
            // Spread over the blocks of all engines, like the ports that a daemon chooses.
            *port = (*port + 1999) % PORTS;
            self.pair(lab, FIRST_PORT + *port)
        };
        let mut pairs = (0..PROGRAMS).map(pair).collect::<Result<Vec<_>, _>>()?;
        let before = daemon_threads_cpu(lab);
        for (client, _) in &mut pairs {
            client.end_input();
        }
        let mut bytes = 0;
        for (client, server) in &mut pairs {
            client.outcome::<EnginesResult>()?;
            bytes += server.outcome::<EnginesResult>()?.bytes;
        }
        let spent = daemon_threads_cpu(lab).zip(before).map(|(after, before)| {
            let of = |(thread, time): (_, u64)| {
                time.saturating_sub(before.get(&thread).copied().unwrap_or(0))
            };
            after.into_iter().map(of).collect::<Vec<u64>>()
        });
        let frames = (bytes as f64 / PAYLOAD).max(1.0);
        let frame = spent.map(|spent| {
            let [all, busiest] = [spent.iter().sum(), spent.iter().copied().max().unwrap_or(0)];
            [all, busiest].map(|nanos: u64| nanos as f64 / 1e3 / frames)
        });
        Ok(Measured {
            gbit_s: bytes as f64 * 8.0 / self.millis as f64 / 1e6,
            frame,
        })
    }

    /// Starts a program of node 0 that is connected to one of node 1.
    fn pair(&self, lab: &Lab, port: u16) -> Result<(Worker, Worker), Failure> {
        let job = |engines| EnginesTask {
            engines,
            port,
            millis: self.millis,
        };
        let mut server = Worker::start(lab, 1, &[], &job(Role::Server))?;
        server.expect(LISTENING)?;
        let mut client = Worker::start(lab, 0, &[], &job(Role::Client))?;
        client.expect(HOLDING)?;
        Ok((client, server))
    }
}

fn row(engines: u8, here: &[Measured], one: &[Measured]) -> Row {
    let rate = |m: &Measured| Some(m.gbit_s);
    let all = |m: &Measured| Some(m.frame?[0]);
    let rounds = here.iter().zip(one);
    let ratios: Vec<_> = rounds.map(|(here, one)| here.gbit_s / one.gbit_s).collect();
    Row {
        bench: ABOUT.name,
        engines,
        gbit_s: median_of(here, rate),
        rate_of_one: (engines > 1).then(|| rounded(median(&ratios))).flatten(),
        frame_us: median_of(here, all),
        busiest_us: median_of(here, |m| Some(m.frame?[1])),
        gbit_s_values: of_rounds(here, rate),
        frame_us_values: of_rounds(here, all),
        rounds: here.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_compare_with_one_engine_of_the_same_round() {
        let measured = |gbit_s, all| Measured {
            gbit_s,
            frame: Some([all, all / 2.0]),
        };
        let one = [measured(2.0, 6.0), measured(4.0, 6.0)];
        let two = [measured(3.0, 5.0), measured(6.4, 5.0)];
        let row = row(2, &two, &one);
        assert_eq!((row.rate_of_one, row.gbit_s), (Some(1.55), Some(4.7)));
        assert_eq!((row.frame_us, row.busiest_us), (Some(5.0), Some(2.5)));
        let alone = super::row(1, &one, &one);
        assert_eq!(alone.rate_of_one, None);
        assert!(table(&[alone, row], Style::Text).contains("1.55"));
    }
}
