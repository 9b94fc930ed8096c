//! The frames of `docs/wire-format.md`, one file for each kind of block.
//!
//! Each file has a *view* or value that `parse` makes from untrusted bytes and `emit` writes. Parsing only ever goes
//! through checked slices: no input makes it panic, and what does not fit gives a [`WireError`] that names the field
//! that is wrong. Each variant of `WireError` has a counter of its own in [`Counters`](crate::Counters) (W-10).
//! A parsed frame borrows its payload from the received bytes: nothing is copied here.

mod edp;
mod ext;
mod frame;
mod header;
mod moving;
mod reset;
mod setup;

pub use edp::{ControlType, EdpFrame, InfoReply, MAX_NAME};
pub use ext::{Ext, ExtWriter, MAX_EXT, MAX_SACK};
pub use frame::{EspFrame, Kind};
pub use header::{
    FLAG_ACK, FLAG_ASK, FLAG_CTL, FLAG_EXT, FLAG_FIN, FLAG_PRB, FLAG_RST, FLAG_SYN, HEADER_LEN,
    Header,
};
pub use moving::{MOVE_LEN, Move, Step};
pub use reset::{RESET_LEN, Reset};
pub(crate) use setup::keys_equal;
pub use setup::{
    FEATURE_MOVES, MAX_KEY, MAX_RAILS, MAX_SETUP, SETUP_LEN, SetUp, SetUpError, VERSION,
};

use crate::addr::MacAddr;
use crate::api::{Head, PREFIX_LEN};

/// Least length of an Ethernet frame without its check sequence (W-04).
pub const MIN_FRAME: usize = 60;
/// The payload that needs no path verification (W-53): what fits an MTU of 1500.
pub const SAFE_PAYLOAD: u16 = 1489;
/// The least `max payload` a set-up block may name (W-22).
pub const MIN_MAX_PAYLOAD: u16 = 64;
/// The most packets that may be outstanding, and the farthest a credit edge may lie (W-31, W-39).
pub const MAX_WINDOW: u16 = 4096;

/// The largest payload of a frame at an MTU (W-08). Below an MTU of 75 no conversation is possible; 64 is returned.
pub fn max_payload(mtu: u32) -> u16 {
    let room = mtu.saturating_sub(HEADER_LEN as u32 - 2);
    u16::try_from(room).unwrap_or(u16::MAX).max(MIN_MAX_PAYLOAD)
}

/// Why a frame could not be understood. Each variant is counted under a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WireError {
    /// W-02.
    #[error("the frame ends inside the header")]
    Runt,
    /// W-03.
    #[error("the data length reaches beyond the frame")]
    Length,
    /// W-05.
    #[error("a reserved flag is set")]
    ReservedFlag,
    /// W-11.
    #[error("the flags do not go together")]
    FlagCombination,
    /// W-13.
    #[error("a FIN with data")]
    FinLength,
    /// W-15.
    #[error("port 0 on ESP")]
    PortZero,
    /// W-43.
    #[error("malformed extension block")]
    Extension,
    /// W-22.
    #[error("malformed set-up block")]
    SetUp,
    /// Section 8: a reset block shorter than 10 bytes.
    #[error("malformed reset block")]
    ResetBlock,
    /// W-101.
    #[error("malformed move block")]
    MoveBlock,
    /// W-74, and control datagrams whose body is malformed.
    #[error("unknown or malformed control datagram")]
    Control,
}

/// Takes `N` bytes off the front, or nothing.
pub(crate) fn take<const N: usize>(bytes: &[u8]) -> Option<(&[u8; N], &[u8])> {
    bytes.split_first_chunk::<N>()
}

/// Copies `bytes` to `at`. What would not fit is left out; every caller's sizes are bounded below the buffer's.
pub(crate) fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(slot) = buffer
        .get_mut(at..)
        .and_then(|rest| rest.get_mut(..bytes.len()))
    {
        slot.copy_from_slice(bytes);
    }
}

/// Writes the addresses and the header.
pub(crate) fn emit_prefix(head: &mut Head, dst: MacAddr, src: MacAddr, header: &Header) {
    let [d0, d1, d2, d3, d4, d5] = dst.0;
    let [s0, s1, s2, s3, s4, s5] = src.0;
    let [t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12] = header.emit();
    let prefix: [u8; PREFIX_LEN] = [
        d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1, t2, t3, t4, t5, t6, t7, t8, t9,
        t10, t11, t12,
    ];
    put(head, 0, &prefix);
}

/// Zeros behind the first `tail` bytes of the tail up to the least frame length (W-04); returns the tail's new length.
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
