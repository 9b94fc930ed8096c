//! The lock around the engine, and waiting for requests.
//!
//! Waiting threads poll the engine in turn while they spin or yield. Of the threads that sleep, one
//! sleeps in `poll` on the descriptors of the transports (the *sleeper*), the others on a condition
//! variable (*followers*). A thread that releases the lock wakes them if a request ended, if it
//! disarmed the transports (every poll does), or if there is work that no event will announce.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::config::Config;
use crate::engine::{Engine, Found, State};
use crate::error::Error;
use crate::idle::{Idle, Step, Strategy};
use crate::ids::{PeerId, TransportId};
use crate::types::Status;

/// Sleep if a transport cannot wake this thread.
const NAP: Duration = Duration::from_micros(50);
/// Maximum sleep, in case a transport does not wake this thread.
const LONGEST: Duration = Duration::from_secs(1);
/// Maximum sleep of the progress thread while the program polls itself.
const SHORT: Duration = Duration::from_millis(2);

/// The thread that sleeps in `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleeper {
    None,
    /// A thread of the program.
    Program,
    /// The progress thread. `long`: it must be woken when the transports are disarmed.
    Background {
        long: bool,
    },
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    sleeper: Sleeper,
    followers: u32,
    /// A sleeper or a follower exists.
    others: bool,
    /// Number of ended requests when a thread last fell asleep or was woken.
    ended_seen: u64,
    /// The engine was polled since then.
    touched: bool,
    /// Copies of the transports' descriptors; `None`: not made yet.
    descriptors: Option<Arc<Vec<OwnedFd>>>,
}

/// The engine with its lock and the sleeping threads.
#[derive(Debug)]
pub(crate) struct Waiting {
    inner: Mutex<Inner>,
    /// Number of threads that wait for the lock.
    contended: AtomicU32,
    /// Followers wait for a change of this number.
    calls: Mutex<u64>,
    condition: Condvar,
    /// Wakes the sleeper.
    bell: OwnedFd,
    strategy: Strategy,
    pub(crate) finalize_limit: Duration,
}

/// The engine, locked.
///
/// A panic that unwinds through it ends the process while memory is lent: unwinding would free
/// buffers that requests, transports or peers still use.
pub(crate) struct Lock<'a> {
    waiting: &'a Waiting,
    inner: MutexGuard<'a, Inner>,
    /// The thread was panicking already when it took the lock.
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
    fn new(waiting: &'a Waiting, inner: MutexGuard<'a, Inner>) -> Lock<'a> {
        let unwinding = std::thread::panicking();
        Lock {
            waiting,
            inner,
            unwinding,
        }
    }

    /// Aborts the process if a request uses memory of the program.
    #[cold]
    fn abort_if_lent(&self) {
        if self.inner.engine.protocol.lends_memory() {
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
        if self.transports.len() < 2 {
            return None;
        }
        let request = self.protocol.requests.get(key)?;
        let source = request.peer.filter(|_| request.state != State::Over);
        self.hint_for(source)
    }

    /// Returns the transport that a receive from this peer waits for, if there are several.
    #[inline]
    fn hint_for(&self, source: Option<PeerId>) -> Option<TransportId> {
        if self.transports.len() < 2 {
            return None;
        }
        let rails = &self.protocol.peers[source?].rails;
        match rails.as_slice() {
            [only] => Some(only.transport),
            _ => None,
        }
    }

    #[cold]
    fn wake(&mut self) {
        let inner = &mut *self.inner;
        let ended = inner.engine.protocol.ended != inner.ended_seen;
        let wish = match inner.sleeper {
            Sleeper::None => false,
            Sleeper::Program => ended || inner.touched || inner.engine.protocol.must_poll(),
            Sleeper::Background { long } => {
                long && (inner.touched || inner.engine.protocol.must_poll())
            }
        };
        inner.ended_seen = inner.engine.protocol.ended;
        if wish {
            // If the counter is full, the descriptor is readable as well.
            let _ = rustix::io::write(&self.waiting.bell, &1u64.to_ne_bytes());
            inner.touched = false;
        }
        if ended && inner.followers != 0 {
            self.waiting.call_followers();
        }
    }
}

