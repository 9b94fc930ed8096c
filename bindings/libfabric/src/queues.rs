//! C interface of completion queues and counters.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::domain::domain;
use crate::ffi::*;
use crate::info::write_text;
use crate::object::{NONE, Table, body, code, long, publish, retract};
use crate::queue::{Counter, Entry, Queue, deadline};
use crate::wakeups::Wakeups;

/// Object of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) queue: Arc<Queue>,
    /// Bytes of an entry in the queue's format.
    length: usize,
    waits: bool,
    /// Entries of errors have `err_data_size`.
    sized: bool,
}

static QUEUE_FID_OPS: Table<6> =
    Table::new([close_queue as _, NONE, queue_control as _, NONE, NONE, NONE]);
static QUEUE_OPS: Table<7> = Table::new([
    read as _,
    read_from as _,
    read_error as _,
    wait as _,
    wait_from as _,
    signal as _,
    error_text as _,
]);

/// Returns true for the wait objects that the provider supports without a descriptor.
fn can_wait(object: c_int) -> bool {
    matches!(object, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD)
}

pub(crate) unsafe extern "C" fn open_queue(
    domain_at: *mut c_void,
    attr: *mut CqAttr,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: null, or the program's attribute.
    let attr = unsafe { attr.as_ref() };
    // SAFETY: the object of the table of domains.
    let (Some(attr), Ok(domain), false) = (attr, unsafe { domain(domain_at) }, place.is_null())
    else {
        return -EINVAL;
    };
    let sleeps = attr.wait_obj == FI_WAIT_FD;
    if !(sleeps || can_wait(attr.wait_obj)) || attr.flags & FI_PEER != 0 {
        return -ENOSYS;
    }
    let own = match sleeps.then(Wakeups::new) {
        Some(Ok(wakeups)) => Queue::with_wakeups(wakeups),
        Some(Err(_)) => return -ENOMEM,
        None => Queue::default(),
    };
    let format = if attr.format == FI_CQ_FORMAT_UNSPEC {
        FI_CQ_FORMAT_CONTEXT
    } else {
        attr.format
    };
    // The number of 8-byte fields of each format.
    let Some(fields) = [1, 3, 5, 6].get((format - FI_CQ_FORMAT_CONTEXT) as usize) else {
        return -EINVAL;
    };
    let body = CompletionQueue {
        queue: Arc::new(own),
        length: fields * size_of::<u64>(),
        waits: attr.wait_obj != FI_WAIT_NONE,
        sized: domain.version >= version(1, 5),
    };
    let identity = (FI_CLASS_CQ, context);
    let tables = [QUEUE_OPS.at()];
    // SAFETY: `place` is writable.
    unsafe { publish(place, identity, QUEUE_FID_OPS.at(), tables, body) }
}

/// Returns the queue of an object.
///
/// # Safety
/// `at` must meet the conditions of `object::body`.
#[inline]
pub(crate) unsafe fn queue<'a>(at: *mut c_void) -> Result<&'a CompletionQueue, c_int> {
    // SAFETY: the caller promises it; `open_queue` publishes this type.
    unsafe { body::<1, CompletionQueue>(at, FI_CLASS_CQ) }
}

unsafe extern "C" fn close_queue(at: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { queue(at) };
    code(found.and_then(|found| {
        if Arc::strong_count(&found.queue) > 1 {
            return Err(-EBUSY);
        }
        // SAFETY: the caller does not use it afterwards.
        drop(unsafe { retract::<1, CompletionQueue>(at) });
        Ok(0)
    }))
}

unsafe extern "C" fn queue_control(
    at: *mut c_void,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { queue(at) };
    code(found.and_then(|found| match &found.queue.wakeups {
        Some(wakeups) if command == FI_GETWAIT && !argument.is_null() => {
            // SAFETY: the program passes the place of a descriptor.
            unsafe { *argument.cast::<c_int>() = wakeups.fd() };
            Ok(0)
        }
        _ => Err(-ENOSYS),
    }))
}

