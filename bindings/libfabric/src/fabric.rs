//! Fabrics, and event queues, which stay empty: no operation reports to them asynchronously.

use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use crate::ffi::*;
use crate::host;
use crate::object::{NONE, Table, body, code, long, publish, retract};
use crate::queue::deadline;
use crate::queues::queue;

static OPS: Table<6> = Table::new([close as _, NONE, NONE, NONE, NONE, NONE]);
static FABRIC_OPS: Table<6> = Table::new([
    crate::domain::open as _,
    NONE,
    open_events as _,
    NONE,
    trywait as _,
    NONE,
]);

/// `fi_fabric` of the provider.
pub(crate) unsafe extern "C" fn open(
    attr: *mut FabricAttr,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: null, or the program's attribute.
    let version = unsafe { attr.as_ref() }.map_or(0, |attr| attr.api_version);
    if place.is_null() {
        return -EINVAL;
    }
    let version = if version == 0 {
        host::host_version()
    } else {
        version
    };
    let identity = (FI_CLASS_FABRIC, context);
    // `fid_fabric` ends with the version, which is the body of this object.
    // SAFETY: `place` is writable.
    unsafe { publish(place, identity, OPS.at(), [FABRIC_OPS.at()], version) }
}

/// Checks a fabric. Returns the version of the interface that the program requested.
///
/// # Safety
/// `fabric` must meet the conditions of `object::body`.
pub(crate) unsafe fn check(fabric: *mut c_void) -> Result<u32, c_int> {
    // SAFETY: the caller promises it; `open` publishes this type.
    unsafe { body::<1, u32>(fabric, FI_CLASS_FABRIC) }.copied()
}

unsafe extern "C" fn close(fabric: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    crate::done(unsafe { check(fabric) }.map(|_| {
        // SAFETY: the caller does not use it afterwards.
        unsafe { retract::<1, u32>(fabric) };
    }))
}

/// Prepares a sleep on the descriptors of queues. Returns -FI_EAGAIN if one has something to read.
unsafe extern "C" fn trywait(fabric: *mut c_void, all: *mut *mut c_void, count: c_int) -> c_int {
    // SAFETY: the object of this table.
    if unsafe { check(fabric) }.is_err() || (all.is_null() && count > 0) {
        return -EINVAL;
    }
    for place in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the program passes `count` objects.
        let at = unsafe { *all.add(place) };
        // SAFETY: as above.
        let found = unsafe { queue(at) };
        match found {
            Ok(found) if found.queue.wakeups.is_none() => return -EINVAL,
            Ok(found) if found.queue.prepare_sleep() => {}
            Ok(_) => return -EAGAIN,
            // Event queues stay empty.
            // SAFETY: as above.
            Err(_) if unsafe { body::<1, u32>(at, FI_CLASS_EQ) }.is_ok() => {}
            Err(code) => return code,
        }
    }
    0
}

static EVENT_FID_OPS: Table<6> = Table::new([close_events as _, NONE, NONE, NONE, NONE, NONE]);
static EVENT_OPS: Table<5> = Table::new([
    read_events as _,
    read_events as _,
    NONE,
    wait_events as _,
    event_text as _,
]);

unsafe extern "C" fn open_events(
    fabric: *mut c_void,
    _attr: *mut c_void,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the object of the table of fabrics.
    if unsafe { check(fabric) }.is_err() || place.is_null() {
        return -EINVAL;
    }
    let tables = [EVENT_OPS.at()];
    let identity = (FI_CLASS_EQ, context);
    // SAFETY: `place` is writable.
    unsafe { publish(place, identity, EVENT_FID_OPS.at(), tables, 0u32) }
}

unsafe extern "C" fn close_events(queue: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { body::<1, u32>(queue, FI_CLASS_EQ) };
    code(found.map(|_| {
        // SAFETY: the caller does not use it afterwards.
        unsafe { retract::<1, u32>(queue) };
        0
    }))
}

unsafe extern "C" fn read_events(queue: *mut c_void) -> isize {
    // SAFETY: the object of this table.
    let found = unsafe { body::<1, u32>(queue, FI_CLASS_EQ) };
    long(found.and(Err(-EAGAIN)))
}

unsafe extern "C" fn wait_events(
    queue: *mut c_void,
    _event: *mut u32,
    _place: *mut c_void,
    _length: usize,
    timeout: c_int,
    _flags: u64,
) -> isize {
    // SAFETY: the object of this table.
    if unsafe { body::<1, u32>(queue, FI_CLASS_EQ) }.is_err() {
        return -(EINVAL as isize);
    }
    let until = deadline(timeout);
    while until.is_none_or(|at| Instant::now() < at) {
        std::thread::sleep(Duration::from_millis(1));
    }
    -(EAGAIN as isize)
}

extern "C" fn event_text(
    _: *mut c_void,
    _: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    c"no error".as_ptr()
}
