//! [`Call`]: a request that waits for its reply.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Instant;

use super::connection::Session;
use super::handshake::DAEMON_TIMEOUT;
use crate::control::{Reply, Request};
use crate::error::EspError;
use crate::sync::{Wakers, lock};

/// A reply with its descriptors.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Number of the connection that it came over.
    pub(crate) connection: u64,
}

/// Answer to a request, or a refusal, or the error that ended the session.
pub(crate) type CallResult = Result<Answer, EspError>;

/// Slot for the reply to one request. Several threads and tasks may wait for it; one takes it.
#[derive(Default)]
pub(crate) struct ReplyCell {
    state: Mutex<ReplyState>,
    changed: Condvar,
    wakers: Wakers,
}

#[derive(Default)]
enum ReplyState {
    #[default]
    Pending,
    Done(CallResult),
    /// Taken, or no longer wanted.
    Closed,
}

impl ReplyCell {
    /// Returns true while the reply has not arrived, and a [`Call`] waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        matches!(*lock(&self.state), ReplyState::Pending)
    }

    /// Stores the reply and wakes the waiting threads and tasks. Returns the reply if it is no
    /// longer wanted.
    pub(super) fn finish(&self, result: CallResult) -> Option<CallResult> {
        let mut state = lock(&self.state);
        if !matches!(*state, ReplyState::Pending) {
            return Some(result);
        }
        *state = ReplyState::Done(result);
        drop(state);
        self.changed.notify_all();
        self.wakers.wake();
        None
    }

    /// Waits until the reply has arrived (another thread may take it); false at the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        while matches!(*state, ReplyState::Pending) {
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
        if !matches!(*state, ReplyState::Pending) {
            return Poll::Ready(());
        }
        self.wakers.register(cx);
        Poll::Pending
    }
}

/// A pending request. Dropping it returns any grant of the reply to the daemon.
pub(crate) struct Call {
    session: Arc<Session>,
    id: u64,
    cell: Arc<ReplyCell>,
    /// The request is an accept, which is withdrawn when dropped, as its reply may never come.
    accept: bool,
}

impl Session {
    /// Sends a request, for a caller that waits for the reply.
    pub(crate) fn call(self: &Arc<Self>, request: &Request) -> Result<Call, EspError> {
        let (id, cell) = self.begin_call(request)?;
        Ok(Call {
            session: Arc::clone(self),
            id,
            cell,
            accept: matches!(request, Request::Accept { .. }),
        })
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn ask(self: &Arc<Self>, request: &Request) -> CallResult {
        self.ask_while(request, || false)
    }

    /// Sends a request and waits for its reply, beyond the time limit of other requests as long as
    /// `waits` returns true.
    pub(crate) fn ask_while(
        self: &Arc<Self>,
        request: &Request,
        waits: impl Fn() -> bool,
    ) -> CallResult {
        let call = self.call(request)?;
        loop {
            let daemon = self.connection();
            match call.wait(Some(Instant::now() + DAEMON_TIMEOUT)) {
                Some(result) => return result,
                // The next daemon has the full time, too.
                None if self.is_waiting() || self.connection() != daemon || waits() => {}
                None => return Err(self.silent("a request is not answered")),
            }
        }
    }
}

impl Call {
    pub(crate) fn cell(&self) -> &Arc<ReplyCell> {
        &self.cell
    }

    /// Takes the reply if it has arrived; a refusal is an `Err`.
    pub(crate) fn take(&self) -> Option<CallResult> {
        let mut state = lock(&self.cell.state);
        let result = match std::mem::replace(&mut *state, ReplyState::Closed) {
            ReplyState::Done(result) => result,
            other => {
                *state = other;
                return None;
            }
        };
        Some(result.and_then(|answer| match answer.reply {
            Reply::Error(error) => Err(EspError::denied(error.kind, error.message)),
            _ => Ok(answer),
        }))
    }

    /// Waits for the reply; `None` at the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<CallResult> {
        self.cell.wait(deadline).then(|| self.take()).flatten()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *lock(&self.cell.state), ReplyState::Closed);
        match state {
            ReplyState::Done(Ok(answer)) => self.session.give_back(&answer),
            ReplyState::Pending if self.accept => {
                let accept = self.id;
                self.session.post(Request::CancelAccept { accept });
            }
            ReplyState::Done(Err(_)) | ReplyState::Pending | ReplyState::Closed => {}
        }
    }
}
