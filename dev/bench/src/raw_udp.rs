//! The bare UDP loop of [`rawloop::udp`] as a worker.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::Node;
use netif::Interface;
use rawloop::udp;

use crate::samples::Samples;
use crate::task::{Role, Task, TaskResult, Wait, Work};

/// Runs the task.
pub(super) fn work(
    job: &Task,
    listening: impl FnOnce() -> io::Result<()>,
) -> io::Result<TaskResult> {
    let wait = match job.wait {
        Wait::Poll => rawloop::Wait::Poll,
        Wait::Block => rawloop::Wait::Block,
    };
    let server = SocketAddr::from((Node(job.node).ip(), job.port));
    let local = SocketAddr::from(([0, 0, 0, 0], 0));
    match (job.role, job.work) {
        (Role::Server, _) => serve(server, wait, listening),
        (Role::Client, Work::PingPong { size, count }) => {
            let counts = (count, (count / 10).max(100));
            let samples =
                udp::ping_pong(local, server, wait, size, counts).map_err(io::Error::other)?;
            let mut times = Samples::new();
            samples.iter().for_each(|&nanos| times.add(nanos));
            Ok(TaskResult {
                times,
                ..TaskResult::default()
            })
        }
        (Role::Client, Work::Stream { millis, .. }) => {
            let interface = Interface::by_name("eth0").map_err(io::Error::other)?;
            let time = Duration::from_millis(millis);
            let (bytes, took) = udp::stream(local, server, wait, (interface.mtu, time))
                .map_err(io::Error::other)?;
            Ok(TaskResult {
                bytes,
                nanos: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
                ..TaskResult::default()
            })
        }
        (Role::Client, _) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the bare loop supports ping-pong and stream only",
        )),
    }
}

/// Serves until standard input ends.
fn serve(
    local: SocketAddr,
    wait: rawloop::Wait,
    listening: impl FnOnce() -> io::Result<()>,
) -> io::Result<TaskResult> {
    let stop = AtomicBool::new(false);
    listening()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // No data arrives; the end of the input and an error both end the server.
            let _ = io::stdin().read(&mut [0; 1]);
            stop.store(true, Ordering::Relaxed);
        });
        udp::serve(local, wait, &stop).map_err(io::Error::other)
    })?;
    Ok(TaskResult::default())
}
