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
            // SAFETY: it has no conditions.
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

/// Finds a symbol of the host library, which may be loaded for its users only.
fn find(name: &CStr) -> *mut c_void {
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

/// Looks for the symbol in one loaded object.
unsafe extern "C" fn visit(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the two are those of `find`.
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
    // SAFETY: the object is loaded, and stays so: it has loaded this one.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return 0;
    }
    // SAFETY: an open handle, and a name that ends with NUL.
    search.found = unsafe { libc::dlsym(handle, search.name.as_ptr()) };
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
