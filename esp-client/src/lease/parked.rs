//! Threads that sleep while another one drives the engine.
//!
//! A thread that waits for a socket sleeps on the status word of that socket's region, as it would
//! with a daemon, and the engine wakes it when there is something for it. So no thread wakes for
//! the events of others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use esp_engine::shm::{Spin, Wake};

use crate::sync::{Waiting, lock};

/// Event that a thread waits for.
#[derive(Clone, Copy)]
pub(crate) enum Event<'a> {
    /// A change of a socket's region.
    Socket(&'a Arc<Waiting>, Wake),
    /// A connection for a listener.
    Arrival,
    /// The result of a poll.
    Poll,
}

/// How a thread is woken.
enum WakeBy {
    /// By the status word of a region.
    Socket(Arc<Waiting>),
    Arrival,
    Poll,
}

/// A parked thread.
struct Parked {
    wake_by: WakeBy,
    /// The thread must check its condition, and drive the engine if that is false.
    called: AtomicBool,
    wake: Condvar,
}

impl Parked {
    fn call(&self) {
        self.called.store(true, Ordering::SeqCst);
        match &self.wake_by {
            WakeBy::Socket(waiting) => waiting.status.poke(),
            WakeBy::Arrival | WakeBy::Poll => self.wake.notify_one(),
        }
    }

    fn is_called(&self) -> bool {
        self.called.load(Ordering::SeqCst)
    }
}

/// How a thread's sleep ended.
pub(super) enum Slept<T> {
    /// It may be ready.
    Woken,
    /// It was called. If it does not drive the engine, it calls another thread
    /// ([`ParkedThreads::call_driver`]).
    Called,
    /// No thread drives the engine. Holds what `try_drive` returned.
    Free(T),
}

/// The parked threads of an engine.
#[derive(Default)]
pub(super) struct ParkedThreads {
    threads: Mutex<Vec<Arc<Parked>>>,
    /// Number of threads that are parked or about to be.
    count: AtomicUsize,
    /// Number of those that the engine itself does not wake.
    to_call: AtomicUsize,
    /// A connection has arrived since threads were called last.
    arrived: AtomicBool,
}

impl ParkedThreads {
    /// Sleeps until `ready` may be true or this thread is called, at most until `until`. Does not
    /// sleep if it is ready already, or if `try_drive` returns something: the driver may have left,
    /// or found the work, before this thread was in the list.
    pub(super) fn park<T>(
        &self,
        event: Event<'_>,
        ready: &mut impl FnMut() -> bool,
        until: Instant,
        try_drive: impl FnOnce() -> Option<T>,
    ) -> Slept<T> {
        let to_call = usize::from(!matches!(event, Event::Socket(..)));
        let threads = lock(&self.threads);
        self.count.fetch_add(1, Ordering::SeqCst);
        self.to_call.fetch_add(to_call, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let slept = if ready() {
            Slept::Woken
        } else if let Some(driven) = try_drive() {
            Slept::Free(driven)
        } else {
            self.sleep(threads, event, ready, until)
        };
        self.to_call.fetch_sub(to_call, Ordering::SeqCst);
        self.count.fetch_sub(1, Ordering::SeqCst);
        slept
    }

    fn sleep<'a, T>(
        &'a self,
        mut threads: MutexGuard<'a, Vec<Arc<Parked>>>,
        event: Event<'_>,
        ready: &mut impl FnMut() -> bool,
        until: Instant,
    ) -> Slept<T> {
        let own = Arc::new(Parked {
            wake_by: match event {
                Event::Socket(waiting, _) => WakeBy::Socket(Arc::clone(waiting)),
                Event::Arrival => WakeBy::Arrival,
                Event::Poll => WakeBy::Poll,
            },
            called: AtomicBool::new(false),
            wake: Condvar::new(),
        });
        threads.push(Arc::clone(&own));
        threads = if let Event::Socket(waiting, what) = event {
            drop(threads);
            let none = Spin {
                spins: 0,
                yields: 0,
            };
            let there = || own.is_called() || ready();
            waiting.status.wait(what, none, there, Some(until));
            lock(&self.threads)
        } else {
            let left = until.saturating_duration_since(Instant::now());
            let is_asleep = |_: &mut _| !own.is_called();
            let slept = own.wake.wait_timeout_while(threads, left, is_asleep);
            slept.unwrap_or_else(PoisonError::into_inner).0
        };
        threads.retain(|parked| !Arc::ptr_eq(parked, &own));
        if own.is_called() {
            Slept::Called
        } else {
            Slept::Woken
        }
    }

