//! Functions that the shim calls. `shim/shim.h` describes each.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::component::BUILT_FOR;
use crate::endpoint::{Endpoint, MAX_INTERFACES, ModuleEndpoint, RemoteRail, SOURCES};
use crate::ffi::{ERROR, SUCCESS, c_text};
use crate::header::{FOUR_BYTES, Header};
use crate::memory::{self, REGIONS, Segment};
use crate::parameters::{self, Parameters};
use crate::runtime::{RUNTIME, SendOutcome};

/// Errors of Open MPI.
const OUT_OF_RESOURCE: c_int = -2;
const UNREACH: c_int = -12;

/// `struct esp_parameters`.
#[repr(C)]
pub(crate) struct CParameters {
    rank: u32,
    size: u32,
    job: *const c_char,
    node: *const c_char,
    include: *const c_char,
    exclude: *const c_char,
    path: *const c_char,
    carrier: *const c_char,
    rings: u64,
    max_message: u64,
    eager: u64,
    backlog: u64,
    yields: c_int,
    verbose: c_int,
    report_errors: c_int,
}

/// `struct esp_interface`.
#[repr(C)]
pub(crate) struct CInterface {
    name: [u8; 16],
    speed: u32,
}

/// Returns a copy of a C string; empty for a null pointer.
///
/// # Safety
/// `text` must be null or a C string.
unsafe fn owned_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// # Safety
/// `library` must be null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_other_series(library: *const c_char) -> *const c_char {
    /// The library does not change while the process runs.
    static TEXT: OnceLock<CString> = OnceLock::new();
    // SAFETY: guaranteed by the caller.
    let library = unsafe { owned_text(library) };
    match parameters::other_series(BUILT_FOR, &library) {
        Some(text) => TEXT.get_or_init(|| c_text(&text)).as_ptr(),
        None => ptr::null(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn esp_version() -> *const c_char {
    static TEXT: OnceLock<CString> = OnceLock::new();
    TEXT.get_or_init(|| c_text(&parameters::version())).as_ptr()
}

/// # Safety
/// All pointers must be valid for their types, and all strings null or terminated. `interfaces`
/// must be valid for writes of [`MAX_INTERFACES`] elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_start(
    parameters: *const CParameters,
    entry: *mut *const c_void,
    length: *mut usize,
    interfaces: *mut CInterface,
) -> c_int {
    /// The modex entry, which Open MPI copies.
    static ENTRY: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    // SAFETY: guaranteed by the caller.
    let c = unsafe { &*parameters };
    // SAFETY: guaranteed by the caller for each text.
    let text = |text| unsafe { owned_text(text) };
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX / 2);
    let (bytes, names) = RUNTIME.start(Parameters {
        rank: c.rank,
        size: c.size,
        job: text(c.job),
        node: text(c.node),
        include: parameters::split_list(&text(c.include)),
        exclude: parameters::split_list(&text(c.exclude)),
        path: text(c.path),
        carrier: text(c.carrier),
        rings: c.rings,
        max_message: size(c.max_message).min(1 << 30),
        eager: size(c.eager),
        backlog: size(c.backlog),
        yields: c.yields != 0,
        verbose: c.verbose > 0,
        report_errors: c.report_errors != 0,
    });
    let mut published = ENTRY.lock().unwrap_or_else(PoisonError::into_inner);
    *published = bytes;
    // SAFETY: guaranteed by the caller. The bytes stay in place until the next start.
    unsafe { (*entry, *length) = (published.as_ptr().cast(), published.len()) };
    let mut count = 0;
    for (number, name) in names.iter().take(MAX_INTERFACES).enumerate() {
        let interface = CInterface {
            name: parameters::c_name(name),
            speed: parameters::link_speed(name),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { interfaces.add(number).write(interface) };
        count += 1;
    }
    count
}

#[unsafe(no_mangle)]
extern "C" fn esp_stop() {
    RUNTIME.stop();
}

/// # Safety
/// `entry` must be null or valid for reads of `length` bytes; `endpoint` must be valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_add(
    module: c_int,
    rank: u32,
    entry: *const c_void,
    length: usize,
    endpoint: *mut ModuleEndpoint,
) -> c_int {
    let bytes = if entry.is_null() {
        &[]
    } else {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts(entry.cast(), length) }
    };
    let mut modules = match usize::try_from(module) {
        Ok(module) => module..module + 1,
        Err(_) => 0..MAX_INTERFACES,
    };
    let found = modules.find_map(|module| RUNTIME.add(module, rank, bytes));
    let Some(found) = found else { return UNREACH };
    // SAFETY: guaranteed by the caller.
    unsafe { *endpoint = found };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn esp_source(source: Endpoint) -> *const ModuleEndpoint {
    ptr::from_ref(SOURCES.reply_to(source))
}

