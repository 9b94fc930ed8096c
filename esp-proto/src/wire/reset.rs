//! The reset block (section 8).

use super::{WireError, put, take};
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

impl ResetReason {
    /// Returns the reason and detail bytes.
    pub fn code(self) -> (u8, u8) {
        match self {
            ResetReason::Refused => (1, 0),
            ResetReason::Version(spoken) => (2, spoken),
            ResetReason::BadKey => (3, 0),
            ResetReason::Aborted => (4, 0),
            ResetReason::ProgramDied => (5, 0),
            ResetReason::Resources => (6, 0),
            ResetReason::Protocol => (7, 0),
            ResetReason::TimedOut => (8, 0),
            ResetReason::Unknown => (9, 0),
            ResetReason::Shutdown => (10, 0),
            ResetReason::Other(reason) => (reason, 0),
        }
    }

    /// Returns the reason for a pair of bytes; unknown ones are kept as numbers (W-60).
    pub fn from_code(reason: u8, detail: u8) -> Self {
        match reason {
            1 => ResetReason::Refused,
            2 => ResetReason::Version(detail),
            3 => ResetReason::BadKey,
            4 => ResetReason::Aborted,
            5 => ResetReason::ProgramDied,
            6 => ResetReason::Resources,
            7 => ResetReason::Protocol,
            8 => ResetReason::TimedOut,
            9 => ResetReason::Unknown,
            10 => ResetReason::Shutdown,
            other => ResetReason::Other(other),
        }
    }
}

impl Reset {
    /// Parses the payload of a RST; bytes after the tenth are ignored.
    pub fn parse(payload: &[u8]) -> Result<Reset, WireError> {
        let (&[reason, detail, nonce @ ..], _) =
            take::<RESET_LEN>(payload).ok_or(WireError::ResetBlock)?;
        Ok(Reset {
            reason: ResetReason::from_code(reason, detail),
            nonce: u64::from_be_bytes(nonce),
        })
    }

    /// Writes the block at the front of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (reason, detail) = self.reason.code();
        put(out, 0, &[reason, detail]);
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

    #[test]
    fn every_reason_byte_survives() {
        for reason in 0..=255 {
            assert_eq!(ResetReason::from_code(reason, 0).code().0, reason);
        }
    }
}
