//! All `unsafe` code of this crate: the calls into libpmix, and the descriptor that the launcher
//! passes by number.
//!
//! The PMIx types are declared by hand, as far as the calls need them. Their sizes and offsets are
//! those of PMIx 3 to 6 on 64-bit systems, asserted at compile time; a test compares them with the
//! headers, where those are installed.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use crate::BootError;
use crate::error::printable;

/// Duplicates the descriptor with this number, closed on exec.
pub(crate) fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC accesses no memory; an invalid number is an error.
    let new = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if new < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

/// `pmix_status_t`.
type Status = c_int;
const SUCCESS: Status = 0;
const ERR_NOT_FOUND: Status = -46;
const ERR_TIMEOUT: Status = -24;
const TYPE_BOOL: u16 = 1;
const TYPE_STRING: u16 = 3;
const TYPE_INT: u16 = 6;
const TYPE_UINT32: u16 = 14;
const TYPE_BYTE_OBJECT: u16 = 27;
/// `PMIX_GLOBAL`.
const GLOBAL: u8 = 3;
/// `PMIX_RANK_WILDCARD`: selects values about the job, not about one process.
pub(crate) const WHOLE_JOB: u32 = u32::MAX - 1;
/// `PMIX_JOB_SIZE`, `PMIX_COLLECT_DATA`, `PMIX_TIMEOUT`, `PMIX_IMMEDIATE`.
pub(crate) const JOB_SIZE: &str = "pmix.job.size";
const COLLECT: &str = "pmix.collect";
const TIMEOUT: &str = "pmix.timeout";
const IMMEDIATE: &str = "pmix.immediate";
const NAME_ROOM: usize = 256;
const KEY_ROOM: usize = 512;

/// `pmix_proc_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Proc {
    nspace: [c_char; NAME_ROOM],
    rank: u32,
}

/// `pmix_byte_object_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ByteObject {
    bytes: *mut c_char,
    size: usize,
}

/// The union in `pmix_value_t`, as far as it is used here.
#[repr(C)]
union Data {
    flag: bool,
    integer: c_int,
    uint32: u32,
    string: *mut c_char,
    bytes: ByteObject,
    /// The longest member has three words.
    all: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; KEY_ROOM],
    flags: u32,
    value: Value,
}

/// Sizes and offsets: process, its rank, byte object, value, its data, info, its flags, its value.
const LAYOUT: [usize; 8] = [
    size_of::<Proc>(),
    offset_of!(Proc, rank),
    size_of::<ByteObject>(),
    size_of::<Value>(),
    offset_of!(Value, data),
    size_of::<Info>(),
    offset_of!(Info, flags),
    offset_of!(Info, value),
];

#[cfg(target_pointer_width = "64")]
const _: () = {
    let expected = [260, 256, 16, 32, 8, 552, 512, 520];
    let mut i = 0;
    while i < LAYOUT.len() {
        assert!(LAYOUT[i] == expected[i]);
        i += 1;
    }
};

type InitFn = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> Status;
type FinalizeFn = unsafe extern "C" fn(*const Info, usize) -> Status;
type AbortFn = unsafe extern "C" fn(Status, *const c_char, *mut Proc, usize) -> Status;
type PutFn = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status;
type CommitFn = unsafe extern "C" fn() -> Status;
type FenceFn = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> Status;
type GetFn =
    unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> Status;
type TextFn = unsafe extern "C" fn(Status) -> *const c_char;

/// The library and this process's place in a job. Its calls may be made from any thread.
pub(crate) struct Pmix {
    me: Proc,
    finalize: Symbol<FinalizeFn>,
    abort: Symbol<AbortFn>,
    put: Symbol<PutFn>,
    commit: Symbol<CommitFn>,
    fence: Symbol<FenceFn>,
    get: Symbol<GetFn>,
    text: Symbol<TextFn>,
}

/// A value from the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Number(u32),
    Bytes(Vec<u8>),
    /// The type is not one that this crate requests.
    Other(u16),
    /// The value is longer than the limit.
    TooLong(usize),
}