fn tagged(entry: &Entry) -> CqTagged {
    CqTagged {
        context: std::ptr::with_exposed_provenance_mut(entry.context),
        flags: entry.flags,
        length: entry.length,
        buffer: std::ptr::with_exposed_provenance_mut(entry.buffer),
        data: entry.data,
        tag: entry.tag,
    }
}

/// Reads completions.
///
/// # Safety
/// `place` must be valid for writes of `count` entries, and `sources` must be null or valid for
/// writes of `count` numbers.
#[inline]
unsafe fn take(
    found: &CompletionQueue,
    place: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> Result<isize, c_int> {
    if found.queue.is_empty() {
        found.queue.sources.progress();
        if found.queue.is_empty() {
            return Err(-EAGAIN);
        }
    }
    if place.is_null() && count != 0 {
        return Err(-EINVAL);
    }
    let write = |at: usize, entry: &Entry| {
        let full = tagged(entry);
        let to = place.cast::<u8>().wrapping_add(at * found.length);
        // SAFETY: the caller promises it; the shorter formats are prefixes of the longest.
        unsafe { to.copy_from((&raw const full).cast(), found.length) };
        if !sources.is_null() {
            // SAFETY: the caller promises it.
            unsafe { *sources.add(at) = entry.source };
        }
    };
    match found.queue.read(count, write) {
        Some(0) if count != 0 => Err(-EAGAIN),
        Some(taken) => Ok(taken as isize),
        None => Err(-FI_EAVAIL),
    }
}

unsafe extern "C" fn read(at: *mut c_void, place: *mut c_void, count: usize) -> isize {
    // SAFETY: the program passes valid arguments.
    unsafe { read_from(at, place, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn read_from(
    at: *mut c_void,
    place: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    // SAFETY: the object of this table, and valid arguments of the program.
    long(unsafe { queue(at).and_then(|found| take(found, place, count, sources)) })
}

unsafe extern "C" fn wait(
    at: *mut c_void,
    place: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    let none = std::ptr::null_mut();
    // SAFETY: the program passes valid arguments.
    unsafe { wait_from(at, place, count, none, condition, timeout) }
}

unsafe extern "C" fn wait_from(
    at: *mut c_void,
    place: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the object of this table.
    let found = unsafe { queue(at) };
    long(found.and_then(|found| {
        if !found.waits {
            return Err(-EINVAL);
        }
        if !found.queue.wait(deadline(timeout)) {
            return Err(-EAGAIN);
        }
        // SAFETY: the program passes valid arguments.
        unsafe { take(found, place, count, sources) }
    }))
}

pub(crate) unsafe extern "C" fn read_error(
    at: *mut c_void,
    place: *mut CqError,
    _flags: u64,
) -> isize {
    // SAFETY: the object of this table.
    let found = unsafe { queue(at) };
    long(found.and_then(|found| {
        if place.is_null() {
            return Err(-EINVAL);
        }
        let entry = found.queue.read_error().ok_or(-EAGAIN)?;
        // SAFETY: the program's entry. Up to version 1.4 it lacks the last field.
        unsafe {
            (*place).entry = tagged(&entry);
            (*place).olen = entry.excess;
            (*place).err = entry.error;
            (*place).prov_errno = entry.text;
            if found.sized {
                // There is no error data: a program that has passed a buffer finds its size set to
                // 0.
                (*place).err_data_size = 0;
            }
        }
        Ok(1)
    }))
}

unsafe extern "C" fn signal(at: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    crate::done(unsafe { queue(at) }.map(|found| found.queue.signal()))
}

unsafe extern "C" fn error_text(
    at: *mut c_void,
    number: c_int,
    _data: *const c_void,
    place: *mut c_char,
    room: usize,
) -> *const c_char {
    // SAFETY: the object of this table.
    let Ok(found) = (unsafe { queue(at) }) else {
        return c"not a completion queue".as_ptr();
    };
    // SAFETY: the program passes the room at `place`.
    let write = |text: &_| unsafe { write_text(text, place, room) };
    let none = c"no further reason".as_ptr();
    found.queue.with_text(number, write).unwrap_or(none)
}

static COUNTER_FID_OPS: Table<6> = Table::new([close_counter as _, NONE, NONE, NONE, NONE, NONE]);
static COUNTER_OPS: Table<7> = Table::new([
    value as _,
    errors as _,
    add as _,
    set as _,
    wait_counter as _,
    add_errors as _,
    set_errors as _,
]);

pub(crate) unsafe extern "C" fn open_counter(
    domain_at: *mut c_void,
    attr: *mut CntrAttr,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: null, or the program's attribute.
    let attr = unsafe { attr.as_ref() };
    // SAFETY: the object of the table of domains.
    let (Ok(_), false) = (unsafe { domain(domain_at) }, place.is_null()) else {
        return -EINVAL;
    };
    if attr.is_some_and(|attr| !can_wait(attr.wait_obj) || attr.flags & FI_PEER != 0) {
        return -ENOSYS;
    }
    let identity = (FI_CLASS_CNTR, context);
    let (tables, counter) = ([COUNTER_OPS.at()], Arc::new(Counter::default()));
    // SAFETY: `place` is writable.
    unsafe { publish(place, identity, COUNTER_FID_OPS.at(), tables, counter) }
}

/// Returns the counter of an object.
///
/// # Safety
/// `at` must meet the conditions of `object::body`.
pub(crate) unsafe fn counter<'a>(at: *mut c_void) -> Result<&'a Arc<Counter>, c_int> {
    // SAFETY: the caller promises it; `open_counter` publishes this type.
    unsafe { body::<1, Arc<Counter>>(at, FI_CLASS_CNTR) }
}

unsafe extern "C" fn close_counter(at: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { counter(at) };
    code(found.and_then(|found| {
        if Arc::strong_count(found) > 1 {
            return Err(-EBUSY);
        }
        // SAFETY: the caller does not use it afterwards.
        drop(unsafe { retract::<1, Arc<Counter>>(at) });
        Ok(0)
    }))
}

unsafe extern "C" fn value(at: *mut c_void) -> u64 {
    // SAFETY: the object of this table.
    unsafe { counter(at) }.map_or(0, |counter| {
        counter.sources.progress();
        counter.value.load(Ordering::SeqCst)
    })
}

unsafe extern "C" fn errors(at: *mut c_void) -> u64 {
    // SAFETY: the object of this table.
    unsafe { counter(at) }.map_or(0, |counter| {
        counter.sources.progress();
        counter.errors.load(Ordering::SeqCst)
    })
}

/// Changes a counter, and wakes the threads that wait for it.
///
/// # Safety
/// `at` must meet the conditions of `object::body`.
unsafe fn change(at: *mut c_void, change: impl FnOnce(&Counter)) -> c_int {
    // SAFETY: the caller promises it.
    crate::done(unsafe { counter(at) }.map(|counter| {
        change(counter);
        counter.wake();
    }))
}

unsafe extern "C" fn add(at: *mut c_void, by: u64) -> c_int {
    // SAFETY: the object of this table.
    unsafe {
        change(at, |counter| {
            counter.value.fetch_add(by, Ordering::SeqCst);
        })
    }
}

unsafe extern "C" fn set(at: *mut c_void, to: u64) -> c_int {
    // SAFETY: the object of this table.
    unsafe { change(at, |counter| counter.value.store(to, Ordering::SeqCst)) }
}

unsafe extern "C" fn add_errors(at: *mut c_void, by: u64) -> c_int {
    // SAFETY: the object of this table.
    unsafe {
        change(at, |counter| {
            counter.errors.fetch_add(by, Ordering::SeqCst);
        })
    }
}

unsafe extern "C" fn set_errors(at: *mut c_void, to: u64) -> c_int {
    // SAFETY: the object of this table.
    unsafe { change(at, |counter| counter.errors.store(to, Ordering::SeqCst)) }
}

unsafe extern "C" fn wait_counter(at: *mut c_void, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { counter(at) };
    code(found.and_then(|counter| {
        let before = counter.errors.load(Ordering::SeqCst);
        if !counter.wait(threshold, deadline(timeout)) {
            return Err(-ETIMEDOUT);
        }
        let failed = counter.value.load(Ordering::SeqCst) < threshold
            && counter.errors.load(Ordering::SeqCst) != before;
        if failed { Err(-FI_EAVAIL) } else { Ok(0) }
    }))
}
