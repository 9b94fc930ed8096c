//! C interface of `fi_send`, `fi_recv` and their tagged variants.

use std::ffi::{c_int, c_void};

use crate::endpoint::endpoint;
use crate::ffi::*;
use crate::object::{Table, long};
use crate::transfer::{Incoming, Outgoing, TAGGED, UNTAGGED, parts};

pub(crate) fn one(at: *const c_void, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: at.cast_mut(),
        iov_len: length,
    }
}

pub(crate) fn context(at: *mut c_void) -> usize {
    at.expose_provenance()
}

/// Local memory, in the forms in which calls pass it.
#[derive(Clone, Copy)]
pub(crate) enum Local {
    One(*const c_void, usize),
    Many(*const libc::iovec, usize),
}

impl Local {
    /// Passes the parts to `f`.
    ///
    /// # Safety
    /// A list must have as many valid parts as its length says.
    #[inline]
    pub(crate) unsafe fn with<R>(
        self,
        f: impl FnOnce(&[libc::iovec]) -> Result<R, c_int>,
    ) -> Result<R, c_int> {
        match self {
            Local::One(at, length) => f(&[one(at, length)]),
            // SAFETY: the caller promises it.
            Local::Many(at, count) => f(unsafe { parts(at, count)? }),
        }
    }
}

/// Arguments of a send that differ between the calls.
struct Send {
    local: Local,
    to: u64,
    tag: Option<u64>,
    data: Option<u64>,
    context: usize,
    /// `None`: those of the endpoint.
    flags: Option<u64>,
    silent: bool,
}

impl Send {
    fn new(local: Local, to: u64, tag: Option<u64>, ctx: *mut c_void) -> Send {
        Send {
            local,
            to,
            tag,
            data: None,
            context: context(ctx),
            flags: None,
            silent: false,
        }
    }

    /// Returns a send without a completion: the program may reuse the memory at once.
    fn injected(local: Local, to: u64, tag: Option<u64>, data: Option<u64>) -> Send {
        Send {
            data,
            flags: Some(0),
            silent: true,
            ..Send::new(local, to, tag, std::ptr::null_mut())
        }
    }

    /// Returns a send with the flags and the number of a message of C.
    fn with(self, flags: u64, data: u64) -> Send {
        Send {
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(data),
            flags: Some(flags),
            ..self
        }
    }
}

/// # Safety
/// `ep` must meet the conditions of `object::body`; the memory must be valid for reads until the
/// completion.
#[inline]
unsafe fn start_send(ep: *mut c_void, send: &Send) -> isize {
    // SAFETY: the caller promises it.
    let found = unsafe { endpoint(ep) };
    long(found.and_then(|found| {
        let start = |parts: &[libc::iovec]| {
            found.core.send(&Outgoing {
                parts,
                to: send.to,
                space: if send.tag.is_some() { TAGGED } else { UNTAGGED },
                tag: send.tag.unwrap_or(0),
                data: send.data,
                context: send.context,
                flags: send.flags.unwrap_or(found.tx_flags),
                silent: send.silent,
            })
        };
        // SAFETY: the caller promises it.
        unsafe { send.local.with(start) }
    }))
}

/// # Safety
/// `ep` must meet the conditions of `object::body`; the memory must be valid for writes until the
/// completion.
#[inline]
unsafe fn start_receive(
    ep: *mut c_void,
    local: Local,
    (from, tag): (u64, Option<(u64, u64)>),
    (context, flags): (usize, Option<u64>),
) -> isize {
    // SAFETY: the caller promises it.
    let found = unsafe { endpoint(ep) };
    long(found.and_then(|found| {
        let (tag_bits, ignore) = tag.unwrap_or((0, u64::MAX));
        // The endpoint's flag applies only to messages without tags.
        let not_tagged = if tag.is_some() { FI_MULTI_RECV } else { 0 };
        let own_flags = found.rx_flags & !not_tagged;
        let start = |parts: &[libc::iovec]| {
            found.core.receive(&Incoming {
                parts,
                from,
                space: if tag.is_some() { TAGGED } else { UNTAGGED },
                tag: tag_bits,
                ignore,
                context,
                flags: flags.unwrap_or(own_flags),
            })
        };
        // SAFETY: the caller promises it.
        unsafe { local.with(start) }
    }))
}

