//! `fi_read` and `fi_write`, as C sees them.

use std::ffi::{c_int, c_void};

use crate::endpoint::{EndpointObject, endpoint};
use crate::ffi::*;
use crate::messages::{context, one};
use crate::object::{Table, long};
use crate::remote::Access;
use crate::transfer::{parts, total};

pub(crate) static RMA_OPS: Table<9> = Table::new([
    read as _,
    readv as _,
    readmsg as _,
    write as _,
    writev as _,
    writemsg as _,
    inject as _,
    writedata as _,
    injectdata as _,
]);

/// Local memory, as the calls pass it.
#[derive(Clone, Copy)]
enum Local {
    One(*const c_void, usize),
    Many(*const libc::iovec, usize),
}

/// Arguments of a call.
struct Call {
    local: Local,
    /// Peer, address and key.
    to: (u64, u64, u64),
    data: Option<u64>,
    context: usize,
    /// `None`: those of the endpoint.
    flags: Option<u64>,
    silent: bool,
}

impl Call {
    fn new(local: Local, to: (u64, u64, u64), ctx: *mut c_void) -> Call {
        Call {
            local,
            to,
            data: None,
            context: context(ctx),
            flags: None,
            silent: false,
        }
    }

    /// A write without a completion.
    fn injected(local: Local, to: (u64, u64, u64), data: Option<u64>) -> Call {
        Call {
            data,
            flags: Some(0),
            silent: true,
            ..Call::new(local, to, std::ptr::null_mut())
        }
    }
}

/// # Safety
/// `ep` is as `object::body` says; local memory and parts are valid, and lent until the completion.
unsafe fn start(
    ep: *mut c_void,
    call: &Call,
    run: impl FnOnce(&EndpointObject, &Access<'_>) -> Result<isize, c_int>,
) -> isize {
    // SAFETY: the caller promises it.
    let found = unsafe { endpoint(ep) };
    long(found.and_then(|found| {
        let single;
        let parts = match call.local {
            Local::One(at, length) => {
                single = [one(at, length)];
                &single[..]
            }
            // SAFETY: the caller promises it.
            Local::Many(at, count) => unsafe { parts(at, count)? },
        };
        let access = Access {
            parts,
            to: call.to.0,
            address: call.to.1,
            key: call.to.2,
            data: call.data,
            context: call.context,
            flags: call.flags.unwrap_or(found.tx_flags),
            silent: call.silent,
        };
        run(found, &access)
    }))
}

/// # Safety
/// As [`start`].
unsafe fn start_read(ep: *mut c_void, call: &Call) -> isize {
    // SAFETY: the caller promises it.
    unsafe { start(ep, call, |found, access| found.core.read(access)) }
}

/// # Safety
/// As [`start`].
unsafe fn start_write(ep: *mut c_void, call: &Call) -> isize {
    // SAFETY: the caller promises it.
    unsafe { start(ep, call, |found, access| found.core.write(access)) }
}

/// Returns the arguments of a message of C, whose remote memory must be one part as long as the
/// local ones.
///
/// # Safety
/// Null, or the program's message with its parts.
unsafe fn of_message(msg: *const MsgRma, flags: u64) -> Result<Call, c_int> {
    // SAFETY: the caller promises it.
    let msg = unsafe { msg.as_ref() }.ok_or(-EINVAL)?;
    if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
        return Err(-EINVAL);
    }
    // SAFETY: one part, as the program says.
    let (remote, parts) = unsafe { (&*msg.rma_iov, parts(msg.iov, msg.iov_count)?) };
    if total(parts)? != remote.length {
        return Err(-EINVAL);
    }
    Ok(Call {
        data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data),
        flags: Some(flags),
        ..Call::new(
            Local::Many(msg.iov, msg.iov_count),
            (msg.addr, remote.address, remote.key),
            msg.context,
        )
    })
}

unsafe extern "C" fn read(
    ep: *mut c_void,
    at: *mut c_void,
    length: usize,
    _desc: *mut c_void,
    from: u64,
    address: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    let call = Call::new(Local::One(at, length), (from, address, key), ctx);
    // SAFETY: what the program passes.
    unsafe { start_read(ep, &call) }
}

unsafe extern "C" fn readv(
    ep: *mut c_void,
    at: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: u64,
    address: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    let call = Call::new(Local::Many(at, count), (from, address, key), ctx);
    // SAFETY: what the program passes.
    unsafe { start_read(ep, &call) }
}

unsafe extern "C" fn readmsg(ep: *mut c_void, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: what the program passes.
    unsafe {
        match of_message(msg, flags) {
            Ok(call) => start_read(ep, &Call { data: None, ..call }),
            Err(code) => code as isize,
        }
    }
}

unsafe extern "C" fn write(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    _desc: *mut c_void,
    to: u64,
    address: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    let call = Call::new(Local::One(at, length), (to, address, key), ctx);
    // SAFETY: what the program passes.
    unsafe { start_write(ep, &call) }
}

unsafe extern "C" fn writev(
    ep: *mut c_void,
    at: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    let call = Call::new(Local::Many(at, count), (to, address, key), ctx);
    // SAFETY: what the program passes.
    unsafe { start_write(ep, &call) }
}

unsafe extern "C" fn writemsg(ep: *mut c_void, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: what the program passes.
    unsafe {
        match of_message(msg, flags) {
            Ok(call) => start_write(ep, &call),
            Err(code) => code as isize,
        }
    }
}

unsafe extern "C" fn inject(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    to: u64,
    address: u64,
    key: u64,
) -> isize {
    let call = Call::injected(Local::One(at, length), (to, address, key), None);
    // SAFETY: what the program passes.
    unsafe { start_write(ep, &call) }
}

unsafe extern "C" fn writedata(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    address: u64,
    key: u64,
    ctx: *mut c_void,
) -> isize {
    let call = Call {
        data: Some(data),
        ..Call::new(Local::One(at, length), (to, address, key), ctx)
    };
    // SAFETY: what the program passes.
    unsafe { start_write(ep, &call) }
}

unsafe extern "C" fn injectdata(
    ep: *mut c_void,
    at: *const c_void,
    length: usize,
    data: u64,
    to: u64,
    address: u64,
    key: u64,
) -> isize {
    let call = Call::injected(Local::One(at, length), (to, address, key), Some(data));
    // SAFETY: what the program passes.
    unsafe { start_write(ep, &call) }
}
