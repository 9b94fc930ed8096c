//! A lab whose daemons serve their metrics, and its load.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cli::out::{Context, Failure};
use lab::{Lab, LabOptions, Node, WireOptions};
use tempfile::TempDir;

/// Number of nodes.
pub(crate) const NODES: usize = 3;
/// Port of the metrics.
pub(crate) const METRICS_PORT: u16 = 9469;
/// Token of the metrics.
const TOKEN: &str = "of-the-dashboards-lab";
/// Bits per second of each port of the switch, so that the load leaves time to others.
const RATE: u64 = 40_000_000;
/// Frames lost, per million.
const LOSS: u32 = 10_000;
/// Listeners of a user; the next one is refused.
const LISTENERS: usize = 4;

/// A server and the client that sends to it during a part of the load.
struct Stream {
    client: usize,
    server: usize,
    port: &'static str,
    /// Interface of the client, and the server's address in its network.
    rail: usize,
    /// Start and end, in hundredths of the load; a stream with a later end is part of the last
    /// values.
    during: (u32, u32),
    streams: &'static str,
}

const STREAMS: [Stream; 3] = [
    Stream {
        client: 0,
        server: 1,
        port: "5201",
        rail: 0,
        during: (0, 110),
        streams: "2",
    },
    Stream {
        client: 2,
        server: 0,
        port: "5202",
        rail: 0,
        during: (20, 65),
        streams: "1",
    },
    Stream {
        client: 1,
        server: 2,
        port: "5203",
        rail: 1,
        during: (10, 110),
        streams: "1",
    },
];
/// When the second interface of a node is down, in hundredths of the load, and the node.
const DOWN: (u32, u32, usize) = (45, 55, 1);
/// When a program dies that has a connection, in hundredths of the load.
const DEATH: u32 = 70;
/// Time between two of the small events.
const EVENTS: Duration = Duration::from_secs(4);
/// Interval at which the clock or a socket is polled.
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit for a socket of a program.
const PATIENCE: Duration = Duration::from_secs(20);

