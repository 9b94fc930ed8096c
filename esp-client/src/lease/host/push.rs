//! Sending what the peer's window held back, when the program is about to do something else.
//!
//! What a call could not send waits for acknowledgements, and these are heard only by who makes turns. A kernel would do that beside the
//! program; here a call that leaves something behind waits for the peer as long as that answers, which it does within some 10 µs if it
//! takes what comes. If it does not, the caretaker goes on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esp_engine::Clock;
use esp_proto::Sending;

use super::Host;

/// A peer that has acknowledged nothing for so long does something else.
const PATIENCE_NANOS: u64 = 100_000;
/// The caretaker looks so long after a push gave up.
const SOON: Duration = Duration::from_micros(100);
/// Turns that old are not of a program that calls all the time.
const AWAY_NANOS: u64 = 50_000;
/// How often the caretaker looks whether they go on, how long it waits for a frame, and how many times before it looks after other things.
const STEP: Duration = Duration::from_micros(200);
const WAIT: Duration = Duration::from_millis(2);
const STEPS: u32 = 25;

impl Host {
    /// How many of so many bytes written to a stream have not gone to the kernel, if nobody has the engine now.
    pub(in crate::lease) fn unsent(&self, slot: u16, written: u64) -> Option<u64> {
        if self.is_forked() {
            return Some(0);
        }
        let engine = self.try_engine()?;
        let left = engine.sending(slot).map_or(u64::MAX, |sending| sending.left);
        self.leave(engine);
        Some(written.saturating_sub(left))
    }

    /// Turns, until all that was written to a stream has left, or its peer does something else. `vain` is the stream's own: while nothing
    /// has come of a push that gave up, the next ones make a single turn.
    #[cold]
    pub(in crate::lease) fn push(&self, slot: u16, vain: &AtomicU64) {
        if self.is_forked() {
            return;
        }
        let mut before = None;
        let mut patience = PATIENCE_NANOS;
        let mut since = Clock.now().as_nanos();
        loop {
            // Who has the engine sends.
            let Some(mut engine) = self.try_engine() else { return };
            if engine.poll() {
                self.active();
            }
            let (now, sending) = (engine.turned().as_nanos(), engine.sending(slot));
            self.leave(engine);
            self.see_to_bells();
            let Some(Sending { left, acked, .. }) = sending.filter(|s| s.left < s.written) else { return };
            match before.replace((left, acked)) {
                None if vain.load(Ordering::Relaxed) == acked + 1 => patience = 0,
                Some(before) if before != (left, acked) => (since, patience) = (now, PATIENCE_NANOS),
                _ => {}
            }
            if now.saturating_sub(since) >= patience {
                // Only once, until something comes of it.
                if vain.swap(acked + 1, Ordering::Relaxed) != acked + 1 {
                    self.stalled.store(true, Ordering::Relaxed);
                    self.alarm.soon(SOON);
                }
                return;
            }
            // The peer may need this processor.
            self.let_others_run();
        }
    }

    /// The caretaker's part: after a push that gave up it sends on what comes to its turn, while the program does something else.
    pub(in crate::lease) fn see_off(&self) {
        if !self.stalled.swap(false, Ordering::Relaxed) || self.is_forked() {
            return;
        }
        let mut own = 0;
        for _ in 0..STEPS {
            let (now, last) = (Clock.now().as_nanos(), self.last_turn.load(Ordering::Relaxed));
            if last != own && now.saturating_sub(last) < AWAY_NANOS {
                // The program calls all the time, but may leave at any moment, and says nothing again before something has come of this.
                std::thread::sleep(STEP);
                continue;
            }
            let Some(mut engine) = self.try_engine() else { return };
            // What has been heard does not end the next wait.
            if engine.collect() | engine.poll() {
                self.active();
            }
            let unsent = engine.has_unsent();
            own = engine.turned().as_nanos();
            self.leave(engine);
            self.see_to_bells();
            if !unsent {
                return;
            }
            self.wait_for_frames(WAIT);
        }
        self.stalled.store(true, Ordering::Relaxed);
    }
}
