//! C interface of `fi_read` and `fi_write`.

use std::ffi::{c_int, c_void};

use crate::endpoint::{EndpointObject, endpoint};
use crate::ffi::*;
use crate::messages::{Local, context};
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

    /// Returns a write without a completion.
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
/// `ep` must meet the conditions of `object::body`. Parts must be valid, and local memory must stay
/// valid until the completion.
unsafe fn start(
    ep: *mut c_void,
    call: &Call,
    run: impl FnOnce(&EndpointObject, &Access<'_>) -> Result<isize, c_int>,
) -> isize {
    // SAFETY: the caller promises it.
    let found = unsafe { endpoint(ep) };
    long(found.and_then(|found| {
        let start = |parts: &[libc::iovec]| {
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
        };
        // SAFETY: the caller promises it.
        unsafe { call.local.with(start) }
    }))
}

/// # Safety
/// As for [`start`].
unsafe fn start_read(ep: *mut c_void, call: &Call) -> isize {
    // SAFETY: the caller promises it.
    unsafe { start(ep, call, |found, access| found.core.read(access)) }
}

/// # Safety
/// As for [`start`].
unsafe fn start_write(ep: *mut c_void, call: &Call) -> isize {
    // SAFETY: the caller promises it.
    unsafe { start(ep, call, |found, access| found.core.write(access)) }
}

/// Returns the arguments of a message of C, whose remote memory must be one part as long as the
/// local parts together.
///
/// # Safety
/// `msg` must be null or the program's message with valid parts.
unsafe fn of_message(msg: *const MsgRma, flags: u64) -> Result<Call, c_int> {
    // SAFETY: the caller promises it.
    let msg = unsafe { msg.as_ref() }.ok_or(-EINVAL)?;
    if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
        return Err(-EINVAL);
    }
    // SAFETY: the list has one part.
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

/// Defines a call: its name, its arguments before those of the remote memory, its local memory, its
/// number, and the function that starts it.
macro_rules! call {
    ($name:ident, ($($argument:ident: $type:ty),*), $local:expr, $data:expr, $start:ident) => {
        unsafe extern "C" fn $name(
            ep: *mut c_void,
            $($argument: $type,)*
            to: u64,
            address: u64,
            key: u64,
            ctx: *mut c_void,
        ) -> isize {
            let call = Call::new($local, (to, address, key), ctx);
            // SAFETY: the program passes valid arguments.
            unsafe { $start(ep, &Call { data: $data, ..call }) }
        }
    };
}

call!(
    read,
    (at: *mut c_void, length: usize, _desc: *mut c_void),
    Local::One(at, length),
    None,
    start_read
);
call!(
    readv,
    (at: *const libc::iovec, _desc: *mut *mut c_void, count: usize),
    Local::Many(at, count),
    None,
    start_read
);
call!(
    write,
    (at: *const c_void, length: usize, _desc: *mut c_void),
    Local::One(at, length),
    None,
    start_write
);
call!(
    writev,
    (at: *const libc::iovec, _desc: *mut *mut c_void, count: usize),
    Local::Many(at, count),
    None,
    start_write
);
call!(
    writedata,
    (at: *const c_void, length: usize, _desc: *mut c_void, data: u64),
    Local::One(at, length),
    Some(data),
    start_write
);

unsafe extern "C" fn readmsg(ep: *mut c_void, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the program passes valid arguments.
    unsafe {
        match of_message(msg, flags) {
            Ok(call) => start_read(ep, &Call { data: None, ..call }),
            Err(code) => code as isize,
        }
    }
}

unsafe extern "C" fn writemsg(ep: *mut c_void, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the program passes valid arguments.
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
    // SAFETY: the program passes valid arguments.
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
    // SAFETY: the program passes valid arguments.
    unsafe { start_write(ep, &call) }
}
