//! Sleeping until the other side has published something, and waking who sleeps; no system call while nobody does.
//!
//! ```text
//! sleeper                                   publisher
//!   count = wake count                        publish (Release)
//!   set waiting bit                           fence SeqCst               SYNC POINT sleep
//!   fence SeqCst    SYNC POINT sleep          waiting bit set?
//!   is it there? done                           take the bit
//!   sleep while wake count == count             wake count += 1, wake its futex
//!   is it there? done, else again
//! ```
//!
//! Of the two fences one is first. If the sleeper's: the publisher sees the bit and wakes. If the publisher's: the
//! sleeper sees what was published. A publisher that takes the bit before the sleeper sleeps has changed the count, so
//! the futex does not let it sleep.

use std::time::Instant;

use super::sync::{AtomicU32, FutexWord, Ordering, fence, spin_loop, yield_now};

/// How long a wait stays awake before it sleeps. The default sleeps at once.
///
/// Spinning helps only when the other side runs on another core; yielding helps when it shares this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spin {
    /// Checks with a pause instruction between (about 10–50 ns each).
    pub spins: u32,
    /// Checks with `sched_yield` between (about 0.5 µs each when nobody else wants the core).
    pub yields: u32,
}

/// One thing to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleeper<'a> {
    /// Word of the waiting bits.
    pub(crate) waiting: &'a AtomicU32,
    /// The bit of this thing.
    pub(crate) bit: u32,
    /// The wake count of this thing.
    pub(crate) wakes: &'a FutexWord,
}

impl Sleeper<'_> {
    /// Waits until `there` says so (true) or `deadline` has passed (false). `there` must load with Acquire what it
    /// checks; it is asked again after every wake.
    pub(crate) fn wait(
        &self,
        spin: Spin,
        mut there: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        if there() {
            return true;
        }
        for _ in 0..spin.spins {
            spin_loop();
            if there() {
                return true;
            }
        }
        for _ in 0..spin.yields {
            yield_now();
            if there() {
                return true;
            }
        }
        loop {
            let count = self.wakes.load();
            self.waiting.fetch_or(self.bit, Ordering::Relaxed);
            // SYNC POINT sleep
            fence(Ordering::SeqCst);
            // The bit stays set when we leave here: another thread may wait for the same thing. The cost is one wake
            // for nobody.
            if there() {
                return true;
            }
            let timeout = match deadline.map(|d| d.checked_duration_since(Instant::now())) {
                None => None,
                Some(Some(left)) if !left.is_zero() => Some(left),
                Some(_) => return false,
            };
            self.wakes.wait(count, timeout);
            if there() {
                return true;
            }
        }
    }
}
