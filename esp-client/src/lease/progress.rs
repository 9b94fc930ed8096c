//! The progress thread: polls the embedded engine while the program does not, and maintains the
//! leases.
//!
//! While the program polls, the thread only checks that it still does. A program that has not
//! polled for [`AWAY_AFTER`] is *away*: it computes or waits for something else. The thread then
//! sleeps in the engine's epoll set and polls at each frame, doorbell and deadline:
//! acknowledgements, bytes that the peer's window held back, retransmissions, closes. The program's
//! next poll sends it back to its checks. A write serves a doorbell but is not a poll: a program
//! that only writes is away.
//!
//! A check takes about 20 µs of the program's core, so checks become rare while they find the
//! program polling: the interval doubles from [`AWAY_AFTER`] to [`MAX_CHECK_INTERVAL`], and is
//! [`AWAY_AFTER`] again once the program was away. A write that leaves bytes unsent wakes the
//! thread, which checks every [`AWAY_AFTER`] until they are sent. So while a program computes,
//! written bytes wait at most [`AWAY_AFTER`], and arriving frames at most [`MAX_CHECK_INTERVAL`].
//!
//! Without work it sleeps for [`MAX_SLEEP`], or until the program polls, the daemon's connection
//! ends, or the client ends. Work that it could not do because another thread had the engine is
//! retried after [`RETRY_INTERVAL`]. A program that sleeps on the engine's set itself
//! ([`Poller`](crate::Poller)) has that time to poll before the thread does: it may do something
//! else first. Its polls that find no work, by which it checks its peers, do not wake the thread.
//!
//! A program may promise that one of its threads polls at each event
//! ([`Poller::drive`](crate::Poller::drive)). The thread then only maintains the leases.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use esp_engine::{Clock, Engine};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::adopt;
use super::end;
use super::engine::EmbeddedEngine;
use super::leases::{LeaseKind, Leases};
use crate::control::Request;
use crate::error::EspError;
use crate::session::Session;
use crate::sync::lock;

/// Time without a poll after which the program is away. Also the minimum interval of checks; at a
/// quarter of it streams lost a tenth of their bandwidth.
const AWAY_AFTER: Duration = Duration::from_millis(1);
/// Maximum interval of checks. Fewer than one in a hundred round trips of a polling ping-pong
/// coincide with a check.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(8);
/// Maximum sleep, so that a lost wake-up (a bug) appears as slowness and not as a hang.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Maximum sleep while work remains, and the interval of maintenance for a program that makes all
/// polls itself.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

// State of the thread: its current or next activity.
const AWAKE: u8 = 0;
/// Sleeps for longer than [`AWAY_AFTER`] although the program polls.
const CHECKS_RARELY: u8 = 1;
/// Sleeps because the program is away.
const STANDS_IN: u8 = 2;
/// As [`STANDS_IN`], but another thread had the engine, which is not watched. Work that this thread
/// finds for tasks ends the sleep, too.
const LOCKED_OUT: u8 = 3;
/// As [`STANDS_IN`], but the program sleeps on the engine's set. A poll that finds no work does not
/// end the sleep, as long as the set is armed: the program checks something else, and will sleep
/// again, or be away.
const WATCHES: u8 = 4;

/// The progress thread's sleep, and the conditions that end it early.
pub(super) struct ProgressSleep {
    state: AtomicU8,
    /// Bytes were left unsent since the thread last found none.
    unsent: AtomicBool,
    /// [`EmbeddedEngine::activity`] when the thread last polled.
    seen: AtomicU64,
    /// A thread of the program polls at each event, and the progress thread does not.
    driven: AtomicBool,
    wake: Arc<OwnedFd>,
}