/// Event during the load.
enum Event {
    Stream(&'static Stream),
    /// Sets the link of [`DOWN`].
    Link(&'static str),
    Death,
}

/// The lab. Its processes end when it is dropped.
pub(crate) struct Cluster {
    pub lab: Lab,
    folder: TempDir,
}

impl Cluster {
    /// Creates the lab.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn new() -> Result<Cluster, Failure> {
        let folder = TempDir::new().doing("a folder for the token")?;
        let token = token(&folder);
        let mut file = OpenOptions::new();
        let file = file.write(true).create_new(true).mode(0o600).open(&token);
        file.and_then(|mut file| file.write_all(TOKEN.as_bytes()))
            .doing(token.display())?;
        let options = LabOptions::new(NODES);
        let wire = WireOptions {
            rate: Some(RATE),
            loss_ppm: LOSS,
            ..options.wire.clone()
        };
        let options = LabOptions {
            rails: 2,
            daemon_config: format!(
                "[limits]\nlisteners = {LISTENERS}\n[metrics]\nlisten = \"0.0.0.0:{METRICS_PORT}\"\n\
                 token_file = {token:?}\n"
            ),
            ..options.with_wire(wire)
        };
        let lab = Lab::create(&options)?;
        Ok(Cluster { lab, folder })
    }

    /// Returns the file of the metrics' token.
    pub(crate) fn token(&self) -> PathBuf {
        token(&self.folder)
    }

    /// Runs the load for these seconds: streams, some over a link that fails, leases, refused
    /// connections, a program that dies, and a program at a limit.
    ///
    /// # Errors
    /// A program cannot be started, or the first stream ended early.
    pub(crate) fn run(&self, seconds: u16) -> Result<(), Failure> {
        let seconds = u32::from(seconds);
        let at = |hundredths: u32| Duration::from_millis(u64::from(seconds * hundredths * 10));
        let mut running = Vec::new();
        for stream in &STREAMS {
            let arguments = ["-s", "-p", stream.port];
            running.push(self.listening(stream.server, "esperf", &arguments, stream.port)?);
        }
        // Over a lease, which the streams are not.
        let mut server = self.program(1, "esperf", &["-s", "-p", "5204"])?;
        running.push(Running::start(&mut server)?);
        let mut events: Vec<_> = STREAMS
            .iter()
            .map(|stream| (stream.during.0, Event::Stream(stream)))
            .chain([
                (DOWN.0, Event::Link("down")),
                (DOWN.1, Event::Link("up")),
                (DEATH, Event::Death),
            ])
            .collect();
        events.sort_by_key(|(hundredths, _)| *hundredths);
        let mut events = events.into_iter().peekable();
        let mut first: Option<Running> = None;
        let start = Instant::now();
        let mut next = Duration::ZERO;
        while start.elapsed() < at(100) {
            let now = start.elapsed();
            while let Some((_, event)) = events.next_if(|(hundredths, _)| now >= at(*hundredths)) {
                match event {
                    Event::Stream(stream) => {
                        let time = at(stream.during.1 - stream.during.0);
                        let client = self.client(stream, time)?;
                        match first {
                            None => first = Some(client),
                            Some(_) => running.push(client),
                        }
                    }
                    Event::Link(state) => self.set_link(DOWN.2, state)?,
                    Event::Death => self.death()?,
                }
            }
            if now >= next {
                next += EVENTS;
                running.extend(self.small_events()?);
            }
            running.retain_mut(Running::is_alive);
            sleep(PAUSE);
        }
        first.map_or(Ok(()), |mut first| first.check())
    }

    /// Starts a program that listens on a port, not over a lease, and waits until it does.
    fn listening(
        &self,
        node: usize,
        program: &str,
        arguments: &[&str],
        port: &str,
    ) -> Result<Running, Failure> {
        let mut command = self.program(node, program, arguments)?;
        let running = Running::start(command.env("ESP_PATH", "daemon"))?;
        self.await_socket(node, "listening", port)?;
        Ok(running)
    }

    /// Waits for a socket of a node with this state and port.
    fn await_socket(&self, node: usize, state: &str, port: &str) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        let filter = ["--json", "state", state, "sport", "=", port];
        loop {
            let output = self.lab.run(node, "espstat", filter)?;
            if !output.stdout.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Failure::new(format_args!(
                    "node{node}: port {port} is not {state} after {} s: {}",
                    PATIENCE.as_secs(),
                    String::from_utf8_lossy(&output.stderr).trim()
                )));
            }
            sleep(PAUSE);
        }
    }

    fn client(&self, stream: &Stream, time: Duration) -> Result<Running, Failure> {
        let mac = Node(stream.server).rail_mac(stream.rail);
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let interface = format!("eth{}", stream.rail);
        let time = format!("{}s", time.as_secs());
        let arguments = [
            "-c",
            &mac,
            "-I",
            &interface,
            "-p",
            stream.port,
            "-t",
            &time,
            "-P",
            stream.streams,
        ];
        let mut command = self.program(stream.client, "esperf", &arguments)?;
        Running::start(command.env("ESP_PATH", "daemon"))
    }

    /// Starts programs that end by themselves: a transfer over a lease, a connection to a port that
    /// does not listen, and a listener too many.
    fn small_events(&self) -> Result<Vec<Running>, Failure> {
        let lease = self.program(0, "esperf", &["-c", "node1", "-p", "5204", "-n", "1m"])?;
        let refused = self.program(2, "espcat", &["node0", "5999"])?;
        let limit = self.program(1, "sh", &["-c", &listeners()])?;
        let mut all = [lease, refused, limit];
        all.iter_mut().map(Running::start).collect()
    }

    /// Starts two ends of a connection, kills the receiving one, and waits until the other one,
    /// which cannot miss the reset, ends.
    fn death(&self) -> Result<(), Failure> {
        let port = "5300";
        let server = self.listening(2, "espcat", &["-l", "-d", port], port)?;
        let mut client = self.program(0, "sh", &["-c", "exec espcat node2 5300 </dev/zero"])?;
        let mut client = Running::start(client.env("ESP_PATH", "daemon"))?;
        self.await_socket(2, "established", port)?;
        drop(server);
        let end = Instant::now() + PATIENCE;
        while client.is_alive() && Instant::now() < end {
            sleep(PAUSE);
        }
        Ok(())
    }

    fn set_link(&self, node: usize, state: &str) -> Result<(), Failure> {
        let output = self.lab.run(node, "ip", ["link", "set", "eth1", state])?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Failure::new(format_args!(
                "node{node}: eth1 {state}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ))),
        }
    }

    fn program(&self, node: usize, program: &str, args: &[&str]) -> Result<Command, Failure> {
        let mut command = self.lab.command(node, program)?;
        command.args(args);
        Ok(command)
    }
}

/// Returns a command of the shell that starts more listeners than a user may have, for a second.
fn listeners() -> String {
    let ports = (0..LISTENERS).map(|n| format!("timeout 1 espcat -l -d {} &", 5400 + n));
    ports.collect::<String>() + " wait"
}

fn token(folder: &TempDir) -> PathBuf {
    folder.path().join("token")
}

/// A started program; killed when dropped.
struct Running {
    child: Child,
    name: String,
}

impl Running {
    fn start(command: &mut Command) -> Result<Running, Failure> {
        let name = format!("{command:?}");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command.spawn().doing(&name)?;
        Ok(Running { child, name })
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns an error if the program has ended.
    fn check(&mut self) -> Result<(), Failure> {
        let Some(status) = self.child.try_wait().doing(&self.name)? else {
            return Ok(());
        };
        let stderr = self.child.stderr.take().map(std::io::read_to_string);
        let text = stderr.transpose().doing(&self.name)?.unwrap_or_default();
        Err(Failure::new(format_args!(
            "{} ended before the load: {status}: {}",
            self.name,
            text.trim()
        )))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
