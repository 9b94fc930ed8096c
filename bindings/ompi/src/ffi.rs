//! What the shim calls, and what of the shim is called. `shim/shim.h` describes each function.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::IoSlice;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::core::{CORE, Outcome};
use crate::memory::{self, PIECES, Segment};
use crate::rail::{MOST, Seat, Way};
use crate::setup::{self, Setup};
use crate::wire::{Header, NARROW};

/// `OPAL_SUCCESS`, `OPAL_ERROR` and so on.
const SUCCESS: c_int = 0;
const ERROR: c_int = -1;
const OUT_OF_RESOURCE: c_int = -2;
const UNREACH: c_int = -12;

/// `mca_btl_base_module_t`: only the shim looks into it.
#[repr(C)]
pub(crate) struct Module {
    _private: [u8; 0],
}

/// `struct esp_setup`.
#[repr(C)]
pub(crate) struct CSetup {
    rank: u32,
    size: u32,
    job: *const c_char,
    host: *const c_char,
    include: *const c_char,
    exclude: *const c_char,
    path: *const c_char,
    rings: u64,
    max_message: u64,
    eager: u64,
    backlog: u64,
    coalesce: u64,
    yield_after: c_int,
    verbose: c_int,
    loud: c_int,
}

/// `struct esp_rail`.
#[repr(C)]
pub(crate) struct CRail {
    name: [u8; 16],
    speed: u32,
}

/// `struct esp_way`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CWay {
    rail: u32,
    seat: u32,
}

impl From<CWay> for Way {
    fn from(way: CWay) -> Way {
        Way {
            rail: way.rail as usize,
            seat: Seat(way.seat),
        }
    }
}

unsafe extern "C" {
    pub(crate) fn esp_shim_open() -> c_int;
    pub(crate) fn esp_shim_close() -> c_int;
    pub(crate) fn esp_shim_register() -> c_int;
    pub(crate) fn esp_shim_init(
        count: *mut c_int,
        progress: bool,
        threads: bool,
    ) -> *mut *mut Module;
    pub(crate) fn esp_shim_progress() -> c_int;
    fn esp_shim_deliver(rail: u32, tag: u8, data: *mut c_void, length: usize);
    fn esp_shim_segments(frag: *mut c_void, segments: *mut *const Segment, count: *mut usize);
    fn esp_shim_sent(frag: *mut c_void, status: c_int);
    fn esp_shim_done(done: *mut c_void, status: c_int);
    fn esp_shim_failed(words: *const c_char);
    fn esp_shim_blob(rank: u32, blob: *mut *mut c_void, length: *mut usize) -> c_int;
    fn esp_shim_forget(blob: *mut c_void);
    fn esp_shim_say(words: *const c_char);
    fn esp_shim_help(topic: *const c_char);
}

// --- Calls of the shim's ---

pub(crate) fn deliver(rail: usize, tag: u8, body: &[u8]) {
    let rail = u32::try_from(rail).unwrap_or(0);
    // SAFETY: the callee reads the body during the call.
    unsafe { esp_shim_deliver(rail, tag, body.as_ptr().cast_mut().cast(), body.len()) }
}

/// The pieces of a descriptor's message.
///
/// # Safety
/// `frag` is a descriptor that waits, and waits during `'a`.
pub(crate) unsafe fn pieces_of<'a>(frag: usize) -> ([IoSlice<'a>; PIECES], usize) {
    let (mut segments, mut count) = (ptr::null(), 0);
    // SAFETY: the caller says that it is a descriptor.
    unsafe {
        esp_shim_segments(
            ptr::with_exposed_provenance_mut(frag),
            &raw mut segments,
            &raw mut count,
        )
    };
    // SAFETY: its segments are as the caller says.
    unsafe { memory::pieces(segments, count) }
}

pub(crate) fn sent(frag: usize, well: bool) {
    let status = if well { SUCCESS } else { ERROR };
    // SAFETY: a descriptor that waited, which is told once.
    unsafe { esp_shim_sent(ptr::with_exposed_provenance_mut(frag), status) }
}

pub(crate) fn done(done: usize, well: bool) {
    let status = if well { SUCCESS } else { ERROR };
    // SAFETY: what the shim gave with an operation, which is told once.
    unsafe { esp_shim_done(ptr::with_exposed_provenance_mut(done), status) }
}

