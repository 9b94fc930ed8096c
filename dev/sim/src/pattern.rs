//! Contents of simulated streams: bytes that depend on the stream and the position, so that a
//! missing, duplicated or misplaced byte, or one of another stream, is detected.
//!
//! The first eight bytes of a stream are its id, little endian; the reader learns from them which
//! stream it reads. Every later word is a hash of id and position.

/// Bytes at the front of a stream that contain its id.
pub const NAME_LEN: u64 = 8;

fn word(stream: u64, index: u64) -> [u8; 8] {
    if index == 0 {
        return stream.to_le_bytes();
    }
    let x = (index ^ stream.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).to_le_bytes()
}

/// Fills `out` with the stream's bytes at `offset`.
pub fn fill(stream: u64, offset: u64, out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let at = offset + done as u64;
        let within = (at % 8) as usize;
        let take = (8 - within).min(out.len() - done);
        out[done..done + take].copy_from_slice(&word(stream, at / 8)[within..within + take]);
        done += take;
    }
}

/// Returns the index of the first byte that differs from the stream at `offset`, if any.
pub fn first_difference(stream: u64, offset: u64, bytes: &[u8]) -> Option<usize> {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let within = (at % 8) as usize;
        let take = (8 - within).min(bytes.len() - done);
        let expected = word(stream, at / 8);
        let (got, want) = (&bytes[done..done + take], &expected[within..within + take]);
        if got != want {
            return got
                .iter()
                .zip(want)
                .position(|(a, b)| a != b)
                .map(|index| done + index);
        }
        done += take;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_a_stream_is_recognised() {
        let mut whole = vec![0; 200];
        fill(42, 0, &mut whole);
        assert_eq!(whole[..8], 42u64.to_le_bytes());
        for start in 0..60 {
            for len in 0..60 {
                let mut part = vec![0; len];
                fill(42, start as u64, &mut part);
                assert_eq!(part, whole[start..start + len]);
                assert_eq!(first_difference(42, start as u64, &part), None);
            }
        }
    }

    #[test]
    fn a_moved_changed_or_foreign_byte_is_found() {
        let mut bytes = vec![0; 64];
        fill(42, 100, &mut bytes);
        assert!(first_difference(42, 101, &bytes).is_some());
        assert!(first_difference(43, 100, &bytes).is_some());
        bytes[17] ^= 1;
        assert_eq!(first_difference(42, 100, &bytes), Some(17));
    }
}