impl Pmix {
    /// Loads the library from the first path that has it, and connects to the launcher's service on
    /// this node.
    pub(crate) fn init(places: &[String]) -> Result<Pmix, BootError> {
        let library = load(places)?;
        let init: Symbol<InitFn> = symbol(&library, "PMIx_Init")?;
        let mut pmix = Pmix {
            me: Proc {
                nspace: [0; NAME_ROOM],
                rank: 0,
            },
            finalize: symbol(&library, "PMIx_Finalize")?,
            abort: symbol(&library, "PMIx_Abort")?,
            put: symbol(&library, "PMIx_Put")?,
            commit: symbol(&library, "PMIx_Commit")?,
            fence: symbol(&library, "PMIx_Fence")?,
            get: symbol(&library, "PMIx_Get")?,
            text: symbol(&library, "PMIx_Error_string")?,
        };
        // The library's threads live until the process ends, so its symbols must stay.
        std::mem::forget(library);
        // SAFETY: the signature is that of pmix.h; `me` is a pmix_proc_t that it fills; no
        // attributes are given.
        let status = unsafe { init(&raw mut pmix.me, std::ptr::null_mut(), 0) };
        pmix.judge("connecting to the launcher", status, 0)?;
        Ok(pmix)
    }

    /// Returns the rank of this process.
    pub(crate) fn rank(&self) -> u32 {
        self.me.rank
    }

    /// Returns the name of the job, or `None` if the library did not terminate it.
    pub(crate) fn job(&self) -> Option<String> {
        let bytes = self.me.nspace.map(|c| u8::from_ne_bytes(c.to_ne_bytes()));
        let name = CStr::from_bytes_until_nul(&bytes).ok()?;
        Some(name.to_string_lossy().into_owned())
    }

    /// Publishes a value.
    pub(crate) fn put(&self, key: &str, value: &[u8]) -> Result<(), BootError> {
        let key = c_text(key);
        let bytes = ByteObject {
            bytes: value.as_ptr().cast_mut().cast(),
            size: value.len(),
        };
        let mut value = Value {
            kind: TYPE_BYTE_OBJECT,
            data: Data { bytes },
        };
        // SAFETY: key and value live during the call, and PMIx_Put copies both; it does not write
        // through `bytes`.
        let status = unsafe { (self.put)(GLOBAL, key.as_ptr(), &raw mut value) };
        self.judge("publishing a value", status, 0)
    }

    /// Commits published values and waits for all processes, at most `seconds`.
    pub(crate) fn fence(&self, seconds: i32) -> Result<(), BootError> {
        // SAFETY: no arguments.
        let status = unsafe { (self.commit)() };
        self.judge("committing values to the launcher", status, 0)?;
        let info = [Info::flag(COLLECT), Info::number(TIMEOUT, seconds)];
        // SAFETY: no processes are named, which means all of the job; the two attributes live
        // during the call.
        let status = unsafe { (self.fence)(std::ptr::null(), 0, info.as_ptr(), info.len()) };
        self.judge("waiting for all processes of the job", status, seconds)
    }

    /// Returns the value that a process (or the launcher: [`WHOLE_JOB`]) published under a key, of
    /// at most `limit` bytes.
    pub(crate) fn get(
        &self,
        rank: u32,
        name: &str,
        seconds: i32,
        limit: usize,
    ) -> Result<Option<Found>, BootError> {
        let key = c_text(name);
        let proc = Proc { rank, ..self.me };
        let info = [Info::flag(IMMEDIATE), Info::number(TIMEOUT, seconds)];
        let mut value: *mut Value = std::ptr::null_mut();
        // SAFETY: all arguments live during the call; on success `value` is ours to free.
        let status = unsafe {
            (self.get)(
                &raw const proc,
                key.as_ptr(),
                info.as_ptr(),
                info.len(),
                &raw mut value,
            )
        };
        if status == ERR_NOT_FOUND {
            return Ok(None);
        }
        self.judge(&format!("reading `{name}` of rank {rank}"), status, seconds)?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: not null, and a whole pmix_value_t, since the call succeeded.
        Ok(Some(unsafe { take(value, limit) }))
    }