/// # Safety
/// `endpoint` must be valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_own_endpoint(endpoint: *mut ModuleEndpoint) {
    let remote = RemoteRail::new(RUNTIME.rank(), 0).unwrap_or(RemoteRail(u32::MAX));
    let own = Endpoint { rail: 0, remote };
    let (short, long) = (own, own);
    // SAFETY: guaranteed by the caller.
    unsafe { *endpoint = ModuleEndpoint { short, long } };
}

/// # Safety
/// `segments` must be valid for reads of `count` segments, each of which must be valid for reads;
/// if this returns 0, until `descriptor` is completed.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_send(
    endpoint: ModuleEndpoint,
    tag: u8,
    segments: *const Segment,
    count: usize,
    descriptor: *mut c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let (parts, count) = unsafe { memory::slices(segments, count) };
    let parts = &parts[..count];
    let length = parts.iter().map(|part| part.len()).sum();
    let descriptor = descriptor.expose_provenance();
    let Some(fallback) = RUNTIME.fallback(length, descriptor, RUNTIME.is_nested()) else {
        return OUT_OF_RESOURCE;
    };
    let endpoint = RUNTIME.endpoint_of_length(endpoint, length);
    match RUNTIME.send(endpoint, &Header::Active { tag }, parts, fallback) {
        SendOutcome::Complete => 1,
        SendOutcome::Incomplete if descriptor == 0 => OUT_OF_RESOURCE,
        SendOutcome::Incomplete => SUCCESS,
        SendOutcome::Failed => UNREACH,
    }
}

#[unsafe(no_mangle)]
extern "C" fn esp_progress() -> c_int {
    c_int::try_from(RUNTIME.progress()).unwrap_or(c_int::MAX)
}

/// # Safety
/// `key` must be valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_register(
    base: *mut c_void,
    size: usize,
    flags: c_int,
    key: *mut u64,
) -> c_int {
    // Keys are random, so that a peer cannot derive one from another.
    let random = std::collections::hash_map::RandomState::new();
    let number = std::hash::BuildHasher::hash_one(&random, (base.addr(), size)) | 1;
    let (base, flags) = (base.expose_provenance(), flags.cast_unsigned());
    if !REGIONS.add(number, base, size, flags) {
        return ERROR;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { *key = number };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn esp_deregister(key: u64) {
    REGIONS.remove(key);
}

fn started(started: bool) -> c_int {
    if started { SUCCESS } else { UNREACH }
}

#[unsafe(no_mangle)]
extern "C" fn esp_put(
    endpoint: ModuleEndpoint,
    local: *const c_void,
    remote: u64,
    key: u64,
    size: usize,
    completion: *mut c_void,
) -> c_int {
    let (local, completion) = (local.expose_provenance(), completion.expose_provenance());
    let endpoint = RUNTIME.endpoint_of_length(endpoint, size);
    started(RUNTIME.put(endpoint, local, remote, key, size, completion))
}

#[unsafe(no_mangle)]
extern "C" fn esp_get(
    endpoint: ModuleEndpoint,
    local: *mut c_void,
    remote: u64,
    key: u64,
    size: usize,
    completion: *mut c_void,
) -> c_int {
    let (local, completion) = (local.expose_provenance(), completion.expose_provenance());
    let endpoint = RUNTIME.endpoint_of_length(endpoint, size);
    started(RUNTIME.get(endpoint, local, remote, key, size, completion))
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // those of Open MPI
extern "C" fn esp_atomic(
    endpoint: ModuleEndpoint,
    result: *mut c_void,
    remote: u64,
    key: u64,
    operator: c_int,
    four_bytes: c_int,
    operand: u64,
    compare: u64,
    completion: *mut c_void,
) -> c_int {
    let Ok(operator @ 0..FOUR_BYTES) = u8::try_from(operator) else {
        return ERROR;
    };
    let operator = operator | if four_bytes == 0 { 0 } else { FOUR_BYTES };
    let (result, completion) = (result.expose_provenance(), completion.expose_provenance());
    let (endpoint, operands) = (endpoint.short, [operand, compare]);
    started(RUNTIME.atomic(
        endpoint, result, remote, key, operator, operands, completion,
    ))
}