impl Waiting {
    pub(crate) fn new(engine: Engine, config: &Config) -> Result<Waiting, String> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| format!("no event descriptor: {error}"))?;
        let inner = Inner {
            engine,
            sleeper: Sleeper::None,
            followers: 0,
            others: false,
            ended_seen: 0,
            touched: false,
            descriptors: None,
        };
        Ok(Waiting {
            inner: Mutex::new(inner),
            contended: AtomicU32::new(0),
            calls: Mutex::new(0),
            condition: Condvar::new(),
            bell,
            strategy: Strategy::new(config),
            finalize_limit: config.finalize_limit,
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

    /// Spins until the direct receive has its message. `Err`: it became this posted receive.
    #[inline]
    pub(crate) fn wait_direct<'a>(
        &'a self,
        mut lock: Lock<'a>,
        source: Option<PeerId>,
    ) -> Result<Result<Status, Error>, (Lock<'a>, u64)> {
        let hint = lock.hint_for(source);
        let mut idle = Idle::new(self.strategy);
        loop {
            let events = lock.poll(hint);
            match lock.protocol.direct_found() {
                Found::Nothing => {}
                Found::Over(result) => return Ok(result),
                Found::Posted(key) => return Err((lock, key)),
            }
            let spins = if events == 0 {
                idle.step() == Step::Spin
            } else {
                true
            };
            if !spins || self.contended.load(Ordering::Relaxed) != 0 {
                lock.protocol.post_direct();
            }
        }
    }

    /// Polls the engine until `ready` returns a value.
    #[inline]
    pub(crate) fn wait_until<'a, R>(
        &'a self,
        mut lock: Lock<'a>,
        hint: Option<TransportId>,
        mut ready: impl FnMut(&mut Engine) -> Option<R>,
    ) -> R {
        if let Some(result) = ready(&mut lock) {
            return result;
        }
        let mut idle = Idle::new(self.strategy);
        loop {
            if lock.poll(hint) != 0 {
                if let Some(result) = ready(&mut lock) {
                    return result;
                }
                idle.reset();
            } else {
                match idle.step() {
                    Step::Spin => {}
                    Step::Yield => {
                        drop(lock);
                        std::thread::yield_now();
                        lock = self.lock();
                    }
                    Step::Sleep => lock = self.sleep(lock, false),
                }
                // Another thread may have ended it.
                if let Some(result) = ready(&mut lock) {
                    return result;
                }
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
    pub(crate) fn let_others_in(&self) {
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

    /// Sleeps until an event; briefly if a transport cannot wake this thread.
    #[cold]
    pub(crate) fn sleep<'a>(&'a self, mut lock: Lock<'a>, background: bool) -> Lock<'a> {
        lock.inner.engine.protocol.stats.slept += 1;
        let inner = &mut *lock.inner;
        let taken = match inner.sleeper {
            Sleeper::None => false,
            // A sleeper of the program replaces the progress thread, which then sleeps for short
            // times.
            Sleeper::Background { .. } => background,
            Sleeper::Program => true,
        };
        if taken && !background {
            return self.follow(lock);
        }
        let can_sleep = !taken && !inner.engine.protocol.must_poll();
        let descriptors = if can_sleep { descriptors(inner) } else { None };
        let Some(descriptors) = descriptors else {
            drop(lock);
            std::thread::sleep(if taken { SHORT } else { NAP });
            return self.lock();
        };
        if !inner
            .engine
            .transports
            .iter_mut()
            .all(|(_, transport)| transport.btl.arm())
        {
            return lock;
        }
        let ticks = inner
            .engine
            .transports
            .iter_mut()
            .filter_map(|(_, transport)| transport.btl.capabilities().tick);
        let mut limit = ticks.fold(LONGEST, Duration::min);
        let me = if background {
            // The program polls itself: sleep for a short time instead of being woken each time.
            let long = !std::mem::take(&mut inner.touched);
            limit = if long { limit } else { limit.min(SHORT) };
            Sleeper::Background { long }
        } else {
            Sleeper::Program
        };
        (inner.sleeper, inner.others, inner.touched) = (me, true, false);
        inner.ended_seen = inner.engine.protocol.ended;
        drop(lock);
        poll(&descriptors, &self.bell, limit);
        let mut lock = self.lock();
        let inner = &mut *lock.inner;
        if inner.sleeper == me {
            inner.sleeper = Sleeper::None;
        }
        inner.others = inner.sleeper != Sleeper::None || inner.followers != 0;
        if inner.followers != 0 {
            // One of them becomes the sleeper if this thread returns.
            self.call_followers();
        }
        lock
    }

    /// Sleeps until another thread has ended a request or the sleeper has returned.
    fn follow<'a>(&'a self, mut lock: Lock<'a>) -> Lock<'a> {
        lock.inner.followers += 1;
        lock.inner.others = true;
        // Read while the engine is locked, so a later change is noticed.
        let before = *self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        drop(lock);
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .condition
            .wait_timeout_while(calls, SHORT * 5, |now| *now == before);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let mut lock = self.lock();
        lock.inner.followers -= 1;
        lock.inner.others = lock.inner.sleeper != Sleeper::None || lock.inner.followers != 0;
        lock
    }

    /// Wakes the followers.
    fn call_followers(&self) {
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
            // A copy: it is polled without the lock, and the transport may be closed meanwhile.
            transport.btl.wait_fd()?.try_clone_to_owned().ok()
        };
        let all: Option<Vec<OwnedFd>> = inner.engine.transports.iter_mut().map(copy).collect();
        inner.descriptors = all.map(Arc::new);
    }
    inner.descriptors.clone()
}

fn poll(descriptors: &[OwnedFd], bell: &OwnedFd, limit: Duration) {
    let mut list: Vec<PollFd<'_>> = descriptors
        .iter()
        .chain([bell])
        .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
        .collect();
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    // Spurious wake-ups are harmless: the caller polls.
    let _ = rustix::event::poll(&mut list, Some(&limit));
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
