//! Who waits for something of the engine's: as its driver, or beside one.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use esp_engine::shm::Spin;
use esp_engine::{CONTENDED_TIME, Clock, Command, Engine, YIELD_HOGGED};

use super::{EmbeddedEngine, STEP_ASIDE};
use crate::session::{DAEMON_TIMEOUT, lock};

/// While it finds work, a driver looks at its deadline every so many turns.
const DEADLINE_TURNS: u32 = 16;
/// A waiter looks again after this long, so that a lost wake-up (a bug) shows as slowness.
const LONGEST_PARK: Duration = Duration::from_secs(1);

impl EmbeddedEngine {
    /// Waits until `there` says so (true) or the deadline has come (false), driving the engine
    /// meanwhile.
    pub(crate) fn wait(
        &self,
        spin: Spin,
        there: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        self.wait_by(spin, Engine::poll, there, deadline)
    }

    /// The same with another kind of turn than [`Engine::poll`]; it must not wait for anybody.
    pub(crate) fn wait_by(
        &self,
        spin: Spin,
        mut turn: impl FnMut(&mut Engine) -> bool,
        mut there: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        let (mut spins, mut yields) = (spin.spins, spin.yields);
        let mut turns = 0u32;
        loop {
            if self.is_forked() {
                // The engine is the parent's: neither its sockets nor its memory are for us.
                return there();
            }
            if there() {
                return true;
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                return false;
            }
            let Some(mut engine) = self.try_engine() else {
                self.sleep_parked(&mut there, deadline);
                continue;
            };
            let found = loop {
                let work = turn(&mut engine);
                if work {
                    self.active();
                }
                if there() {
                    break Some(true);
                }
                if self.wanted.load(Ordering::SeqCst) > 0 {
                    break None;
                }
                if work {
                    self.wake_parked();
                    // A flood is no reason to come back late.
                    turns = turns.wrapping_add(1);
                    if turns.is_multiple_of(DEADLINE_TURNS)
                        && deadline.is_some_and(|at| at <= Instant::now())
                    {
                        break Some(false);
                    }
                    continue;
                }
                if spins > 0 {
                    spins -= 1;
                    std::hint::spin_loop();
                    continue;
                }
                if yields > 0 {
                    if spin.yields == u32::MAX {
                        // Who never sleeps.
                        std::thread::yield_now();
                    } else {
                        yields = if self.let_others_run() { yields - 1 } else { 0 };
                    }
                    continue;
                }
                let now = Instant::now();
                if deadline.is_some_and(|at| at <= now) {
                    break Some(false);
                }
                engine.block(deadline.map(|at| Clock.now() + (at - now)));
            };
            self.leave(engine);
            self.answer_doorbells();
            match found {
                Some(found) => return found,
                None => std::thread::sleep(2 * STEP_ASIDE),
            }
        }
    }

    /// Yields; false when somebody who computes wants the core. Then who waits had better sleep: a
    /// yield is taken for a renunciation of the rest of the time slice, and the core comes back
    /// after milliseconds; a sleeper keeps its claim to run soon after a wake-up.
    pub(super) fn let_others_run(&self) -> bool {
        let before = Clock.now();
        if before.as_nanos() < self.contended_until.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::yield_now();
        let after = Clock.now();
        let alone = after.since(before) <= YIELD_HOGGED;
        if !alone {
            self.contended_until
                .store((after + CONTENDED_TIME).as_nanos(), Ordering::Relaxed);
        }
        alone
    }

    /// Sleeps until the driver's next turn.
    fn sleep_parked(&self, there: &mut impl FnMut() -> bool, deadline: Option<Instant>) {
        let turn = lock(&self.park);
        self.parked.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // The driver may have left, or done what we wait for, before it could see us.
        let free = if there() {
            None
        } else {
            Some(self.try_engine())
        };
        if let Some(None) = free {
            let left = deadline.map_or(LONGEST_PARK, |at| {
                at.saturating_duration_since(Instant::now())
            });
            let _ = self.turned.wait_timeout(turn, left.min(LONGEST_PARK));
            self.parked.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        drop(turn);
        self.parked.fetch_sub(1, Ordering::SeqCst);
        // While we held it others may have tried in vain: their news must not wait.
        if let Some(Some(mut engine)) = free {
            if engine.poll() {
                self.active();
            }
            self.leave(engine);
            self.answer_doorbells();
        }
    }

    /// Sends a command and drives the engine until it is answered.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(esp_engine::Reply<T>) -> Command,
    ) -> Option<T> {
        let cell = Arc::new(Mutex::new(None));
        let answer = Arc::clone(&cell);
        self.tell(command(Box::new(move |value| *lock(&answer) = Some(value))));
        let done = self.wait(
            Spin::default(),
            || lock(&cell).is_some(),
            Some(Instant::now() + DAEMON_TIMEOUT),
        );
        if done { lock(&cell).take() } else { None }
    }
}