fn line(words: &str) -> CString {
    CString::new(words.replace('\0', "")).unwrap_or_default()
}

pub(crate) fn failed(words: &str) {
    // SAFETY: text that ends with a zero.
    unsafe { esp_shim_failed(line(words).as_ptr()) }
}

pub(crate) fn say(words: &str) {
    // SAFETY: as above.
    unsafe { esp_shim_say(line(words).as_ptr()) }
}

/// What to do about it, from the file of such texts: Open MPI shows each once for a job.
pub(crate) fn help(topic: &CStr) {
    // SAFETY: as above.
    unsafe { esp_shim_help(topic.as_ptr()) }
}

/// What a peer has published.
pub(crate) fn blob(peer: u32) -> Option<Vec<u8>> {
    let (mut blob, mut length) = (ptr::null_mut(), 0);
    // SAFETY: the two are written to.
    let found = unsafe { esp_shim_blob(peer, &raw mut blob, &raw mut length) };
    // SAFETY: if it was found it has that length.
    let bytes = (found == 0 && !blob.is_null())
        .then(|| unsafe { std::slice::from_raw_parts(blob.cast::<u8>(), length) }.to_vec());
    // SAFETY: it came from there; null is possible.
    unsafe { esp_shim_forget(blob) };
    bytes
}

// --- Called by the shim ---

/// Text of C; none where the pointer is null.
///
/// # Safety
/// Null, or text that ends with a zero.
unsafe fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(words) }
        .to_string_lossy()
        .into_owned()
}

/// # Safety
/// `library`: text.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_series_fits(library: *const c_char) -> c_int {
    // SAFETY: the caller says so.
    c_int::from(setup::series_fits(&unsafe { text(library) }))
}

/// # Safety
/// All pointers point to what their types say; the texts may be null.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_start(
    setup: *const CSetup,
    blob: *mut *const c_void,
    length: *mut usize,
    rails: *mut CRail,
) -> c_int {
    /// What was published; Open MPI copies it.
    static PUBLISHED: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    // SAFETY: the caller says so.
    let c = unsafe { &*setup };
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX / 2);
    // SAFETY: the caller says so.
    let list = |words| setup::names(&unsafe { text(words) });
    let setup = Setup {
        rank: c.rank,
        size: c.size,
        // SAFETY: the caller says so.
        job: unsafe { text(c.job) },
        // SAFETY: the caller says so.
        host: unsafe { text(c.host) },
        include: list(c.include),
        exclude: list(c.exclude),
        // SAFETY: the caller says so.
        path: unsafe { text(c.path) },
        rings: c.rings,
        max_message: size(c.max_message).min(1 << 30),
        eager: size(c.eager),
        backlog: size(c.backlog),
        coalesce: size(c.coalesce),
        yield_after: u32::try_from(c.yield_after).unwrap_or(0),
        verbose: c.verbose > 0,
        loud: c.loud != 0,
    };
    let (bytes, names) = CORE.start(setup);
    let mut published = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    *published = bytes;
    // SAFETY: the caller says so; the bytes stay where they are until the next start.
    unsafe { (*blob, *length) = (published.as_ptr().cast(), published.len()) };
    let mut count = 0;
    for (number, name) in names.iter().take(MOST).enumerate() {
        // SAFETY: there is room for that many.
        unsafe {
            rails.add(number).write(CRail {
                name: setup::padded(name),
                speed: setup::speed(name),
            })
        };
        count += 1;
    }
    count
}

#[unsafe(no_mangle)]
extern "C" fn esp_stop() {
    CORE.stop();
}

/// # Safety
/// `blob` is readable for `length` bytes, or null; `way` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_add(
    rail: c_int,
    rank: u32,
    blob: *const c_void,
    length: usize,
    way: *mut CWay,
) -> c_int {
    // SAFETY: the caller says so.
    let bytes = if blob.is_null() {
        &[]
    } else {
        unsafe { std::slice::from_raw_parts(blob.cast(), length) }
    };
    let found = match usize::try_from(rail) {
        Ok(rail) => CORE.add(rail, rank, bytes),
        Err(_) => CORE.any(rank, bytes),
    };
    let Some(found) = found else { return UNREACH };
    // SAFETY: the caller says so.
    unsafe {
        *way = CWay {
            rail: u32::try_from(found.rail).unwrap_or(u32::MAX),
            seat: found.seat.0,
        }
    };
    SUCCESS
}

