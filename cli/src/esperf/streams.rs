//! The streams of a test: a thread for each sends or receives, the caller's reports.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use esp_client::{Client, EspStream};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::control::{Cpu, Results};
use super::flags::Plan;
use crate::out::{Doing, Failure};
use crate::signal::Interrupt;

/// Time after which a write that does not proceed looks whether the test is over.
const LOOK: Duration = Duration::from_millis(200);
/// Period at which the reporting thread looks for the end of the others.
const STEP: Duration = Duration::from_millis(10);

/// State shared by the threads of a test.
struct Shared {
    /// Bytes of each stream, so far.
    bytes: Vec<AtomicU64>,
    /// Bytes that may still be sent.
    left: AtomicU64,
    stop: AtomicBool,
}

/// Bytes of each stream in a time.
pub(super) struct Interval {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) bytes: Vec<u64>,
    /// State of each connection, as its node reports it.
    pub(super) links: Vec<Link>,
}

/// State of a connection: `None` where its node does not know it, as over UDP without a daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Link {
    /// Packets sent again, since its beginning or, in an interval, since the last one.
    pub(super) retransmits: Option<u64>,
    /// Congestion window in bytes.
    pub(super) cwnd: Option<u64>,
    /// Smoothed round-trip time in µs.
    pub(super) rtt: Option<u64>,
}

