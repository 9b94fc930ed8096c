//! Compares the TCP models of `scale` with Linux's TCP: runs three cases of messages from many
//! nodes to one, in the simulator and in a lab whose links have the same rate and queue, and prints
//! a table of both. Needs the superuser, and a machine without other load. With few cores, the
//! senders of the lab do not start simultaneously, unlike those of the simulator.
//!
//! ```sh
//! cargo build --release -p esplab --example tcp_models
//! target/release/examples/tcp_models [ROUNDS]
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::Instant;
use std::{env, fs, thread};

use lab::{Lab, LabOptions, Node, QUEUE_FRAMES};
use rustix::net::sockopt::set_tcp_congestion;
use scale::fabric::Topology;
use scale::rounds::Pattern;
use scale::run::{Plan, Transport, run};
use scale::tcp::Control;
use scale::workload::{Case, Workload};

/// Rate of every link, in Gbit/s.
const GBITS: u32 = 1;
/// MTU of the nodes.
const MTU: u32 = 1500;
/// Length of a full frame in a queue, in bytes.
const FRAME: u64 = MTU as u64 + 38;
/// Runs of each case, unless the command line says otherwise.
const ROUNDS: usize = 11;

/// Nodes 1 to `senders` each send `bytes` to node 0 simultaneously, `times` times. In between, when
/// node 0 has received everything, it sends `ANSWER` bytes to each.
#[derive(Clone, Copy)]
struct Fan {
    name: &'static str,
    senders: u32,
    bytes: u64,
    times: u32,
}

const ANSWER: u64 = 64;

const CASES: [Fan; 3] = [
    Fan {
        name: "4 long flows, 8 MiB each",
        senders: 4,
        bytes: 8 << 20,
        times: 1,
    },
    Fan {
        name: "incast of 16 × 64 KiB",
        senders: 16,
        bytes: 64 << 10,
        times: 1,
    },
    Fan {
        name: "16 workers, 16 KiB, 10 times",
        senders: 16,
        bytes: 16 << 10,
        times: 10,
    },
];

impl Pattern for Fan {
    // Even rounds are messages, odd ones answers.
    fn rounds(&self) -> u32 {
        2 * self.times
    }

    fn sends(&self, node: u32, round: u32, send: &mut dyn FnMut(u32, u64)) {
        match (round % 2, node) {
            (0, 1..) => send(0, self.bytes),
            (1, 0) => (1..=self.senders).for_each(|worker| send(worker, ANSWER)),
            _ => {}
        }
    }

    fn expects(&self, node: u32, round: u32) -> u32 {
        match (round % 2, node) {
            (0, 0) => self.senders,
            (1, 1..) => 1,
            _ => 0,
        }
    }
}

/// Figures of one run.
#[derive(Clone, Copy)]
struct Outcome {
    /// Milliseconds from the start to the last arrival.
    completion: f64,
    retransmits: u64,
    timeouts: u64,
}