/// The way of a process to itself, for put, get and atomic operations.
///
/// # Safety
/// `way` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_own(way: *mut CWay) {
    let seat = Seat::new(CORE.rank(), 0).map_or(u32::MAX, |seat| seat.0);
    // SAFETY: the caller says so.
    unsafe { *way = CWay { rail: 0, seat } };
}

/// # Safety
/// The segments are readable; with `frag` until it is told, if 0 is returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn esp_send(
    way: CWay,
    tag: u8,
    segments: *const Segment,
    count: usize,
    frag: *mut c_void,
    bulk: c_int,
) -> c_int {
    // SAFETY: the caller says so.
    let (pieces, count) = unsafe { memory::pieces(segments, count) };
    let pieces = &pieces[..count];
    let length = pieces.iter().map(|piece| piece.len()).sum();
    // Without a descriptor only.
    let frag = frag.expose_provenance();
    let way = Way::from(way);
    let Some(keep) = CORE.keep(length, frag, !CORE.is_nested()) else {
        return OUT_OF_RESOURCE;
    };
    let bulk = (bulk != 0 && frag != 0).then_some(frag);
    match CORE.send(way, &Header::Active { tag }, pieces, keep, bulk) {
        Outcome::Gone => 1,
        Outcome::Busy if frag == 0 => OUT_OF_RESOURCE,
        Outcome::Busy => SUCCESS,
        Outcome::Failed => UNREACH,
    }
}

#[unsafe(no_mangle)]
extern "C" fn esp_progress() -> c_int {
    c_int::try_from(CORE.progress()).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
extern "C" fn esp_register(base: *mut c_void, size: usize, flags: c_int, key: *mut u64) -> c_int {
    let mut bytes = [0; 8];
    // A peer is to use what it was told of and nothing else: keys are not guessed.
    let random = std::collections::hash_map::RandomState::new();
    bytes.copy_from_slice(
        &std::hash::BuildHasher::hash_one(&random, (base.addr(), size)).to_le_bytes(),
    );
    let number = u64::from_le_bytes(bytes) | 1;
    if !CORE.regions.add(
        number,
        base.expose_provenance(),
        size,
        flags.cast_unsigned(),
    ) {
        return ERROR;
    }
    // SAFETY: the shim gives the place.
    unsafe { *key = number };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn esp_deregister(key: u64) {
    CORE.regions.remove(key);
}

fn begun(well: bool) -> c_int {
    if well { SUCCESS } else { UNREACH }
}

#[unsafe(no_mangle)]
extern "C" fn esp_put(
    way: CWay,
    local: *const c_void,
    remote: u64,
    key: u64,
    size: usize,
    done: *mut c_void,
) -> c_int {
    begun(CORE.put(
        way.into(),
        local.expose_provenance(),
        remote,
        key,
        size,
        done.expose_provenance(),
    ))
}

#[unsafe(no_mangle)]
extern "C" fn esp_get(
    way: CWay,
    local: *mut c_void,
    remote: u64,
    key: u64,
    size: usize,
    done: *mut c_void,
) -> c_int {
    begun(CORE.get(
        way.into(),
        local.expose_provenance(),
        remote,
        key,
        size,
        done.expose_provenance(),
    ))
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // as many as Open MPI has
extern "C" fn esp_atomic(
    way: CWay,
    result: *mut c_void,
    remote: u64,
    key: u64,
    operation: c_int,
    narrow: c_int,
    operand: u64,
    compare: u64,
    done: *mut c_void,
) -> c_int {
    let Some(what) = u8::try_from(operation)
        .ok()
        .filter(|what| what & NARROW == 0)
    else {
        return ERROR;
    };
    let what = if narrow == 0 { what } else { what | NARROW };
    let numbers = (operand, compare);
    let (result, done) = (result.expose_provenance(), done.expose_provenance());
    begun(CORE.atomic(way.into(), result, remote, key, what, numbers, done))
}
