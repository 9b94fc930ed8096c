//! Sends and receives: converts arguments from C to requests of the layer.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use p2p::{Context, Pattern, Sent, Target};

use crate::core::{Core, lock};
use crate::ffi::*;
use crate::operations::{Kind, Multi, Operation};
use crate::queue::Entry;

/// Maximum length of an injected message, in bytes.
pub(crate) const INJECT: usize = 16 << 10;
/// Maximum number of parts of a message.
pub(crate) const PARTS: usize = 8;
/// Maximum length of a message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1 << 40;
/// Maximum length of a message that is gathered or scattered by a copy.
const GATHERED: usize = 1 << 30;

/// Spaces of tags: of tagged messages, and of messages without tags.
pub(crate) const TAGGED: Context = Context::ALL[0];
pub(crate) const UNTAGGED: Context = Context::ALL[1];

/// Arguments of a send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) parts: &'a [libc::iovec],
    pub(crate) to: u64,
    pub(crate) space: Context,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    pub(crate) flags: u64,
    /// The send has no completion, even without `FI_SELECTIVE_COMPLETION`.
    pub(crate) silent: bool,
}

/// Arguments of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) parts: &'a [libc::iovec],
    pub(crate) from: u64,
    pub(crate) space: Context,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) context: usize,
    pub(crate) flags: u64,
}

/// Returns the parts that C passes.
///
/// # Safety
/// `at` must be valid for reads of `count` parts during the call from C.
pub(crate) unsafe fn parts<'a>(
    at: *const libc::iovec,
    count: usize,
) -> Result<&'a [libc::iovec], c_int> {
    match count {
        0 => Ok(&[]),
        _ if at.is_null() || count > PARTS => Err(-EINVAL),
        // SAFETY: the caller promises it.
        _ => Ok(unsafe { std::slice::from_raw_parts(at, count) }),
    }
}

pub(crate) fn total(parts: &[libc::iovec]) -> Result<usize, c_int> {
    let sum = |sum: usize, part: &libc::iovec| sum.checked_add(part.iov_len);
    let total = parts.iter().try_fold(0, sum);
    total.filter(|total| *total <= MAX_MESSAGE).ok_or(-EMSGSIZE)
}

/// Copies the bytes of a send.
pub(crate) fn gather(parts: &[libc::iovec], length: usize) -> Result<Vec<u8>, c_int> {
    let mut bytes = Vec::new();
    if length > GATHERED {
        return Err(-EMSGSIZE);
    }
    bytes.try_reserve_exact(length).map_err(|_| -ENOMEM)?;
    for part in parts.iter().filter(|part| part.iov_len != 0) {
        // SAFETY: the program passes readable parts.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len)
        });
    }
    Ok(bytes)
}

/// Copies a message into the parts of a receive.
pub(crate) fn scatter(parts: &[(usize, usize)], bytes: &[u8], length: usize) {
    let mut rest = bytes.get(..length).unwrap_or(bytes);
    for &(at, room) in parts {
        let (now, later) = rest.split_at(room.min(rest.len()));
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(at);
        if !now.is_empty() {
            // SAFETY: the program lends the parts until the completion, which follows.
            unsafe { shmem::copy_bytes(now.as_ptr(), at, now.len()) };
        }
        rest = later;
    }
}

fn of_space(space: Context) -> u64 {
    if space == TAGGED { FI_TAGGED } else { FI_MSG }
}