fn main() -> ExitCode {
    let rounds = match env::args().nth(1).map(|text| text.parse()) {
        None => ROUNDS,
        Some(Ok(rounds @ 1..=1000)) => rounds,
        Some(_) => {
            eprintln!("tcp_models: invalid number of rounds: write 1 to 1000");
            return ExitCode::from(2);
        }
    };
    match compare(rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tcp_models: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(rounds: usize) -> Result<(), Box<dyn Error>> {
    println!(
        "| case | control | Linux, ms | model, ms | model / Linux | retransmissions | timeouts |\n\
         |---|---|---|---|---|---|---|"
    );
    for fan in CASES {
        let lab = network(fan.senders)?;
        for control in [Control::Reno, Control::Cubic] {
            let mut linux = Vec::new();
            let mut model = Vec::new();
            for round in 0..rounds {
                linux.push(in_lab(&lab, fan, control)?);
                model.push(simulated(fan, control, round as u64)?);
            }
            println!("{}", row(fan, control, linux, model));
        }
    }
    Ok(())
}

fn name(control: Control) -> &'static str {
    match control {
        Control::Reno => "reno",
        Control::Cubic => "cubic",
        Control::Dctcp => "dctcp",
    }
}

fn row(fan: Fan, control: Control, linux: Vec<Outcome>, model: Vec<Outcome>) -> String {
    let (linux, model) = (Summary::of(linux), Summary::of(model));
    format!(
        "| {} | {} | {linux} | {model} | {:.2} | {}; {} | {}; {} |",
        fan.name,
        name(control),
        model.median / linux.median,
        linux.retransmits,
        model.retransmits,
        linux.timeouts,
        model.timeouts,
    )
}

/// Medians of several runs, and the minimum and maximum of their completion times.
struct Summary {
    median: f64,
    least: f64,
    most: f64,
    retransmits: u64,
    timeouts: u64,
}

impl Summary {
    fn of(mut runs: Vec<Outcome>) -> Summary {
        let middle = runs.len() / 2;
        runs.sort_by_key(|run| run.retransmits);
        let retransmits = runs[middle].retransmits;
        runs.sort_by_key(|run| run.timeouts);
        let timeouts = runs[middle].timeouts;
        runs.sort_by(|a, b| a.completion.total_cmp(&b.completion));
        Summary {
            median: runs[middle].completion,
            least: runs[0].completion,
            most: runs[runs.len() - 1].completion,
            retransmits,
            timeouts,
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Summary {
            median,
            least,
            most,
            ..
        } = self;
        write!(f, "{median:.1} ({least:.1}–{most:.1})")
    }
}

/// Runs a case in the simulator: one switch, whose buffer gives the only port in use a queue of the
/// lab's length.
fn simulated(fan: Fan, control: Control, seed: u64) -> Result<Outcome, Box<dyn Error>> {
    let nodes = fan.senders + 1;
    let mut topology = Topology::of(nodes);
    topology.per_leaf = nodes;
    topology.host_gbits = GBITS;
    topology.buffer = 2 * u64::from(QUEUE_FRAMES) * FRAME;
    let plan = Plan {
        topology,
        mtu: MTU,
        seed,
    };
    let case = Case {
        label: fan.name.into(),
        pattern: Box::new(fan),
        set_up: true,
        faults: Vec::new(),
        background: Vec::new(),
        slow: Vec::new(),
    };
    let row = run(&plan, Workload::Incast, &case, Transport::Tcp(control));
    match row.error {
        Some(error) => Err(error.into()),
        None => Ok(Outcome {
            completion: row.completion_us / 1000.0,
            retransmits: row.retransmits,
            timeouts: row.timeouts,
        }),
    }
}

/// Creates the lab of a case: links of [`GBITS`] in both directions, and frames of at most the MTU.
fn network(senders: u32) -> Result<Lab, Box<dyn Error>> {
    let mut options = LabOptions::new(senders as usize + 1);
    options.daemon = false;
    options.programs = programs();
    options.wire.rate = Some(u64::from(GBITS) * 1_000_000_000);
    options.wire.offload = false;
    let lab = Lab::create(&options)?;
    for node in 0..=senders as usize {
        // Without this, the first windows would arrive faster than the rate of a link.
        let rate = format!("{GBITS}gbit");
        let shape = "qdisc add dev eth0 root tbf burst 8kb limit 8mb rate";
        let arguments = shape.split(' ').chain([rate.as_str()]);
        let output = lab.run(node, "tc", arguments)?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        // Each run must start as if it were the first to its peers.
        lab.run_in(node, || {
            fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")
        })??;
    }
    Ok(lab)
}

/// Returns the folder of `esplab`, which contains that of the examples.
fn programs() -> Option<std::path::PathBuf> {
    let program = env::current_exe().ok()?;
    program.parent()?.parent().map(Path::to_path_buf)
}

/// Runs a case over TCP between the nodes of a lab.
fn in_lab(lab: &Lab, fan: Fan, control: Control) -> Result<Outcome, Box<dyn Error>> {
    let before = counters(lab)?;
    let listener = lab.run_in(0, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
    let hub = SocketAddr::new(Node(0).ip().into(), listener.local_addr()?.port());
    let mut workers = Vec::new();
    let mut ends = Vec::new();
    for node in 1..=fan.senders as usize {
        let worker = lab.run_in(node, || TcpStream::connect(hub))??;
        let end = listener.accept()?.0;
        for stream in [&worker, &end] {
            stream.set_nodelay(true)?;
            set_tcp_congestion(stream.as_fd(), name(control))?;
        }
        workers.push(worker);
        ends.push(end);
    }
    let completion = exchange(fan, workers, ends)?;
    let after = counters(lab)?;
    Ok(Outcome {
        completion,
        retransmits: after.0 - before.0,
        timeouts: after.1 - before.1,
    })
}

/// Runs a thread for each end of the connections. Returns the milliseconds until the last message
/// has arrived.
fn exchange(
    fan: Fan,
    workers: Vec<TcpStream>,
    ends: Vec<TcpStream>,
) -> Result<f64, Box<dyn Error>> {
    let all = 2 * workers.len() + 1;
    let (ready, heard) = (Barrier::new(all), Barrier::new(ends.len()));
    let (ready, heard) = (&ready, &heard);
    let bytes = fan.bytes as usize;
    thread::scope(|scope| {
        let work = |mut stream: TcpStream| {
            scope.spawn(move || -> std::io::Result<Instant> {
                let (message, mut answer) = (vec![1; bytes], [0; ANSWER as usize]);
                ready.wait();
                let begin = Instant::now();
                for _ in 0..fan.times {
                    stream.write_all(&message)?;
                    stream.read_exact(&mut answer)?;
                }
                Ok(begin)
            })
        };
        let answer = |mut stream: TcpStream| {
            scope.spawn(move || -> std::io::Result<Instant> {
                let mut message = vec![0; bytes];
                let mut last = Instant::now();
                ready.wait();
                for _ in 0..fan.times {
                    // After the end of one connection, the others must not wait at the barrier
                    // forever.
                    let read = stream.read_exact(&mut message);
                    last = Instant::now();
                    heard.wait();
                    read?;
                    stream.write_all(&[1; ANSWER as usize])?;
                }
                Ok(last)
            })
        };
        let workers: Vec<_> = workers.into_iter().map(work).collect();
        let ends: Vec<_> = ends.into_iter().map(answer).collect();
        ready.wait();
        // The start is not measured in this thread, which may get a core only after the others.
        let mut start = Instant::now();
        let mut last = start;
        for worker in workers {
            start = start.min(worker.join().map_err(|_| "a sender panicked")??);
        }
        for end in ends {
            last = last.max(end.join().map_err(|_| "a receiver panicked")??);
        }
        Ok((last - start).as_secs_f64() * 1000.0)
    })
}

/// Returns the number of segments that all nodes retransmitted, and of their retransmission
/// timeouts.
fn counters(lab: &Lab) -> Result<(u64, u64), Box<dyn Error>> {
    let mut sum = (0, 0);
    for node in 0..lab.state().wire.nodes {
        let (snmp, netstat) = lab.run_in(node, || {
            let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            read("snmp").and_then(|snmp| Ok((snmp, read("netstat")?)))
        })??;
        sum.0 += counter(&snmp, "Tcp:", "RetransSegs")?;
        sum.1 += counter(&netstat, "TcpExt:", "TCPTimeouts")?;
    }
    Ok(sum)
}

/// Returns a number from a table of two lines, names above values.
fn counter(text: &str, table: &str, name: &str) -> Result<u64, Box<dyn Error>> {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let names = lines.next().unwrap_or_default().split_whitespace();
    let values = lines.next().unwrap_or_default().split_whitespace();
    let found = names.zip(values).find(|(key, _)| *key == name);
    let (_, value) = found.ok_or_else(|| format!("the system has no counter {name}"))?;
    Ok(value.parse()?)
}