/// Runs one side of a test and passes each interval to `report`. A signal ends it early.
pub(super) fn measure(
    plan: &Plan,
    sends: bool,
    client: &Client,
    streams: &[Arc<EspStream>],
    (interval, interrupt): (Duration, &Interrupt),
    mut report: impl FnMut(&Interval) -> Result<(), Failure>,
) -> Result<Results, Failure> {
    let shared = Arc::new(Shared {
        bytes: streams.iter().map(|_| AtomicU64::new(0)).collect(),
        left: AtomicU64::new(plan.bytes.unwrap_or(u64::MAX)),
        stop: AtomicBool::new(false),
    });
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut threads = Vec::new();
    for (index, stream) in streams.iter().enumerate() {
        let (stream, shared) = (Arc::clone(stream), Arc::clone(&shared));
        let length = usize::try_from(plan.length).unwrap_or(usize::MAX);
        let named = thread::Builder::new().name(format!("stream-{index}"));
        let run = move || match sends {
            true => send(&stream, length, &shared, index),
            false => receive(&stream, length, &shared, index),
        };
        threads.push(named.spawn(run).doing("starting a thread")?);
    }
    let mut last = Taken::at_start(streams.len());
    let mut end = start + interval;
    while !threads.iter().all(JoinHandle::is_finished) && !interrupt.is_set() {
        thread::sleep(STEP);
        if sends && plan.bytes.is_none() && start.elapsed() >= plan.time {
            shared.stop.store(true, Ordering::Relaxed);
        }
        if Instant::now() >= end {
            end += interval;
            report(&last.next(&shared, start, links(client, streams)))?;
        }
    }
    shared.stop.store(true, Ordering::Relaxed);
    let now = links(client, streams);
    let rest = last.next(&shared, start, now.clone());
    // Less than a tenth of an interval is a rounding of its end.
    if rest.to - rest.from > interval.as_secs_f64() / 10.0 {
        report(&rest)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    if !interrupt.is_set() {
        for thread in threads {
            let ended = thread.join();
            ended
                .map_err(|_| Failure::new("a thread failed"))?
                .map_err(Failure::broken)?;
        }
    }
    let load = |index: usize, now: f64| (now - [cpu.user, cpu.system][index]) / seconds * 100.0;
    let used = cpu_time();
    Ok(Results {
        bytes: last.bytes,
        retransmits: now.iter().map(|link| link.retransmits).collect(),
        seconds,
        cpu: Cpu {
            user: load(0, used.user),
            system: load(1, used.system),
        },
    })
}

/// Counts at the end of the last interval.
struct Taken {
    at: f64,
    bytes: Vec<u64>,
    retransmits: Vec<Option<u64>>,
}

impl Taken {
    fn at_start(streams: usize) -> Taken {
        Taken {
            at: 0.0,
            bytes: vec![0; streams],
            retransmits: vec![Some(0); streams],
        }
    }

    /// Ends an interval now.
    fn next(&mut self, shared: &Shared, start: Instant, links: Vec<Link>) -> Interval {
        let now = start.elapsed().as_secs_f64();
        let counts = shared.bytes.iter().map(|n| n.load(Ordering::Relaxed));
        let counts: Vec<u64> = counts.collect();
        let bytes = counts.iter().zip(&self.bytes).map(|(now, last)| now - last);
        let bytes = bytes.collect();
        let totals: Vec<_> = links.iter().map(|link| link.retransmits).collect();
        let since = links.into_iter().zip(&self.retransmits);
        let links = since.map(|(link, last)| Link {
            retransmits: link
                .retransmits
                .zip(*last)
                .map(|(now, last)| now.saturating_sub(last)),
            ..link
        });
        let interval = Interval {
            from: self.at,
            to: now,
            bytes,
            links: links.collect(),
        };
        (self.at, self.bytes, self.retransmits) = (now, counts, totals);
        interval
    }
}

/// Writes until the time is over or the bytes are sent, and ends the direction.
fn send(mut stream: &EspStream, length: usize, shared: &Shared, index: usize) -> io::Result<()> {
    let block = vec![0x5a; length];
    stream.set_write_timeout(Some(LOOK))?;
    while !shared.stop.load(Ordering::Relaxed) {
        let want = length as u64;
        let left = shared
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                Some(left.saturating_sub(want))
            });
        let share = left.unwrap_or(0).min(want);
        if share == 0 {
            break;
        }
        let mut rest = block
            .get(..usize::try_from(share).unwrap_or(length))
            .unwrap_or_default();
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(count) => {
                    add(shared, index, count);
                    rest = rest.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if shared.stop.load(Ordering::Relaxed) {
                        return stream.shutdown(Shutdown::Write);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    stream.shutdown(Shutdown::Write)
}

/// Reads until the end of the stream.
fn receive(mut stream: &EspStream, length: usize, shared: &Shared, index: usize) -> io::Result<()> {
    let mut block = vec![0; length];
    loop {
        match stream.read(&mut block)? {
            0 => return Ok(()),
            count => add(shared, index, count),
        }
    }
}

fn add(shared: &Shared, index: usize, count: usize) {
    if let Some(bytes) = shared.bytes.get(index) {
        bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Asks the daemon for the state of the connections.
fn links(client: &Client, streams: &[Arc<EspStream>]) -> Vec<Link> {
    let connections = client.status().map(|status| status.connections);
    let connections = connections.unwrap_or_default();
    let link = |stream: &Arc<EspStream>| {
        let (local, peer) = (stream.local_addr(), stream.peer_addr());
        let addr = peer.addr.to_string();
        let is_it = |other: &&esp_client::control::ConnectionStatus| {
            (other.local_port, other.peer_port) == (local.port, peer.port) && other.peer == addr
        };
        let found = connections.iter().find(is_it);
        found.map_or_else(Link::default, |found| Link {
            retransmits: found.retransmits,
            cwnd: found
                .cwnd
                .zip(found.payload)
                .map(|(packets, payload)| u64::from(packets) * u64::from(payload)),
            rtt: found.srtt_us.map(|time| time as u64),
        })
    };
    streams.iter().map(link).collect()
}

/// Returns the time that this process has computed, in seconds.
fn cpu_time() -> Cpu {
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF).map_or_else(
        |_| Cpu::default(),
        |usage| Cpu {
            user: seconds(usage.user_time()),
            system: seconds(usage.system_time()),
        },
    )
}
