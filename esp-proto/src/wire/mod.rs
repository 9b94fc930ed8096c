//! The frames of `docs/wire-format.md`, one file for each kind of block.
//!
//! Each file has a view that `parse` makes from untrusted bytes, from which it borrows, and that
//! `emit` writes.

mod edp;
mod ext;
mod frame;
mod header;
mod move_block;
mod reset;
mod retry;
mod setup;

pub use edp::{EdpFrame, InfoReply, MAX_NAME};
pub use ext::{Ext, MAX_EXT, MAX_SACK};
pub use frame::{EspFrame, FrameType};
pub use header::{
    FLAG_ACK, FLAG_ASK, FLAG_CTL, FLAG_EXT, FLAG_FIN, FLAG_PRB, FLAG_RST, FLAG_SYN, HEADER_LEN,
    Header,
};
pub use move_block::{MOVE_LEN, Move, Step};
pub use reset::{RESET_LEN, Reset};
pub use retry::{RETRY_LEN, Retry};
pub(crate) use setup::keys_equal;
pub use setup::{
    FEATURE_COOKIES, FEATURE_ECN, FEATURE_MOVES, FEATURE_RESUME, MAX_KEY, MAX_RAILS, MAX_SETUP,
    SETUP_LEN, SetUp, VERSION,
};

use crate::addr::NodeAddr;
use crate::api::{Head, PREFIX_LEN};

/// Minimum length of an Ethernet frame without its check sequence (W-04).
pub const MIN_FRAME: usize = 60;
/// Minimum length of a packet in UDP (W-120): that of a frame without its addresses.
pub const MIN_PACKET: usize = MIN_FRAME - 12;
/// Minimum length of an information request in UDP (W-123): no reply is longer.
pub const MIN_UDP_REQUEST: usize = HEADER_LEN + 1 + 16 + MAX_NAME + 34;
/// Payload that needs no path verification (W-53): fits an MTU of 1500.
pub const SAFE_PAYLOAD: u16 = 1489;
/// Payload in UDP that needs no path verification (W-124): fits the minimum MTU of IPv6, 1280.
pub const SAFE_UDP_PAYLOAD: u16 = 1280 - 40 - 8 - HEADER_LEN as u16;
/// Minimum valid `max payload` of a set-up block (W-22).
pub const MIN_MAX_PAYLOAD: u16 = 64;
/// Maximum number of outstanding packets, and maximum distance of a credit edge (W-31, W-39).
pub const MAX_WINDOW: u16 = 4096;

/// Returns the maximum payload of a frame at an MTU (W-08). Below an MTU of 75 no connection is
/// possible; 64 is returned.
pub fn max_payload(mtu: u32) -> u16 {
    let room = mtu.saturating_sub(HEADER_LEN as u32 - 2);
    u16::try_from(room).unwrap_or(u16::MAX).max(MIN_MAX_PAYLOAD)
}

/// Reason why a frame could not be parsed. Each variant has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The frame is shorter than a header (W-02).
    Runt,
    /// The data length exceeds the frame (W-03).
    Length,
    /// A reserved flag is set (W-05).
    ReservedFlag,
    /// The combination of flags is invalid (W-11).
    FlagCombination,
    /// The data length contradicts the flags (W-13).
    FinLength,
    /// A port is 0 (W-15).
    PortZero,
    /// The extension block is malformed (W-43).
    Extension,
    /// The set-up block is malformed (W-22).
    SetUp,
    /// The set-up block has another version, which is refused with RST (W-17).
    Version,
    /// The reset block is shorter than 10 bytes (section 8).
    ResetBlock,
    /// The move block is malformed (W-101).
    MoveBlock,
    /// The control type is unknown (W-74), or the body of a control datagram is malformed.
    Control,
}

/// Takes big-endian fields off the front of untrusted bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }
}

/// Writes fields to the front of a buffer, which must hold all of them.
struct Writer<'b> {
    out: &'b mut [u8],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, field: &[u8]) {
        put(self.out, self.len, field);
        self.len += field.len();
    }
}

/// Copies `bytes` to `at`; all callers' sizes are bounded below the buffer's.
pub(crate) fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(slot) = buffer
        .get_mut(at..)
        .and_then(|rest| rest.get_mut(..bytes.len()))
    {
        slot.copy_from_slice(bytes);
    }
}

/// Writes the Ethernet addresses (zeros for another carrier) and the header.
pub(crate) fn emit_prefix(head: &mut Head, dst: NodeAddr, src: NodeAddr, header: &Header) {
    put(head, 0, &dst.mac().unwrap_or_default().0);
    put(head, 6, &src.mac().unwrap_or_default().0);
    put(head, 12, &header.emit());
}

/// Returns the room after the prefix.
pub(crate) fn tail_of(head: &mut Head) -> &mut [u8] {
    head.get_mut(PREFIX_LEN..).unwrap_or_default()
}

/// Pads the tail with zeros up to the minimum frame length (W-04); returns the tail's new length.
pub(crate) fn pad(head: &mut Head, payload: usize, tail: usize) -> usize {
    let used = PREFIX_LEN + payload + tail;
    let padding = MIN_FRAME.saturating_sub(used);
    let start = PREFIX_LEN + tail;
    if let Some(slot) = head.get_mut(start..start + padding) {
        slot.fill(0);
    }
    tail + padding
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_payload_follows_the_mtu() {
        assert_eq!(max_payload(1500), 1489);
        assert_eq!(max_payload(9000), 8989);
        assert_eq!(max_payload(65536), 65525);
        assert_eq!(max_payload(1_000_000), 65535);
        assert_eq!(max_payload(0), 64);
    }

    #[test]
    fn padding_is_zero_even_in_a_used_buffer() {
        let mut head = [0xaa; crate::HEAD_LEN];
        assert_eq!(pad(&mut head, 1, 4), 34);
        assert!(head[29..59].iter().all(|b| *b == 0));
        assert_eq!(head[28], 0xaa);
        assert_eq!(pad(&mut head, 1000, 0), 0);
    }
}
