//! The two programs of a case. Each runs inside a node as `esplab worker JOB` and prints one JSON
//! line when it listens (the server) and one when it is done.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ends::{self, End};
use crate::samples::Samples;
use crate::{hold, raw};

/// How the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// TCP of the kernel, TCP_NODELAY.
    Tcp,
    /// The same without segmentation offload: one pass through the stack for each segment, as on
    /// the wire.
    TcpNoOffload,
    /// A bare packet-socket loop: what the machine can do at best, without a protocol.
    Raw,
    /// ESP by way of the nodes' daemons.
    Daemon,
    /// ESP by engines in the two programs, over ports that their daemons have leased to them.
    Lease,
    /// Messages of the point-to-point layer, over the same daemons.
    P2p,
}

impl Path {
    /// Do the nodes' daemons carry it?
    pub fn by_daemons(self) -> bool {
        matches!(self, Path::Daemon | Path::P2p)
    }

    /// Must daemons run for it?
    pub fn needs_daemons(self) -> bool {
        self.by_daemons() || self == Path::Lease
    }

    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Path::Tcp => "tcp",
            Path::TcpNoOffload => "tcp-no-offload",
            Path::Raw => "raw",
            Path::Daemon => "daemon",
            Path::Lease => "lease",
            Path::P2p => "p2p",
        }
    }
}

/// How a worker waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// It sleeps until they come.
    Block,
    /// It keeps looking.
    Poll,
}

/// What the two workers do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The client sends `size` bytes, the server sends them back; `count` times after a warm-up.
    PingPong {
        /// Bytes each way.
        size: usize,
        /// Round trips measured.
        count: u64,
    },
    /// The client calls `send` with `size` bytes, in bursts with a pause between; the server takes
    /// them all.
    Send {
        /// Bytes of each call.
        size: usize,
        /// Bursts.
        count: u64,
        /// Calls of a burst; the time of a burst is divided by it.
        burst: u32,
        /// Microseconds between two bursts.
        pause_us: u64,
    },
    /// The client writes for so long, as fast as it can; the server takes it all.
    Stream {
        /// Milliseconds.
        millis: u64,
    },
    /// The client opens so many connections, and both keep them open without using them.
    Hold {
        /// Connections.
        count: usize,
    },
}

/// Client or server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Listens, takes one connection, serves it.
    Server,
    /// Connects.
    Client,
}

/// All a worker must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Which side.
    pub role: Role,
    /// Over what.
    pub path: Path,
    /// How it waits.
    pub wait: Wait,
    /// What is done.
    pub work: Work,
    /// Number of the server's node.
    pub node: usize,
    /// The server's port.
    pub port: u16,
    /// Each worker has a core for itself, so that it need not let its daemon run.
    pub own_core: bool,
}

/// The first line of a server.
pub const LISTENING: &str = "listening";
/// What a worker says when it holds all its connections. A worker told to hold, and a raw server,
/// end when their standard input does.
pub const HOLDING: &str = "holding";

/// The last line of a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Nanoseconds: of round trips, or of send calls.
    pub times: Samples,
    /// Bytes received.
    pub bytes: u64,
    /// Nanoseconds from the first to the last of them.
    pub nanos: u64,
}

/// Bytes of a write or read of a stream.
const CHUNK: usize = 256 * 1024;

/// Does the job; `say` is called with the lines that come before the outcome.
pub fn work(job: &Job, mut say: impl FnMut(&str) -> io::Result<()>) -> io::Result<Outcome> {
    if job.path == Path::Raw {
        return raw::work(job, || say(LISTENING));
    }
    if let Work::Hold { count } = job.work {
        return hold::work(job, count, say);
    }
    let listening = || say(LISTENING);
    work_on(job, &mut *ends::open(job, listening)?)
}

fn work_on(job: &Job, end: &mut dyn End) -> io::Result<Outcome> {
    let poll = job.wait == Wait::Poll;
    match (job.role, job.work) {
        (Role::Client, Work::PingPong { size, count }) => ping(end, size, count, poll),
        (Role::Server, Work::PingPong { size, .. }) => pong(end, size, poll),
        (
            Role::Client,
            Work::Send {
                size,
                count,
                burst,
                pause_us,
            },
        ) => send(end, size, count, burst, Duration::from_micros(pause_us)),
        (Role::Client, Work::Stream { millis }) => pour(end, Duration::from_millis(millis)),
        (Role::Server, Work::Send { .. } | Work::Stream { .. }) => drain(end),
        (_, Work::Hold { .. }) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no stream is needed to hold some",
        )),
    }
}

