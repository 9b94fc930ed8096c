//! [`Call`]: a request whose reply is waited for.

use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll, ready};
use std::time::Instant;

use super::connection::Session;
use super::handshake::DAEMON_TIMEOUT;
use super::reply::{Answer, CallResult, ReplyCell, State};
use crate::control::{Reply, Request};
use crate::error::EspError;

/// A pending request. Dropping it gives back to the daemon what the reply grants.
pub(crate) struct Call {
    session: Arc<Session>,
    id: u64,
    cell: Arc<ReplyCell>,
    /// The request is an accept, which is withdrawn when dropped, as its reply may never come.
    accept: bool,
}

impl Session {
    /// Sends a request whose reply will be waited for.
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
        self.call(request)?
            .wait(Some(Instant::now() + DAEMON_TIMEOUT))
            .unwrap_or_else(|| Err(self.silent("a request is not answered")))
    }
}

impl Call {
    pub(crate) fn cell(&self) -> &Arc<ReplyCell> {
        &self.cell
    }

    /// Takes the reply if it has arrived; a refusal is an `Err`.
    pub(crate) fn take(&self) -> Option<CallResult> {
        match self.cell.take()? {
            Ok(Answer {
                reply: Reply::Error(error),
                ..
            }) => Some(Err(error.into())),
            other => Some(other),
        }
    }

    /// Waits for the reply; `None` at the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<CallResult> {
        self.cell.wait(deadline).then(|| self.take()).flatten()
    }

    /// Polls for the reply. Only one task may wait.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<CallResult> {
        ready!(self.cell.poll(cx));
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match self.cell.close() {
            State::Done(Ok(answer)) => self.session.give_back(&answer),
            State::Pending if self.accept => {
                self.session
                    .post(&Request::CancelAccept { accept: self.id });
            }
            State::Done(Err(_)) | State::Pending | State::Over => {}
        }
    }
}
