//! Incast: many nodes send at once to one node through a slow link with a short queue.
//!
//! The figures are the use of the link, the fairness of its shares and the longest stall.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::about::About;
use crate::run::Worker;
use crate::samples::median;
use crate::stream::{Stream, connect, listen};
use crate::table::{Column, Style, render, rounded};
use crate::task::{LISTENING, Protocol, Role};
use cli::out::{Context, Failure};
use lab::{Lab, LabOptions, WireOptions};

/// Name, title and limits.
pub static ABOUT: About = About {
    name: "incast",
    title: "8 nodes send to one through 1 Gbit/s with a queue of 64 frames, MTU 1500",
    limits: "All are measured without segmentation offload: the queue counts frames, and would \
             hold the bytes of many in one large packet. The link is the limit; a flow stalls when \
             its frames are dropped and when its process waits for a core, and here 18 processes \
             share two cores. In the simulator, where no process waits for a core, the longest \
             stall is 5 ms.",
    millis: [3_100, 1_700],
};

/// Paths compared.
const PATHS: [Protocol; 3] = [Protocol::TcpNoOffload, Protocol::Lease, Protocol::Daemon];
const SENDERS: usize = 8;
/// Bits per second of the link, Ethernet headers included.
const RATE: u64 = 1_000_000_000;
/// Time from the first bytes of the last sender until the clock starts.
const SETTLE: Duration = Duration::from_millis(100);
/// Time that senders continue after the measured time, by their own clock.
const SPARE: Duration = Duration::from_secs(2);
/// Time limit for all senders to start.
const PATIENCE: Duration = Duration::from_secs(20);
const CHUNK: usize = 64 * 1024;
const PORT: u16 = 7099;

/// Argument of `esplab worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncastTask {
    /// The server accepts all connections; each client has one.
    pub incast: Role,
    /// Protocol under test.
    pub path: Protocol,
    /// Number of connections.
    pub senders: usize,
    /// Milliseconds measured.
    pub millis: u64,
}

/// Result of one connection in the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Bytes received.
    pub bytes: u64,
    /// Longest time without received bytes, in nanoseconds.
    pub stall: u64,
}

/// Last line of a worker; only the server's has flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncastResult {
    /// Results by connection.
    pub flows: Vec<Flow>,
    /// Nanoseconds measured.
    pub nanos: u64,
}

/// Runs the task. Calls `say` with the line that precedes the result.
pub fn work(
    job: &IncastTask,
    say: impl FnOnce(&str) -> io::Result<()>,
) -> io::Result<IncastResult> {
    let time = Duration::from_millis(job.millis);
    match job.incast {
        Role::Client => pour(&mut *connect(job.path, 0, PORT)?, SETTLE + time + SPARE)
            .map(|()| IncastResult::default()),
        Role::Server => {
            let mut accept = listen(job.path, 0, PORT)?;
            say(LISTENING)?;
            let streams = (0..job.senders)
                .map(|_| accept())
                .collect::<io::Result<Vec<_>>>()?;
            watch(streams, time)
        }
    }
}

/// Writes for this time, or until the reader closes the connection.
fn pour(stream: &mut dyn Stream, time: Duration) -> io::Result<()> {
    let chunk = vec![0x5a; CHUNK];
    let start = Instant::now();
    let mut written = 0;
    while start.elapsed() < time {
        match stream.write(&chunk) {
            Ok(0) => break,
            Ok(n) => written += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // The server has ended its measurement.
            Err(_) if written > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads each stream on a thread, and measures from shortly after the last has started.
fn watch(streams: Vec<Box<dyn Stream>>, time: Duration) -> io::Result<IncastResult> {
    let count = streams.len();
    let begun = AtomicUsize::new(0);
    // Start and end of the measured time.
    let clock: Mutex<Option<(Instant, Instant)>> = Mutex::new(None);
    let interval = || {
        *clock
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    let flows: Vec<Mutex<Flow>> = (0..count).map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for (mut stream, flow) in streams.into_iter().zip(&flows) {
            let (begun, interval) = (&begun, &interval);
            scope.spawn(move || {
                let seen = read_until(&mut *stream, begun, interval);
                *flow
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner) = seen;
            });
        }
        let start = Instant::now();
        while begun.load(Ordering::Relaxed) < count && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let from = Instant::now() + SETTLE;
        *clock
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some((from, from + time));
    });
    if begun.into_inner() < count {
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "some senders never began",
        ));
    }
    let flows = flows.into_iter().map(|flow| {
        flow.into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    });
    Ok(IncastResult {
        flows: flows.collect(),
        nanos: nanos(time),
    })
}