/// Fills the buffer; false when the stream ended before its first byte.
fn read_full(end: &mut dyn End, buffer: &mut [u8], poll: bool) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match end.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(e) if poll && e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn ping(end: &mut dyn End, size: usize, count: u64, poll: bool) -> io::Result<Outcome> {
    let mut times = Samples::new();
    let mut message = vec![1u8; size];
    let warm_up = (count / 10).max(100);
    for round in 0..warm_up + count {
        let start = Instant::now();
        end.write_all(&message)?;
        if !read_full(end, &mut message, poll)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if round >= warm_up {
            times.add(nanos(start));
        }
    }
    end.finish()?;
    Ok(Outcome {
        times,
        ..Outcome::default()
    })
}

fn pong(end: &mut dyn End, size: usize, poll: bool) -> io::Result<Outcome> {
    let mut message = vec![0u8; size];
    while read_full(end, &mut message, poll)? {
        end.write_all(&message)?;
    }
    end.finish()?;
    Ok(Outcome::default())
}

fn send(
    end: &mut dyn End,
    size: usize,
    count: u64,
    burst: u32,
    pause: Duration,
) -> io::Result<Outcome> {
    let mut times = Samples::new();
    let message = vec![1u8; size];
    let warm_up = (count / 10).max(10);
    for round in 0..warm_up + count {
        let start = Instant::now();
        for _ in 0..burst {
            end.write_all(&message)?;
        }
        if round >= warm_up {
            times.add(nanos(start) / u64::from(burst.max(1)));
        }
        rest(pause);
    }
    end.finish()?;
    // Until the server has taken everything.
    let mut end_of_stream = [0u8; 1];
    read_full(end, &mut end_of_stream, true)?;
    Ok(Outcome {
        times,
        ..Outcome::default()
    })
}

/// A pause: short ones computing, as a program between two messages does; long ones asleep.
fn rest(pause: Duration) {
    if pause >= Duration::from_millis(1) {
        std::thread::sleep(pause);
        return;
    }
    let start = Instant::now();
    while start.elapsed() < pause {
        std::hint::spin_loop();
    }
}

fn pour(end: &mut dyn End, time: Duration) -> io::Result<Outcome> {
    let chunk = vec![0x5au8; CHUNK];
    let start = Instant::now();
    while start.elapsed() < time {
        end.write_all(&chunk)?;
    }
    end.finish()?;
    let mut end_of_stream = [0u8; 1];
    read_full(end, &mut end_of_stream, true)?;
    Ok(Outcome::default())
}

fn drain(end: &mut dyn End) -> io::Result<Outcome> {
    let mut chunk = vec![0u8; CHUNK];
    let (mut bytes, mut start) = (0u64, None);
    loop {
        match end.read(&mut chunk) {
            Ok(0) => break,
            // The clock starts when the first bytes are there, and these do not count.
            Ok(n) if start.is_some() => bytes += n as u64,
            Ok(_) => start = Some(Instant::now()),
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
    let nanos = start.map_or(0, nanos);
    end.finish()?;
    Ok(Outcome {
        bytes,
        nanos,
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Client and server over the machine's loopback: no network is needed for it.
    fn both(work: Work, wait: Wait) -> io::Result<(Outcome, Outcome)> {
        let job = Job {
            role: Role::Server,
            path: Path::Tcp,
            wait,
            work,
            node: 0,
            port: 0,
            own_core: true,
        };
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let connect = TcpStream::connect(listener.local_addr()?)?;
        let (accept, _) = listener.accept()?;
        std::thread::scope(|scope| {
            let server = scope.spawn(|| run(&job, accept));
            let client = run(
                &Job {
                    role: Role::Client,
                    ..job
                },
                connect,
            )?;
            let server = server
                .join()
                .map_err(|_| io::Error::other("the server panicked"))??;
            Ok((client, server))
        })
    }

    fn run(job: &Job, stream: TcpStream) -> io::Result<Outcome> {
        let mut end = ends::tcp_end(stream, job.wait)?;
        work_on(job, &mut end)
    }

    #[test]
    fn ping_pong_counts_every_round_trip() -> io::Result<()> {
        for wait in [Wait::Block, Wait::Poll] {
            let (client, _) = both(
                Work::PingPong {
                    size: 100,
                    count: 50,
                },
                wait,
            )?;
            assert_eq!(client.times.len(), 50);
        }
        Ok(())
    }

    #[test]
    fn streams_are_measured_by_their_receiver() -> io::Result<()> {
        let (_, server) = both(Work::Stream { millis: 20 }, Wait::Block)?;
        assert!(
            server.bytes > CHUNK as u64 && server.nanos > 0,
            "{server:?}"
        );
        Ok(())
    }

    #[test]
    fn send_calls_are_timed() -> io::Result<()> {
        let (client, server) = both(
            Work::Send {
                size: 1,
                count: 20,
                burst: 4,
                pause_us: 1,
            },
            Wait::Block,
        )?;
        assert_eq!(client.times.len(), 20);
        assert!(server.bytes <= 4 * 30);
        Ok(())
    }
}
