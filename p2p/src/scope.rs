//! Non-blocking calls on borrowed buffers.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

use btl::Rank;

use crate::comm::Comm;
use crate::error::Error;
use crate::memory::Memory;
use crate::p2p::P2p;
use crate::types::{RequestId, Source, Status, Tag};

/// Sends and receives on borrowed buffers, see [`Comm::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    comm: &'scope Comm,
    /// Requests whose results were not returned.
    open: RefCell<Vec<RequestId>>,
    /// Invariant, as in the standard library: neither lifetime may be extended or shortened.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("open", &self.open.borrow().len())
            .finish_non_exhaustive()
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts to send a buffer.
    ///
    /// # Errors
    /// As [`Comm::send`].
    pub fn isend(
        &'scope self,
        buffer: &'scope [u8],
        dst: Rank,
        tag: i32,
    ) -> Result<Pending<'scope>, Error> {
        // SAFETY: borrowed for 'scope, which ends after `run` has seen the request's completion.
        let memory = unsafe { Memory::to_read(buffer.as_ptr(), buffer.len()) };
        let id = self.comm.isend_memory(memory, dst, tag, (false, true))?;
        Ok(self.pending(id))
    }

    /// Starts a synchronous send: it completes when a receive has matched the message.
    ///
    /// # Errors
    /// As [`Comm::send`].
    pub fn issend(
        &'scope self,
        buffer: &'scope [u8],
        dst: Rank,
        tag: i32,
    ) -> Result<Pending<'scope>, Error> {
        // SAFETY: as in `isend`.
        let memory = unsafe { Memory::to_read(buffer.as_ptr(), buffer.len()) };
        let id = self.comm.isend_memory(memory, dst, tag, (true, true))?;
        Ok(self.pending(id))
    }

    /// Starts to receive into a buffer.
    ///
    /// # Errors
    /// As [`Comm::recv`].
    pub fn irecv(
        &'scope self,
        buffer: &'scope mut [u8],
        src: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Pending<'scope>, Error> {
        // SAFETY: as in `isend`, and borrowed exclusively.
        let memory = unsafe { Memory::to_write(buffer.as_mut_ptr(), buffer.len()) };
        let id = self
            .comm
            .irecv_memory(memory, src.into(), tag.into(), true)?;
        Ok(self.pending(id))
    }

    /// Waits for all requests of this scope that were not waited for.
    ///
    /// # Errors
    /// The first error, in the order of starting. All requests are complete.
    pub fn waitall(&self) -> Result<(), Error> {
        finish(self.comm.layer(), &self.open)
    }

    fn pending(&'scope self, id: RequestId) -> Pending<'scope> {
        self.open.borrow_mut().push(id);
        Pending {
            layer: self.comm.layer(),
            open: &self.open,
            id,
        }
    }
}

/// Send or receive of a [`Scope`]. When dropped, the operation continues and the scope waits for
/// it.
#[derive(Debug)]
pub struct Pending<'scope> {
    layer: &'scope P2p,
    open: &'scope RefCell<Vec<RequestId>>,
    id: RequestId,
}

impl Pending<'_> {
    /// Waits until the request is complete.
    ///
    /// # Errors
    /// The error of the request; `UnknownRequest` after [`Scope::waitall`] or a successful
    /// [`test`](Pending::test).
    pub fn wait(self) -> Result<Status, Error> {
        let result = self.layer.wait(self.id);
        self.forget();
        result
    }

    /// Returns the result if the request is complete. The result is returned once.
    ///
    /// # Errors
    /// As [`wait`](Pending::wait).
    pub fn test(&self) -> Result<Option<Status>, Error> {
        let result = self.layer.test(self.id);
        if !matches!(result, Ok(None)) {
            self.forget();
        }
        result
    }

    /// Cancels the request, see [`P2p::cancel`].
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn cancel(&self) -> Result<bool, Error> {
        self.layer.cancel(self.id)
    }

    /// Returns the id, for calls of [`P2p`].
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    fn forget(&self) {
        self.open.borrow_mut().retain(|id| *id != self.id);
    }
}

/// Cancels or waits for open requests, even if the function panics.
struct Guard<'a> {
    layer: &'a P2p,
    open: &'a RefCell<Vec<RequestId>>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        for id in &*self.open.borrow() {
            // Fails for completed requests.
            let _ = self.layer.cancel(*id);
        }
        let _ = finish(self.layer, self.open);
    }
}

pub(crate) fn run<'env, R>(
    comm: &Comm,
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, Error>,
) -> Result<R, Error> {
    let scope = Scope {
        comm,
        open: RefCell::new(Vec::new()),
        scope: PhantomData,
        env: PhantomData,
    };
    let _guard = Guard {
        layer: comm.layer(),
        open: &scope.open,
    };
    let result = f(&scope)?;
    scope.waitall()?;
    Ok(result)
}

/// Waits for all requests and returns the first error. A request that was already waited for by its
/// id is not an error.
fn finish(layer: &P2p, open: &RefCell<Vec<RequestId>>) -> Result<(), Error> {
    let mut first = Ok(());
    for id in open.take() {
        let result = match layer.wait(id) {
            Ok(_) | Err(Error::UnknownRequest) => Ok(()),
            Err(error) => Err(error),
        };
        first = first.and(result);
    }
    first
}
