//! Non-blocking calls and their requests.

use std::ffi::{c_int, c_void};

use p2p::Error;

use super::{CStatus, check, guard};
use crate::code::{Code, Fault};
use crate::state;

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_isend(
    data: *const c_void,
    length: i64,
    dest: i32,
    tag: i32,
    comm: i32,
    request: *mut u64,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let request = check::out(request, "request")?;
        let (length, dest) = (check::present(data, length)?, check::rank(dest)?);
        let id = state::comm(comm)?.isend_raw(data.cast(), length, dest, tag)?;
        *request = state::request_number(id);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_issend(
    data: *const c_void,
    length: i64,
    dest: i32,
    tag: i32,
    comm: i32,
    request: *mut u64,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let request = check::out(request, "request")?;
        let (length, dest) = (check::present(data, length)?, check::rank(dest)?);
        let id = state::comm(comm)?.issend_raw(data.cast(), length, dest, tag)?;
        *request = state::request_number(id);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_irecv(
    buffer: *mut c_void,
    room: i64,
    source: i32,
    tag: i32,
    comm: i32,
    request: *mut u64,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let request = check::out(request, "request")?;
        let room = check::present(buffer, room)?;
        let (from, tag) = (check::source(source)?, check::tag(tag));
        let id = state::comm(comm)?.irecv_raw(buffer.cast(), room, from, tag)?;
        *request = state::request_number(id);
        Ok(())
    })
}

/// Sets a completed request to 0. An unknown one is unchanged.
fn settle(request: &mut u64, result: Result<p2p::Status, Error>) -> Result<p2p::Status, Fault> {
    if !matches!(result, Err(Error::UnknownRequest | Error::Closed)) {
        *request = 0;
    }
    result.map_err(Fault::from)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_wait(request: *mut u64, status: *mut CStatus) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let p2p = state::p2p()?;
        let request = check::out(request, "request")?;
        if *request == 0 {
            check::put(status, CStatus::EMPTY);
            return Ok(());
        }
        let result = p2p.wait(state::request(*request));
        check::finish(status, settle(request, result))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_test(request: *mut u64, flag: *mut c_int, status: *mut CStatus) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let p2p = state::p2p()?;
        let (request, flag) = (check::out(request, "request")?, check::out(flag, "flag")?);
        *flag = 1;
        if *request == 0 {
            check::put(status, CStatus::EMPTY);
            return Ok(());
        }
        match p2p.test(state::request(*request)).transpose() {
            Some(result) => check::finish(status, settle(request, result)),
            None => {
                *flag = 0;
                Ok(())
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_waitall(count: i64, requests: *mut u64, statuses: *mut CStatus) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let p2p = state::p2p()?;
        let requests = check::values(requests, count)?;
        let mut places = match statuses.is_null() {
            true => None,
            false => Some(check::values(statuses, count)?),
        };
        let mut first = None;
        for (i, request) in requests.iter_mut().enumerate() {
            let mut status = CStatus::EMPTY;
            if *request != 0 {
                let result = settle(request, p2p.wait(state::request(*request)));
                status = CStatus::of(&result);
                first = first.or(result.err());
            }
            if let Some(place) = places.as_mut().and_then(|places| places.get_mut(i)) {
                *place = status;
            }
        }
        match first {
            None => Ok(()),
            Some(fault) if places.is_some() => Err(Fault {
                code: Code::InStatus,
                ..fault
            }),
            Some(fault) => Err(fault),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_waitany(
    count: i64,
    requests: *mut u64,
    index: *mut i64,
    status: *mut CStatus,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let p2p = state::p2p()?;
        let (requests, index) = (check::values(requests, count)?, check::out(index, "index")?);
        let mut open: Vec<_> = (0..).zip(requests).filter(|(_, r)| **r != 0).collect();
        let ids: Vec<_> = open.iter().map(|(_, r)| state::request(**r)).collect();
        let found = p2p.waitany(&ids);
        match found.and_then(|(at, result)| Some((open.get_mut(at)?, result))) {
            Some(((at, request), result)) => {
                *index = *at;
                check::finish(status, settle(request, result))
            }
            None => {
                *index = -1;
                check::put(status, CStatus::EMPTY);
                Ok(())
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_cancel(request: *mut u64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let p2p = state::p2p()?;
        let request = check::out(request, "request")?;
        // Waiting for the request shows whether it was cancelled in time.
        let _in_time = p2p.cancel(state::request(*request))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_request_free(request: *mut u64) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let p2p = state::p2p()?;
        let request = check::out(request, "request")?;
        p2p.free(state::request(*request))?;
        *request = 0;
        Ok(())
    })
}
