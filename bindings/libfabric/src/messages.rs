//! `fi_send`, `fi_recv` and their tagged kind, as C sees them.

use std::ffi::c_void;

use crate::endpoint::endpoint;
use crate::ffi::*;
use crate::object::{Table, long};
use crate::transfer::{Incoming, Outgoing, TAGGED, UNTAGGED, parts};

pub(crate) static MSG_OPS: Table<9> = Table::new([
    recv as _,
    recvv as _,
    recvmsg as _,
    send as _,
    sendv as _,
    sendmsg as _,
    inject as _,
    senddata as _,
    injectdata as _,
]);
pub(crate) static TAGGED_OPS: Table<9> = Table::new([
    trecv as _,
    trecvv as _,
    trecvmsg as _,
    tsend as _,
    tsendv as _,
    tsendmsg as _,
    tinject as _,
    tsenddata as _,
    tinjectdata as _,
]);

pub(crate) fn one(at: *const c_void, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: at.cast_mut(),
        iov_len: length,
    }
}

pub(crate) fn context(at: *mut c_void) -> usize {
    at.expose_provenance()
}

/// How the arguments of a send differ between the calls.
struct Send {
    to: u64,
    tag: Option<u64>,
    data: Option<u64>,
    context: usize,
    /// `None`: those of the endpoint.
    flags: Option<u64>,
    silent: bool,
}

