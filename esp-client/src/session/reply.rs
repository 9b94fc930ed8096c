//! [`ReplyCell`]: holds the reply to a request until a thread or task takes it.

use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, PoisonError};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Instant;

use crate::control::Reply;
use crate::error::EspError;
use crate::sync::{Wakers, lock};

/// A reply with its descriptors.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Answer to a request, or the error that ended the session.
pub(crate) type CallResult = Result<Answer, EspError>;

/// Slot for the reply to one request. Several threads and tasks may wait for it; one takes it.
#[derive(Default)]
pub(crate) struct ReplyCell {
    state: Mutex<State>,
    changed: Condvar,
    wakers: Wakers,
}

#[derive(Default)]
pub(super) enum State {
    #[default]
    Pending,
    Done(CallResult),
    /// Taken, or no longer wanted.
    Over,
}

impl ReplyCell {
    /// Stores the reply and wakes all that wait. Returns it if it is no longer wanted.
    pub(super) fn finish(&self, result: CallResult) -> Option<CallResult> {
        let mut state = lock(&self.state);
        if !matches!(*state, State::Pending) {
            return Some(result);
        }
        *state = State::Done(result);
        drop(state);
        self.changed.notify_all();
        self.wakers.wake();
        None
    }

    /// Takes the reply if it has arrived.
    pub(super) fn take(&self) -> Option<CallResult> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Over) {
            State::Done(result) => Some(result),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Marks the reply as not wanted and returns the state before.
    pub(super) fn close(&self) -> State {
        std::mem::replace(&mut lock(&self.state), State::Over)
    }

    /// Waits until the reply has arrived (another thread may take it); false at the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        while matches!(*state, State::Pending) {
            state = match deadline {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let woken = self.changed.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    /// Polls for the reply; see [`ReplyCell::wait`].
    #[cfg(feature = "tokio")]
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let state = lock(&self.state);
        if !matches!(*state, State::Pending) {
            return Poll::Ready(());
        }
        self.wakers.register(cx);
        Poll::Pending
    }
}
