//! The move block (section 10): how two ends agree to continue on another pair of interfaces.

use super::{MIN_MAX_PAYLOAD, WireError, put, take};

/// Bytes of the block.
pub const MOVE_LEN: usize = 34;
/// The peer's FIN was received in order.
const FINISHED: u8 = 0x01;

/// Step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Step {
    /// 1: asks whether this path is usable.
    Ask = 1,
    /// 2: answers that it is.
    Answer = 2,
    /// 3: the sender has moved here and asks the receiver to follow.
    Go = 3,
    /// 4: the sender has followed.
    Done = 4,
    /// 5: the sender has no such connection.
    Gone = 5,
}

/// A move block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Step of the move.
    pub step: Step,
    /// The peer's FIN was received in order.
    pub finished: bool,
    /// Largest payload that the sending interface can receive, at least 64.
    pub max_payload: u16,
    /// Number of the move, never 0.
    pub epoch: u32,
    /// The receiver's own nonce of the connection (W-101).
    pub nonce: u64,
    /// The sender's own nonce of the connection.
    pub sender_nonce: u64,
    /// Stream bytes received in order by the sender.
    pub received: u64,
    /// Packets the sender is ready to receive.
    pub credit: u16,
}

impl Move {
    /// Parses the payload of a MOVE; bytes after the block are ignored.
    pub fn parse(payload: &[u8]) -> Result<Move, WireError> {
        Self::read(payload).ok_or(WireError::MoveBlock)
    }

    fn read(payload: &[u8]) -> Option<Move> {
        let (fixed, _) = take::<MOVE_LEN>(payload)?;
        let (&[step, flags], rest) = take::<2>(fixed)?;
        let (max_payload, rest) = take::<2>(rest)?;
        let (epoch, rest) = take::<4>(rest)?;
        let (nonce, rest) = take::<8>(rest)?;
        let (sender_nonce, rest) = take::<8>(rest)?;
        let (received, rest) = take::<8>(rest)?;
        let (credit, _) = take::<2>(rest)?;
        let step = match step {
            1 => Step::Ask,
            2 => Step::Answer,
            3 => Step::Go,
            4 => Step::Done,
            5 => Step::Gone,
            _ => return None,
        };
        let block = Move {
            step,
            finished: flags & FINISHED != 0,
            max_payload: u16::from_be_bytes(*max_payload),
            epoch: u32::from_be_bytes(*epoch),
            nonce: u64::from_be_bytes(*nonce),
            sender_nonce: u64::from_be_bytes(*sender_nonce),
            received: u64::from_be_bytes(*received),
            credit: u16::from_be_bytes(*credit),
        };
        let sound = flags & !FINISHED == 0
            && block.max_payload >= MIN_MAX_PAYLOAD
            && block.epoch != 0
            && block.nonce != 0
            && block.sender_nonce != 0;
        sound.then_some(block)
    }

    /// Writes the block at the front of `out`, which must hold [`MOVE_LEN`] bytes, and returns that
    /// length.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        put(
            out,
            0,
            &[self.step as u8, if self.finished { FINISHED } else { 0 }],
        );
        put(out, 2, &self.max_payload.to_be_bytes());
        put(out, 4, &self.epoch.to_be_bytes());
        put(out, 8, &self.nonce.to_be_bytes());
        put(out, 16, &self.sender_nonce.to_be_bytes());
        put(out, 24, &self.received.to_be_bytes());
        put(out, 32, &self.credit.to_be_bytes());
        MOVE_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; MOVE_LEN] = [
        3, 1, 0x05, 0xd1, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
        0x17, 0x18, 0, 0, 0, 1, 0, 0, 0, 9, 0, 176,
    ];

    #[test]
    fn both_directions_on_literal_bytes() {
        let value = Move {
            step: Step::Go,
            finished: true,
            max_payload: 1489,
            epoch: 2,
            nonce: 0x0102_0304_0506_0708,
            sender_nonce: 0x1112_1314_1516_1718,
            received: 0x1_0000_0009,
            credit: 176,
        };
        assert_eq!(Move::parse(&BYTES), Ok(value));
        let mut out = [0xff; MOVE_LEN];
        assert_eq!(value.emit(&mut out), MOVE_LEN);
        assert_eq!(out, BYTES);
    }

    #[test]
    fn malformed_move_blocks_are_refused() {
        for len in 0..MOVE_LEN {
            assert_eq!(
                Move::parse(&BYTES[..len]),
                Err(WireError::MoveBlock),
                "{len}"
            );
        }
        for (at, len, value) in [
            (0, 1, 0),
            (0, 1, 6),
            (1, 1, 2),
            (2, 2, 0),
            (4, 4, 0),
            (8, 8, 0),
            (16, 8, 0),
        ] {
            let mut bytes = BYTES;
            bytes[at..at + len].fill(value);
            assert_eq!(Move::parse(&bytes), Err(WireError::MoveBlock), "{at}");
        }
        let mut long = BYTES.to_vec();
        long.push(7);
        assert!(Move::parse(&long).is_ok());
    }
}
