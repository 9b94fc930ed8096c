//! Non-blocking calls on buffers that the request owns.

use std::sync::Arc;

use crate::comm::Comm;
use crate::envelope::{Destination, Selector};
use crate::error::Error;
use crate::memory::{ReadMem, WriteMem};
use crate::shared::Shared;
use crate::types::{RequestId, Status};

/// Send or receive that owns its buffer. If it is dropped, it is cancelled if possible; otherwise
/// it continues, and the buffer is freed when it is over.
#[derive(Debug)]
pub struct OwnedRequest {
    shared: Arc<Shared>,
    id: RequestId,
    /// `None` after the result was returned.
    buffer: Option<Vec<u8>>,
}

impl OwnedRequest {
    pub(crate) fn send(
        comm: &Comm,
        buffer: Vec<u8>,
        destination: Destination,
    ) -> Result<OwnedRequest, Error> {
        // SAFETY: the memory of the vector stays valid and unused by others until the request is
        // over: `self` keeps it, or gives it to the engine when dropped; if `self` is leaked, it is
        // never freed.
        let memory = unsafe { ReadMem::new(buffer.as_ptr(), buffer.len()) };
        let id = comm.shared().isend(destination, memory, false, true)?;
        Ok(OwnedRequest {
            shared: Arc::clone(comm.shared()),
            id,
            buffer: Some(buffer),
        })
    }

    pub(crate) fn recv(
        comm: &Comm,
        mut buffer: Vec<u8>,
        selector: Selector,
    ) -> Result<OwnedRequest, Error> {
        // SAFETY: as in `send`.
        let memory = unsafe { WriteMem::new(buffer.as_mut_ptr(), buffer.len()) };
        let id = comm.shared().irecv(selector, memory, true)?;
        Ok(OwnedRequest {
            shared: Arc::clone(comm.shared()),
            id,
            buffer: Some(buffer),
        })
    }

    pub(crate) fn recv_taken(
        comm: &Comm,
        mut buffer: Vec<u8>,
        taken: u64,
    ) -> Result<OwnedRequest, Error> {
        // SAFETY: as in `send`.
        let memory = unsafe { WriteMem::new(buffer.as_mut_ptr(), buffer.len()) };
        let id = comm
            .shared()
            .irecv_taken(comm.context(), taken, memory, true)?;
        Ok(OwnedRequest {
            shared: Arc::clone(comm.shared()),
            id,
            buffer: Some(buffer),
        })
    }

    /// Waits until the request is over. Returns the result and the buffer.
    pub fn wait(mut self) -> (Result<Status, Error>, Vec<u8>) {
        let result = self.shared.wait(self.id);
        (result, self.buffer.take().unwrap_or_default())
    }

    /// Returns true if the request is over; [`wait`](OwnedRequest::wait) then returns at once.
    ///
    /// # Errors
    /// `AlreadyWaited`, `FreedRequest` if its id was given to calls of [`P2p`](crate::P2p).
    pub fn is_over(&self) -> Result<bool, Error> {
        self.shared.is_over(self.id)
    }

    /// Cancels the request, see [`P2p::cancel`](crate::P2p::cancel).
    ///
    /// # Errors
    /// As [`is_over`](OwnedRequest::is_over).
    pub fn cancel(&self) -> Result<bool, Error> {
        self.shared.cancel(self.id)
    }
}

impl Drop for OwnedRequest {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.shared.abandon(self.id, buffer);
        }
    }
}
