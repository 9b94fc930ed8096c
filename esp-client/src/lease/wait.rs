//! Waiting threads: each drives the engine, or is parked while another one does.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use esp_engine::shm::Spin;
use esp_engine::{CONTENDED_TIME, CONTENDED_YIELD, Clock, Command, Engine};

use super::engine::{EmbeddedEngine, STEP_ASIDE};
use super::parked::{Event, Slept};
use crate::session::DAEMON_TIMEOUT;
use crate::sync::lock;

/// Number of polls after which a driver that does not sleep checks its deadline.
const DEADLINE_POLLS: u32 = 16;
/// Maximum sleep of a parked thread, so that a lost wake-up (a bug) appears as slowness and not as
/// a hang.
const MAX_PARK: Duration = Duration::from_secs(1);

impl EmbeddedEngine {
    /// Drives the engine until `ready` returns true; false at the deadline.
    pub(crate) fn wait(
        &self,
        spin: Spin,
        event: Event<'_>,
        ready: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        self.wait_by(spin, Engine::poll, event, ready, deadline)
    }

    /// Like [`EmbeddedEngine::wait`], with `poll` in place of [`Engine::poll`]. It must not block.
    pub(crate) fn wait_by(
        &self,
        spin: Spin,
        mut poll: impl FnMut(&mut Engine) -> bool,
        event: Event<'_>,
        mut ready: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        let is_late = || deadline.is_some_and(|at| at <= Instant::now());
        let (mut spins, mut yields) = (spin.spins, spin.yields);
        let mut polls = 0u32;
        let mut called = false;
        loop {
            let is_ready = ready();
            // In a forked child the engine is the parent's.
            if is_ready || self.is_forked() || is_late() {
                if called {
                    self.parked.call_driver();
                }
                return is_ready;
            }
            let Some(mut engine) = self.try_engine() else {
                called |= self.sleep_parked(event, &mut ready, deadline);
                continue;
            };
            called = false;
            let found = loop {
                let work = poll(&mut engine);
                self.count(work);
                if ready() {
                    break Some(true);
                }
                if self.wanted.load(Ordering::SeqCst) > 0 {
                    break None;
                }
                if work {
                    self.parked.call_ready();
                    // After the fence in `call_ready`.
                    self.progress.worked(|| !self.tasks.is_empty());
                    // Incoming frames must not delay the deadline.
                    polls = polls.wrapping_add(1);
                    if polls.is_multiple_of(DEADLINE_POLLS) && is_late() {
                        break Some(false);
                    }
                } else if spins > 0 {
                    spins -= 1;
                    std::hint::spin_loop();
                } else if yields == u32::MAX {
                    // This wait never sleeps.
                    std::thread::yield_now();
                    polls = polls.wrapping_add(1);
                    if polls.is_multiple_of(DEADLINE_POLLS) && is_late() {
                        break Some(false);
                    }
                } else if yields > 0 {
                    yields = if self.let_others_run() { yields - 1 } else { 0 };
                } else {
                    let now = Instant::now();
                    if deadline.is_some_and(|at| at <= now) {
                        break Some(false);
                    }
                    engine.block(deadline.map(|at| Clock.now() + (at - now)));
                }
            };
            self.leave(engine);
            self.serve_doorbells();
            match found {
                Some(found) => return found,
                None => std::thread::sleep(2 * STEP_ASIDE),
            }
        }
    }

    /// Yields; false if another thread computes on this core. Then the caller should sleep: a yield
    /// gives up the rest of the time slice, and the core returns after milliseconds; a sleeping
    /// thread runs soon after its wake-up.
    fn let_others_run(&self) -> bool {
        let before = Clock.now();
        if before.as_nanos() < self.contended_until.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::yield_now();
        let after = Clock.now();
        let alone = after.since(before) <= CONTENDED_YIELD;
        if !alone {
            let until = (after + CONTENDED_TIME).as_nanos();
            self.contended_until.store(until, Ordering::Relaxed);
        }
        alone
    }

    /// Sleeps until `ready` may be true, or this thread is called to drive the engine. Returns
    /// true in the latter case.
    fn sleep_parked(
        &self,
        event: Event<'_>,
        ready: &mut impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        let longest = Instant::now() + MAX_PARK;
        let until = deadline.map_or(longest, |deadline| deadline.min(longest));
        match self.parked.park(event, ready, until, || self.try_engine()) {
            Slept::Woken => false,
            Slept::Called => true,
            // Others may have failed to lock it in the meantime, so their doorbells are served
            // here.
            Slept::Free(mut engine) => {
                let work = engine.poll();
                self.count(work);
                self.leave(engine);
                self.serve_doorbells();
                false
            }
        }
    }

    /// Sends a command and drives the engine until it is answered.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(esp_engine::Reply<T>) -> Command,
    ) -> Option<T> {
        let cell = Arc::new(Mutex::new(None));
        let answer = Arc::clone(&cell);
        self.send(command(Box::new(move |value| *lock(&answer) = Some(value))));
        self.wait(
            Spin::default(),
            Event::Poll,
            || lock(&cell).is_some(),
            Some(Instant::now() + DAEMON_TIMEOUT),
        );
        lock(&cell).take()
    }
}
