//! Requests that own their buffers.

use crate::error::Error;
use crate::p2p::P2p;
use crate::types::{RequestId, Status};

/// Send or receive that owns its buffer. When dropped, it is cancelled if possible; otherwise it
/// continues, and the buffer is freed on completion.
#[derive(Debug)]
pub struct OwnedRequest {
    layer: P2p,
    id: RequestId,
    /// `None` after the result was returned.
    buffer: Option<Vec<u8>>,
}

impl OwnedRequest {
    /// Keeps the buffer of a request until the request is complete: if this value is dropped
    /// before, the engine keeps the buffer; if it is leaked, the buffer is never freed.
    pub(crate) fn new(layer: &P2p, id: RequestId, buffer: Vec<u8>) -> OwnedRequest {
        OwnedRequest {
            layer: layer.clone(),
            id,
            buffer: Some(buffer),
        }
    }

    /// Waits until the request is complete. Returns the result and the buffer.
    pub fn wait(mut self) -> (Result<Status, Error>, Vec<u8>) {
        let result = self.layer.wait(self.id);
        (result, self.buffer.take().unwrap_or_default())
    }

    /// Returns true if the request is complete; [`wait`](OwnedRequest::wait) then returns at once.
    ///
    /// # Errors
    /// `UnknownRequest` after `wait`.
    pub fn is_complete(&self) -> Result<bool, Error> {
        self.layer.is_complete(self.id)
    }

    /// Cancels the request, see [`P2p::cancel`].
    ///
    /// # Errors
    /// As [`is_complete`](OwnedRequest::is_complete).
    pub fn cancel(&self) -> Result<bool, Error> {
        self.layer.cancel(self.id)
    }
}

impl Drop for OwnedRequest {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let mut engine = self.layer.shared.lock();
            if engine.cancel(self.id.0) == Ok(false)
                && engine.protocol.is_complete(self.id.0) == Ok(false)
            {
                engine.protocol.kept.push((self.id.0, buffer));
            }
            engine.protocol.detach(self.id.0);
        }
    }
}