/// Defines a table of calls, with or without the arguments `tag` and `ignore`.
macro_rules! table {
    ($table:ident, $message:ty $(, $tag:ident, $ignore:ident)?) => {
        pub(crate) static $table: Table<9> = {
            // SAFETY, for all calls: they pass on the program's arguments.
            unsafe extern "C" fn recv(
                ep: *mut c_void,
                at: *mut c_void,
                length: usize,
                _desc: *mut c_void,
                from: u64,
                $($tag: u64, $ignore: u64,)?
                ctx: *mut c_void,
            ) -> isize {
                let what = (from, None $(.or(Some(($tag, $ignore))))?);
                let local = Local::One(at, length);
                // SAFETY: see above.
                unsafe { start_receive(ep, local, what, (context(ctx), None)) }
            }

            unsafe extern "C" fn recvv(
                ep: *mut c_void,
                at: *const libc::iovec,
                _desc: *mut *mut c_void,
                count: usize,
                from: u64,
                $($tag: u64, $ignore: u64,)?
                ctx: *mut c_void,
            ) -> isize {
                let what = (from, None $(.or(Some(($tag, $ignore))))?);
                let local = Local::Many(at, count);
                // SAFETY: see above.
                unsafe { start_receive(ep, local, what, (context(ctx), None)) }
            }

            unsafe extern "C" fn recvmsg(
                ep: *mut c_void,
                msg: *const $message,
                flags: u64,
            ) -> isize {
                // SAFETY: null, or the program's message.
                let Some(msg) = (unsafe { msg.as_ref() }) else {
                    return -(EINVAL as isize);
                };
                let what = (msg.addr, None $(.or(Some((msg.$tag, msg.$ignore))))?);
                let local = Local::Many(msg.iov, msg.iov_count);
                // SAFETY: see above.
                unsafe { start_receive(ep, local, what, (context(msg.context), Some(flags))) }
            }

            unsafe extern "C" fn send(
                ep: *mut c_void,
                at: *const c_void,
                length: usize,
                _desc: *mut c_void,
                to: u64,
                $($tag: u64,)?
                ctx: *mut c_void,
            ) -> isize {
                let send = Send::new(Local::One(at, length), to, None $(.or(Some($tag)))?, ctx);
                // SAFETY: see above.
                unsafe { start_send(ep, &send) }
            }

            unsafe extern "C" fn sendv(
                ep: *mut c_void,
                at: *const libc::iovec,
                _desc: *mut *mut c_void,
                count: usize,
                to: u64,
                $($tag: u64,)?
                ctx: *mut c_void,
            ) -> isize {
                let send = Send::new(Local::Many(at, count), to, None $(.or(Some($tag)))?, ctx);
                // SAFETY: see above.
                unsafe { start_send(ep, &send) }
            }

            unsafe extern "C" fn sendmsg(
                ep: *mut c_void,
                msg: *const $message,
                flags: u64,
            ) -> isize {
                // SAFETY: null, or the program's message.
                let Some(msg) = (unsafe { msg.as_ref() }) else {
                    return -(EINVAL as isize);
                };
                let local = Local::Many(msg.iov, msg.iov_count);
                let send = Send::new(local, msg.addr, None $(.or(Some(msg.$tag)))?, msg.context);
                // SAFETY: see above.
                unsafe { start_send(ep, &send.with(flags, msg.data)) }
            }

            unsafe extern "C" fn inject(
                ep: *mut c_void,
                at: *const c_void,
                length: usize,
                to: u64,
                $($tag: u64,)?
            ) -> isize {
                let tag = None $(.or(Some($tag)))?;
                // SAFETY: see above.
                unsafe { start_send(ep, &Send::injected(Local::One(at, length), to, tag, None)) }
            }

            unsafe extern "C" fn senddata(
                ep: *mut c_void,
                at: *const c_void,
                length: usize,
                _desc: *mut c_void,
                data: u64,
                to: u64,
                $($tag: u64,)?
                ctx: *mut c_void,
            ) -> isize {
                let send = Send::new(Local::One(at, length), to, None $(.or(Some($tag)))?, ctx);
                let data = Some(data);
                // SAFETY: see above.
                unsafe { start_send(ep, &Send { data, ..send }) }
            }

            unsafe extern "C" fn injectdata(
                ep: *mut c_void,
                at: *const c_void,
                length: usize,
                data: u64,
                to: u64,
                $($tag: u64,)?
            ) -> isize {
                let (tag, data) = (None $(.or(Some($tag)))?, Some(data));
                // SAFETY: see above.
                unsafe { start_send(ep, &Send::injected(Local::One(at, length), to, tag, data)) }
            }

            Table::new([
                recv as _,
                recvv as _,
                recvmsg as _,
                send as _,
                sendv as _,
                sendmsg as _,
                inject as _,
                senddata as _,
                injectdata as _,
            ])
        };
    };
}

table!(MSG_OPS, Msg);
table!(TAGGED_OPS, MsgTagged, tag, ignore);