impl Core {
    /// Sends a message of the program.
    #[inline]
    pub(crate) fn send(&self, send: &Outgoing<'_>) -> Result<isize, c_int> {
        let (layer, length) = (self.layer()?, total(send.parts)?);
        let bound = self.bound.get().ok_or(-FI_EOPBADSTATE)?;
        let wanted = !send.silent && (!bound.tx_selective || send.flags & FI_COMPLETION != 0);
        if bound.tx.as_ref().is_some_and(|queue| queue.is_full()) {
            return Err(-EAGAIN);
        }
        let target = Target {
            peer: self.peer(send.to)?,
            context: send.space,
            tag: send.tag,
            data: send.data,
            sync: send.flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) != 0,
        };
        self.pass_fence(send.flags, target.peer)?;
        let flags = FI_SEND | of_space(send.space);
        if let [part] = send.parts
            && part.iov_len != 0
        {
            // SAFETY: the program passes readable memory, which is used in this call.
            let body = unsafe { std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) };
            if layer.try_send(body, &target) {
                self.sent(send.context, flags, wanted);
                return Ok(0);
            }
        } else if length == 0 && layer.try_send(&[], &target) {
            self.sent(send.context, flags, wanted);
            return Ok(0);
        }
        let mut operation = Operation::to(target.peer, send.context, flags, wanted);
        let inject = send.silent || send.flags & FI_INJECT != 0;
        if inject && length > INJECT {
            return Err(-EMSGSIZE);
        }
        if inject || send.parts.len() > 1 {
            operation.owned = Some(gather(send.parts, length)?);
        }
        let at = match (&operation.owned, send.parts) {
            (Some(owned), _) => owned.as_ptr(),
            (None, [part]) => part.iov_base.cast_const().cast(),
            (None, _) => std::ptr::null(),
        };
        self.submit(operation, (at, length), &target)
    }

    /// Starts a send from memory that the operation owns or the program lends.
    pub(crate) fn submit(
        &self,
        operation: Operation,
        (at, length): (*const u8, usize),
        target: &Target,
    ) -> Result<isize, c_int> {
        let layer = self.layer()?;
        let number = self.begin(operation)?;
        // SAFETY: owned by the operation, or lent by the program, until the completion.
        match unsafe { layer.send(at, length, target, number) } {
            Ok(Sent::Complete) => {
                // The lock ends here: threads that are woken take it after the layer's.
                let operation = lock(&self.operations).take(number);
                if let Some(operation) = operation {
                    self.sent(operation.context, operation.flags, operation.wanted);
                }
            }
            Ok(Sent::Pending(_)) => self.started(),
            Err(error) => self.failed_at_once(number, &error)?,
        }
        Ok(0)
    }

    /// Reports a send that completed at once.
    #[inline]
    fn sent(&self, context: usize, flags: u64, wanted: bool) {
        let entry = Entry {
            context,
            flags,
            ..Entry::EMPTY
        };
        self.report(entry, wanted, None);
        self.wake_readers(false);
    }

    /// Receives a message of the program.
    pub(crate) fn receive(&self, receive: &Incoming<'_>) -> Result<isize, c_int> {
        let (length, flags) = (total(receive.parts)?, FI_RECV | of_space(receive.space));
        let bound = self.bound.get().ok_or(-FI_EOPBADSTATE)?;
        let wanted = !bound.rx_selective || receive.flags & FI_COMPLETION != 0;
        let named = self.directed && receive.from != FI_ADDR_UNSPEC;
        let pattern = Pattern {
            peer: named.then(|| self.peer(receive.from)).transpose()?,
            context: receive.space,
            tag: receive.tag,
            ignore: receive.ignore,
        };
        if receive.flags & (FI_PEEK | FI_CLAIM) != 0 {
            return self.peek_or_claim(receive, &pattern, wanted);
        }
        if receive.flags & FI_MULTI_RECV != 0 {
            let ([part], UNTAGGED) = (receive.parts, receive.space) else {
                return Err(-EINVAL);
            };
            let multi = Arc::new(Multi {
                start: part.iov_base.expose_provenance(),
                length,
                used: AtomicUsize::new(0),
                pattern,
                context: receive.context,
                wanted,
                cancelled: AtomicBool::new(false),
            });
            return self.post_multi(&multi).map(|()| 0);
        }
        let operation = Operation::new(receive.context, flags, wanted);
        let (operation, at) = with_parts(operation, receive.parts, length)?;
        self.post(operation, (at, length), &pattern).map(|()| 0)
    }

    /// Checks for a message, or receives one that an earlier check has claimed.
    fn peek_or_claim(
        &self,
        receive: &Incoming<'_>,
        pattern: &Pattern,
        wanted: bool,
    ) -> Result<isize, c_int> {
        let layer = self.layer()?;
        let flags = FI_RECV | of_space(receive.space);
        let (claims, discards) = (
            receive.flags & FI_CLAIM != 0,
            receive.flags & FI_DISCARD != 0,
        );
        if receive.flags & FI_PEEK == 0 {
            let claim = lock(&self.claims).remove(&receive.context).ok_or(-EINVAL)?;
            if discards {
                layer.discard(claim);
                let entry = found(receive, flags, None, FI_ADDR_UNSPEC);
                self.report(entry, wanted, None);
                self.wake_readers(true);
                return Ok(0);
            }
            let started = self.receive_claimed(receive, claim, wanted);
            if started.is_err() {
                // The program may try again.
                lock(&self.claims).insert(receive.context, claim);
            }
            return started.map(|()| 0);
        }
        let arrived = match layer.peek(pattern, claims || discards) {
            Ok(arrived) => arrived,
            // No message will come from this peer.
            Err(p2p::Error::PeerFailed { .. }) => None,
            Err(_) => return Err(-EINVAL),
        };
        let source = arrived.map_or(FI_ADDR_UNSPEC, |arrived| self.address(arrived.peer));
        let entry = found(receive, flags, arrived, source);
        match arrived {
            Some(arrived) if discards => layer.discard(arrived.claim),
            Some(arrived) if claims => {
                lock(&self.claims).insert(receive.context, arrived.claim);
            }
            _ => {}
        }
        self.report(entry, true, None);
        self.wake_readers(true);
        Ok(0)
    }

    /// Receives a message that was claimed.
    fn receive_claimed(
        &self,
        receive: &Incoming<'_>,
        claim: u64,
        wanted: bool,
    ) -> Result<(), c_int> {
        let (layer, length) = (self.layer()?, total(receive.parts)?);
        let flags = FI_RECV | of_space(receive.space);
        let operation = Operation::new(receive.context, flags, wanted);
        let (operation, at) = with_parts(operation, receive.parts, length)?;
        let number = self.begin(operation)?;
        let at = std::ptr::with_exposed_provenance_mut(at);
        let claim = (receive.space, claim);
        // SAFETY: the program lends the memory until the completion.
        match unsafe { layer.recv_claimed(at, length, claim, number) } {
            Ok(request) => {
                self.note(number, request);
                self.started();
                Ok(())
            }
            Err(error) => self.failed_at_once(number, &error),
        }
    }
}

