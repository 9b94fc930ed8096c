//! The lock around the engine, and waiting with it.
//!
//! Threads that wait take turns at making progress while they spin or yield. Of those that sleep one sleeps in `poll` on what the transports
//! give for that (the *sleeper*), the others on a condition (*followers*). Whoever lets go of the lock wakes them when a request ended meanwhile, when he
//! took back the sleeper's wish to be woken (every turn does), or when there is something to do that no event will announce.

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

/// Nap where nothing can wake us.
const NAP: Duration = Duration::from_micros(50);
/// Longest sleep, in case a transport forgets to wake us.
const LONGEST: Duration = Duration::from_secs(1);
/// Longest sleep of followers, and of the progress thread while the program is active itself.
const SHORT: Duration = Duration::from_millis(2);

/// Who sleeps in `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleeper {
    Nobody,
    /// A thread of the program.
    Program,
    /// The progress thread: for long, so it must be woken when its wish is taken back; or for a short time.
    Background {
        long: bool,
    },
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    sleeper: Sleeper,
    followers: u32,
    /// There is a sleeper or a follower.
    others: bool,
    /// Requests that had ended when the last of them fell asleep or was woken.
    told: u64,
    /// A turn was made since.
    touched: bool,
    /// What to poll, copies of the transports' descriptors; `None`: not known yet.
    descriptors: Option<Arc<Vec<OwnedFd>>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Waiting {
    inner: Mutex<Inner>,
    /// Threads that want the lock and have to wait for it.
    contended: AtomicU32,
    /// Followers wait for a change of the number.
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

    /// [`Engine::poll`].
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
        let ended = inner.engine.protocol.ended != inner.told;
        let wish = match inner.sleeper {
            Sleeper::Nobody => false,
            Sleeper::Program => ended || inner.touched || inner.engine.protocol.must_poll(),
            Sleeper::Background { long } => {
                long && (inner.touched || inner.engine.protocol.must_poll())
            }
        };
        inner.told = inner.engine.protocol.ended;
        if wish {
            // Full is as good as written: it is readable.
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
            sleeper: Sleeper::Nobody,
            followers: 0,
            others: false,
            told: 0,
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

    /// Spins until the direct receive has its message. `Err`: it is this posted receive now, to be waited for in the ordinary way.
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

    /// Makes progress until `ready` has an answer.
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

    /// Waits a moment for those who want the lock to get it.
    #[cold]
    pub(crate) fn let_others_in(&self) {
        for turn in 0..200 {
            if self.contended.load(Ordering::Relaxed) == 0 {
                return;
            }
            if turn % 20 == 19 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Sleeps until something happens, or a moment where nothing can wake us.
    #[cold]
    pub(crate) fn sleep<'a>(&'a self, mut lock: Lock<'a>, background: bool) -> Lock<'a> {
        lock.inner.engine.protocol.stats.slept += 1;
        let inner = &mut *lock.inner;
        let taken = match inner.sleeper {
            Sleeper::Nobody => false,
            // The program's sleeper takes the place of the progress thread, which then only naps.
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
            // The program made turns itself since we slept last: look often instead of being woken each time.
            let long = !std::mem::take(&mut inner.touched);
            limit = if long { limit } else { limit.min(SHORT) };
            Sleeper::Background { long }
        } else {
            Sleeper::Program
        };
        (inner.sleeper, inner.others, inner.touched) = (me, true, false);
        inner.told = inner.engine.protocol.ended;
        drop(lock);
        poll(&descriptors, &self.bell, limit);
        let mut lock = self.lock();
        let inner = &mut *lock.inner;
        if inner.sleeper == me {
            inner.sleeper = Sleeper::Nobody;
        }
        inner.others = inner.sleeper != Sleeper::Nobody || inner.followers != 0;
        if inner.followers != 0 {
            // One of them takes the place, if this thread goes.
            self.call_followers();
        }
        lock
    }

    /// Sleeps until somebody has ended a request, or the sleeper has gone.
    fn follow<'a>(&'a self, mut lock: Lock<'a>) -> Lock<'a> {
        lock.inner.followers += 1;
        lock.inner.others = true;
        // Read with the engine's lock held, with which it is changed: what happens from here on changes it.
        let before = *self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        drop(lock);
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .condition
            .wait_timeout_while(calls, SHORT * 5, |now| *now == before);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let mut lock = self.lock();
        lock.inner.followers -= 1;
        lock.inner.others = lock.inner.sleeper != Sleeper::Nobody || lock.inner.followers != 0;
        lock
    }

    /// Wakes the followers.
    fn call_followers(&self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls = calls.wrapping_add(1);
        self.condition.notify_all();
    }
}

/// What to poll; `None`: a transport cannot wake us.
fn descriptors(inner: &mut Inner) -> Option<Arc<Vec<OwnedFd>>> {
    if inner.descriptors.is_none() {
        let copy = |(_, transport): (_, &mut crate::engine::Transport)| {
            transport.capabilities.blocking.then_some(())?;
            // A copy, for it is polled without the lock, and the transport may be closed meanwhile.
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
    // Woken for nothing is as good: the caller looks.
    let _ = rustix::event::poll(&mut list, Some(&limit));
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
