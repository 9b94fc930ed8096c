//! The retry block (W-150): payload of a RST that does not end anything.

use super::{RESET_LEN, WireError, put};

/// Length of the block in bytes.
pub const RETRY_LEN: usize = RESET_LEN + 8;
/// Request to repeat a SYN with a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Nonce of the SYN.
    pub nonce: u64,
    /// Peer nonce of the SYN that repeats it.
    pub cookie: u64,
}

impl Retry {
    /// Reason byte of its RST.
    pub const REASON: u8 = 11;

    /// Parses the payload of a RST; `None`: it is a reset block. Bytes after the block are ignored.
    pub fn parse(payload: &[u8]) -> Option<Result<Retry, WireError>> {
        if payload.first() != Some(&Self::REASON) {
            return None;
        }
        let fields = payload.split_first_chunk::<RETRY_LEN>();
        let Some((&[_, _, ref numbers @ ..], _)) = fields else {
            return Some(Err(WireError::ResetBlock));
        };
        let (nonce, cookie) = numbers.split_at(8);
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        Some(Ok(Retry {
            nonce: number(nonce),
            cookie: number(cookie),
        }))
    }

    /// Writes the block to the front of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        put(out, 0, &[Self::REASON, 0]);
        put(out, 2, &self.nonce.to_be_bytes());
        put(out, RESET_LEN, &self.cookie.to_be_bytes());
        RETRY_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_on_literal_bytes() {
        let bytes = [11, 0, 0, 0, 0, 0, 0, 0, 0xab, 0xcd, 1, 2, 3, 4, 5, 6, 7, 8];
        let value = Retry {
            nonce: 0xabcd,
            cookie: 0x0102_0304_0506_0708,
        };
        assert_eq!(Retry::parse(&bytes), Some(Ok(value)));
        let mut out = [0xff; RETRY_LEN];
        assert_eq!(value.emit(&mut out), RETRY_LEN);
        assert_eq!(out, bytes);
        assert_eq!(Retry::parse(&bytes[..17]), Some(Err(WireError::ResetBlock)));
        assert_eq!(Retry::parse(&[10; 30]), None);
        assert_eq!(Retry::parse(&[]), None);
    }
}
