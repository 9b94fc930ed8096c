//! The engine behind its lock, and waiting for requests.
//!
//! Waiting threads poll the engine in turn while they spin or yield. Of the threads that sleep, one
//! sleeps in `poll` on the descriptors of the transports (the *sleeper*), the others on a condition
//! variable (*followers*). A thread that releases the lock wakes them if a request ended, if it
//! disarmed the transports (every poll does), or if there is work that no event will announce.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::config::Config;
use crate::engine::{Engine, Found, State};
use crate::error::Error;
use crate::group::Group;
use crate::ids::{PeerId, TransportId};
use crate::types::{PathReport, Status};

/// Time that a waiting thread spins, unless ranks outnumber CPUs or it is configured.
const SPIN: Duration = Duration::from_millis(1);
/// Time that it then yields the CPU before it sleeps.
const YIELD: Duration = Duration::from_millis(1);
/// Polls between two readings of the clock while it spins.
const CLOCK_EVERY: u32 = 64;
/// Time of one sleep if a transport cannot wake this thread.
const NAP: Duration = Duration::from_micros(50);
/// Maximum time of one sleep, in case a transport does not wake this thread.
const LONGEST: Duration = Duration::from_secs(1);
/// Maximum sleep of a follower.
const FOLLOW: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    /// A thread sleeps in `poll`.
    sleeper: bool,
    followers: u32,
    /// A sleeper or a follower exists.
    others: bool,
    /// Number of ended requests when a thread last fell asleep or was woken.
    ended_seen: u64,
    /// The engine was polled since then.
    touched: bool,
    /// Copies of the transports' descriptors; `None` until they are needed.
    descriptors: Option<Arc<Vec<OwnedFd>>>,
}

/// The layer of one process: the engine with its lock and the sleeping threads.
#[derive(Debug)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    /// Number of threads that wait for the lock.
    contended: AtomicU32,
    /// Followers wait for a change of this number.
    calls: Mutex<u64>,
    condition: Condvar,
    /// Wakes the sleeper.
    bell: OwnedFd,
    spin: Duration,
    pub(crate) world: Arc<Group>,
    pub(crate) paths: Vec<PathReport>,
}

/// The locked engine.
///
/// A panic that unwinds through it aborts the process while memory is lent: unwinding would free
/// buffers that requests, transports or peers still use.
pub(crate) struct Lock<'a> {
    shared: &'a Shared,
    inner: MutexGuard<'a, Inner>,
    /// The thread was already panicking when it took the lock.
    unwinding: bool,
}

impl Deref for Lock<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.inner.engine
    }
}

impl DerefMut for Lock<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.inner.engine
    }
}

impl Drop for Lock<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.unwinding && std::thread::panicking() {
            self.abort_if_lent();
        }
        if self.inner.others {
            self.wake();
        }
    }
}

impl<'a> Lock<'a> {
    #[inline]
    fn new(shared: &'a Shared, inner: MutexGuard<'a, Inner>) -> Lock<'a> {
        let unwinding = std::thread::panicking();
        Lock {
            shared,
            inner,
            unwinding,
        }
    }

    /// Aborts the process if a request uses memory of the program.
    #[cold]
    fn abort_if_lent(&self) {
        if self.protocol.lends_memory() {
            eprintln!("p2p: panic while memory is lent to requests: aborting");
            std::process::abort();
        }
    }

    /// Polls the engine, see [`Engine::poll`].
    #[inline]
    pub(crate) fn poll(&mut self, hint: Option<TransportId>) -> usize {
        self.inner.touched = true;
        self.inner.engine.poll(hint)
    }

    /// Returns the transport that a request waits for, if there are several.
    #[inline]
    pub(crate) fn hint(&self, key: u64) -> Option<TransportId> {
        let request = self.protocol.requests.get(key)?;
        self.hint_for(request.peer.filter(|_| request.state != State::Over))
    }

    /// Returns the transport that a receive from this peer waits for, if there are several.
    #[inline]
    fn hint_for(&self, source: Option<PeerId>) -> Option<TransportId> {
        if self.transports.len() < 2 {
            return None;
        }
        match self.protocol.peers[source?].rails.as_slice() {
            [only] => Some(only.transport),
            _ => None,
        }
    }

    #[cold]
    fn wake(&mut self) {
        let inner = &mut *self.inner;
        let protocol = &inner.engine.protocol;
        let ended = protocol.ended != inner.ended_seen;
        inner.ended_seen = protocol.ended;
        if inner.sleeper && (ended || inner.touched || protocol.must_poll()) {
            // If the counter is full, the descriptor is readable as well.
            let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
            inner.touched = false;
        }
        if ended && inner.followers != 0 {
            self.shared.call_followers();
        }
    }
}