    /// Asks the launcher to end the job.
    pub(crate) fn abort(&self, code: i32, why: &str) -> Result<(), BootError> {
        let why = c_text(why);
        // SAFETY: the text lives during the call; no processes are named, which means all of the
        // job.
        let status = unsafe { (self.abort)(code, why.as_ptr(), std::ptr::null_mut(), 0) };
        self.judge("aborting the job", status, 0)
    }

    /// Finalizes the client.
    pub(crate) fn finalize(&self) -> Result<(), BootError> {
        // SAFETY: no attributes are given.
        let status = unsafe { (self.finalize)(std::ptr::null(), 0) };
        self.judge("leaving the launcher", status, 0)
    }

    /// Returns an error if a call failed. `what` names its purpose, `seconds` its time limit.
    fn judge(&self, what: &str, status: Status, seconds: i32) -> Result<(), BootError> {
        if status == SUCCESS {
            return Ok(());
        }
        if status == ERR_TIMEOUT {
            return Err(BootError::Timeout {
                what: format!("pmix: {what}"),
                limit: Duration::from_secs(seconds.unsigned_abs().into()),
            });
        }
        // SAFETY: returns a constant text of the library for any number, or null.
        let text = unsafe {
            let text = (self.text)(status);
            text.as_ref()
                .map(|text| CStr::from_ptr(text).to_string_lossy())
        };
        let text = printable(&text.unwrap_or_default());
        Err(BootError::Protocol(format!(
            "PMIx: {what}: {text} ({status})"
        )))
    }
}

impl Info {
    /// Creates an attribute that is set.
    fn flag(name: &str) -> Info {
        // The whole union is written, so that a library that copies it reads no uninitialized byte.
        let mut data = Data { all: [0; 3] };
        data.flag = true;
        Info::new(name, TYPE_BOOL, data)
    }

    /// Creates an attribute with a number.
    fn number(name: &str, number: c_int) -> Info {
        let mut data = Data { all: [0; 3] };
        data.integer = number;
        Info::new(name, TYPE_INT, data)
    }

    fn new(name: &str, kind: u16, data: Data) -> Info {
        let mut key = [0; KEY_ROOM];
        // The last byte stays 0 and terminates the key.
        for (slot, byte) in key.iter_mut().take(KEY_ROOM - 1).zip(name.bytes()) {
            *slot = c_char::from_ne_bytes([byte]);
        }
        let value = Value { kind, data };
        Info {
            key,
            flags: 0,
            value,
        }
    }
}

/// Takes the content of a value and frees it as `PMIX_VALUE_RELEASE` does. (The function for it was
/// added in PMIx 4.)
///
/// # Safety
/// `value` is a whole `pmix_value_t` returned by `PMIx_Get`, and not used afterwards.
unsafe fn take(value: *mut Value, limit: usize) -> Found {
    // SAFETY: whole, as the caller guarantees. The member read is the one that the kind names. The
    // library allocates with malloc.
    unsafe {
        let found = match (*value).kind {
            TYPE_UINT32 => Found::Number((*value).data.uint32),
            TYPE_INT => Found::Number(u32::try_from((*value).data.integer).unwrap_or(u32::MAX)),
            TYPE_STRING => {
                libc::free((*value).data.string.cast());
                Found::Other(TYPE_STRING)
            }
            TYPE_BYTE_OBJECT => {
                let ByteObject { bytes, size } = (*value).data.bytes;
                let found = if size > limit {
                    Found::TooLong(size)
                } else if bytes.is_null() {
                    Found::Bytes(Vec::new())
                } else {
                    Found::Bytes(std::slice::from_raw_parts(bytes.cast(), size).to_vec())
                };
                libc::free(bytes.cast());
                found
            }
            // Leaks a little memory, once.
            kind => Found::Other(kind),
        };
        libc::free(value.cast());
        found
    }
}

