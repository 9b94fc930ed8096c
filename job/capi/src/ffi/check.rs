//! Checks of arguments from C.

use std::ffi::{c_char, c_void};

use p2p::{Rank, Source, Tag};

use super::CStatus;
use crate::code::{Code, Fault};

/// Converts a length, which must not be negative.
pub(super) fn length(length: i64) -> Result<usize, Fault> {
    let limit = isize::MAX as usize;
    let found = usize::try_from(length).ok().filter(|&n| n <= limit);
    found.ok_or_else(|| Fault::new(Code::Count, format!("a length or count of {length}")))
}

fn null(what: &str) -> Fault {
    Fault::new(Code::Pointer, format!("{what} is a null pointer"))
}

/// Returns length times size, checked against the address space.
pub(super) fn times(length: usize, size: u32) -> Result<usize, Fault> {
    let all = length
        .checked_mul(size as usize)
        .filter(|&n| isize::try_from(n).is_ok());
    all.ok_or_else(|| {
        Fault::new(
            Code::Count,
            format!("{length} bytes for each of {size} ranks"),
        )
    })
}

/// Borrows memory to read. The pointer is ignored if the length is 0.
pub(super) unsafe fn read<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Fault> {
    match length {
        0 => Ok(&[]),
        _ if data.is_null() => Err(null("the data")),
        // SAFETY: not null, and readable for the length by the contract of the module.
        _ => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
    }
}

/// Borrows memory to write.
pub(super) unsafe fn write<'a>(data: *mut c_void, length: usize) -> Result<&'a mut [u8], Fault> {
    match length {
        0 => Ok(&mut []),
        _ if data.is_null() => Err(null("the buffer")),
        // SAFETY: not null, and writable for the length by the contract of the module.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), length) }),
    }
}

/// Borrows values to read and write.
pub(super) unsafe fn values<'a, T>(data: *mut c_void, count: usize) -> Result<&'a mut [T], Fault> {
    if count == 0 {
        return Ok(&mut []);
    }
    if data.is_null() {
        return Err(null("the data"));
    }
    let data = data.cast::<T>();
    if !data.is_aligned() {
        return Err(Fault::new(
            Code::Pointer,
            format!("the data is not aligned to {} bytes", align_of::<T>()),
        ));
    }
    let fits = count
        .checked_mul(size_of::<T>())
        .is_some_and(|n| isize::try_from(n).is_ok());
    if !fits {
        return Err(Fault::new(Code::Count, format!("a count of {count}")));
    }
    // SAFETY: not null, aligned, of a possible length, and readable and writable by the contract of
    // the module.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, count) })
}

/// Checks the buffer of a non-blocking call.
pub(super) fn present(data: *const c_void, length: usize) -> Result<(), Fault> {
    if length > 0 && data.is_null() {
        Err(null("the buffer"))
    } else {
        Ok(())
    }
}

/// Borrows a required output argument.
pub(super) unsafe fn out<'a, T>(place: *mut T, what: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: null or a place for a `T` by the contract of the module.
    unsafe { place.as_mut() }.ok_or_else(|| null(what))
}

/// Writes an optional output argument.
pub(super) unsafe fn put<T>(place: *mut T, value: T) {
    // SAFETY: null or a place for a `T` by the contract of the module.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = value;
    }
}

/// Writes the status of a result, and returns the result.
pub(super) unsafe fn finish(
    place: *mut CStatus,
    result: Result<p2p::Status, Fault>,
) -> Result<(), Fault> {
    // SAFETY: null or a place for a status by the contract of the module.
    unsafe { put(place, CStatus::of(&result)) };
    result.map(drop)
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
    let mut bytes = Vec::new();
    for i in 0..LIMIT {
        // SAFETY: no byte before has ended the text, which ends by a zero as the module's contract
        // says.
        match unsafe { *text.add(i) } {
            0 => break,
            byte => bytes.push(u8::from_ne_bytes(byte.to_ne_bytes())),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
