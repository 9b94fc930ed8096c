//! Posts receives, and handles operations that the layer refuses.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use p2p::{Completion, Context, Ended};

use crate::core::{Core, lock};
use crate::ffi::*;
use crate::operations::{Kind, Multi, Operation};

/// An operation that the layer has refused, and its failure.
type Refused = (Operation, Completion);

impl Core {
    /// Posts a multi-receive buffer.
    pub(crate) fn post_multi(&self, multi: &Arc<Multi>) -> Result<(), c_int> {
        {
            let mut multis = lock(&self.multis);
            multis.retain(|one| one.strong_count() != 0);
            multis.push(Arc::downgrade(multi));
        }
        let refused = self.post_rest(multi)?;
        self.finish_refused(refused);
        Ok(())
    }

    /// Posts a receive into the unused part of a multi-receive buffer.
    pub(crate) fn post_rest(&self, multi: &Arc<Multi>) -> Result<Option<Refused>, c_int> {
        let used = multi.used.load(Ordering::Relaxed);
        let (at, room) = (multi.start + used, multi.length - used);
        let mut operation = Operation::new(multi.context, FI_RECV | FI_MSG, multi.wanted);
        operation.kind = Kind::Multi(Arc::clone(multi));
        (operation.buffer, operation.room) = (at, room);
        self.try_post(operation, (at, room), &multi.pattern)
    }

    /// Posts a receive. An error that belongs to the peer is reported as a completion.
    pub(crate) fn post(
        &self,
        operation: Operation,
        (at, room): (usize, usize),
        pattern: &p2p::Pattern,
    ) -> Result<(), c_int> {
        let refused = self.try_post(operation, (at, room), pattern)?;
        self.finish_refused(refused);
        Ok(())
    }

    /// Posts a receive. Returns it with its failure if its peer has failed.
    fn try_post(
        &self,
        operation: Operation,
        (at, room): (usize, usize),
        pattern: &p2p::Pattern,
    ) -> Result<Option<Refused>, c_int> {
        let layer = self.layer()?;
        let number = self.begin(operation)?;
        let at = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the program lends the memory until the completion is reported, see libfabric.
        match unsafe { layer.recv(at, room, pattern, number) } {
            Ok(request) => {
                self.note(number, request);
                self.started();
                Ok(None)
            }
            Err(error) => self.refused(number, &error).map(Some),
        }
    }

    /// Reports an operation that the layer has refused.
    pub(crate) fn failed_at_once(&self, number: u64, error: &p2p::Error) -> Result<(), c_int> {
        let refused = self.refused(number, error)?;
        self.finish_refused(Some(refused));
        Ok(())
    }

    /// Takes back an operation that the layer has refused. Returns it, to be reported, if its peer
    /// has failed.
    fn refused(&self, number: u64, error: &p2p::Error) -> Result<Refused, c_int> {
        let mut operation = lock(&self.operations).take(number).ok_or(-EIO)?;
        if let Kind::Multi(_) = operation.kind {
            operation.flags |= FI_MULTI_RECV;
        }
        if !matches!(error, p2p::Error::PeerFailed { .. }) {
            return Err(-EINVAL);
        }
        let completion = Completion {
            cookie: number,
            ended: Ended::Sent,
            peer: None,
            context: Context::ALL[0],
            tag: 0,
            data: None,
            length: 0,
            result: Err(error.clone()),
        };
        Ok((operation, completion))
    }

    pub(crate) fn finish_refused(&self, refused: Option<Refused>) {
        if let Some((operation, completion)) = refused {
            self.finish(&operation, &completion);
            self.wake_readers(operation.flags & FI_RECV != 0);
        }
    }
}