/// Creates a C string, cut at the first zero byte (our keys have none).
fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().take_while(|&b| b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

fn load(places: &[String]) -> Result<Library, BootError> {
    let mut why = Vec::new();
    for place in places {
        // SAFETY: its initializers are those of the system's libpmix. Global, because its plugins
        // look up its symbols.
        match unsafe { Library::open(Some(place), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return Ok(library),
            Err(e) => why.push(printable(&e.to_string())),
        }
    }
    Err(BootError::NoPmix(why.join("; ")))
}

fn symbol<T>(library: &Library, name: &'static str) -> Result<Symbol<T>, BootError> {
    // SAFETY: `T` is the signature of this function in pmix.h, equal in versions 2 to 6.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map_err(|e| {
        let why = printable(&e.to_string());
        BootError::NoPmix(format!("the library has no {name}: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_duplicated_and_an_invalid_one_refused() {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        let copy = duplicate(file.as_raw_fd()).unwrap();
        assert_ne!(copy.as_raw_fd(), file.as_raw_fd());
        assert!(duplicate(-1).is_err());
        assert!(duplicate(1 << 20).is_err());
    }

    #[test]
    fn a_missing_library_names_the_package_to_install() {
        let text = load(&[
            "libno-such-thing.so.7".into(),
            "/nonexistent/libpmix.so.2".into(),
        ])
        .map(drop)
        .unwrap_err()
        .to_string();
        assert!(
            text.contains("apt install libpmix2") && text.contains("libno-such-thing.so.7"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn another_library_is_refused() {
        let Err(error) = Pmix::init(&["libc.so.6".into()]) else {
            panic!("libc was accepted as libpmix")
        };
        assert!(error.to_string().contains("PMIx_Init"), "{error}");
    }

    /// Compiles a program with the headers of the system that prints sizes and offsets.
    #[test]
    fn the_layout_is_that_of_the_headers() {
        let source = r#"
#include <pmix.h>
#include <stddef.h>
#include <stdio.h>
int main(void) {
    pmix_status_t (*init)(pmix_proc_t *, pmix_info_t *, size_t) = PMIx_Init;
    pmix_status_t (*finalize)(const pmix_info_t *, size_t) = PMIx_Finalize;
    pmix_status_t (*abort_job)(int, const char *, pmix_proc_t *, size_t) = PMIx_Abort;
    pmix_status_t (*put)(pmix_scope_t, const char *, pmix_value_t *) = PMIx_Put;
    pmix_status_t (*commit)(void) = PMIx_Commit;
    pmix_status_t (*fence)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t) = PMIx_Fence;
    pmix_status_t (*get)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **) = PMIx_Get;
    const char *(*text)(pmix_status_t) = PMIx_Error_string;
    (void)init; (void)finalize; (void)abort_job; (void)put; (void)commit; (void)fence; (void)get; (void)text;
    printf("%zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %d %d %d %d %d %d %d %d %d %u %zu %zu %s %s %s %s", sizeof(pmix_proc_t), offsetof(pmix_proc_t, rank),
        sizeof(pmix_byte_object_t), sizeof(pmix_value_t), offsetof(pmix_value_t, data), sizeof(pmix_info_t),
        offsetof(pmix_info_t, flags), offsetof(pmix_info_t, value), sizeof(pmix_status_t), sizeof(pmix_scope_t),
        PMIX_SUCCESS, PMIX_ERR_NOT_FOUND, PMIX_ERR_TIMEOUT, PMIX_BOOL, PMIX_STRING, PMIX_INT, PMIX_UINT32,
        PMIX_BYTE_OBJECT, PMIX_GLOBAL, PMIX_RANK_WILDCARD, sizeof(pmix_nspace_t), sizeof(pmix_key_t),
        PMIX_COLLECT_DATA, PMIX_TIMEOUT, PMIX_IMMEDIATE, PMIX_JOB_SIZE);
    return 0;
}"#;
        let dir = std::env::temp_dir().join(format!("esp-pmix-abi-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (file, program) = (dir.join("abi.c"), dir.join("abi"));
        std::fs::write(&file, source).unwrap();
        let mut cc = std::process::Command::new("cc");
        cc.args([
            "-Wall",
            "-Werror",
            "-c",
            "-I/usr/lib/x86_64-linux-gnu/pmix2/include",
        ]);
        cc.args(["-I/usr/lib/aarch64-linux-gnu/pmix2/include", "-o"])
            .arg(dir.join("abi.o"))
            .arg(&file);
        let probe = std::process::Command::new("cc")
            .args([
                "-E",
                "-x",
                "c",
                "-",
                "-I/usr/lib/x86_64-linux-gnu/pmix2/include",
            ])
            .args([
                "-I/usr/lib/aarch64-linux-gnu/pmix2/include",
                "-include",
                "pmix.h",
            ])
            .stdin(std::process::Stdio::null())
            .output();
        if !probe.is_ok_and(|out| out.status.success()) {
            std::fs::remove_dir_all(&dir).unwrap();
            let why =
                "no pmix.h here (Debian: apt install libpmix-dev; Fedora: dnf install pmix-devel)";
            assert!(
                std::env::var_os("ESP_TEST_REQUIRE_PRIVILEGE").is_none_or(|v| v != "1"),
                "{why}"
            );
            // Written past the capture of the test harness, so that it is counted.
            let text = format!("SKIPPED the_layout_is_that_of_the_headers: {why}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            return;
        }
        // The functions are only compiled: no library is needed to run the program.
        let compiled = cc.output().unwrap();
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        let linked = std::process::Command::new("cc")
            .args(["-Wl,--unresolved-symbols=ignore-all", "-no-pie", "-o"])
            .arg(&program)
            .arg(dir.join("abi.o"))
            .output()
            .unwrap();
        assert!(
            linked.status.success(),
            "{}",
            String::from_utf8_lossy(&linked.stderr)
        );
        let printed = std::process::Command::new(&program)
            .output()
            .unwrap()
            .stdout;
        std::fs::remove_dir_all(&dir).unwrap();
        let layout = LAYOUT.map(|n| n.to_string()).join(" ");
        let rest = format!(
            "{} {} {SUCCESS} {ERR_NOT_FOUND} {ERR_TIMEOUT} {TYPE_BOOL} {TYPE_STRING} {TYPE_INT} {TYPE_UINT32} \
             {TYPE_BYTE_OBJECT} {GLOBAL} {WHOLE_JOB} {NAME_ROOM} {KEY_ROOM} {COLLECT} {TIMEOUT} {IMMEDIATE} {JOB_SIZE}",
            size_of::<Status>(),
            size_of::<u8>(),
        );
        assert_eq!(
            String::from_utf8_lossy(&printed),
            format!("{layout} {rest}")
        );
    }

    #[test]
    fn values_are_taken_and_freed() {
        /// Creates a value as the library does.
        fn made(kind: u16, data: Data) -> *mut Value {
            // SAFETY: room for one, which is written before use.
            unsafe {
                let value = libc::malloc(size_of::<Value>()).cast::<Value>();
                value.write(Value { kind, data });
                value
            }
        }
        fn bytes(length: usize) -> Data {
            // SAFETY: room for `length` bytes, all written.
            let bytes = unsafe {
                let bytes = libc::malloc(length.max(1)).cast::<c_char>();
                bytes.write_bytes(7, length);
                bytes
            };
            Data {
                bytes: ByteObject {
                    bytes,
                    size: length,
                },
            }
        }
        // SAFETY: each value is whole, from malloc, and passed on here.
        unsafe {
            assert_eq!(
                take(made(TYPE_UINT32, Data { uint32: 5 }), 9),
                Found::Number(5)
            );
            assert_eq!(
                take(made(TYPE_BYTE_OBJECT, bytes(3)), 9),
                Found::Bytes(vec![7; 3])
            );
            assert_eq!(
                take(made(TYPE_BYTE_OBJECT, bytes(0)), 9),
                Found::Bytes(Vec::new())
            );
            assert_eq!(
                take(made(TYPE_BYTE_OBJECT, bytes(10)), 9),
                Found::TooLong(10)
            );
            assert_eq!(
                take(made(TYPE_BOOL, Data { flag: true }), 9),
                Found::Other(TYPE_BOOL)
            );
        }
    }
}
