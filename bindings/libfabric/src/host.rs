//! The library that has loaded this provider: its functions, found at load time without linking to
//! it, and its log.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::ffi::{Info, version};

type DupInfo = unsafe extern "C" fn(*const Info) -> *mut Info;
type FreeInfo = unsafe extern "C" fn(*mut Info);
type Log =
    unsafe extern "C" fn(*const c_void, c_int, c_int, *const c_char, c_int, *const c_char, ...);
type LogEnabled = unsafe extern "C" fn(*const c_void, c_int, c_int) -> c_int;

/// Levels and subsystem of the log.
const FI_LOG_WARN: c_int = 0;
const FI_LOG_INFO: c_int = 2;
const FI_LOG_CORE: c_int = 0;

/// Functions of the host library.
struct Host {
    version: u32,
    dup_info: Option<DupInfo>,
    free_info: Option<FreeInfo>,
    log: Option<(Log, LogEnabled)>,
}

fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let find = |name: &CStr| {
            let at = find(name);
            (!at.is_null()).then_some(at)
        };
        // SAFETY, for all: the symbols have these types in every version of the library.
        let version = find(c"fi_version").map_or(version(1, 17), |at| {
            // SAFETY: see above.
            let call: unsafe extern "C" fn() -> u32 = unsafe { std::mem::transmute(at) };
            // SAFETY: the function has no preconditions.
            unsafe { call() }
        });
        let log = find(c"fi_log").zip(find(c"fi_log_enabled"));
        Host {
            version,
            // SAFETY: see above.
            dup_info: find(c"fi_dupinfo").map(|at| unsafe { std::mem::transmute(at) }),
            // SAFETY: see above.
            free_info: find(c"fi_freeinfo").map(|at| unsafe { std::mem::transmute(at) }),
            log: log.map(|(log, enabled)| {
                // SAFETY: see above.
                unsafe {
                    (
                        std::mem::transmute::<*mut c_void, Log>(log),
                        std::mem::transmute::<*mut c_void, LogEnabled>(enabled),
                    )
                }
            }),
        }
    })
}

/// File of the library that has called the entry point.
static CALLER: OnceLock<CString> = OnceLock::new();

unsafe extern "C" {
    /// Calls `visit` for each frame of the stack, the innermost first, until it returns a value
    /// other than 0. A function of the unwinder, which every Rust program contains.
    fn _Unwind_Backtrace(
        visit: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

/// Records which library calls this one: a process may have loaded several versions of the host.
pub(crate) fn note_caller() {
    let mut file: Option<CString> = None;
    // SAFETY: `frame` gets the place, which lives until the call returns.
    unsafe { _Unwind_Backtrace(visit_frame, (&raw mut file).cast()) };
    if let Some(file) = file {
        let _ = CALLER.set(file);
    }
}

/// Returns the loaded object that contains an address: its base, and its file.
fn object_of(address: usize) -> Option<(usize, CString)> {
    // SAFETY: zeros are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be looked up.
    let found = unsafe { libc::dladdr(address as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's names end with NUL.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase.addr(), file.to_owned()))
}

/// Stores the file of the first frame that is not in this library.
unsafe extern "C" fn visit_frame(frame: *mut c_void, place: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes `frame`, and `place` from `note_caller`.
    let (address, file) = unsafe { (_Unwind_GetIP(frame), &mut *place.cast::<Option<CString>>()) };
    let own = object_of(note_caller as *const () as usize);
    match object_of(address) {
        Some((base, _)) if own.is_some_and(|own| own.0 == base) => 0,
        Some((_, caller)) => {
            *file = Some(caller);
            1
        }
        None => 1,
    }
}

/// Finds a symbol in a loaded file.
fn find_in(path: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: the strings end with NUL.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return handle;
    }
    // SAFETY: an open handle, and a name that ends with NUL. It stays open: the object, which has
    // loaded this one, stays loaded.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// Finds a symbol of the host library: of the one that has called, or else of any. The host may be
/// loaded with local scope, invisible to a global search.
fn find(name: &CStr) -> *mut c_void {
    if let Some(caller) = CALLER.get() {
        let found = find_in(caller, name);
        if !found.is_null() {
            return found;
        }
    }
    // SAFETY: `name` ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    let mut search = Search {
        name,
        found: std::ptr::null_mut(),
    };
    // SAFETY: `visit` gets the search, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    name: &'a CStr,
    found: *mut c_void,
}

/// Searches one loaded object for the symbol.
unsafe extern "C" fn visit(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: `object` is the loader's, and `search` comes from `find`.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search<'_>>()) };
    if object.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the loader's names end with NUL.
    let path = unsafe { CStr::from_ptr(object.dlpi_name) };
    let file = path.to_bytes().rsplit(|byte| *byte == b'/').next();
    if !file.is_some_and(|file| file.starts_with(b"libfabric")) {
        return 0;
    }
    search.found = find_in(path, search.name);
    c_int::from(!search.found.is_null())
}

/// Returns the version of the host's interface.
pub(crate) fn host_version() -> u32 {
    host().version
}

/// Allocates an empty `fi_info` with all its parts; null if there is no memory.
pub(crate) fn allocate_info() -> *mut Info {
    match host().dup_info {
        // SAFETY: null asks for an empty one.
        Some(dup_info) => unsafe { dup_info(std::ptr::null()) },
        None => std::ptr::null_mut(),
    }
}

/// Frees what [`allocate_info`] returned.
pub(crate) fn free_info(info: *mut Info) {
    if let Some(free_info) = host().free_info {
        // SAFETY: it was allocated by this library and is not used afterwards.
        unsafe { free_info(info) };
    }
}

/// Writes one line to the host's log, as a warning.
pub(crate) fn warn(text: &str) {
    write(FI_LOG_WARN, text);
}

/// Writes one line to the host's log, as information.
pub(crate) fn inform(text: &str) {
    write(FI_LOG_INFO, text);
}

fn write(level: c_int, text: &str) {
    let Some((log, enabled)) = host().log else {
        return;
    };
    let provider = crate::provider().cast::<c_void>();
    // SAFETY: the provider is static.
    if unsafe { enabled(provider, level, FI_LOG_CORE) } == 0 {
        return;
    }
    let plain: String = text.replace(|c: char| c.is_control(), " ");
    if let Ok(plain) = CString::new(plain) {
        // SAFETY: all strings end with NUL, and the format takes one string.
        unsafe {
            log(
                provider,
                level,
                FI_LOG_CORE,
                c"esp".as_ptr(),
                0,
                c"%s\n".as_ptr(),
                plain.as_ptr(),
            );
        }
    }
}
