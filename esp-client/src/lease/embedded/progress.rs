//! When the progress thread polls the engine, and how it sleeps.
//!
//! While the program polls, the thread only wakes every [`AWAY`] to see that it still does. Once no
//! poll has been made for [`AWAY`] the program computes or waits for something else. The thread
//! then sleeps in the engine's epoll set and polls at each frame, doorbell and deadline:
//! acknowledgements, bytes that the peer's window held back, retransmissions, closes. The program's
//! next poll sends it back to its slow ticks.
//!
//! So whatever the program left behind is handled at most [`AWAY`] later.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use esp_engine::Clock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::EmbeddedEngine;

/// The program is away once it has not polled for this long. Also the period at which the thread
/// checks while the program polls. A check takes some 20 µs of the program's core, so that the 99th
/// percentile of a polling ping-pong is some 20 µs above its median at 1 ms and at 2 ms alike; what
/// the program leaves behind waits as long as this constant.
const AWAY: Duration = Duration::from_millis(1);
/// Longest sleep, for work that no descriptor announces: a daemon to look for, futures to wake.
const HOUSEKEEPING: Duration = Duration::from_millis(20);

/// The progress thread's sleep, and how a poll of the program ends it.
pub(super) struct ProgressSleep {
    /// The thread sleeps, or is about to, because the program is away.
    asleep: AtomicBool,
    wake: OwnedFd,
}

impl ProgressSleep {
    pub(super) fn new() -> io::Result<ProgressSleep> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ProgressSleep {
            asleep: AtomicBool::new(false),
            wake,
        })
    }

    /// Ends the sleep: the program polls again. The caller has made a full fence since its poll.
    #[inline]
    pub(super) fn wake(&self) {
        if self.asleep.load(Ordering::Relaxed) {
            self.wake_sleeper();
        }
    }

    #[cold]
    fn wake_sleeper(&self) {
        if self.asleep.swap(false, Ordering::Relaxed) {
            // Fails only with a full counter, which wakes as well.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// State of the progress thread between its steps.
#[derive(Debug, Default)]
pub(in crate::lease) struct Progress {
    /// Time of its own last poll, in ns of the engine's clock.
    own_poll: u64,
    /// The engine's epoll set ended the last sleep.
    woken_by_engine: bool,
}

impl EmbeddedEngine {
    /// One step of the progress thread: ticks while the program polls, else polls the engine and
    /// sleeps until there is work for it.
    pub(in crate::lease) fn progress(&self, state: &mut Progress) {
        if self.is_forked() {
            return std::thread::sleep(HOUSEKEEPING);
        }
        let left = self.until_away(state);
        if !left.is_zero() {
            return std::thread::sleep(left);
        }
        // Before the lock is tried: a poll of the program from here on ends the sleep.
        self.progress.asleep.store(true, Ordering::Relaxed);
        // Against the one between an unlock and `wake`: we get the lock, or are woken.
        fence(Ordering::SeqCst);
        let mut limit = HOUSEKEEPING;
        let mut watch = false;
        if let Some(mut engine) = self.try_engine() {
            let work = engine.collect() | engine.poll();
            if work {
                self.active();
            }
            state.own_poll = engine.turned().as_nanos();
            self.last_poll.store(state.own_poll, Ordering::Relaxed);
            // A poller that sleeps on the set itself is the program, and handles deadlines, too.
            if !engine.is_watched() {
                engine.arm();
                watch = true;
                let deadline = engine.deadline().map(|at| at.since(Clock.now()));
                limit = deadline.map_or(limit, |deadline| limit.min(deadline));
            }
            drop(engine);
            self.wake_parked();
            // A set that stays readable without work (an error at a socket) must not make this a
            // busy loop.
            let futile = std::mem::take(&mut state.woken_by_engine) && !work;
            if work || self.doorbell.pending() || futile {
                self.progress.asleep.store(false, Ordering::Relaxed);
                if futile {
                    std::thread::sleep(AWAY);
                }
                return;
            }
        }
        state.woken_by_engine = self.sleep_until_work(limit, watch);
    }

    /// Time until the program counts as away; zero if it does.
    fn until_away(&self, state: &Progress) -> Duration {
        let last = self.last_poll.load(Ordering::Relaxed);
        if last == state.own_poll {
            return Duration::ZERO;
        }
        let idle = Clock.now().as_nanos().saturating_sub(last);
        AWAY.saturating_sub(Duration::from_nanos(idle))
    }

    /// Sleeps until the program polls, `limit` has passed or, with `watch`, the engine's epoll set
    /// is readable. Returns whether it was the last.
    fn sleep_until_work(&self, limit: Duration, watch: bool) -> bool {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::new(&self.progress.wake, PollFlags::IN),
            PollFd::new(&self.frames, PollFlags::IN),
        ];
        let fds = &mut fds[..if watch { 2 } else { 1 }];
        let woken = poll(fds, Some(&limit)).is_ok();
        let by_engine = woken && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        self.progress.asleep.store(false, Ordering::Relaxed);
        let _ = rustix::io::read(&self.progress.wake, &mut [0u8; 8]);
        by_engine
    }
}
