//! The move block (section 10): how two ends agree to continue on another pair of interfaces.

use super::{MIN_MAX_PAYLOAD, Reader, WireError, Writer};

/// Length of the block in bytes.
pub const MOVE_LEN: usize = 34;
/// The peer's FIN was received in order.
const FINISHED: u8 = 0x01;
/// The sender has lost its state (W-131).
const RESUMED: u8 = 0x02;

/// Step of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Step {
    /// 1: asks whether this path is usable.
    Ask = 1,
    /// 2: answers that the path is usable.
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
    /// The sender has lost the state of the connection and resumes it (W-131).
    pub resumed: bool,
    /// Maximum payload that the sending interface can receive, at least 64.
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
        let mut fields = Reader(payload);
        let step = match fields.u8()? {
            1 => Step::Ask,
            2 => Step::Answer,
            3 => Step::Go,
            4 => Step::Done,
            5 => Step::Gone,
            _ => return None,
        };
        let flags = fields.u8()?;
        let block = Move {
            step,
            finished: flags & FINISHED != 0,
            resumed: flags & RESUMED != 0,
            max_payload: fields.u16()?,
            epoch: fields.u32()?,
            nonce: fields.u64()?,
            sender_nonce: fields.u64()?,
            received: fields.u64()?,
            credit: fields.u16()?,
        };
        let sound = flags & !(FINISHED | RESUMED) == 0
            && block.max_payload >= MIN_MAX_PAYLOAD
            && block.epoch != 0
            && block.nonce != 0
            && block.sender_nonce != 0;
        sound.then_some(block)
    }

    /// Writes the block to the front of `out`, which must hold [`MOVE_LEN`] bytes, and returns that
    /// length.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let finished = if self.finished { FINISHED } else { 0 };
        let flags = finished | if self.resumed { RESUMED } else { 0 };
        let mut block = Writer { out, len: 0 };
        block.put(&[self.step as u8, flags]);
        block.put(&self.max_payload.to_be_bytes());
        block.put(&self.epoch.to_be_bytes());
        block.put(&self.nonce.to_be_bytes());
        block.put(&self.sender_nonce.to_be_bytes());
        block.put(&self.received.to_be_bytes());
        block.put(&self.credit.to_be_bytes());
        block.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; MOVE_LEN] = [
        3, 3, 0x05, 0xd1, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
        0x17, 0x18, 0, 0, 0, 1, 0, 0, 0, 9, 0, 176,
    ];

    #[test]
    fn both_directions_on_literal_bytes() {
        let value = Move {
            step: Step::Go,
            finished: true,
            resumed: true,
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

    /// W-101.
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
            (1, 1, 4),
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
