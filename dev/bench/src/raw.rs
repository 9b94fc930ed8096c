//! The bare packet-socket loop of [`rawloop`] as a worker.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netif::{Interface, MacAddr};
use rawloop::{self, Options, RawLoopError};

use crate::samples::Samples;
use crate::task::{Role, Task, TaskResult, Wait, Work};
use lab::Node;

/// Bytes of the server's and the client's buffer: the size of a stream's rings, for equal use of
/// the cache.
const BUFFER: usize = 1 << 20;
/// Bytes of each stream; streams repeat until the time has passed.
const STREAM: u64 = 64 << 20;

/// Runs the task.
pub(super) fn work(
    job: &Task,
    listening: impl FnOnce() -> io::Result<()>,
) -> io::Result<TaskResult> {
    let interface = Interface::by_name("eth0").map_err(io::Error::other)?;
    let wait = if job.wait == Wait::Poll {
        rawloop::Wait::Poll
    } else {
        rawloop::Wait::Block
    };
    let options = Options {
        wait,
        ..Options::default()
    };
    let [a, b, c, d, e, f] = Node(job.node).mac();
    let peer = MacAddr::new(a, b, c, d, e, f);
    match (job.role, job.work) {
        (Role::Server, _) => serve(&interface, &options, listening),
        (Role::Client, Work::PingPong { size, count }) => {
            ping(&interface, peer, &options, size, count)
        }
        (Role::Client, Work::Stream { millis, .. }) => {
            stream(&interface, peer, &options, Duration::from_millis(millis))
        }
        (Role::Client, _) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the bare loop supports ping-pong and stream only",
        )),
    }
}

/// Serves until standard input ends.
fn serve(
    interface: &Interface,
    options: &Options,
    listening: impl FnOnce() -> io::Result<()>,
) -> io::Result<TaskResult> {
    let stop = AtomicBool::new(false);
    let mut buffer = vec![0u8; BUFFER];
    listening()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // No data arrives; the end of the input and an error both end the server.
            let _ = io::stdin().read(&mut [0; 1]);
            stop.store(true, Ordering::Relaxed);
        });
        rawloop::serve(interface, options, &mut buffer, &stop).map_err(failed)
    })?;
    Ok(TaskResult::default())
}

fn ping(
    interface: &Interface,
    peer: MacAddr,
    options: &Options,
    size: usize,
    count: u64,
) -> io::Result<TaskResult> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let result = rawloop::ping_pong(interface, peer, options, size, count, (count / 10).max(100))
        .map_err(failed)?;
    let mut times = Samples::new();
    result.samples_ns.iter().for_each(|&nanos| times.add(nanos));
    Ok(TaskResult {
        times,
        ..TaskResult::default()
    })
}

/// Repeats streams until the time has passed.
fn stream(
    interface: &Interface,
    peer: MacAddr,
    options: &Options,
    time: Duration,
) -> io::Result<TaskResult> {
    let from = vec![0x5au8; BUFFER];
    let start = Instant::now();
    let (mut bytes, mut took) = (0, Duration::ZERO);
    while start.elapsed() < time {
        let result = rawloop::stream(interface, peer, options, &from, STREAM).map_err(failed)?;
        bytes += result.bytes;
        took += result.elapsed;
    }
    Ok(TaskResult {
        bytes,
        nanos: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        ..TaskResult::default()
    })
}

fn failed(error: RawLoopError) -> io::Error {
    io::Error::other(error)
}
