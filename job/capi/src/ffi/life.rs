//! Joining and leaving a job, communicators, error texts.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{check, guard};
use crate::code::{Code, Fault, text_of};
use crate::{code, state};

#[unsafe(no_mangle)]
extern "C" fn esp_init() -> c_int {
    guard(state::init)
}

#[unsafe(no_mangle)]
extern "C" fn esp_finalize() -> c_int {
    guard(state::finalize)
}

#[unsafe(no_mangle)]
extern "C" fn esp_initialized() -> c_int {
    catch_unwind(state::initialized).map_or(0, c_int::from)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_abort(code: c_int, why: *const c_char) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: by the contract of the module.
        state::abort(code, &unsafe { check::text(why) })
    }));
    // `abort` panicked instead of ending the process.
    std::process::abort()
}

#[unsafe(no_mangle)]
extern "C" fn esp_progress() -> c_int {
    guard(|| {
        state::p2p()?.progress();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_report(text: *mut c_char, room: i64, needed: *mut i64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe { check::put_text(text, room, needed, state::report()?) })
}

#[unsafe(no_mangle)]
extern "C" fn esp_strerror(error: c_int) -> *const c_char {
    text_of(error).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn esp_last_error() -> *const c_char {
    code::last_error()
}

fn number(number: u32) -> Result<i32, Fault> {
    i32::try_from(number).map_err(|_| Fault::new(Code::Count, "more ranks than an int can count"))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_rank(comm: i32, rank: *mut i32) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        *check::out(rank, "rank")? = number(state::comm(comm)?.rank())?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_size(comm: i32, size: *mut i32) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        *check::out(size, "size")? = number(state::comm(comm)?.size())?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_comm_dup(comm: i32, copy: *mut i32) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let copy = check::out(copy, "copy")?;
        *copy = state::add_comm(state::comm(comm)?.dup()?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_comm_split(comm: i32, color: i32, key: i32, part: *mut i32) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let part = check::out(part, "part")?;
        let found = state::comm(comm)?.split(u32::try_from(color).ok(), key)?;
        *part = found.map_or(Ok(-1), state::add_comm)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_comm_free(comm: *mut i32) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let comm = check::out(comm, "comm")?;
        state::free_comm(*comm)?;
        *comm = -1;
        Ok(())
    })
}
