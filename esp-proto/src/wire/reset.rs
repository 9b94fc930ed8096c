//! The reset block (section 8).

use super::{WireError, put};
use crate::api::ResetReason;

/// Length of the block in bytes.
pub const RESET_LEN: usize = 10;

/// A parsed reset block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Reason of the reset.
    pub reason: ResetReason,
    /// The receiver's own nonce, or 0 when the sender does not know it (W-57).
    pub nonce: u64,
}

/// The reasons with a code of their own, in the order of their codes, which start at 1. The detail
/// byte of a version is the version.
const CODES: [ResetReason; 10] = [
    ResetReason::Refused,
    ResetReason::Version(0),
    ResetReason::BadKey,
    ResetReason::Aborted,
    ResetReason::ProgramDied,
    ResetReason::Resources,
    ResetReason::Protocol,
    ResetReason::TimedOut,
    ResetReason::Unknown,
    ResetReason::Shutdown,
];

impl ResetReason {
    /// Returns the reason and detail bytes.
    pub fn code(self) -> (u8, u8) {
        match self {
            ResetReason::Version(spoken) => (2, spoken),
            ResetReason::Other(code) => (code, 0),
            reason => match CODES.iter().position(|other| *other == reason) {
                Some(at) => (at as u8 + 1, 0),
                None => (0, 0),
            },
        }
    }

    /// Returns the reason for a pair of bytes; unknown ones are kept as numbers (W-60).
    pub fn from_code(code: u8, detail: u8) -> Self {
        match CODES.get(usize::from(code).wrapping_sub(1)) {
            Some(ResetReason::Version(_)) => ResetReason::Version(detail),
            Some(reason) => *reason,
            None => ResetReason::Other(code),
        }
    }
}

impl Reset {
    /// Parses the payload of a RST; bytes after the tenth are ignored.
    pub fn parse(payload: &[u8]) -> Result<Reset, WireError> {
        let (&[code, detail, nonce @ ..], _) = payload
            .split_first_chunk::<RESET_LEN>()
            .ok_or(WireError::ResetBlock)?;
        Ok(Reset {
            reason: ResetReason::from_code(code, detail),
            nonce: u64::from_be_bytes(nonce),
        })
    }

    /// Writes the block to the front of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (code, detail) = self.reason.code();
        put(out, 0, &[code, detail]);
        put(out, 2, &self.nonce.to_be_bytes());
        RESET_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_on_literal_bytes() {
        let bytes = [2, 1, 0, 0, 0, 0, 0, 0, 0xab, 0xcd];
        let value = Reset {
            reason: ResetReason::Version(1),
            nonce: 0xabcd,
        };
        assert_eq!(Reset::parse(&bytes), Ok(value));
        let mut out = [0xff; RESET_LEN];
        assert_eq!(value.emit(&mut out), RESET_LEN);
        assert_eq!(out, bytes);
        assert_eq!(Reset::parse(&bytes[..9]), Err(WireError::ResetBlock));
    }

    /// W-60.
    #[test]
    fn every_reason_byte_survives() {
        for reason in 0..=255 {
            assert_eq!(ResetReason::from_code(reason, 0).code().0, reason);
        }
    }
}
