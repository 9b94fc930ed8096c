//! Sleeping on a futex until the other side has published something. The publisher makes a system
//! call only if a thread sleeps.
//!
//! ```text
//! sleeper                                   publisher
//!   count = wake count                        publish (Release)
//!   set waiting bit                           fence SeqCst               SYNC POINT sleep
//!   fence SeqCst    SYNC POINT sleep          waiting bit set?
//!   condition true? done                        clear the bit
//!   sleep while wake count == count             wake count += 1, wake its futex
//!   condition true? wake one more, done
//!   else again
//! ```
//!
//! One of the two fences is first. If the sleeper's is, the publisher sees the bit and wakes. If
//! the publisher's is, the sleeper sees what was published. A publisher that clears the bit before
//! the sleeper sleeps has changed the count, so the futex does not let it sleep.
//!
//! One call of the publisher wakes [`MAX_WOKEN`] threads at most, so that its work stays bounded
//! whatever the sleepers do. Each that finds the condition true wakes one more, which reaches all.
//! One that finds it false has set the bit again, so the next publication wakes the others.
//!
//! The caller implements the publisher's half, because several bits may lie in one word.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, Ordering, fence, spin_loop, yield_now};

/// Maximum number of threads that one call of the publisher wakes. The models have two sleepers.
const MAX_WOKEN: u32 = if cfg!(loom) { 1 } else { 64 };

/// Spin time of a wait before it sleeps. The default sleeps at once.
///
/// Spinning helps only if the other side runs on another core; yielding helps if it shares this
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spin {
    /// Number of checks with a pause instruction between (10–50 ns each).
    pub spins: u32,
    /// Number of checks with `sched_yield` between (0.5 µs each if no other thread wants the core).
    pub yields: u32,
}

/// Number of checks of the condition after which a spinning thread checks its deadline.
const DEADLINE_CHECKS: u32 = 256;

/// A sleeper of one condition.
#[derive(Clone, Copy, Debug)]
pub struct FutexSleeper<'a> {
    /// Word of the waiting bits.
    pub waiting: &'a AtomicU32,
    /// Bit of this condition.
    pub bit: u32,
    /// Wake count of this condition.
    pub wakes: &'a FutexWord,
}

impl FutexSleeper<'_> {
    /// Waits until `condition` is true (returns true) or `deadline` has passed (returns false).
    /// `condition` must load with Acquire what it checks; it is checked again after every wake.
    pub fn wait(
        &self,
        spin: Spin,
        mut condition: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        if condition() {
            return true;
        }
        let is_late = |checks: u32| {
            checks % DEADLINE_CHECKS == DEADLINE_CHECKS - 1
                && deadline.is_some_and(|deadline| deadline <= Instant::now())
        };
        for checks in 0..spin.spins {
            spin_loop();
            if condition() {
                return true;
            }
            if is_late(checks) {
                return false;
            }
        }
        for checks in 0..spin.yields {
            yield_now();
            if condition() {
                return true;
            }
            if is_late(checks) {
                return false;
            }
        }
        let mut was_woken = false;
        loop {
            let count = self.wakes.load();
            self.waiting.fetch_or(self.bit, Ordering::Relaxed);
            // SYNC POINT sleep
            fence(Ordering::SeqCst);
            // The bit stays set on return, because another thread may wait for the same condition.
            // The cost is one wake without a sleeper.
            if condition() {
                break;
            }
            let timeout = match deadline.map(|d| d.checked_duration_since(Instant::now())) {
                None => None,
                Some(Some(left)) if !left.is_zero() => Some(left),
                Some(_) => return false,
            };
            was_woken |= self.wakes.wait(count, timeout);
            if condition() {
                break;
            }
        }
        if was_woken {
            self.wakes.wake(1);
        }
        true
    }
}

/// A wake count that threads sleep on, in shared memory.
#[cfg(not(loom))]
#[repr(transparent)]
#[derive(Debug)]
pub struct FutexWord(AtomicU32);

#[cfg(not(loom))]
impl FutexWord {
    /// Returns the value that the word must have for a thread to sleep on it.
    #[inline]
    pub fn load(&self) -> u32 {
        // SYNC POINT wake-count
        self.0.load(Ordering::Acquire)
    }

    /// Sleeps while the word equals `expected`, for `timeout` at most. May return at any time.
    /// Returns whether another thread woke this one.
    fn wait(&self, expected: u32, timeout: Option<Duration>) -> bool {
        use rustix::thread::futex;
        // A timeout too long for the kernel is as good as none.
        let timeout = timeout.and_then(|t| futex::Timespec::try_from(t).ok());
        // Every outcome (woken, changed before, timed out, signal) sends the caller to its own
        // check.
        futex::wait(&self.0, futex::Flags::empty(), expected, timeout.as_ref()).is_ok()
    }

    /// Changes the word, then wakes the threads that sleep on it. One system call.
    pub fn bump_and_wake(&self) {
        // SYNC POINT wake-count
        self.0.fetch_add(1, Ordering::Release);
        self.wake(MAX_WOKEN);
    }

    /// Wakes threads that sleep on the word, `count` at most.
    fn wake(&self, count: u32) {
        use rustix::thread::futex;
        let _ = futex::wake(&self.0, futex::Flags::empty(), count);
    }
}

// SAFETY: an atomic.
#[cfg(not(loom))]
unsafe impl crate::Words for FutexWord {}

/// The futex as a model: the kernel's bucket lock is the mutex, its queue the condition variable.
#[cfg(loom)]
#[derive(Debug)]
pub struct FutexWord {
    word: AtomicU32,
    bucket: loom::sync::Mutex<()>,
    queue: loom::sync::Condvar,
}

#[cfg(loom)]
impl Default for FutexWord {
    fn default() -> Self {
        FutexWord {
            word: AtomicU32::new(0),
            bucket: loom::sync::Mutex::new(()),
            queue: loom::sync::Condvar::new(),
        }
    }
}

#[cfg(loom)]
impl FutexWord {
    /// Returns the value that the word must have for a thread to sleep on it.
    pub fn load(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Sleeps while the word equals `expected`. Returns whether another thread woke this one.
    fn wait(&self, expected: u32, _timeout: Option<Duration>) -> bool {
        let bucket = self.bucket.lock().expect("no panic while locked");
        // The kernel's comparison reads the newest value, which only an RMW does for sure in the
        // model.
        let sleeps = self.word.fetch_add(0, Ordering::Relaxed) == expected;
        if sleeps {
            drop(self.queue.wait(bucket));
        }
        sleeps
    }

    /// Changes the word, then wakes the threads that sleep on it.
    pub fn bump_and_wake(&self) {
        self.word.fetch_add(1, Ordering::Release);
        self.wake(MAX_WOKEN);
    }

    /// Wakes threads that sleep on the word, `count` at most.
    fn wake(&self, count: u32) {
        let _bucket = self.bucket.lock().expect("no panic while locked");
        (0..count).for_each(|_| self.queue.notify_one());
    }
}
