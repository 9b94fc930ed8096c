//! Accesses to memory of peers: converts arguments from C to requests of the layer.

use std::ffi::c_int;

use p2p::{Atomic, AtomicOp, AtomicType, Completion, Ended, MAX_ATOMIC, Remote, RequestId};

use crate::core::{Bound, Core};
use crate::ffi::*;
use crate::operations::Operation;
use crate::queue::Entry;
use crate::transfer::{INJECT, gather, total, with_parts};

/// Arguments common to all accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    /// Local memory.
    pub(crate) parts: &'a [libc::iovec],
    pub(crate) to: u64,
    pub(crate) address: u64,
    pub(crate) key: u64,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    pub(crate) flags: u64,
    /// The access has no completion, even without `FI_SELECTIVE_COMPLETION`.
    pub(crate) silent: bool,
}

/// Arguments of an atomic operation. The local memory contains the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicAccess<'a> {
    pub(crate) access: Access<'a>,
    pub(crate) op: AtomicOp,
    pub(crate) number: AtomicType,
    pub(crate) comparands: &'a [libc::iovec],
    /// Memory for the old values; `None` if they are not wanted.
    pub(crate) results: Option<&'a [libc::iovec]>,
    /// Number of values.
    pub(crate) count: usize,
}

impl Core {
    /// Checks the arguments common to all accesses.
    fn remote(&self, access: &Access<'_>) -> Result<(Remote, &Bound), c_int> {
        let bound = self.bound.get().ok_or(-FI_EOPBADSTATE)?;
        if bound.tx.as_ref().is_some_and(|queue| queue.is_full()) {
            return Err(-EAGAIN);
        }
        let remote = Remote {
            peer: self.peer(access.to)?,
            key: access.key,
            address: access.address,
        };
        self.pass_fence(access.flags, remote.peer)?;
        Ok((remote, bound))
    }

    fn is_wanted(access: &Access<'_>, bound: &Bound) -> bool {
        !access.silent && (!bound.tx_selective || access.flags & FI_COMPLETION != 0)
    }

    /// Reads from a peer's memory.
    pub(crate) fn read(&self, access: &Access<'_>) -> Result<isize, c_int> {
        let (layer, length) = (self.layer()?, total(access.parts)?);
        let (remote, bound) = self.remote(access)?;
        let wanted = Core::is_wanted(access, bound);
        let operation = Operation::to(remote.peer, access.context, FI_RMA | FI_READ, wanted);
        let (operation, at) = with_parts(operation, access.parts, length)?;
        let at = std::ptr::with_exposed_provenance_mut(at);
        let number = self.begin(operation)?;
        // SAFETY: owned by the operation, or lent by the program, until the completion.
        let started = unsafe { layer.read((at, length), &remote, number) };
        self.access_started(number, started)
    }

    /// Writes to a peer's memory.
    pub(crate) fn write(&self, access: &Access<'_>) -> Result<isize, c_int> {
        let (layer, length) = (self.layer()?, total(access.parts)?);
        let (remote, bound) = self.remote(access)?;
        let wanted = Core::is_wanted(access, bound);
        let mut operation = Operation::to(remote.peer, access.context, FI_RMA | FI_WRITE, wanted);
        let inject = access.silent || access.flags & FI_INJECT != 0;
        if inject && length > INJECT {
            return Err(-EMSGSIZE);
        }
        if inject || access.parts.len() > 1 {
            operation.owned = Some(gather(access.parts, length)?);
        }
        let at = match (&operation.owned, access.parts) {
            (Some(owned), _) => owned.as_ptr(),
            (None, [part]) => part.iov_base.cast_const().cast(),
            (None, _) => std::ptr::null(),
        };
        let number = self.begin(operation)?;
        // SAFETY: owned by the operation, or lent by the program, until the completion.
        let started = unsafe { layer.write((at, length), &remote, access.data, number) };
        self.access_started(number, started)
    }

    /// Changes values in a peer's memory.
    pub(crate) fn atomic(&self, atomic: &AtomicAccess<'_>) -> Result<isize, c_int> {
        let layer = self.layer()?;
        let (remote, bound) = self.remote(&atomic.access)?;
        let length = atomic.count.checked_mul(atomic.number.size());
        let length = length.filter(|length| (1..=MAX_ATOMIC).contains(length));
        let length = length.ok_or(-EINVAL)?;
        let lists = [atomic.access.parts, atomic.comparands];
        let mut operands = Vec::with_capacity(2 * length);
        for parts in lists.iter().take(atomic.op.operands()) {
            if total(parts)? != length {
                return Err(-EINVAL);
            }
            operands.extend(gather(parts, length)?);
        }
        let wanted = Core::is_wanted(&atomic.access, bound);
        let kind = match atomic.results {
            Some(_) => FI_READ,
            None => FI_WRITE,
        };
        let mut operation =
            Operation::to(remote.peer, atomic.access.context, FI_ATOMIC | kind, wanted);
        let mut result = 0;
        if let Some(results) = atomic.results {
            if total(results)? != length {
                return Err(-EINVAL);
            }
            (operation, result) = with_parts(operation, results, length)?;
        }
        let what = Atomic {
            op: atomic.op,
            number: atomic.number,
            length,
            operands: &operands,
        };
        let result = std::ptr::with_exposed_provenance_mut(result);
        let number = self.begin(operation)?;
        // SAFETY: null, owned by the operation, or lent by the program until the completion.
        let started = unsafe { layer.atomic(&what, result, &remote, number) };
        self.access_started(number, started)
    }

    fn access_started(
        &self,
        number: u64,
        started: Result<RequestId, p2p::Error>,
    ) -> Result<isize, c_int> {
        match started {
            Ok(_) => self.started(),
            Err(error) => self.failed_at_once(number, &error)?,
        }
        Ok(0)
    }

    /// Reports an access by a peer that was served: counts it, and adds the number that came with
    /// it, if any, to the queue.
    pub(crate) fn served(&self, completion: &Completion) {
        let Ended::Served {
            key,
            writes,
            atomic,
        } = completion.ended
        else {
            return;
        };
        let kind = if writes {
            FI_REMOTE_WRITE
        } else {
            FI_REMOTE_READ
        };
        self.regions.count(key, kind);
        let data = completion.data.map_or(0, |_| FI_REMOTE_CQ_DATA);
        let entry = Entry {
            flags: kind | data | if atomic { FI_ATOMIC } else { FI_RMA },
            length: completion.length,
            data: completion.data.unwrap_or(0),
            source: completion
                .peer
                .map_or(FI_ADDR_UNSPEC, |peer| self.address(peer)),
            ..Entry::EMPTY
        };
        self.report(entry, data != 0, None);
    }
}
