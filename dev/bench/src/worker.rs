//! The two programs of a case. Each runs inside a node as `esplab worker TASK`. The server prints
//! [`LISTENING`] when it accepts connections; both print one JSON line ([`TaskResult`]) at the end.

use std::io;
use std::time::{Duration, Instant};

use crate::ends::{self, End};
use crate::samples::Samples;
use crate::task::{LISTENING, Protocol, Role, Task, TaskResult, Wait, Work};
use crate::{hold, raw, raw_udp};

/// Bytes of a read of a stream.
const CHUNK: usize = 256 * 1024;

/// Runs the task. Calls `say` with each line that precedes the result.
///
/// # Errors
/// The connection fails or ends early.
pub fn work(task: &Task, say: impl FnMut(&str) -> io::Result<()>) -> io::Result<TaskResult> {
    let result = work_untimed(task, say)?;
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu = Duration::try_from(cpu).unwrap_or_default().as_nanos();
    Ok(TaskResult {
        cpu: u64::try_from(cpu).unwrap_or(u64::MAX),
        ..result
    })
}

fn work_untimed(
    task: &Task,
    mut say: impl FnMut(&str) -> io::Result<()>,
) -> io::Result<TaskResult> {
    if task.path == Protocol::Raw {
        return raw::work(task, || say(LISTENING));
    }
    if task.path == Protocol::RawUdp {
        return raw_udp::work(task, || say(LISTENING));
    }
    if let Work::Hold { count } = task.work {
        return hold::work(task, count, say);
    }
    let listening = || say(LISTENING);
    work_on(task, &mut *ends::open(task, listening)?)
}

fn work_on(task: &Task, end: &mut dyn End) -> io::Result<TaskResult> {
    let poll = task.wait == Wait::Poll;
    match (task.role, task.work) {
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
        (Role::Client, Work::Stream { millis, size }) => {
            pour(end, size, Duration::from_millis(millis))
        }
        (Role::Server, Work::Send { size, .. } | Work::Stream { size, .. }) => drain(end, size),
        (_, Work::Hold { .. }) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "idle connections have no stream",
        )),
    }
}

/// Fills the buffer; returns false if the stream ended before its first byte.
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

/// Ends the client's direction and waits for the server's end of stream: by then it has
/// read everything, and this process still receives the server's last message.
fn finish(end: &mut dyn End) -> io::Result<()> {
    end.finish()?;
    read_full(end, &mut [0], true).map(|_| ())
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn ping(end: &mut dyn End, size: usize, count: u64, poll: bool) -> io::Result<TaskResult> {
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
    finish(end)?;
    Ok(TaskResult {
        times,
        ..TaskResult::default()
    })
}

fn pong(end: &mut dyn End, size: usize, poll: bool) -> io::Result<TaskResult> {
    let mut message = vec![0u8; size];
    while read_full(end, &mut message, poll)? {
        end.write_all(&message)?;
    }
    end.finish()?;
    Ok(TaskResult::default())
}

fn send(
    end: &mut dyn End,
    size: usize,
    count: u64,
    burst: u32,
    pause: Duration,
) -> io::Result<TaskResult> {
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
    finish(end)?;
    Ok(TaskResult {
        times,
        ..TaskResult::default()
    })
}

/// Pauses: sleeps, but computes for a pause below a millisecond, as a program between two messages
/// does.
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

/// Writes `size` bytes at a time until `time` has passed.
fn pour(end: &mut dyn End, size: usize, time: Duration) -> io::Result<TaskResult> {
    let chunk = vec![0x5au8; size];
    let start = Instant::now();
    while start.elapsed() < time {
        end.write_all(&chunk)?;
    }
    finish(end)?;
    Ok(TaskResult::default())
}

/// Reads until the end of the stream. A message of the point-to-point layer has `size` bytes and
/// must fit into the buffer.
fn drain(end: &mut dyn End, size: usize) -> io::Result<TaskResult> {
    let mut chunk = vec![0u8; size.max(CHUNK)];
    let (mut bytes, mut start) = (0u64, None);
    loop {
        match end.read(&mut chunk) {
            Ok(0) => break,
            // The clock starts at the first bytes, which do not count.
            Ok(n) if start.is_some() => bytes += n as u64,
            Ok(_) => start = Some(Instant::now()),
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
    let nanos = start.map_or(0, nanos);
    end.finish()?;
    Ok(TaskResult {
        bytes,
        nanos,
        ..TaskResult::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Runs client and server over the loopback interface.
    fn both(work: Work, wait: Wait) -> io::Result<(TaskResult, TaskResult)> {
        let task = Task {
            role: Role::Server,
            path: Protocol::Tcp,
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
            let server = scope.spawn(|| run(&task, accept));
            let client = run(
                &Task {
                    role: Role::Client,
                    ..task
                },
                connect,
            )?;
            let server = server
                .join()
                .map_err(|_| io::Error::other("the server panicked"))??;
            Ok((client, server))
        })
    }

    fn run(task: &Task, stream: TcpStream) -> io::Result<TaskResult> {
        let mut end = ends::tcp_end(stream, task.wait)?;
        work_on(task, &mut end)
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
        let (_, server) = both(
            Work::Stream {
                millis: 20,
                size: CHUNK,
            },
            Wait::Block,
        )?;
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