impl Send {
    fn new(to: u64, tag: Option<u64>, ctx: *mut c_void) -> Send {
        Send {
            to,
            tag,
            data: None,
            context: context(ctx),
            flags: None,
            silent: false,
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
/// `ep` is as `object::body` says; the parts are readable.
#[inline]
unsafe fn start_send(ep: *mut c_void, parts: &[libc::iovec], send: &Send) -> isize {
    // SAFETY: the caller promises it.
    let found = unsafe { endpoint(ep) };
    long(found.and_then(|found| {
        let flags = send.flags.unwrap_or(found.tx_flags);
        found.core.send(&Outgoing {
            parts,
            to: send.to,
            space: if send.tag.is_some() { TAGGED } else { UNTAGGED },
            tag: send.tag.unwrap_or(0),
            data: send.data,
            context: send.context,
            flags,
            silent: send.silent,
        })
    }))
}

/// # Safety
/// As [`start_send`]; `count` parts at `at` are valid.
unsafe fn start_send_of(
    ep: *mut c_void,
    (at, count): (*const libc::iovec, usize),
    send: &Send,
) -> isize {
    // SAFETY: the caller promises it.
    unsafe {
        match parts(at, count) {
            Ok(parts) => start_send(ep, parts, send),
            Err(code) => code as isize,
        }
    }
}

/// # Safety
/// As [`start_receive`]; `count` parts at `at` are valid.
unsafe fn start_receive_of(
    ep: *mut c_void,
    (at, count): (*const libc::iovec, usize),
    what: (u64, Option<(u64, u64)>),
    how: (usize, Option<u64>),
) -> isize {
    // SAFETY: the caller promises it.
    unsafe {
        match parts(at, count) {
            Ok(parts) => start_receive(ep, parts, what, how),
            Err(code) => code as isize,
        }
    }
}

/// # Safety
/// `ep` is as `object::body` says; the parts are lent until the completion.
#[inline]
unsafe fn start_receive(
    ep: *mut c_void,
    parts: &[libc::iovec],
    (from, tag): (u64, Option<(u64, u64)>),
    (context, flags): (usize, Option<u64>),
) -> isize {
    // SAFETY: the caller promises it.
    let found = unsafe { endpoint(ep) };
    long(found.and_then(|found| {
        let (tag_bits, ignore) = tag.unwrap_or((0, u64::MAX));
        // The flag of endpoints means only messages without tags.
        let not_tagged = if tag.is_some() { FI_MULTI_RECV } else { 0 };
        let own_flags = found.rx_flags & !not_tagged;
        found.core.receive(&Incoming {
            parts,
            from,
            space: if tag.is_some() { TAGGED } else { UNTAGGED },
            tag: tag_bits,
            ignore,
            context,
            flags: flags.unwrap_or(own_flags),
        })
    }))
}

unsafe extern "C" fn recv(
    ep: *mut c_void,
    at: *mut c_void,
    length: usize,
    _desc: *mut c_void,
    from: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: what the program passes.
    unsafe { start_receive(ep, &[one(at, length)], (from, None), (context(ctx), None)) }
}

unsafe extern "C" fn recvv(
    ep: *mut c_void,
    at: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: what the program passes.
    unsafe { start_receive_of(ep, (at, count), (from, None), (context(ctx), None)) }
}

unsafe extern "C" fn recvmsg(ep: *mut c_void, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: null, or the program's message.
    let Some(msg) = (unsafe { msg.as_ref() }) else {
        return -(EINVAL as isize);
    };
    let how = (context(msg.context), Some(flags));
    // SAFETY: what the program passes.
    unsafe { start_receive_of(ep, (msg.iov, msg.iov_count), (msg.addr, None), how) }
}

unsafe extern "C" fn send(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    _desc: *mut c_void,
    to: u64,
    ctx: *mut c_void,
) -> isize {
    let send = Send::new(to, None, ctx);
    // SAFETY: what the program passes.
    unsafe { start_send(ep, &[one(at, length)], &send) }
}

unsafe extern "C" fn sendv(
    ep: *mut c_void,
    at: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    ctx: *mut c_void,
) -> isize {
    let send = Send::new(to, None, ctx);
    // SAFETY: what the program passes.
    unsafe { start_send_of(ep, (at, count), &send) }
}

unsafe extern "C" fn sendmsg(ep: *mut c_void, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: null, or the program's message.
    let Some(msg) = (unsafe { msg.as_ref() }) else {
        return -(EINVAL as isize);
    };
    let send = Send::new(msg.addr, None, msg.context).with(flags, msg.data);
    // SAFETY: what the program passes.
    unsafe { start_send_of(ep, (msg.iov, msg.iov_count), &send) }
}

/// Sends without a completion; the memory is the program's again at once.
unsafe fn start_inject(
    ep: *mut c_void,
    (at, length): (*const c_void, usize),
    (to, tag, data): (u64, Option<u64>, Option<u64>),
) -> isize {
    let send = Send {
        data,
        flags: Some(0),
        silent: true,
        ..Send::new(to, tag, std::ptr::null_mut())
    };
    // SAFETY: what the program passes.
    unsafe { start_send(ep, &[one(at, length)], &send) }
}

unsafe extern "C" fn inject(ep: *mut c_void, at: *const c_void, length: usize, to: u64) -> isize {
    // SAFETY: what the program passes.
    unsafe { start_inject(ep, (at, length), (to, None, None)) }
}

unsafe extern "C" fn senddata(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    ctx: *mut c_void,
) -> isize {
    let send = Send {
        data: Some(data),
        ..Send::new(to, None, ctx)
    };
    // SAFETY: what the program passes.
    unsafe { start_send(ep, &[one(at, length)], &send) }
}

unsafe extern "C" fn injectdata(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    data: u64,
    to: u64,
) -> isize {
    // SAFETY: what the program passes.
    unsafe { start_inject(ep, (at, length), (to, None, Some(data))) }
}

unsafe extern "C" fn trecv(
    ep: *mut c_void,
    at: *mut c_void,
    length: usize,
    _desc: *mut c_void,
    from: u64,
    tag: u64,
    ignore: u64,
    ctx: *mut c_void,
) -> isize {
    let what = (from, Some((tag, ignore)));
    // SAFETY: what the program passes.
    unsafe { start_receive(ep, &[one(at, length)], what, (context(ctx), None)) }
}

unsafe extern "C" fn trecvv(
    ep: *mut c_void,
    at: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    ctx: *mut c_void,
) -> isize {
    let what = (from, Some((tag, ignore)));
    // SAFETY: what the program passes.
    unsafe { start_receive_of(ep, (at, count), what, (context(ctx), None)) }
}

unsafe extern "C" fn trecvmsg(ep: *mut c_void, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: null, or the program's message.
    let Some(msg) = (unsafe { msg.as_ref() }) else {
        return -(EINVAL as isize);
    };
    let what = (msg.addr, Some((msg.tag, msg.ignore)));
    let how = (context(msg.context), Some(flags));
    // SAFETY: what the program passes.
    unsafe { start_receive_of(ep, (msg.iov, msg.iov_count), what, how) }
}

unsafe extern "C" fn tsend(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    _desc: *mut c_void,
    to: u64,
    tag: u64,
    ctx: *mut c_void,
) -> isize {
    let send = Send::new(to, Some(tag), ctx);
    // SAFETY: what the program passes.
    unsafe { start_send(ep, &[one(at, length)], &send) }
}

unsafe extern "C" fn tsendv(
    ep: *mut c_void,
    at: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    tag: u64,
    ctx: *mut c_void,
) -> isize {
    let send = Send::new(to, Some(tag), ctx);
    // SAFETY: what the program passes.
    unsafe { start_send_of(ep, (at, count), &send) }
}

unsafe extern "C" fn tsendmsg(ep: *mut c_void, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: null, or the program's message.
    let Some(msg) = (unsafe { msg.as_ref() }) else {
        return -(EINVAL as isize);
    };
    let send = Send::new(msg.addr, Some(msg.tag), msg.context).with(flags, msg.data);
    // SAFETY: what the program passes.
    unsafe { start_send_of(ep, (msg.iov, msg.iov_count), &send) }
}

unsafe extern "C" fn tinject(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    to: u64,
    tag: u64,
) -> isize {
    // SAFETY: what the program passes.
    unsafe { start_inject(ep, (at, length), (to, Some(tag), None)) }
}

unsafe extern "C" fn tsenddata(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    tag: u64,
    ctx: *mut c_void,
) -> isize {
    let send = Send {
        data: Some(data),
        ..Send::new(to, Some(tag), ctx)
    };
    // SAFETY: what the program passes.
    unsafe { start_send(ep, &[one(at, length)], &send) }
}

unsafe extern "C" fn tinjectdata(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    // SAFETY: what the program passes.
    unsafe { start_inject(ep, (at, length), (to, Some(tag), Some(data))) }
}