impl ProgressSleep {
    pub(super) fn new() -> Result<ProgressSleep, EspError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(ProgressSleep {
            state: AtomicU8::new(AWAKE),
            unsent: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            driven: AtomicBool::new(false),
            wake: Arc::new(wake.map_err(EspError::resource("create an eventfd"))?),
        })
    }

    /// Returns the eventfd. A write to it ends the current sleep or, without one, the next.
    pub(super) fn waker(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.wake)
    }

    /// Ends the current sleep or, without one, the next.
    pub(super) fn interrupt(&self) {
        // Fails only with a full counter, which wakes as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Leaves all polls to a thread of the program.
    pub(super) fn stop_polling(&self) {
        self.driven.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Returns true after [`ProgressSleep::stop_polling`].
    #[inline]
    pub(super) fn has_stopped_polling(&self) -> bool {
        self.driven.load(Ordering::Relaxed)
    }

    /// Returns true if work was found since the thread last polled. The caller must have the
    /// engine.
    #[inline]
    pub(super) fn has_new_work(&self, activity: u64) -> bool {
        self.seen.load(Ordering::Relaxed) != activity
    }

    /// Wakes the progress thread after the engine was unlocked: from [`STANDS_IN`] if the program
    /// has `polled`, from [`WATCHES`] if `worked` (there was work, or frames no longer end its
    /// sleep), and always from [`LOCKED_OUT`]. The caller must have executed a full fence since the
    /// unlock.
    #[inline]
    pub(super) fn unlocked(&self, polled: bool, worked: bool) {
        if polled {
            self.end_sleep(STANDS_IN);
        }
        if worked {
            self.end_sleep(WATCHES);
        }
        self.end_sleep(LOCKED_OUT);
    }

    /// Wakes the progress thread from [`LOCKED_OUT`] if the work that was found `concerns` it. The
    /// caller must have executed a full fence since it counted the work.
    #[inline]
    pub(super) fn worked(&self, concerns: impl FnOnce() -> bool) {
        if self.state.load(Ordering::Relaxed) == LOCKED_OUT && concerns() {
            self.end_sleep(LOCKED_OUT);
        }
    }

    /// Wakes the progress thread from any sleep in which it may poll.
    fn wake(&self) {
        self.unlocked(true, true);
    }

    /// Shortens the interval of checks to [`AWAY_AFTER`] until the bytes that a write left unsent
    /// are sent.
    pub(super) fn watch_unsent(&self) {
        if !self.unsent.load(Ordering::Relaxed) {
            self.unsent.store(true, Ordering::Relaxed);
            // Pairs with the fence in `check_later`: it sees the bytes, or we see its sleep.
            fence(Ordering::SeqCst);
        }
        self.end_sleep(CHECKS_RARELY);
    }

    #[inline]
    fn end_sleep(&self, state: u8) {
        if self.state.load(Ordering::Relaxed) == state
            && self.state.swap(AWAKE, Ordering::Relaxed) != AWAKE
        {
            self.interrupt();
        }
    }
}

/// State of the progress thread between its steps.
struct Progress {
    /// Time of its own last poll, in ns of the engine's clock.
    own_poll: u64,
    /// The engine's epoll set ended the last sleep.
    woken_by_engine: bool,
    /// Interval of checks.
    interval: Duration,
    /// [`EmbeddedEngine::activity`] when the leases were last maintained.
    activity: u64,
    /// Maintenance could not do all of its work.
    unfinished: bool,
}

impl EmbeddedEngine {
    /// Takes one step of the progress thread: checks while the program polls, else polls the engine
    /// and sleeps until there is work for it.
    fn progress(&self, state: &mut Progress) {
        if self.is_forked() || self.progress.has_stopped_polling() {
            return std::thread::sleep(RETRY_INTERVAL);
        }
        let left = self.until_away(state);
        if !left.is_zero() {
            return self.check_later(state, left);
        }
        state.interval = AWAY_AFTER;
        // Before the lock is tried: any later poll of the program ends the sleep.
        let engine = self.try_engine_as(STANDS_IN);
        let engine = engine.or_else(|| self.try_engine_as(LOCKED_OUT));
        let mut limit = if state.unfinished {
            RETRY_INTERVAL
        } else {
            MAX_SLEEP
        };
        let mut by_program = false;
        let mut due = false;
        let is_free = engine.is_some();
        if let Some(mut engine) = engine {
            self.progress.state.store(STANDS_IN, Ordering::Relaxed);
            // A poll of the program before this one may have found work for this thread.
            due = self.activity() != state.activity;
            let work = engine.collect() | engine.poll();
            self.count(work);
            state.own_poll = engine.polled_at().as_nanos();
            self.last_poll.store(state.own_poll, Ordering::Relaxed);
            by_program = engine.is_watched();
            self.progress.seen.store(self.activity(), Ordering::Relaxed);
            if by_program {
                self.progress.state.store(WATCHES, Ordering::Relaxed);
            }
            engine.arm();
            let patience = if by_program {
                RETRY_INTERVAL
            } else {
                Duration::ZERO
            };
            if let Some(deadline) = engine.deadline() {
                limit = limit.min(deadline.since(Clock.now()) + patience);
            }
            limit = engine
                .link_poll_interval()
                .map_or(limit, |at| limit.min(at));
            drop(engine);
            self.parked.call_driver();
            // A set that stays readable without work (an error at a socket) must not make this a
            // busy loop.
            let futile = std::mem::take(&mut state.woken_by_engine) && !work;
            due |= work || self.doorbell.pending() || futile;
            if futile {
                self.progress.state.store(AWAKE, Ordering::Relaxed);
                std::thread::sleep(AWAY_AFTER);
            }
        } else {
            // After the fence in `try_engine_as`: either this sees the work, or `worked` sees the
            // sleep.
            due |= self.activity() != state.activity && !self.tasks.is_empty();
        }
        if due {
            return self.progress.state.store(AWAKE, Ordering::Relaxed);
        }
        state.woken_by_engine = self.sleep_until_work(limit, is_free);
        if state.woken_by_engine && by_program {
            self.leave_to_program(state);
        }
    }

    /// Sleeps until the program has polled, at most for [`RETRY_INTERVAL`].
    fn leave_to_program(&self, state: &Progress) {
        self.progress.state.store(STANDS_IN, Ordering::Relaxed);
        // Pairs with the fence between an unlock and `unlocked`.
        fence(Ordering::SeqCst);
        if self.last_poll.load(Ordering::Relaxed) == state.own_poll {
            self.sleep_until_work(RETRY_INTERVAL, false);
        } else {
            self.progress.state.store(AWAKE, Ordering::Relaxed);
        }
    }

    /// Announces a state, then tries to lock the engine: either this thread gets the lock, or an
    /// unlock finds the state.
    fn try_engine_as(&self, state: u8) -> Option<MutexGuard<'_, Engine>> {
        self.progress.state.store(state, Ordering::Relaxed);
        // Pairs with the fence between an unlock and `unlocked`.
        fence(Ordering::SeqCst);
        self.try_engine()
    }

    /// Returns the time until the program counts as away; zero if it does.
    fn until_away(&self, state: &Progress) -> Duration {
        let last = self.last_poll.load(Ordering::Relaxed);
        if last == state.own_poll {
            return Duration::ZERO;
        }
        let idle = Clock.now().as_nanos().saturating_sub(last);
        AWAY_AFTER.saturating_sub(Duration::from_nanos(idle))
    }

    /// Sleeps until the next check of a program that polls: `left` while bytes are unsent, else
    /// for the interval.
    fn check_later(&self, state: &mut Progress, left: Duration) {
        let sleep = &self.progress;
        if sleep.unsent.load(Ordering::Relaxed)
            && let Some(engine) = self.try_engine()
        {
            sleep.unsent.store(engine.any_unsent(), Ordering::Relaxed);
        }
        sleep.state.store(CHECKS_RARELY, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !self.tasks.is_empty() || sleep.unsent.load(Ordering::Relaxed) {
            state.interval = AWAY_AFTER;
        }
        if state.interval <= AWAY_AFTER {
            sleep.state.store(AWAKE, Ordering::Relaxed);
            std::thread::sleep(left);
        } else {
            self.sleep_until_work(state.interval, false);
        }
        state.interval = MAX_CHECK_INTERVAL.min(2 * state.interval);
    }

    /// Sleeps until `limit` has passed, the program ends the sleep or, with `watch`, the engine's
    /// epoll set is readable. Returns true in the last case.
    fn sleep_until_work(&self, limit: Duration, watch: bool) -> bool {
        let limit = Timespec {
            // At most one.
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::new(&self.progress.wake, PollFlags::IN),
            PollFd::new(&self.frames, PollFlags::IN),
        ];
        let fds = &mut fds[..if watch { 2 } else { 1 }];
        let woken = poll(fds, Some(&limit)).is_ok();
        let by_engine = woken && fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        self.progress.state.store(AWAKE, Ordering::Relaxed);
        let _ = rustix::io::read(&self.progress.wake, &mut [0u8; 8]);
        by_engine
    }
}

impl Leases {
    /// Starts the embedded engine of a client and its progress thread.
    pub(crate) fn start(session: &Arc<Session>) -> Result<Arc<Leases>, EspError> {
        let leases = Arc::new(Leases::new(session)?);
        session.announce_loss(leases.engine.progress.waker());
        let shared = Arc::clone(&leases);
        std::thread::Builder::new()
            .name("esp-lease".into())
            .spawn(move || shared.run())
            .map_err(EspError::resource("start a thread"))?;
        end::at_exit(&leases);
        Ok(leases)
    }

    /// Runs the progress thread until the client is dropped.
    fn run(self: Arc<Self>) {
        let mut state = Progress {
            own_poll: 0,
            woken_by_engine: false,
            interval: AWAY_AFTER,
            activity: 0,
            unfinished: false,
        };
        while !self.is_finished() {
            let activity = self.engine.activity();
            let worked = std::mem::replace(&mut state.activity, activity) != activity;
            state.unfinished = !self.maintain();
            if worked {
                self.engine.tasks.wake();
            }
            self.engine.progress(&mut state);
        }
    }

    /// Prepares for the next daemon when one is gone, reports connections, ends unused leases.
    /// Returns false if work remains, because another thread has the engine or there is no daemon
    /// to report to.
    fn maintain(self: &Arc<Self>) -> bool {
        if !self.engine.is_forked() && self.use_spares() {
            adopt::start(self);
        }
        let mut all = self.report_opened(false);
        self.report_moved();
        self.report_closed();
        let keeper = self.keeper();
        // The next daemon reserves the ports of a lease whose end was not reported to the last one,
        // and gets the report once it has adopted the lease.
        let has_daemon = !keeper.is_lost();
        lock(&self.table).retain(|ports| {
            // Streams, listeners and the lease of a standby hold further references.
            let is_used = ports.kind == LeaseKind::Range && !ports.is_lost();
            if is_used || Arc::strong_count(ports) > 1 {
                return true;
            }
            // The end of a lease must be reported to its daemon.
            let may_end = has_daemon || ports.is_lost();
            if !may_end || !self.remove_link(ports.link) {
                all = false;
                return true;
            }
            if !ports.is_lost() {
                let lease = ports.id.load(Ordering::Relaxed);
                keeper.post(Request::EndLease { lease });
            }
            false
        });
        all
    }

    /// Removes a link from the engine; false while it has connections or another thread has the
    /// engine.
    fn remove_link(&self, link: esp_engine::LinkId) -> bool {
        let removed = self.engine.try_with(|engine| engine.remove_leased(link));
        removed == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::session::Welcome;

    /// Returns how often the progress thread of this process has gone to sleep; `None` before the
    /// thread has its name.
    fn sleeps() -> Option<u64> {
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let is_progress = |path: &std::path::PathBuf| {
            fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "esp-lease\n")
        };
        let mut paths = threads.map(|entry| entry.unwrap().path());
        let status = fs::read_to_string(paths.find(is_progress)?.join("status")).unwrap();
        let count = |line: &str| {
            line.strip_prefix("voluntary_ctxt_switches:")?
                .trim()
                .parse()
                .ok()
        };
        Some(status.lines().find_map(count).unwrap())
    }

    /// Starts a progress thread.
    fn started(polled: bool) -> Arc<Leases> {
        let welcome = Welcome {
            incarnation: 1,
            engine: 0,
            interfaces: Vec::new(),
            leases: true,
        };
        let session = Session::local(welcome, polled).unwrap();
        let leases = Leases::start(&session).unwrap();
        leases.engine.poll();
        while sleeps().is_none() {
            std::thread::yield_now();
        }
        leases
    }

    fn end(leases: &Arc<Leases>) {
        leases.finish();
        while Arc::strong_count(leases) > 1 {
            std::thread::yield_now();
        }
    }

    /// The bound is ten times the number of sleeps of [`MAX_SLEEP`]; sleeps of [`RETRY_INTERVAL`]
    /// would be five times more. On a busy machine there are fewer.
    #[test]
    fn an_idle_engine_wakes_its_thread_rarely_and_its_end_wakes_it_at_once() {
        let leases = started(false);
        let (begin, before) = (std::time::Instant::now(), sleeps().unwrap());
        std::thread::sleep(2 * MAX_SLEEP);
        let slept = sleeps().unwrap() - before;
        let most = 10 * (begin.elapsed().as_secs() + 1);
        assert!(slept <= most, "{slept} sleeps in {:?}", begin.elapsed());
        end(&leases);
    }

    /// A rank that waits for a message polls twenty times a second, to check that its peers are
    /// alive. If each poll woke the thread, it would sleep three times for each.
    #[test]
    fn a_program_that_polls_between_sleeps_does_not_wake_the_thread() {
        const POLLS: u64 = 40;
        let leases = started(true);
        let engine = &leases.engine;
        while engine.try_sleep().is_none() {}
        let before = sleeps().unwrap();
        for _ in 0..POLLS {
            // As a poller does.
            engine.awake();
            engine.poll();
            while engine.try_sleep().is_none() {}
            std::thread::sleep(50 * AWAY_AFTER);
        }
        let slept = sleeps().unwrap() - before;
        assert!(slept <= POLLS, "{slept} sleeps");
        end(&leases);
    }
}
