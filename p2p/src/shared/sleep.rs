//! Sleeping threads: the sleeper in `poll`, its followers, and their wake-up.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Inner, Lock, Shared};
use crate::engine::Engine;

/// Minimum and maximum time of a sleep while messages wait for room, which no event announces. If a
/// transport cannot wake this thread, all sleeps take the minimum.
const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(100));
/// Such a sleep takes this fraction of the time without an event so far.
const NAP_PART: u32 = 8;

/// Maximum time of one sleep, in case a transport does not wake this thread.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// Maximum sleep of a follower.
const FOLLOW: Duration = Duration::from_millis(10);

impl Shared {
    /// Sleeps until an event or the deadline, but briefly if there is something that no event
    /// announces. `waited` is the time without an event so far.
    #[cold]
    pub(super) fn sleep<'a>(
        &'a self,
        mut lock: Lock<'a>,
        waited: Duration,
        deadline: Option<Instant>,
    ) -> Lock<'a> {
        let nap = (waited / NAP_PART).clamp(NAPS.0, NAPS.1);
        let inner = &mut *lock.inner;
        inner.engine.protocol.stats.slept += 1;
        if inner.sleeper {
            return self.follow(lock);
        }
        let Some(descriptors) = descriptors(inner) else {
            drop(lock);
            std::thread::sleep(NAPS.0);
            return self.lock();
        };
        let Some(mut limit) = arm(&mut inner.engine) else {
            return lock;
        };
        if inner.engine.protocol.must_poll() {
            limit = limit.min(nap);
        }
        if let Some(deadline) = deadline {
            limit = limit.min(deadline.saturating_duration_since(Instant::now()));
        }
        (inner.sleeper, inner.others) = (true, true);
        inner.polls_seen = inner.engine.polls;
        inner.ended_seen = inner.engine.protocol.ended;
        inner.polled_seen = inner.engine.protocol.polled();
        drop(lock);
        poll(&descriptors, &self.bell, limit);
        let mut lock = self.lock();
        lock.inner.sleeper = false;
        lock.inner.others = lock.inner.followers != 0;
        if lock.inner.others {
            // One of them becomes the sleeper if this thread returns.
            self.call_followers();
        }
        lock
    }

    /// Returns copies of the descriptors of the transports; `None` if one cannot wake a thread.
    pub(crate) fn wait_fds(&self) -> Option<Vec<OwnedFd>> {
        let mut lock = self.lock();
        let all = descriptors(&mut lock.inner)?;
        all.iter().map(|fd| fd.try_clone().ok()).collect()
    }

    /// Requests a wake-up by the next event of a transport. Returns how long a thread may sleep;
    /// `None`: there is something to do.
    pub(crate) fn arm(&self) -> Option<Duration> {
        let mut lock = self.lock();
        let protocol = &lock.inner.engine.protocol;
        let reports = protocol
            .open
            .as_ref()
            .is_some_and(|open| !open.served.is_empty());
        if reports || !protocol.reports.is_empty() || protocol.must_poll() {
            return None;
        }
        arm(&mut lock.inner.engine)
    }

    /// Sleeps until another thread has completed a request or the sleeper has returned.
    fn follow<'a>(&'a self, mut lock: Lock<'a>) -> Lock<'a> {
        lock.inner.followers += 1;
        lock.inner.others = true;
        // Read while the engine is locked, so a later change is detected.
        let before = *self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        drop(lock);
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .condition
            .wait_timeout_while(calls, FOLLOW, |now| *now == before);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let mut lock = self.lock();
        lock.inner.followers -= 1;
        lock.inner.others = lock.inner.sleeper || lock.inner.followers != 0;
        lock
    }

    /// Wakes the followers.
    pub(super) fn call_followers(&self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls = calls.wrapping_add(1);
        self.condition.notify_all();
    }
}

/// Returns the descriptors to poll; `None` if a transport cannot wake this thread.
fn descriptors(inner: &mut Inner) -> Option<Arc<Vec<OwnedFd>>> {
    if inner.descriptors.is_none() {
        let copy = |(_, transport): (_, &mut crate::engine::Transport)| {
            transport.capabilities.blocking.then_some(())?;
            // A copy: it is polled without the lock, and the transport may be closed in the
            // meantime.
            transport.btl.wait_fd()?.try_clone_to_owned().ok()
        };
        let all: Option<Vec<OwnedFd>> = inner.engine.transports.iter_mut().map(copy).collect();
        inner.descriptors = all.map(Arc::new);
    }
    inner.descriptors.clone()
}

/// Requests a wake-up of all transports. Returns how long a thread may sleep; `None`: one has an
/// event.
fn arm(engine: &mut Engine) -> Option<Duration> {
    let mut limit = MAX_SLEEP;
    for (_, transport) in engine.transports.iter_mut() {
        if !transport.btl.arm() {
            return None;
        }
        limit = limit.min(transport.btl.capabilities().tick.unwrap_or(MAX_SLEEP));
    }
    Some(limit)
}

fn poll(descriptors: &[OwnedFd], bell: &OwnedFd, limit: Duration) {
    let mut list: Vec<PollFd<'_>> = descriptors
        .iter()
        .chain([bell])
        .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
        .collect();
    let limit = Timespec::try_from(limit).ok();
    // Spurious wake-ups are harmless: the caller polls.
    let _ = rustix::event::poll(&mut list, limit.as_ref());
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
