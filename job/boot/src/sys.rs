//! All `unsafe` code of this crate: the calls into libpmix, and the descriptor that the launcher
//! passes by number.
#![allow(unsafe_code)]

mod abi;

pub(crate) use self::abi::{JOB_SIZE, WHOLE_JOB};

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use self::abi::{
    AbortFn, ByteObject, COLLECT, CommitFn, Data, ERR_NOT_FOUND, ERR_TIMEOUT, FenceFn, FinalizeFn,
    GLOBAL, GetFn, IMMEDIATE, Info, InitFn, NAME_ROOM, Proc, PutFn, SUCCESS, Status, TIMEOUT,
    TYPE_BYTE_OBJECT, TYPE_INT, TYPE_STRING, TYPE_UINT32, TextFn, Value,
};
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

    /// Returns the name of the job, or `None` if the library did not zero-terminate it.
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
        // SAFETY: not null, and a complete pmix_value_t, because the call succeeded.
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

/// Takes the content of a value and frees it as `PMIX_VALUE_RELEASE` does. (The function for it was
/// added in PMIx 4.)
///
/// # Safety
/// `value` must be a complete `pmix_value_t` returned by `PMIx_Get`, and must not be used
/// afterwards.
unsafe fn take(value: *mut Value, limit: usize) -> Found {
    // SAFETY: the value is complete, as the caller guarantees. The member read is the one that the
    // kind names. The library allocates with malloc.
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
mod tests;
