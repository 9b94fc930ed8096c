//! Accesses to the memory of an endpoint's peers.

use btl::Rank;

use crate::atomics::{AtomicOp, AtomicType};
use crate::endpoint::{Endpoint, peer};
use crate::engine::{Access, Request, VALUES};
use crate::error::Error;
use crate::memory::Memory;
use crate::regions::Place;
use crate::types::RequestId;
use crate::wire::Operation;

/// Maximum length of the values of an atomic operation, in bytes.
pub const MAX_ATOMIC: usize = VALUES;

/// Place in the memory of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Number of the peer.
    pub peer: Rank,
    /// Key of the region.
    pub key: u64,
    /// Address of the first byte, as numbered by the peer
    /// ([`Exposure::address`](crate::Exposure::address)).
    pub address: u64,
}

/// An atomic operation on values of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Atomic<'a> {
    /// Operation.
    pub op: AtomicOp,
    /// Type of the values.
    pub number: AtomicType,
    /// Length of the values, in bytes: at least one value, at most [`MAX_ATOMIC`].
    pub length: usize,
    /// Operands of all values, then the comparands.
    pub operands: &'a [u8],
}

impl Endpoint {
    /// Requests a report of each access of a peer to memory of this endpoint
    /// ([`Ended::Served`](crate::Ended::Served)). Those with a number, and those to regions of
    /// [`Regions::report`](crate::Regions::report), are reported without it.
    pub fn report_accesses(&self) {
        if let Some(open) = &mut self.shared.lock().protocol.open {
            open.reports_accesses = true;
        }
    }

    /// Starts to read from a peer's memory. Its completion is reported when the bytes are in local
    /// memory.
    ///
    /// # Safety
    /// `at` must be valid for writes of `length` bytes, and the bytes must not be accessed by
    /// others, until the completion is reported, this call returns an error, or the endpoint is
    /// closed.
    ///
    /// # Errors
    /// `InvalidRank`, `PeerFailed`, `Closed`. A refusal by the peer is reported as the result of
    /// the completion.
    pub unsafe fn read(
        &self,
        (at, length): (*mut u8, usize),
        from: &Remote,
        cookie: u64,
    ) -> Result<RequestId, Error> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Memory::to_write(at, length) };
        let what = (Operation::Read, None, Vec::new());
        self.access(memory, (from, length), what, cookie)
    }

    /// Starts to write to a peer's memory. Its completion is reported when the bytes are in the
    /// peer's memory. With `data`, the peer's endpoint reports the write and this number.
    ///
    /// # Safety
    /// `at` must be valid for reads of `length` bytes, and the bytes must not change, until the
    /// completion is reported, this call returns an error, or the endpoint is closed.
    ///
    /// # Errors
    /// As [`read`](Endpoint::read).
    pub unsafe fn write(
        &self,
        (at, length): (*const u8, usize),
        to: &Remote,
        data: Option<u64>,
        cookie: u64,
    ) -> Result<RequestId, Error> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Memory::to_read(at, length) };
        let what = (Operation::Write, data, Vec::new());
        self.access(memory, (to, length), what, cookie)
    }

    /// Starts an atomic operation. Its completion is reported when the operation is done and the
    /// previous values are at `result`, unless that is null. Operations of all endpoints that share
    /// [`Regions`](crate::Regions) are atomic with respect to each other.
    ///
    /// # Safety
    /// `result` must be null or valid for writes of `atomic.length` bytes, which must not be
    /// accessed by others, until the completion is reported, this call returns an error, or the
    /// endpoint is closed.
    ///
    /// # Errors
    /// As [`read`](Endpoint::read); `InvalidArgument` for lengths that do not fit.
    pub unsafe fn atomic(
        &self,
        atomic: &Atomic<'_>,
        result: *mut u8,
        to: &Remote,
        cookie: u64,
    ) -> Result<RequestId, Error> {
        let Atomic {
            op,
            number,
            length,
            operands,
        } = *atomic;
        let valid = (1..=MAX_ATOMIC).contains(&length)
            && length.is_multiple_of(number.size())
            && operands.len() == length * op.operands();
        if !valid {
            return Err(Error::InvalidArgument("lengths of an atomic operation"));
        }
        let fetch = !result.is_null();
        let memory = if fetch {
            // SAFETY: guaranteed by the caller.
            unsafe { Memory::to_write(result, length) }
        } else {
            // SAFETY: no bytes are read.
            unsafe { Memory::to_read(result, 0) }
        };
        let operation = Operation::Atomic { op, number, fetch };
        let what = (operation, None, operands.to_vec());
        self.access(memory, (to, length), what, cookie)
    }

    fn access(
        &self,
        memory: Memory,
        (remote, length): (&Remote, usize),
        (operation, data, operands): (Operation, Option<u64>, Vec<u8>),
        cookie: u64,
    ) -> Result<RequestId, Error> {
        let mut engine = self.shared.lock();
        let peer = peer(&engine, remote.peer)?;
        let access = Access {
            place: Place {
                key: remote.key,
                address: remote.address,
                length,
            },
            operation,
            data,
            operands,
            moved: 0,
        };
        let request = |access| Request {
            cookie: Some(cookie),
            ..Request::access(memory, peer, access)
        };
        let key = engine.submit_access(peer, request, access)?;
        Ok(RequestId(key))
    }
}
