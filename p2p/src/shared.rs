//! The engine behind its lock, and waiting for requests.
//!
//! Waiting threads poll the engine in turn while they spin or yield. Of the threads that sleep, one
//! sleeps in `poll` on the descriptors of the transports (the *sleeper*), the others on a condition
//! variable (*followers*). A thread that releases the lock wakes them if a request ended, if it
//! disarmed the transports (every poll does), or if it adds work that no event will announce.

mod idle;
mod lock;
mod sleep;

pub(crate) use self::lock::Lock;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use shmem::Yielder;

use self::idle::{Idle, Step, spin_time};
use crate::config::Config;
use crate::engine::{Engine, Found};
use crate::error::Error;
use crate::group::Group;
use crate::ids::{PeerId, TransportId};
use crate::types::Status;

/// Number of polls between two readings of the clock while there are events.
const POLLS_PER_CLOCK: u32 = 64;

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
    /// Number of the engine's polls at that time.
    polls_seen: u32,
    /// Amount of work at that time that no event announces.
    polled_seen: usize,
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
    /// Node of each rank of the job; empty: unknown.
    pub(crate) nodes: Vec<u32>,
    /// Wakes the sleeper.
    bell: OwnedFd,
    spin: Duration,
    yielder: Yielder,
    pub(crate) world: Arc<Group>,
}

/// Creates the descriptor that wakes the sleeper.
pub(crate) fn bell() -> Result<OwnedFd, String> {
    let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    bell.map_err(|error| format!("cannot create an event descriptor: {error}"))
}

impl Shared {
    pub(crate) fn new(engine: Engine, bell: OwnedFd, config: &Config) -> Result<Shared, String> {
        let protocol = &engine.protocol;
        let world = Group::of(protocol.peers.ids().collect(), protocol.own);
        let world = world.ok_or("this process's rank is not in the job")?;
        let inner = Inner {
            engine,
            sleeper: false,
            followers: 0,
            others: false,
            ended_seen: 0,
            polls_seen: 0,
            polled_seen: 0,
            descriptors: None,
        };
        Ok(Shared {
            inner: Mutex::new(inner),
            contended: AtomicU32::new(0),
            calls: Mutex::new(0),
            condition: Condvar::new(),
            bell,
            nodes: config.nodes.clone(),
            spin: spin_time(config),
            yielder: Yielder::new(),
            world: Arc::new(world),
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
        // After a panic with the lock held, the process was aborted or had no request.
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

    /// Spins until the direct receive is complete. If that takes too long, it becomes a posted
    /// receive.
    #[inline]
    pub(crate) fn wait_direct(
        &self,
        mut lock: Lock<'_>,
        source: Option<PeerId>,
    ) -> Result<Status, Error> {
        let hint = lock.hint_for(source);
        let mut idle = Idle::new(self.spin, &self.yielder);
        loop {
            let events = lock.poll(hint);
            match lock.protocol.direct_found() {
                Found::Nothing => {}
                Found::Complete(result) => return result,
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
        let mut idle = Idle::new(self.spin, &self.yielder);
        let mut polls = 0u32;
        loop {
            polls = polls.wrapping_add(1);
            if lock.poll(hint) != 0 {
                idle = Idle::new(self.spin, &self.yielder);
            } else {
                match idle.step() {
                    Step::Spin => {}
                    Step::Yield => {
                        drop(lock);
                        self.yielder.yield_now();
                        lock = self.lock();
                    }
                    Step::Sleep => lock = self.sleep(lock, idle.waited(), deadline),
                }
            }
            // Without an event, another thread may have completed it.
            if let Some(result) = ready(&mut lock) {
                return Some(result);
            }
            // Reading the clock costs as much as a poll. Events for other requests may continue for
            // any time.
            let reads_clock = idle.step != Step::Spin || polls.is_multiple_of(POLLS_PER_CLOCK);
            if reads_clock && deadline.is_some_and(|at| at <= Instant::now()) {
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

    /// Sleeps until an event, at most for this time.
    pub(crate) fn sleep_for(&self, limit: Duration) {
        drop(self.sleep(self.lock(), Duration::ZERO, Some(Instant::now() + limit)));
    }

    /// Wakes the waiting threads, so that they check their requests.
    pub(crate) fn wake_all(&self) {
        let mut lock = self.lock();
        // Waiting threads take it for a completed request.
        lock.protocol.ended += 1;
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
