//! Sending what the peer's window held back, when the program is about to do something else.
//!
//! What a call could not send waits for acknowledgements, and these are heard only by who makes turns. A kernel would do that beside the
//! program; here a call that leaves something behind waits for the peer as long as that answers, which it does within some 10 µs if it
//! takes what comes. If it does not, the caretaker goes on.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use esp_engine::Clock;
use esp_proto::Sending;

use super::Host;

/// A peer that has acknowledged nothing for so long does something else.
const PATIENCE_NANOS: u64 = 100_000;
/// No call takes longer for this, however slowly the peer takes what is written.
const LONGEST_NANOS: u64 = 1_000_000;
/// The caretaker looks so long after a call gave up.
const SOON: Duration = Duration::from_micros(100);
/// Turns that old are not of a program that calls all the time.
const AWAY_NANOS: u64 = 50_000;
/// How soon the caretaker looks again whether a program has left, and how many times before it sleeps as usual.
const STEP: Duration = Duration::from_micros(200);
const STEPS: u32 = 10;
/// How long it waits for a frame while the program does something else.
const WAIT: Duration = Duration::from_millis(2);

/// What a call left behind, for the caretaker.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// There is something.
    any: AtomicBool,
    /// When the caretaker's last turn for it ended, in ns of the engine's clock.
    turned: AtomicU64,
    /// Times in a row that it found the program calling.
    here: AtomicU32,
}

impl Behind {
    /// There may be something.
    #[cold]
    pub(super) fn anything(&self) {
        self.any.store(true, Ordering::Relaxed);
    }
}

impl Host {
    /// How many of so many bytes written to a stream have not gone to the kernel, if nobody has the engine now.
    pub(in crate::lease) fn unsent(&self, slot: u16, written: u64) -> Option<u64> {
        if self.is_forked() {
            return Some(0);
        }
        let engine = self.try_engine()?;
        let left = engine
            .sending(slot)
            .map_or(u64::MAX, |sending| sending.left);
        self.leave(engine);
        Some(written.saturating_sub(left))
    }

    /// Turns, until all that was written to a stream before has left (true), or its peer does something else. `vain` is the stream's own: while
    /// nothing has come of a call that gave up, the next ones make a single turn.
    #[cold]
    pub(in crate::lease) fn see_out(&self, slot: u16, vain: &AtomicU64) -> bool {
        if self.is_forked() {
            return false;
        }
        // The program is not away meanwhile.
        self.rush.wrote(0);
        let (mut before, mut target) = (None, 0);
        let mut patience = PATIENCE_NANOS;
        let begin = Clock.now().as_nanos();
        let mut since = begin;
        loop {
            let Some(mut engine) = self.try_engine() else {
                // Who has the engine sends, but may leave as well.
                self.behind.any.store(true, Ordering::Relaxed);
                return false;
            };
            if engine.poll() {
                self.active();
            }
            let (now, sending) = (engine.turned().as_nanos(), engine.sending(slot));
            self.leave(engine);
            self.see_to_bells();
            let Some(Sending {
                written,
                left,
                acked,
            }) = sending
            else {
                return true;
            };
            match before.replace((left, acked)) {
                None => {
                    target = written;
                    if vain.load(Ordering::Relaxed) == acked + 1 {
                        patience = 0;
                    }
                }
                Some(before) if before != (left, acked) => {
                    (since, patience) = (now, PATIENCE_NANOS)
                }
                Some(_) => {}
            }
            if left >= target {
                self.rush.wrote(now);
                return true;
            }
            let slow = now.saturating_sub(begin) >= LONGEST_NANOS;
            if slow || now.saturating_sub(since) >= patience {
                self.behind.any.store(true, Ordering::Relaxed);
                // To set a timer takes longer than a turn: only once, until something comes of it.
                if slow || vain.swap(acked + 1, Ordering::Relaxed) != acked + 1 {
                    self.alarm.soon(SOON);
                }
                return false;
            }
            // The peer may need this processor.
            self.let_others_run();
        }
    }

    /// The caretaker's part: a step of sending on what comes to its turn, while the program does something else. True: the next step
    /// follows, and no sleep before it.
    pub(in crate::lease) fn see_off(&self) -> bool {
        if !self.behind.any.swap(false, Ordering::Relaxed) || self.is_forked() {
            return false;
        }
        let (now, last) = (
            Clock.now().as_nanos(),
            self.last_turn.load(Ordering::Relaxed),
        );
        // The program may leave at any moment, and may not say so again.
        let own = last == self.behind.turned.load(Ordering::Relaxed);
        let here = !own && now.saturating_sub(last) < AWAY_NANOS;
        let Some(mut engine) = self.try_engine() else {
            self.behind.any.store(true, Ordering::Relaxed);
            return self.look_again();
        };
        if !here {
            // What has been heard does not end the next wait.
            if engine.collect() | engine.poll() {
                self.active();
            }
            self.behind
                .turned
                .store(engine.turned().as_nanos(), Ordering::Relaxed);
        }
        let unsent = engine.has_unsent();
        self.leave(engine);
        self.see_to_bells();
        if !unsent {
            return false;
        }
        self.behind.any.store(true, Ordering::Relaxed);
        if here {
            return self.look_again();
        }
        self.behind.here.store(0, Ordering::Relaxed);
        self.wait_for_frames(WAIT);
        true
    }

    /// Has a call left something to the caretaker?
    pub(in crate::lease) fn is_behind(&self) -> bool {
        self.behind.any.load(Ordering::Relaxed)
    }

    /// Soon, unless the program goes on and on. By the clock, since nobody tells when a program calls no more.
    fn look_again(&self) -> bool {
        if self.behind.here.fetch_add(1, Ordering::Relaxed) >= STEPS {
            self.behind.here.store(0, Ordering::Relaxed);
            return false;
        }
        std::thread::sleep(STEP);
        true
    }
}
