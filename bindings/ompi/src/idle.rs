//! Gives up the core between polls without events.
//!
//! A rank that has its core for itself yields, which returns at once. If another process computes
//! on that core, a yield gives up the rest of the time slice and returns after milliseconds,
//! however soon a message arrives. Then the rank sleeps until a frame wakes it, as a process does
//! that blocks in the kernel: a short time only, because Open MPI polls other transports, too.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// One empty poll in this number gives up the core. Not each: a program that computes between its
/// calls of `MPI_Test` polls without events, too, and a yield is a system call.
const POLLS_PER_YIELD: u32 = 16;
/// A yield that takes longer shows that another process computes on this core. Switching to a
/// process that has nothing to do takes some microseconds; time slices are milliseconds.
const LONG_YIELD: Duration = Duration::from_micros(300);
/// Time for which a rank sleeps instead of yielding after a long yield.
const CONTENDED_TIME: Duration = Duration::from_millis(100);
/// Maximum time of a sleep. Messages of Open MPI's other transports are delayed by at most this.
const LONGEST_SLEEP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000,
};

/// What a rank does after a poll without events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Poll again.
    Poll,
    /// Let other processes run.
    Yield,
    /// Sleep until a frame arrives.
    Sleep,
}

/// State of the empty polls of this process. Threads that poll at the same time may lose a count,
/// which does no harm.
pub(crate) struct EmptyPolls {
    count: AtomicU32,
    /// Nanoseconds after `start`.
    contended_until: AtomicU64,
    start: Instant,
    /// Descriptors of the transports.
    descriptors: Mutex<Vec<OwnedFd>>,
}

impl EmptyPolls {
    pub(crate) fn new() -> EmptyPolls {
        EmptyPolls {
            count: AtomicU32::new(0),
            contended_until: AtomicU64::new(0),
            start: Instant::now(),
            descriptors: Mutex::new(Vec::new()),
        }
    }

    /// Sets the descriptors that become readable when an armed transport has an event.
    pub(crate) fn set_descriptors(&self, descriptors: Vec<OwnedFd>) {
        *self
            .descriptors
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = descriptors;
    }

    /// Forgets the empty polls: there were events.
    pub(crate) fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// Counts an empty poll.
    pub(crate) fn count(&self) -> Idle {
        let count = self.count.load(Ordering::Relaxed) + 1;
        self.count.store(count % POLLS_PER_YIELD, Ordering::Relaxed);
        if count < POLLS_PER_YIELD {
            Idle::Poll
        } else if self.now() < self.contended_until.load(Ordering::Relaxed) {
            Idle::Sleep
        } else {
            Idle::Yield
        }
    }

    /// Yields, and records whether the core is contended.
    pub(crate) fn let_others_run(&self) {
        let before = self.now();
        std::thread::yield_now();
        self.record_yield(before, self.now());
    }

    fn record_yield(&self, before: u64, after: u64) {
        if after.saturating_sub(before) > nanos(LONG_YIELD) {
            let until = after.saturating_add(nanos(CONTENDED_TIME));
            self.contended_until.store(until, Ordering::Relaxed);
        }
    }

    /// Sleeps until a transport has an event, for a short time at most. The caller has armed them.
    pub(crate) fn sleep(&self) {
        // Another thread sleeps there already: this one polls.
        let Ok(descriptors) = self.descriptors.try_lock() else {
            return;
        };
        let mut fds: Vec<_> = descriptors
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
            .collect();
        // After an error the next poll finds what there is.
        let _ = poll(&mut fds, Some(&LONGEST_SLEEP));
    }

    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(polls: &EmptyPolls) -> Idle {
        for _ in 1..POLLS_PER_YIELD {
            assert_eq!(polls.count(), Idle::Poll);
        }
        polls.count()
    }

    #[test]
    fn a_rank_yields_on_a_core_of_its_own_and_sleeps_on_a_contended_one() {
        let polls = EmptyPolls::new();
        assert_eq!(polled(&polls), Idle::Yield);
        polls.record_yield(1000, 1000 + nanos(LONG_YIELD));
        assert_eq!(polled(&polls), Idle::Yield);
        let now = polls.now();
        polls.record_yield(now, now + nanos(LONG_YIELD) + 1);
        assert_eq!(polled(&polls), Idle::Sleep);
        polls.count();
        polls.reset();
        assert_eq!(polled(&polls), Idle::Sleep);
    }

    #[test]
    fn the_time_of_sleeps_ends() {
        let polls = EmptyPolls::new();
        polls.contended_until.store(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(1));
        assert_eq!(polled(&polls), Idle::Yield);
    }

    #[test]
    fn an_event_ends_a_sleep() {
        let (read, write) = std::io::pipe().unwrap();
        let polls = EmptyPolls::new();
        polls.set_descriptors(vec![read.into()]);
        polls.sleep();
        drop(write);
        polls.sleep();
    }
}