/// Reads until the end of the time or of the stream, and counts the bytes within the time.
fn read_until(
    stream: &mut dyn Stream,
    begun: &AtomicUsize,
    interval: &dyn Fn() -> Option<(Instant, Instant)>,
) -> Flow {
    let mut buffer = vec![0; CHUNK];
    let mut flow = Flow::default();
    let (mut first, mut times) = (true, None);
    let mut last: Option<Instant> = None;
    loop {
        let n = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let now = Instant::now();
        if std::mem::take(&mut first) {
            begun.fetch_add(1, Ordering::Relaxed);
        }
        times = times.or_else(interval);
        let Some((from, until)) = times else { continue };
        if now < from {
            continue;
        }
        let since = last.unwrap_or(from);
        flow.stall = flow
            .stall
            .max(nanos(now.min(until).saturating_duration_since(since)));
        if now >= until {
            return flow;
        }
        flow.bytes += n as u64;
        last = Some(now);
    }
    // Ended early, or without any bytes: the rest of the time is a stall.
    if let Some((from, until)) = times.or_else(interval) {
        flow.stall = flow
            .stall
            .max(nanos(until.saturating_duration_since(last.unwrap_or(from))));
    }
    flow
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// One line of `esplab bench --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `incast`.
    pub bench: &'static str,
    /// Protocol under test.
    pub path: &'static str,
    /// Payload of all flows in 10^9 bits per second; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// Payload rate divided by the rate of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_link: Option<f64>,
    /// Jain's index of the flows' bytes, from 1 (equal shares) down to one over the number of
    /// flows. Median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jain: Option<f64>,
    /// Longest time without data of any flow, in milliseconds; median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_ms: Option<f64>,
    /// Longest time without data of any flow in all rounds, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_stall_ms: Option<f64>,
    /// That rate in each round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gbit_s_values: Vec<f64>,
    /// Longest time without data of any flow in each round, in milliseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stall_ms_values: Vec<f64>,
    /// Rounds measured.
    pub rounds: usize,
}

const COLUMNS: [Column<Row>; 6] = [
    ("path", true, |r| Some(r.path.to_owned())),
    ("Gbit/s", false, |r| r.gbit_s.map(|v| format!("{v:.3}"))),
    ("of link", false, |r| r.of_link.map(|v| format!("{v:.3}"))),
    ("Jain", false, |r| r.jain.map(|v| format!("{v:.3}"))),
    ("stall ms", false, |r| r.stall_ms.map(|v| format!("{v:.1}"))),
    ("worst stall ms", false, |r| {
        r.worst_stall_ms.map(|v| format!("{v:.1}"))
    }),
];

/// Formats the rows as a table.
pub fn table(rows: &[Row], style: Style) -> String {
    render(rows, &COLUMNS, style)
}

/// Benchmark of incast.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Number of rounds.
    pub rounds: usize,
    /// Milliseconds of each measurement.
    pub millis: u64,
}

impl Bench {
    /// Creates the benchmark; `quick`: shorter and noisier.
    pub fn new(quick: bool) -> Bench {
        if quick {
            Bench {
                rounds: 3,
                millis: 500,
            }
        } else {
            Bench {
                rounds: 5,
                millis: 2_000,
            }
        }
    }

    /// Returns the number of measurements.
    pub fn steps(&self) -> usize {
        self.rounds * PATHS.len()
    }

    /// Runs it in a lab of its own. Calls `step` after each measurement.
    pub fn run(&self, step: impl Fn()) -> Result<Vec<Row>, Failure> {
        let mut options = LabOptions::new(SENDERS + 1).with_wire(wire());
        options
            .daemon_config
            .push_str("\n[lease]\nallow = \"all\"\n");
        let lab = Lab::create(&options)?;
        let mut outcomes: Vec<Vec<IncastResult>> = PATHS.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.rounds {
            for (path, outcomes) in PATHS.into_iter().zip(&mut outcomes) {
                outcomes.push(
                    self.measure(&lab, path)
                        .doing(format_args!("bench incast, path {}", path.name()))?,
                );
                step();
            }
        }
        Ok(PATHS
            .into_iter()
            .zip(&outcomes)
            .map(|(path, outcomes)| row(path, outcomes))
            .collect())
    }

    fn measure(&self, lab: &Lab, path: Protocol) -> Result<IncastResult, Failure> {
        let job = IncastTask {
            incast: Role::Server,
            path,
            senders: SENDERS,
            millis: self.millis,
        };
        let mut server = Worker::start(lab, 0, &[], &job)?;
        server.expect(LISTENING)?;
        let client = IncastTask {
            incast: Role::Client,
            ..job
        };
        let clients = (1..=SENDERS).map(|node| Worker::start(lab, node, &[], &client));
        let mut clients = clients.collect::<Result<Vec<_>, _>>()?;
        let outcome = server.outcome()?;
        for client in &mut clients {
            client.outcome::<IncastResult>()?;
        }
        Ok(outcome)
    }
}

