//! Yields the core between polls without events.
//!
//! On a core on which another process computes, the rank sleeps until a frame wakes it, but only
//! for a short time, because Open MPI polls other transports, too.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shmem::Yielder;

/// Number of empty polls per yield. A yield is a system call, which would slow down a program that
/// computes between its calls of `MPI_Test`, because such a program polls without events, too.
const POLLS_PER_YIELD: u32 = 16;
/// Maximum time of a sleep. Messages of Open MPI's other transports are delayed by at most this
/// time.
const MAX_SLEEP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000,
};

/// The action after a poll without events.
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
    yielder: Yielder,
    /// Descriptors of the transports.
    descriptors: Mutex<Vec<OwnedFd>>,
}

impl EmptyPolls {
    pub(crate) fn new() -> EmptyPolls {
        EmptyPolls {
            count: AtomicU32::new(0),
            yielder: Yielder::new(),
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

    /// Resets the count of empty polls after a poll with events.
    pub(crate) fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// Counts an empty poll, and returns the action to take.
    pub(crate) fn count(&self) -> Idle {
        let count = self.count.load(Ordering::Relaxed) + 1;
        self.count.store(count % POLLS_PER_YIELD, Ordering::Relaxed);
        if count < POLLS_PER_YIELD {
            Idle::Poll
        } else if self.yielder.is_contended() {
            Idle::Sleep
        } else {
            Idle::Yield
        }
    }

    /// Yields the core.
    pub(crate) fn let_others_run(&self) {
        self.yielder.yield_now();
    }

    /// Sleeps until a transport has an event, but at most [`MAX_SLEEP`]. The caller has armed the
    /// transports.
    pub(crate) fn sleep(&self) {
        // If another thread sleeps on the descriptors already, this one polls.
        let Ok(descriptors) = self.descriptors.try_lock() else {
            return;
        };
        let mut fds: Vec<_> = descriptors
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
            .collect();
        // After an error, the next poll handles any events.
        let _ = poll(&mut fds, Some(&MAX_SLEEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_some_empty_polls_yields() {
        let polls = EmptyPolls::new();
        for _ in 1..POLLS_PER_YIELD {
            assert_eq!(polls.count(), Idle::Poll);
        }
        assert_eq!(polls.count(), Idle::Yield);
        assert_eq!(polls.count(), Idle::Poll);
        polls.reset();
        for _ in 1..POLLS_PER_YIELD {
            assert_eq!(polls.count(), Idle::Poll);
        }
    }

    #[test]
    fn a_rank_sleeps_on_a_contended_core() {
        let polls = EmptyPolls::new();
        polls.yielder.record(std::time::Duration::from_secs(1));
        for _ in 1..POLLS_PER_YIELD {
            assert_eq!(polls.count(), Idle::Poll);
        }
        assert_eq!(polls.count(), Idle::Sleep);
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
