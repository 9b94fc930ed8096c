//! Non-blocking calls and their requests.

use std::ffi::{c_int, c_void};

use p2p::{Error, P2p, RequestId};

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
    guard(|| {
        // SAFETY: as the module says.
        let request = unsafe { check::out(request, "request")? };
        let length = check::length(length)?;
        check::present(data, length)?;
        // SAFETY: readable until the request is over, as the module says.
        let id =
            unsafe { state::comm(comm)?.isend_raw(data.cast(), length, check::rank(dest)?, tag)? };
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
    guard(|| {
        // SAFETY: as the module says.
        let request = unsafe { check::out(request, "request")? };
        let length = check::length(length)?;
        check::present(data, length)?;
        // SAFETY: readable until the request is over, as the module says.
        let id =
            unsafe { state::comm(comm)?.issend_raw(data.cast(), length, check::rank(dest)?, tag)? };
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
    guard(|| {
        // SAFETY: as the module says.
        let request = unsafe { check::out(request, "request")? };
        let room = check::length(room)?;
        check::present(buffer, room)?;
        let (from, tag) = (check::source(source)?, check::tag(tag));
        // SAFETY: writable, and not used otherwise, until the request is over, as the module says.
        let id = unsafe { state::comm(comm)?.irecv_raw(buffer.cast(), room, from, tag)? };
        *request = state::request_number(id);
        Ok(())
    })
}

/// Sets a completed request to 0. An unknown one stays as it is.
fn settle(request: &mut u64, result: Result<p2p::Status, Error>) -> Result<p2p::Status, Fault> {
    if !matches!(result, Err(Error::UnknownRequest | Error::Closed)) {
        *request = 0;
    }
    result.map_err(Fault::from)
}

fn id(request: u64) -> RequestId {
    state::request(request)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_wait(request: *mut u64, status: *mut CStatus) -> c_int {
    guard(|| {
        let p2p = state::p2p()?;
        // SAFETY: as the module says.
        let request = unsafe { check::out(request, "request")? };
        if *request == 0 {
            // SAFETY: as the module says.
            unsafe { check::put(status, CStatus::EMPTY) };
            return Ok(());
        }
        let result = p2p.wait(id(*request));
        // SAFETY: as the module says.
        unsafe { check::finish(status, settle(request, result)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_test(request: *mut u64, flag: *mut c_int, status: *mut CStatus) -> c_int {
    guard(|| {
        let p2p = state::p2p()?;
        // SAFETY: as the module says.
        let (request, flag) =
            unsafe { (check::out(request, "request")?, check::out(flag, "flag")?) };
        *flag = 1;
        if *request == 0 {
            // SAFETY: as the module says.
            unsafe { check::put(status, CStatus::EMPTY) };
            return Ok(());
        }
        let result = match p2p.test(id(*request)) {
            Ok(None) => {
                *flag = 0;
                return Ok(());
            }
            Ok(Some(status)) => Ok(status),
            Err(error) => Err(error),
        };
        // SAFETY: as the module says.
        unsafe { check::finish(status, settle(request, result)) }
    })
}

/// Returns the requests of an array.
unsafe fn list<'a>(count: i64, requests: *mut u64) -> Result<&'a mut [u64], Fault> {
    // SAFETY: as the module says.
    unsafe { check::values(requests.cast(), check::length(count)?) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_waitall(count: i64, requests: *mut u64, statuses: *mut CStatus) -> c_int {
    guard(|| {
        let p2p = state::p2p()?;
        // SAFETY: as the module says.
        let requests = unsafe { list(count, requests)? };
        let mut places = if statuses.is_null() {
            None
        } else {
            // SAFETY: one for each request, as the module says.
            Some(unsafe { check::values::<CStatus>(statuses.cast(), requests.len())? })
        };
        let mut first = None;
        for (i, request) in requests.iter_mut().enumerate() {
            let mut status = CStatus::EMPTY;
            if *request != 0 {
                let result = settle(request, p2p.wait(id(*request)));
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
    guard(|| {
        let p2p: P2p = state::p2p()?;
        // SAFETY: as the module says.
        let (requests, index) = unsafe { (list(count, requests)?, check::out(index, "index")?) };
        let open: Vec<usize> = (0..requests.len())
            .filter(|&i| requests.get(i) != Some(&0))
            .collect();
        let ids: Vec<RequestId> = open
            .iter()
            .filter_map(|&i| requests.get(i))
            .map(|&r| id(r))
            .collect();
        let found = p2p
            .waitany(&ids)
            .and_then(|(at, result)| Some((*open.get(at)?, result)));
        let Some((at, result)) = found else {
            *index = -1;
            // SAFETY: as the module says.
            unsafe { check::put(status, CStatus::EMPTY) };
            return Ok(());
        };
        *index = i64::try_from(at).unwrap_or(i64::MAX);
        let Some(request) = requests.get_mut(at) else {
            return Ok(());
        };
        // SAFETY: as the module says.
        unsafe { check::finish(status, settle(request, result)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_cancel(request: *mut u64) -> c_int {
    guard(|| {
        let p2p = state::p2p()?;
        // SAFETY: as the module says.
        let request = unsafe { check::out(request, "request")? };
        // The result of waiting shows if it was in time.
        let _in_time = p2p.cancel(id(*request))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_request_free(request: *mut u64) -> c_int {
    guard(|| {
        let p2p = state::p2p()?;
        // SAFETY: as the module says.
        let request = unsafe { check::out(request, "request")? };
        p2p.free(id(*request))?;
        *request = 0;
        Ok(())
    })
}