/// Returns the completion of a peek.
fn found(receive: &Incoming<'_>, flags: u64, arrived: Option<p2p::Arrived>, source: u64) -> Entry {
    let data = arrived.and_then(|arrived| arrived.data);
    let peeked = receive.flags & FI_PEEK != 0;
    Entry {
        context: receive.context,
        flags: flags | if data.is_some() { FI_REMOTE_CQ_DATA } else { 0 },
        length: arrived.map_or(0, |arrived| arrived.length),
        buffer: 0,
        data: data.unwrap_or(0),
        tag: arrived.map_or(receive.tag, |arrived| arrived.tag),
        source,
        error: if arrived.is_none() && peeked {
            ENOMSG
        } else {
            0
        },
        text: 0,
        excess: 0,
    }
}

/// Sets the memory of a receive or read: a buffer of the operation if there are several parts.
pub(crate) fn with_parts(
    mut operation: Operation,
    parts: &[libc::iovec],
    length: usize,
) -> Result<(Operation, usize), c_int> {
    operation.room = length;
    let at = match parts {
        [] => 0,
        [part] => part.iov_base.expose_provenance(),
        _ if length > GATHERED => return Err(-EMSGSIZE),
        _ => {
            let mut owned = Vec::new();
            owned.try_reserve_exact(length).map_err(|_| -ENOMEM)?;
            owned.resize(length, 0);
            let at = owned.as_mut_ptr().expose_provenance();
            let part = |part: &libc::iovec| (part.iov_base.expose_provenance(), part.iov_len);
            operation.scatter = parts.iter().map(part).collect();
            operation.owned = Some(owned);
            at
        }
    };
    operation.buffer = parts
        .first()
        .map_or(0, |part| part.iov_base.expose_provenance());
    operation.kind = Kind::Plain;
    Ok((operation, at))
}

/// Sets the minimum room that a multi-receive buffer needs to receive another message.
pub(crate) fn set_minimum(core: &Core, minimum: usize) {
    core.minimum.store(minimum, Ordering::Relaxed);
}
