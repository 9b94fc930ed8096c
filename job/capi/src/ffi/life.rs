//! Joining and leaving a job, communicators, error texts.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{check, guard};
use crate::code::{Code, Fault, words};
use crate::{last, state};

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
        // SAFETY: as the module says.
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
    guard(|| {
        let room = check::length(room)?;
        let report = state::report()?;
        let bytes: Vec<u8> = report.bytes().filter(|&b| b != 0).collect();
        // SAFETY: as the module says.
        let place = unsafe { check::write(text.cast(), room)? };
        let shown = bytes.len().min(room.saturating_sub(1));
        for (slot, byte) in place
            .iter_mut()
            .zip(bytes.iter().take(shown).chain(std::iter::once(&0)))
        {
            *slot = *byte;
        }
        // SAFETY: as the module says.
        unsafe { check::put(needed, i64::try_from(bytes.len() + 1).unwrap_or(i64::MAX)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn esp_strerror(error: c_int) -> *const c_char {
    words(error).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn esp_last_error() -> *const c_char {
    last::get()
}

fn number(number: u32) -> Result<i32, Fault> {
    i32::try_from(number).map_err(|_| Fault::new(Code::Count, "more ranks than an int can count"))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_rank(comm: i32, rank: *mut i32) -> c_int {
    guard(|| {
        // SAFETY: as the module says.
        *unsafe { check::out(rank, "rank")? } = number(state::comm(comm)?.rank())?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_size(comm: i32, size: *mut i32) -> c_int {
    guard(|| {
        // SAFETY: as the module says.
        *unsafe { check::out(size, "size")? } = number(state::comm(comm)?.size())?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_comm_dup(comm: i32, copy: *mut i32) -> c_int {
    guard(|| {
        // SAFETY: as the module says.
        let copy = unsafe { check::out(copy, "copy")? };
        *copy = state::add_comm(state::comm(comm)?.dup()?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_comm_split(comm: i32, color: i32, key: i32, part: *mut i32) -> c_int {
    guard(|| {
        // SAFETY: as the module says.
        let part = unsafe { check::out(part, "part")? };
        let found = state::comm(comm)?.split(u32::try_from(color).ok(), key)?;
        *part = found.map_or(Ok(-1), state::add_comm)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_comm_free(comm: *mut i32) -> c_int {
    guard(|| {
        // SAFETY: as the module says.
        let comm = unsafe { check::out(comm, "comm")? };
        state::free_comm(*comm)?;
        *comm = -1;
        Ok(())
    })
}