impl Shared {
    pub(crate) fn new(
        engine: Engine,
        config: &Config,
        paths: Vec<PathReport>,
    ) -> Result<Shared, String> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| format!("no event descriptor: {error}"))?;
        let protocol = &engine.protocol;
        let world = Group::of(protocol.peers.ids().collect(), protocol.own);
        let world = world.ok_or("the own rank is not one of the job")?;
        let inner = Inner {
            engine,
            sleeper: false,
            followers: 0,
            others: false,
            ended_seen: 0,
            touched: false,
            descriptors: None,
        };
        Ok(Shared {
            inner: Mutex::new(inner),
            contended: AtomicU32::new(0),
            calls: Mutex::new(0),
            condition: Condvar::new(),
            bell,
            spin: spin_time(config),
            world: Arc::new(world),
            paths,
        })
    }

    #[inline]
    pub(crate) fn lock(&self) -> Lock<'_> {
        match self.inner.try_lock() {
            Ok(inner) => Lock::new(self, inner),
            Err(TryLockError::Poisoned(poisoned)) => Lock::new(self, poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => self.lock_slow(),
        }
    }

    #[cold]
    fn lock_slow(&self) -> Lock<'_> {
        self.contended.fetch_add(1, Ordering::Relaxed);
        // A panic with the lock held either aborted the process or left no request behind.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.contended.fetch_sub(1, Ordering::Relaxed);
        Lock::new(self, inner)
    }

    /// Waits for a request and returns its result.
    #[inline]
    pub(crate) fn finish(&self, lock: Lock<'_>, key: u64) -> Result<Status, Error> {
        let hint = lock.hint(key);
        self.wait_until(lock, hint, |engine| engine.protocol.take(key))
    }

    /// Spins until the direct receive is complete. It becomes a posted receive if it takes longer.
    #[inline]
    pub(crate) fn wait_direct(
        &self,
        mut lock: Lock<'_>,
        source: Option<PeerId>,
    ) -> Result<Status, Error> {
        let hint = lock.hint_for(source);
        let mut idle = Idle::new(self.spin);
        loop {
            let events = lock.poll(hint);
            match lock.protocol.direct_found() {
                Found::Nothing => {}
                Found::Over(result) => return result,
                Found::Posted(key) => return self.finish(lock, key),
            }
            let spins = events != 0 || idle.step() == Step::Spin;
            if !spins || self.contended.load(Ordering::Relaxed) != 0 {
                lock.protocol.post_direct();
            }
        }
    }

    /// Calls `ready`, and once more after a poll if it returns `None`. `key` is a request on which
    /// it depends.
    pub(crate) fn attempt<R>(
        &self,
        key: Option<u64>,
        mut ready: impl FnMut(&mut Engine) -> Option<R>,
    ) -> Option<R> {
        let mut lock = self.lock();
        ready(&mut lock).or_else(|| {
            let hint = key.and_then(|key| lock.hint(key));
            lock.poll(hint);
            ready(&mut lock)
        })
    }

    /// Polls the engine until `ready` returns a value.
    #[inline]
    pub(crate) fn wait_until<'a, R>(
        &'a self,
        mut lock: Lock<'a>,
        hint: Option<TransportId>,
        mut ready: impl FnMut(&mut Engine) -> Option<R>,
    ) -> R {
        loop {
            if let Some(result) = self.wait_before(lock, hint, None, &mut ready) {
                return result;
            }
            lock = self.lock();
        }
    }

    /// Polls the engine until `ready` returns a value. Returns `None` when the deadline has passed.
    #[inline]
    pub(crate) fn wait_before<'a, R>(
        &'a self,
        mut lock: Lock<'a>,
        hint: Option<TransportId>,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut Engine) -> Option<R>,
    ) -> Option<R> {
        if let Some(result) = ready(&mut lock) {
            return Some(result);
        }
        let mut idle = Idle::new(self.spin);
        loop {
            if lock.poll(hint) != 0 {
                idle = Idle::new(self.spin);
            } else {
                match idle.step() {
                    Step::Spin => {}
                    Step::Yield => {
                        drop(lock);
                        std::thread::yield_now();
                        lock = self.lock();
                    }
                    Step::Sleep => lock = self.sleep(lock, deadline),
                }
            }
            // Without an event, another thread may have completed it.
            if let Some(result) = ready(&mut lock) {
                return Some(result);
            }
            if idle.step != Step::Spin && deadline.is_some_and(|at| at <= Instant::now()) {
                return None;
            }
            if self.contended.load(Ordering::Relaxed) != 0 {
                drop(lock);
                self.let_others_in();
                lock = self.lock();
            }
        }
    }

    /// Gives threads that wait for the lock a chance to get it.
    #[cold]
    fn let_others_in(&self) {
        for attempt in 0..200 {
            if self.contended.load(Ordering::Relaxed) == 0 {
                return;
            }
            if attempt % 20 == 19 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Wakes the waiting threads, so that they check their requests.
    pub(crate) fn wake_all(&self) {
        let mut lock = self.lock();
        // Looks like a completed request to them.
        lock.protocol.ended += 1;
    }

    /// Sleeps until an event or the deadline; briefly if a transport cannot wake this thread.
    #[cold]
    fn sleep<'a>(&'a self, mut lock: Lock<'a>, deadline: Option<Instant>) -> Lock<'a> {
        let inner = &mut *lock.inner;
        inner.engine.protocol.stats.slept += 1;
        if inner.sleeper {
            return self.follow(lock);
        }
        let busy = inner.engine.protocol.must_poll();
        let Some(descriptors) = descriptors(inner).filter(|_| !busy) else {
            drop(lock);
            std::thread::sleep(NAP);
            return self.lock();
        };
        let Some(mut limit) = arm(&mut inner.engine) else {
            return lock;
        };
        if let Some(deadline) = deadline {
            limit = limit.min(deadline.saturating_duration_since(Instant::now()));
        }
        (inner.sleeper, inner.others, inner.touched) = (true, true, false);
        inner.ended_seen = inner.engine.protocol.ended;
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
    fn call_followers(&self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls = calls.wrapping_add(1);
        self.condition.notify_all();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Closing does not flush. Afterwards no memory of requests is used.
        let mut engine = self.lock();
        if !engine.protocol.closed {
            engine.close();
        }
    }
}

/// Returns the descriptors to poll; `None` if a transport cannot wake this thread.
fn descriptors(inner: &mut Inner) -> Option<Arc<Vec<OwnedFd>>> {
    if inner.descriptors.is_none() {
        let copy = |(_, transport): (_, &mut crate::engine::Transport)| {
            transport.capabilities.blocking.then_some(())?;
            // A copy: it is polled without the lock, and the transport may be closed meanwhile.
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
    let mut limit = LONGEST;
    for (_, transport) in engine.transports.iter_mut() {
        if !transport.btl.arm() {
            return None;
        }
        limit = limit.min(transport.btl.capabilities().tick.unwrap_or(LONGEST));
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

/// Action after a poll without events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Spin,
    Yield,
    Sleep,
}

/// State of one wait.
#[derive(Debug)]
struct Idle {
    spin: Duration,
    polls: u32,
    since: Option<Instant>,
    step: Step,
}

/// Returns the time for which waiting threads spin.
fn spin_time(config: &Config) -> Duration {
    // Respects the affinity mask and the quota of the control group.
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = config.cpus.map_or_else(available, |cpus| cpus as usize);
    let outnumbered = config.local_ranks.max(1) as usize > cpus.max(1);
    let spin = if outnumbered { Duration::ZERO } else { SPIN };
    config.spin.unwrap_or(spin)
}

impl Idle {
    #[inline]
    fn new(spin: Duration) -> Idle {
        Idle {
            spin,
            polls: 0,
            since: None,
            step: if spin.is_zero() {
                Step::Yield
            } else {
                Step::Spin
            },
        }
    }

    /// Returns the action after a poll without events.
    #[inline]
    fn step(&mut self) -> Step {
        self.polls = self.polls.wrapping_add(1);
        if self.step != Step::Spin || self.polls.is_multiple_of(CLOCK_EVERY) {
            self.read_clock();
        }
        self.step
    }

    #[cold]
    fn read_clock(&mut self) {
        let now = Instant::now();
        let waited = now.duration_since(*self.since.get_or_insert(now));
        self.step = if waited < self.spin {
            Step::Spin
        } else if waited < self.spin.saturating_add(YIELD) {
            Step::Yield
        } else {
            Step::Sleep
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_then_yields_then_sleeps() {
        let mut idle = Idle::new(SPIN);
        let mut steps = vec![idle.step()];
        while steps.last() != Some(&Step::Sleep) {
            std::thread::sleep(YIELD / 10);
            steps.push(idle.step());
            steps.dedup();
        }
        assert_eq!(steps.first(), Some(&Step::Spin));
        assert!(steps.is_sorted_by_key(|step| *step as u8), "{steps:?}");
        assert_eq!(Idle::new(Duration::ZERO).step(), Step::Yield);
    }

    #[test]
    fn does_not_spin_if_ranks_outnumber_cpus() {
        let config = Config {
            cpus: Some(2),
            local_ranks: 3,
            ..Config::default()
        };
        assert_eq!(spin_time(&config), Duration::ZERO);
        let config = Config {
            local_ranks: 2,
            ..config
        };
        assert_eq!(spin_time(&config), SPIN);
    }
}
