//! Checks of arguments from C.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use p2p::{Rank, Source, Tag};

use super::CStatus;
use crate::code::{Code, Fault};
use crate::streams::Timeout;

/// Maximum time limit, which keeps deadlines within the range of the clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Converts a length, which must not be negative.
fn length(length: i64) -> Result<usize, Fault> {
    let limit = isize::MAX as usize;
    let found = usize::try_from(length).ok().filter(|&n| n <= limit);
    found.ok_or_else(|| Fault::new(Code::Count, format!("a length or count of {length}")))
}

fn null(what: &str) -> Fault {
    Fault::new(Code::Pointer, format!("{what} is a null pointer"))
}

/// Returns length times size.
pub(super) fn times(length: i64, size: u32) -> Result<i64, Fault> {
    let all = length.checked_mul(i64::from(size));
    all.ok_or_else(|| {
        let text = format!("{length} bytes for each of {size} ranks");
        Fault::new(Code::Count, text)
    })
}

/// Borrows memory to read. The pointer is ignored if the length is 0.
pub(super) unsafe fn read<'a>(data: *const c_void, bytes: i64) -> Result<&'a [u8], Fault> {
    match length(bytes)? {
        0 => Ok(&[]),
        _ if data.is_null() => Err(null("the data")),
        // SAFETY: not null, and readable for the length by the contract of the module.
        length => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
    }
}

/// Borrows memory to write.
pub(super) unsafe fn write<'a>(data: *mut c_void, bytes: i64) -> Result<&'a mut [u8], Fault> {
    match length(bytes)? {
        0 => Ok(&mut []),
        _ if data.is_null() => Err(null("the buffer")),
        // SAFETY: not null, and writable for the length by the contract of the module.
        length => Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), length) }),
    }
}

/// Borrows values to read and write.
pub(super) unsafe fn values<'a, T>(data: *mut T, count: i64) -> Result<&'a mut [T], Fault> {
    let count = length(count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    if data.is_null() {
        return Err(null("the data"));
    }
    if !data.is_aligned() {
        let text = format!("the data is not aligned to {} bytes", align_of::<T>());
        return Err(Fault::new(Code::Pointer, text));
    }
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Fault::new(Code::Count, format!("a count of {count}")));
    }
    // SAFETY: not null, aligned, of a valid length, and readable and writable by the contract of
    // the module.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, count) })
}

/// Checks the buffer of a non-blocking call, and returns its length.
pub(super) fn present(data: *const c_void, bytes: i64) -> Result<usize, Fault> {
    match length(bytes)? {
        1.. if data.is_null() => Err(null("the buffer")),
        length => Ok(length),
    }
}

/// Borrows a required output argument.
pub(super) unsafe fn out<'a, T>(target: *mut T, what: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: null or valid for a `T` by the contract of the module.
    unsafe { target.as_mut() }.ok_or_else(|| null(what))
}

/// Checks a required text.
pub(super) fn some(text: *const c_char, what: &str) -> Result<*const c_char, Fault> {
    if text.is_null() {
        return Err(null(what));
    }
    Ok(text)
}

/// Writes an optional output argument.
pub(super) unsafe fn put<T>(target: *mut T, value: T) {
    // SAFETY: null or valid for a `T` by the contract of the module.
    if let Some(target) = unsafe { target.as_mut() } {
        *target = value;
    }
}

/// Writes as much of a text as there is room for, zero-terminated, and the room for all of it.
pub(super) unsafe fn put_text(
    target: *mut c_char,
    room: i64,
    needed: *mut i64,
    text: String,
) -> Result<(), Fault> {
    let mut bytes = text.into_bytes();
    bytes.retain(|&b| b != 0);
    // SAFETY: by the contract of the module.
    unsafe {
        let place = write(target.cast(), room)?;
        if let Some((end, front)) = place.split_last_mut() {
            let shown = bytes.len().min(front.len());
            front[..shown].copy_from_slice(&bytes[..shown]);
            *front.get_mut(shown).unwrap_or(end) = 0;
        }
        put(needed, i64::try_from(bytes.len() + 1).unwrap_or(i64::MAX));
    }
    Ok(())
}

/// Writes the status of a result, and returns the result.
pub(super) unsafe fn finish(
    target: *mut CStatus,
    result: Result<p2p::Status, impl Into<Fault>>,
) -> Result<(), Fault> {
    let result = result.map_err(Into::into);
    // SAFETY: null or valid for a status by the contract of the module.
    unsafe { put(target, CStatus::of(&result)) };
    result.map(drop)
}

/// Converts a time limit in milliseconds. Negative: none.
pub(super) fn timeout(milliseconds: i64) -> Timeout {
    match u64::try_from(milliseconds) {
        Err(_) => Timeout::Never,
        Ok(0) => Timeout::AtOnce,
        Ok(some) => Timeout::After(Duration::from_millis(some).min(MAX_TIMEOUT)),
    }
}

/// Converts the destination of a send.
pub(super) fn rank(rank: i32) -> Result<Rank, Fault> {
    Rank::try_from(rank).map_err(|_| Fault::new(Code::Rank, format!("rank {rank}")))
}

/// Converts the source of a receive; -1 is any rank.
pub(super) fn source(source: i32) -> Result<Source, Fault> {
    if source == -1 {
        Ok(Source::Any)
    } else {
        rank(source).map(Source::Rank)
    }
}

/// Converts the tag of a receive; -1 is any tag.
pub(super) fn tag(tag: i32) -> Tag {
    if tag == -1 { Tag::Any } else { Tag::Is(tag) }
}

/// Reads the beginning of a C string. Null is empty.
pub(super) unsafe fn text(text: *const c_char) -> String {
    const LIMIT: usize = 1000;
    if text.is_null() {
        return String::new();
    }
    // SAFETY: no byte before this one terminated the text, which is zero-terminated by the contract
    // of the module.
    let bytes = (0..LIMIT).map(|i| u8::from_ne_bytes(unsafe { *text.add(i) }.to_ne_bytes()));
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
