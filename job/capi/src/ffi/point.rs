//! Blocking sends and receives, and probes.

use std::ffi::{c_int, c_void};

use super::{CStatus, check, guard};
use crate::state;

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_send(
    data: *const c_void,
    length: i64,
    dest: i32,
    tag: i32,
    comm: i32,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let data = check::read(data, length)?;
        Ok(state::comm(comm)?.send(data, check::rank(dest)?, tag)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_ssend(
    data: *const c_void,
    length: i64,
    dest: i32,
    tag: i32,
    comm: i32,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let data = check::read(data, length)?;
        Ok(state::comm(comm)?.ssend(data, check::rank(dest)?, tag)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_recv(
    buffer: *mut c_void,
    room: i64,
    source: i32,
    tag: i32,
    comm: i32,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let buffer = check::write(buffer, room)?;
        let result = state::comm(comm)?.recv(buffer, check::source(source)?, check::tag(tag));
        check::finish(status, result)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_sendrecv(
    data: *const c_void,
    length: i64,
    dest: i32,
    send_tag: i32,
    buffer: *mut c_void,
    room: i64,
    source: i32,
    recv_tag: i32,
    comm: i32,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let data = check::read(data, length)?;
        let buffer = check::write(buffer, room)?;
        let (to, from) = (check::rank(dest)?, check::source(source)?);
        let result =
            state::comm(comm)?.sendrecv(data, to, send_tag, buffer, from, check::tag(recv_tag));
        check::finish(status, result)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_probe(source: i32, tag: i32, comm: i32, status: *mut CStatus) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let result = state::comm(comm)?.probe(check::source(source)?, check::tag(tag));
        check::finish(status, result)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_iprobe(
    source: i32,
    tag: i32,
    comm: i32,
    flag: *mut c_int,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let flag = check::out(flag, "flag")?;
        let found = state::comm(comm)?.iprobe(check::source(source)?, check::tag(tag))?;
        *flag = c_int::from(found.is_some());
        if let Some(found) = found {
            check::put(status, CStatus::of(&Ok(found)));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_mprobe(
    source: i32,
    tag: i32,
    comm: i32,
    message: *mut u64,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let message = check::out(message, "message")?;
        let found = state::comm(comm)?.mprobe(check::source(source)?, check::tag(tag))?;
        check::put(status, CStatus::of(&Ok(found.status())));
        *message = state::add_message(found);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_improbe(
    source: i32,
    tag: i32,
    comm: i32,
    flag: *mut c_int,
    message: *mut u64,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let (flag, message) = (check::out(flag, "flag")?, check::out(message, "message")?);
        let found = state::comm(comm)?.improbe(check::source(source)?, check::tag(tag))?;
        *flag = c_int::from(found.is_some());
        let Some(found) = found else { return Ok(()) };
        check::put(status, CStatus::of(&Ok(found.status())));
        *message = state::add_message(found);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_mrecv(
    buffer: *mut c_void,
    room: i64,
    message: *mut u64,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let buffer = check::write(buffer, room)?;
        let message = check::out(message, "message")?;
        let taken = state::take_message(*message)?;
        *message = 0;
        check::finish(status, taken.recv(buffer))
    })
}