/// Returns the options of the wire. Segmentation offload is off, so that a frame of the queue holds
/// as many bytes on every path.
fn wire() -> WireOptions {
    WireOptions {
        rate: Some(RATE),
        offload: false,
        ..LabOptions::new(SENDERS + 1).wire
    }
}

fn row(path: Protocol, outcomes: &[IncastResult]) -> Row {
    let gbit_s = |o: &IncastResult| {
        o.flows.iter().map(|f| f.bytes).sum::<u64>() as f64 * 8.0 / o.nanos as f64
    };
    let stall = |o: &IncastResult| o.flows.iter().map(|f| f.stall).max().unwrap_or(0) as f64 / 1e6;
    let all = |value: &dyn Fn(&IncastResult) -> f64| {
        let values = outcomes.iter().filter_map(|o| rounded(value(o)));
        values.collect()
    };
    let of = |value: &dyn Fn(&IncastResult) -> f64| {
        median(&outcomes.iter().map(value).collect::<Vec<_>>())
    };
    let speed = of(&gbit_s);
    Row {
        bench: ABOUT.name,
        path: path.name(),
        gbit_s: rounded(speed),
        of_link: rounded(speed * 1e9 / RATE as f64),
        jain: rounded(of(&|o| jain(&o.flows))),
        stall_ms: rounded(of(&stall)),
        worst_stall_ms: outcomes
            .iter()
            .map(stall)
            .reduce(f64::max)
            .and_then(rounded),
        gbit_s_values: all(&gbit_s),
        stall_ms_values: all(&stall),
        rounds: outcomes.len(),
    }
}

/// Returns Jain's fairness index.
fn jain(flows: &[Flow]) -> f64 {
    let sum: f64 = flows.iter().map(|f| f.bytes as f64).sum();
    let squares: f64 = flows.iter().map(|f| (f.bytes as f64).powi(2)).sum();
    sum * sum / (squares * flows.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn flow(bytes: u64, stall: u64) -> Flow {
        Flow { bytes, stall }
    }

    #[test]
    fn the_queue_holds_as_many_bytes_of_tcp_as_of_esp() {
        assert!(!wire().offload);
        assert!(!PATHS.contains(&Protocol::Tcp), "its rows say so");
        assert!(ABOUT.limits.contains("without segmentation offload"));
    }

    #[test]
    fn fairness_is_between_equal_shares_and_one_flow() {
        assert!((jain(&[flow(5, 0); 8]) - 1.0).abs() < 1e-9);
        assert!((jain(&[flow(9, 0), flow(0, 0), flow(0, 0), flow(0, 0)]) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn rows_have_medians_and_the_worst_round() {
        let round = |bytes, stall| IncastResult {
            flows: vec![flow(bytes, stall), flow(bytes, 1_000_000)],
            nanos: 1_000_000,
        };
        let row = row(
            Protocol::Daemon,
            &[
                round(50_000, 2_000_000),
                round(60_000, 30_000_000),
                round(55_000, 3_000_000),
            ],
        );
        assert_eq!(
            (row.gbit_s, row.of_link, row.jain),
            (Some(0.88), Some(0.88), Some(1.0))
        );
        assert_eq!(
            (row.stall_ms, row.worst_stall_ms, row.rounds),
            (Some(3.0), Some(30.0), 3)
        );
    }

    /// Writes bytes, pauses, and writes bytes until the reader closes.
    struct Script {
        quiet: Duration,
        reads: u32,
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            std::thread::sleep(if self.reads == 30 {
                self.quiet
            } else {
                Duration::from_millis(1)
            });
            Ok(buffer.len().min(1000))
        }
    }

    impl Write for Script {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Ok(0)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_pause_within_the_time_is_a_stall() {
        let start = Instant::now();
        let interval = || Some((start, start + Duration::from_millis(400)));
        let begun = AtomicUsize::new(0);
        let quiet = Duration::from_millis(150);
        let flow = read_until(&mut Script { quiet, reads: 0 }, &begun, &interval);
        assert_eq!(begun.into_inner(), 1);
        assert!(
            flow.bytes > 0 && flow.bytes.is_multiple_of(1000),
            "{flow:?}"
        );
        assert!(flow.stall >= nanos(quiet), "{flow:?}");
    }

    #[test]
    fn a_stream_that_ends_early_stalls_for_the_rest() {
        let start = Instant::now();
        let interval = || Some((start, start + Duration::from_secs(60)));
        let begun = AtomicUsize::new(0);
        let flow = read_until(&mut io::Cursor::new(vec![0u8; 10]), &begun, &interval);
        assert_eq!(flow.bytes, 10);
        assert!(flow.stall > 50_000_000_000, "{flow:?}");
    }
}
