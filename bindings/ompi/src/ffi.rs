//! Functions of the shim that the component calls. `shim/shim.h` describes each.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::IoSlice;
use std::ptr;

use crate::endpoint::Endpoint;
use crate::memory::{self, MAX_SEGMENTS, Segment};

/// `OPAL_SUCCESS` of Open MPI.
pub(crate) const SUCCESS: c_int = 0;
/// `OPAL_ERROR`.
pub(crate) const ERROR: c_int = -1;

/// `mca_btl_base_module_t`, which only the shim accesses.
#[repr(C)]
pub(crate) struct Module {
    _private: [u8; 0],
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
    fn esp_shim_deliver(module: u32, source: Endpoint, tag: u8, data: *mut c_void, length: usize);
    fn esp_shim_segments(descriptor: *mut c_void, segments: *mut *const Segment, count: *mut usize);
    fn esp_shim_sent(descriptor: *mut c_void, status: c_int);
    fn esp_shim_complete(completion: *mut c_void, status: c_int);
    fn esp_shim_fail_job(text: *const c_char);
    fn esp_shim_modex_entry(rank: u32, entry: *mut *mut c_void, length: *mut usize) -> c_int;
    fn esp_shim_free(entry: *mut c_void);
    fn esp_shim_print(text: *const c_char);
    fn esp_shim_show_help(topic: *const c_char);
}

/// Delivers a message to the layer that registered `tag`.
pub(crate) fn deliver(module: usize, source: Endpoint, tag: u8, body: &[u8]) {
    let module = u32::try_from(module).unwrap_or(u32::MAX);
    let data = body.as_ptr().cast_mut().cast();
    // SAFETY: the callee reads the body during the call only.
    unsafe { esp_shim_deliver(module, source, tag, data, body.len()) }
}

/// Returns the segments of a descriptor, and their number.
///
/// # Safety
/// `descriptor` must be a descriptor whose send does not complete during `'a`.
pub(crate) unsafe fn parts_of<'a>(descriptor: usize) -> ([IoSlice<'a>; MAX_SEGMENTS], usize) {
    let (mut segments, mut count) = (ptr::null(), 0);
    let descriptor = ptr::with_exposed_provenance_mut(descriptor);
    // SAFETY: the caller guarantees that it is a descriptor.
    unsafe { esp_shim_segments(descriptor, &raw mut segments, &raw mut count) };
    // SAFETY: the segments of a descriptor are readable until its send is complete.
    unsafe { memory::slices(segments, count) }
}

fn status(succeeded: bool) -> c_int {
    if succeeded { SUCCESS } else { ERROR }
}

/// Completes the send of a queued descriptor.
pub(crate) fn sent(descriptor: usize, succeeded: bool) {
    let descriptor = ptr::with_exposed_provenance_mut(descriptor);
    // SAFETY: a descriptor leaves the queue once, and is completed then.
    unsafe { esp_shim_sent(descriptor, status(succeeded)) }
}

/// Completes a put, get or atomic operation.
pub(crate) fn complete(completion: usize, succeeded: bool) {
    let completion = ptr::with_exposed_provenance_mut(completion);
    // SAFETY: the shim passed it with an operation, which completes once.
    unsafe { esp_shim_complete(completion, status(succeeded)) }
}

/// Returns a C string, without the NULs of `text`.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

/// Ends the job with an error.
pub(crate) fn fail_job(text: &str) {
    // SAFETY: terminated text.
    unsafe { esp_shim_fail_job(c_text(text).as_ptr()) }
}

/// Prints a line to the user.
pub(crate) fn print(text: &str) {
    // SAFETY: terminated text.
    unsafe { esp_shim_print(c_text(text).as_ptr()) }
}

/// Shows a topic of `help-mpi-btl-esp.txt`, once per job.
pub(crate) fn show_help(topic: &CStr) {
    // SAFETY: terminated text.
    unsafe { esp_shim_show_help(topic.as_ptr()) }
}

/// Returns a peer's modex entry.
pub(crate) fn modex_entry(peer: u32) -> Option<Vec<u8>> {
    let (mut entry, mut length) = (ptr::null_mut(), 0);
    // SAFETY: both places are writable.
    let found = unsafe { esp_shim_modex_entry(peer, &raw mut entry, &raw mut length) };
    let bytes = (found == 0 && !entry.is_null()).then(|| {
        // SAFETY: an entry that was found is readable for its length.
        unsafe { std::slice::from_raw_parts(entry.cast::<u8>(), length) }.to_vec()
    });
    // SAFETY: null, or allocated by the call above.
    unsafe { esp_shim_free(entry) };
    bytes
}

/// Completions for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::{Endpoint, c_int, c_void};
    use std::ptr;
    use std::sync::OnceLock;

    type Callback = extern "C" fn(
        *mut c_void,
        *mut Endpoint,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        c_int,
    );

    /// `struct esp_completion`.
    #[repr(C)]
    struct CCompletion {
        callback: Callback,
        module: *mut c_void,
        endpoint: *mut Endpoint,
        local: *mut c_void,
        handle: *mut c_void,
        context: *mut c_void,
        data: *mut c_void,
    }

    unsafe extern "C" {
        fn malloc(size: usize) -> *mut c_void;
    }

    /// A completion that stores its status.
    pub(crate) struct Completion {
        raw: *mut CCompletion,
        status: &'static OnceLock<c_int>,
    }

    impl Completion {
        pub(crate) fn new() -> Completion {
            extern "C" fn note(
                _: *mut c_void,
                _: *mut Endpoint,
                _: *mut c_void,
                _: *mut c_void,
                status: *mut c_void,
                _: *mut c_void,
                value: c_int,
            ) {
                // SAFETY: the address of a status, which is never freed.
                let status = unsafe { &*status.cast::<OnceLock<c_int>>() };
                status.set(value).expect("called once");
            }
            let status: &OnceLock<c_int> = Box::leak(Box::default());
            let none = ptr::null_mut();
            let completion = CCompletion {
                callback: note,
                module: none,
                endpoint: ptr::null_mut(),
                local: none,
                handle: none,
                context: ptr::from_ref(status).cast_mut().cast(),
                data: none,
            };
            // SAFETY: the memory has the size of the written value; the shim frees it.
            let raw = unsafe {
                let raw = malloc(size_of::<CCompletion>()).cast::<CCompletion>();
                raw.write(completion);
                raw
            };
            Completion { raw, status }
        }

        /// Returns the address to pass to an operation. Each completion is for one operation.
        pub(crate) fn raw(&self) -> usize {
            self.raw.expose_provenance()
        }

        /// Returns the status that it was called with.
        pub(crate) fn status(&self) -> Option<c_int> {
            self.status.get().copied()
        }
    }
}
