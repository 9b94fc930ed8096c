//! A request whose answer is waited for, by threads or by futures.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Waker;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Instant;

use crate::control::{Reply, Request};
use crate::error::EspError;
use crate::session::{Session, lock};

/// A reply with its descriptors.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) descriptors: Vec<OwnedFd>,
}

pub(crate) type Outcome = Result<Answer, EspError>;

/// Where the answer is put, and where it is waited for. Several may wait; one takes it.
#[derive(Default)]
pub(crate) struct CallCell {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    state: State,
    wakers: Vec<Waker>,
}

#[derive(Default)]
enum State {
    #[default]
    Pending,
    Done(Outcome),
    /// Taken, or nobody wants it.
    Over,
}

impl CallCell {
    /// Puts the answer in; gives it back if nobody wants it.
    pub(crate) fn finish(&self, outcome: Outcome) -> Option<Outcome> {
        let mut inner = lock(&self.inner);
        if !matches!(inner.state, State::Pending) {
            return Some(outcome);
        }
        inner.state = State::Done(outcome);
        let wakers = std::mem::take(&mut inner.wakers);
        drop(inner);
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
        None
    }

    fn take(&self) -> Option<Outcome> {
        let mut inner = lock(&self.inner);
        match std::mem::replace(&mut inner.state, State::Over) {
            State::Done(outcome) => Some(outcome),
            other => {
                inner.state = other;
                None
            }
        }
    }

    /// Waits until it is no longer pending (somebody else may be the one that takes the answer);
    /// false at the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut inner = lock(&self.inner);
        while matches!(inner.state, State::Pending) {
            inner = match deadline {
                None => self
                    .changed
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.changed
                        .wait_timeout(inner, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        true
    }

    /// [`CallCell::wait`] for futures.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = lock(&self.inner);
        if !matches!(inner.state, State::Pending) {
            return Poll::Ready(());
        }
        if !inner.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            inner.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// A request under way. Dropped before its answer was taken, what the answer brings is given back
/// to the daemon.
pub(crate) struct Call {
    session: Arc<Session>,
    id: u64,
    cell: Arc<CallCell>,
    /// Its answer may take forever: withdraw it when dropped.
    accept: bool,
}

impl Call {
    pub(crate) fn new(session: Arc<Session>, id: u64, cell: Arc<CallCell>, accept: bool) -> Call {
        Call {
            session,
            id,
            cell,
            accept,
        }
    }

    pub(crate) fn cell(&self) -> &Arc<CallCell> {
        &self.cell
    }

    /// The answer, if it has come; a refusal as `Err`.
    pub(crate) fn take(&self) -> Option<Outcome> {
        match self.cell.take()? {
            Ok(Answer {
                reply: Reply::Error(error),
                ..
            }) => Some(Err(error.into())),
            other => Some(other),
        }
    }

    /// Waits for the answer; `None` at the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<Outcome> {
        if self.cell.wait(deadline) {
            self.take()
        } else {
            None
        }
    }

    /// The answer as a future gives it. Only for calls with one waiter.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Outcome> {
        match self.cell.poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => match self.take() {
                Some(outcome) => Poll::Ready(outcome),
                None => Poll::Pending,
            },
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut lock(&self.cell.inner).state, State::Over);
        match state {
            State::Done(Ok(answer)) => self.session.dispose(&answer),
            State::Done(Err(_)) | State::Over => {}
            State::Pending => {
                if self.accept {
                    self.session
                        .post(&Request::CancelAccept { accept: self.id });
                }
            }
        }
    }
}
