//! Runs one side of a test: several threads send or receive, and the caller's thread reports.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::control::{Cpu, Datagrams, Results};
use super::flags::Plan;
use crate::out::{Context, Failure};
use crate::signal::Interrupt;

/// Interval at which the reporting thread checks whether the others have ended.
const STEP: Duration = Duration::from_millis(10);

/// State shared by the threads of a test.
pub(super) struct Shared {
    /// Bytes of each stream, so far.
    bytes: Vec<AtomicU64>,
    /// Datagrams of each sender or receiver; none for streams.
    datagrams: Vec<Counts>,
    /// Number of bytes that may still be sent.
    left: AtomicU64,
    stop: AtomicBool,
    /// Time of the sender's end if datagrams are measured, which are received for a short time
    /// after it.
    ended: OnceLock<Instant>,
}

/// Datagrams so far.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) packets: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) out_of_order: AtomicU64,
    pub(super) jitter_nanos: AtomicU64,
}

impl Counts {
    fn read(&self) -> Datagrams {
        Datagrams {
            packets: self.packets.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            out_of_order: self.out_of_order.load(Ordering::Relaxed),
            jitter_ms: self.jitter_nanos.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }
}

impl Shared {
    pub(super) fn new(plan: &Plan) -> Arc<Shared> {
        let streams = || 0..plan.streams;
        let datagrams = streams().filter(|_| plan.datagrams.is_some());
        Arc::new(Shared {
            bytes: streams().map(|_| AtomicU64::new(0)).collect(),
            datagrams: datagrams.map(|_| Counts::default()).collect(),
            left: AtomicU64::new(plan.bytes.unwrap_or(u64::MAX)),
            stop: AtomicBool::new(false),
            ended: OnceLock::new(),
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Records that the sender has ended.
    pub(super) fn end(&self) {
        let _ = self.ended.set(Instant::now()); // the first time counts
    }

    /// Returns the time since the start, without that after the sender's end.
    fn elapsed(&self, start: Instant) -> Duration {
        match self.ended.get() {
            Some(ended) => ended.saturating_duration_since(start),
            None => start.elapsed(),
        }
    }

    /// Takes up to this number of the bytes that remain to be sent; returns 0 at the end of the
    /// test.
    pub(super) fn take(&self, want: u64) -> u64 {
        if self.is_over() {
            return 0;
        }
        let take = |left: u64| Some(left.saturating_sub(want));
        let left = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        left.unwrap_or(0).min(want)
    }

    /// Counts bytes that were sent or received.
    pub(super) fn add(&self, index: usize, count: usize) {
        if let Some(bytes) = self.bytes.get(index) {
            bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn datagrams(&self, index: usize) -> Option<&Counts> {
        self.datagrams.get(index)
    }
}

/// Bytes of each stream in an interval.
#[derive(Default)]
pub(super) struct Interval {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) bytes: Vec<u64>,
    /// State of each connection, as its node reports it.
    pub(super) links: Vec<Link>,
    /// Datagrams in this time; none for streams.
    pub(super) datagrams: Vec<Datagrams>,
}

/// State of a connection; `None` for values that its node does not know, as over UDP without a
/// daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Link {
    /// Retransmitted packets since the beginning, or in an interval, since the previous one.
    pub(super) retransmits: Option<u64>,
    /// Congestion window in bytes.
    pub(super) cwnd: Option<u64>,
    /// Smoothed round-trip time in µs.
    pub(super) rtt: Option<u64>,
}

/// Function that a thread runs.
pub(super) type Task = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Sending and receiving flows of one side.
pub(super) struct Work<'a> {
    pub(super) shared: Arc<Shared>,
    /// A task for each stream.
    pub(super) tasks: Vec<Task>,
    /// Returns the states of the connections.
    pub(super) links: Box<dyn Fn() -> Vec<Link> + 'a>,
}

/// Runs one side of a test and passes each interval to `report`. A signal ends it early.
pub(super) fn measure(
    plan: &Plan,
    sends: bool,
    work: Work<'_>,
    (interval, interrupt): (Duration, &Interrupt),
    mut report: impl FnMut(&Interval) -> Result<(), Failure>,
) -> Result<Results, Failure> {
    let Work {
        shared,
        tasks,
        links,
    } = work;
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut last = Taken::at_start(tasks.len());
    let mut threads = Vec::new();
    for (index, task) in tasks.into_iter().enumerate() {
        let named = thread::Builder::new().name(format!("stream-{index}"));
        threads.push(named.spawn(task).doing("starting a thread")?);
    }
    let mut end = start + interval;
    while !threads.iter().all(JoinHandle::is_finished) && !interrupt.is_set() {
        thread::sleep(STEP);
        if sends && plan.bytes.is_none() && start.elapsed() >= plan.time {
            shared.stop();
        }
        if Instant::now() >= end && shared.ended.get().is_none() {
            end += interval;
            report(&last.next(&shared, start, links()))?;
        }
    }
    shared.stop();
    let now = links();
    let rest = last.next(&shared, start, now.clone());
    // A remainder of less than a tenth of an interval is due to rounding.
    if rest.to - rest.from > interval.as_secs_f64() / 10.0 {
        report(&rest)?;
    }
    let seconds = shared.elapsed(start).as_secs_f64();
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
        datagrams: shared.datagrams.iter().map(Counts::read).collect(),
    })
}

/// Counts at the end of the last interval.
struct Taken {
    at: f64,
    bytes: Vec<u64>,
    retransmits: Vec<Option<u64>>,
    datagrams: Vec<Datagrams>,
}

impl Taken {
    fn at_start(streams: usize) -> Taken {
        Taken {
            at: 0.0,
            bytes: vec![0; streams],
            retransmits: vec![Some(0); streams],
            datagrams: vec![Datagrams::default(); streams],
        }
    }

    /// Ends an interval now.
    fn next(&mut self, shared: &Shared, start: Instant, links: Vec<Link>) -> Interval {
        let now = shared.elapsed(start).as_secs_f64();
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
        let links = links.collect();
        let packets: Vec<_> = shared.datagrams.iter().map(Counts::read).collect();
        let since = packets.iter().zip(&self.datagrams);
        let datagrams = since.map(|(now, last)| Datagrams {
            packets: now.packets.saturating_sub(last.packets),
            // A late datagram may cancel a loss of an earlier interval.
            lost: now.lost.saturating_sub(last.lost),
            out_of_order: now.out_of_order.saturating_sub(last.out_of_order),
            jitter_ms: now.jitter_ms,
        });
        let interval = Interval {
            from: self.at,
            to: now,
            bytes,
            links,
            datagrams: datagrams.collect(),
        };
        (self.at, self.bytes, self.retransmits) = (now, counts, totals);
        self.datagrams = packets;
        interval
    }
}

/// Returns the CPU time of this process, in seconds.
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
