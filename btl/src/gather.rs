//! Message bodies that consist of several parts.

use std::borrow::Cow;
use std::io::IoSlice;

/// Returns the number of bytes of a gathered body.
#[must_use]
pub fn gathered_len(body: &[IoSlice<'_>]) -> usize {
    body.iter()
        .fold(0, |sum, part| sum.saturating_add(part.len()))
}

/// Returns a gathered body as one slice. Copies only if it has more than one part.
#[inline]
#[must_use]
pub fn contiguous<'a>(body: &'a [IoSlice<'_>]) -> Cow<'a, [u8]> {
    match body {
        [] => Cow::Borrowed(&[]),
        [only] => Cow::Borrowed(only),
        several => {
            let mut bytes = Vec::with_capacity(gathered_len(several));
            for part in several {
                bytes.extend_from_slice(part);
            }
            Cow::Owned(bytes)
        }
    }
}