    /// Records that a connection has arrived, during a poll.
    pub(super) fn arrived(&self) {
        self.arrived.store(true, Ordering::SeqCst);
    }

    /// Calls the threads that may be ready after a poll with work, except those that the engine has
    /// woken.
    pub(super) fn call_ready(&self) {
        fence(Ordering::SeqCst);
        if self.to_call.load(Ordering::Relaxed) > 0 {
            self.call_ready_of(&lock(&self.threads));
        }
    }

    fn call_ready_of(&self, threads: &[Arc<Parked>]) {
        let arrived = self.arrived.swap(false, Ordering::SeqCst);
        for parked in threads {
            match parked.wake_by {
                WakeBy::Socket(_) => {}
                WakeBy::Arrival if !arrived => {}
                WakeBy::Arrival | WakeBy::Poll => parked.call(),
            }
        }
    }

    /// Calls the threads that may be ready, or else one that drives the engine, because no thread
    /// does now.
    pub(super) fn call_driver(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            let threads = lock(&self.threads);
            self.call_ready_of(&threads);
            if let Some(first) = threads.first()
                && !threads.iter().any(|parked| parked.is_called())
            {
                first.call();
            }
        }
    }

    /// Calls all threads.
    pub(super) fn call_all(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            lock(&self.threads).iter().for_each(|parked| parked.call());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Maximum sleep in tests: none may last that long.
    const LONG: Duration = Duration::from_secs(60);

    fn until() -> Instant {
        Instant::now() + LONG
    }

    fn wait_for_parked(parked: &ParkedThreads, count: usize) {
        while lock(&parked.threads).len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_is_ready_or_can_drive_does_not_sleep() {
        let parked = ParkedThreads::default();
        let slept = parked.park(Event::Poll, &mut || true, until(), || Some(1));
        assert!(matches!(slept, Slept::Woken));
        let slept = parked.park(Event::Poll, &mut || false, until(), || Some(1));
        assert!(matches!(slept, Slept::Free(1)));
        assert_eq!(parked.count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_listener_is_called_by_an_arrival_only() {
        let parked = ParkedThreads::default();
        let called = AtomicU32::new(0);
        thread::scope(|scope| {
            for event in [Event::Arrival, Event::Poll] {
                let (parked, called) = (&parked, &called);
                scope.spawn(move || {
                    let slept = parked.park(event, &mut || false, until(), || None::<()>);
                    assert!(matches!(slept, Slept::Called));
                    called.fetch_add(1, Ordering::SeqCst);
                });
            }
            wait_for_parked(&parked, 2);
            parked.call_ready();
            while called.load(Ordering::SeqCst) < 1 {
                thread::yield_now();
            }
            assert_eq!(lock(&parked.threads).len(), 1);
            parked.arrived();
            parked.call_ready();
        });
        assert_eq!(called.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn one_thread_is_called_to_drive_and_passes_it_on() {
        let parked = ParkedThreads::default();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let slept = parked.park(Event::Arrival, &mut || false, until(), || None::<()>);
                    assert!(matches!(slept, Slept::Called));
                    parked.call_driver();
                });
            }
            wait_for_parked(&parked, 8);
            parked.call_driver();
        });
        assert_eq!(parked.count.load(Ordering::SeqCst), 0);
    }
}
