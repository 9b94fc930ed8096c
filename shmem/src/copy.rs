//! Copying of long ranges.

/// Number of bytes of one call of `memcpy`.
///
/// The C library copies up to 2 KiB by vector instructions and more by `rep movsb`. Processors of
/// AMD (Zen 3, Zen 4) run that instruction at 3 instead of 40 GB/s if the destination follows the
/// source by less than 64 bytes modulo the page size (glibc bug 30994). A buffer of `malloc`, at
/// byte 16 of a page, and a ring, at byte 0, are such a pair.
const CHUNK: usize = 1024;

/// Copies `len` bytes at the same speed for each alignment of the two ranges.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `len` bytes, and the ranges must not
/// overlap.
#[inline]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while len - done > CHUNK {
        // SAFETY: `done + CHUNK` is below `len`; the caller guarantees the rest.
        unsafe { copy_chunk(from.add(done), to.add(done)) };
        done += CHUNK;
    }
    // SAFETY: as above, for the last `len - done` bytes.
    unsafe { core::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done) };
}

/// Copies [`CHUNK`] bytes. Not inlined, because the compiler makes one `memcpy` of a loop of them.
///
/// # Safety
/// As for [`copy_bytes`].
#[inline(never)]
unsafe fn copy_chunk(from: *const u8, to: *mut u8) {
    // SAFETY: guaranteed by the caller.
    unsafe { core::ptr::copy_nonoverlapping(from, to, CHUNK) };
}

/// Copies a slice as [`copy_bytes`] does.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_slice(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "slices of equal length");
    // SAFETY: the lengths are equal, and an exclusive slice overlaps no other one.
    unsafe { copy_bytes(from.as_ptr(), to.as_mut_ptr(), from.len()) };
}

/// Returns the bytes as a vector; copies as [`copy_bytes`] does.
pub fn copy_to_vec(bytes: &[u8]) -> Vec<u8> {
    let mut copy = Vec::with_capacity(bytes.len());
    // SAFETY: the vector has room for the bytes, which are not its own, and holds them afterwards.
    unsafe {
        copy_bytes(bytes.as_ptr(), copy.as_mut_ptr(), bytes.len());
        copy.set_len(bytes.len());
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_and_no_other_one() {
        let from: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        let lengths = [0, 1, 1023, 1024, 1025, 2047, 2048, 2049, 4097];
        for len in lengths {
            for shift in [0, 1, 16, 63] {
                let mut to = vec![0xee; 5000];
                copy_slice(&from[shift..shift + len], &mut to[100..100 + len]);
                assert_eq!(to[100..100 + len], from[shift..shift + len]);
                assert_eq!(
                    copy_to_vec(&from[shift..shift + len]),
                    from[shift..shift + len]
                );
                assert!(
                    to[..100]
                        .iter()
                        .chain(&to[100 + len..])
                        .all(|&byte| byte == 0xee)
                );
            }
        }
    }
}
