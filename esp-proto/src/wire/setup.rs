//! The set-up block of SYN and SYN+ACK (section 3).

use super::{MIN_MAX_PAYLOAD, Reader, WireError, Writer};
use crate::addr::MacAddr;

/// Set-up version implemented here (W-17).
pub const VERSION: u8 = 1;
/// Length of the block without its key, in bytes.
pub const SETUP_LEN: usize = 28;
/// Maximum length of a job key in bytes.
pub const MAX_KEY: usize = 32;
/// Maximum length of a block in bytes.
pub const MAX_SETUP: usize = SETUP_LEN + MAX_KEY + 1 + 6 * MAX_RAILS;
/// Feature bit: the connection may move to another interface (W-100).
pub const FEATURE_MOVES: u32 = 1;
/// Feature bit: congestion marks are counted and reported (W-110).
pub const FEATURE_ECN: u32 = 2;
/// Feature bit: a side that lost its state may resume the connection (W-130).
pub const FEATURE_RESUME: u32 = 4;
/// Feature bit: a SYN is repeated with the cookie of a listener (W-150).
pub const FEATURE_COOKIES: u32 = 8;
/// Maximum number of other addresses in a set-up block (W-100).
pub const MAX_RAILS: usize = 8;

/// A set-up block of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetUp<'a> {
    /// Maximum payload that its sender can receive, at least 64.
    pub max_payload: u16,
    /// Feature bits: [`FEATURE_MOVES`], [`FEATURE_ECN`], [`FEATURE_RESUME`], [`FEATURE_COOKIES`].
    pub features: u32,
    /// The sender's nonce of the connection, random, never 0.
    pub nonce: u64,
    /// Nonce being answered; in a SYN 0, or a cookie (W-150).
    pub peer_nonce: u64,
    /// Packets that its sender is ready to receive.
    pub credit: u16,
    /// Maximum delay of an acknowledgement by its sender, in microseconds.
    pub max_ack_delay: u16,
    /// Job key, at most 32 bytes.
    pub key: &'a [u8],
    /// The other addresses of its sender's node, six bytes each, 1 to 8 of them; empty without
    /// [`FEATURE_MOVES`].
    pub rails: &'a [u8],
}

impl<'a> SetUp<'a> {
    /// Parses the payload of a SYN or SYN+ACK; bytes after the block are ignored (W-22). The
    /// version is checked first: the format of other versions is unknown.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        match payload.first() {
            Some(&VERSION) => Self::read(payload).ok_or(WireError::SetUp),
            Some(_) => Err(WireError::Version),
            None => Err(WireError::SetUp),
        }
    }

    fn read(payload: &'a [u8]) -> Option<Self> {
        let mut fields = Reader(payload);
        let [_, key_len] = fields.array()?;
        let mut block = SetUp {
            max_payload: fields.u16()?,
            features: fields.u32()?,
            nonce: fields.u64()?,
            peer_nonce: fields.u64()?,
            credit: fields.u16()?,
            max_ack_delay: fields.u16()?,
            key: fields.bytes(key_len.into())?,
            rails: &[],
        };
        if block.features & FEATURE_MOVES != 0 {
            block.rails = rails(fields)?;
        }
        let sound =
            block.key.len() <= MAX_KEY && block.nonce != 0 && block.max_payload >= MIN_MAX_PAYLOAD;
        sound.then_some(block)
    }

    /// Writes the block to the front of `out`, which must hold [`MAX_SETUP`] bytes, and returns its
    /// length.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = |bytes: usize| u8::try_from(bytes).unwrap_or(0);
        let mut block = Writer { out, len: 0 };
        block.put(&[VERSION, len(self.key.len())]);
        block.put(&self.max_payload.to_be_bytes());
        block.put(&self.features.to_be_bytes());
        block.put(&self.nonce.to_be_bytes());
        block.put(&self.peer_nonce.to_be_bytes());
        block.put(&self.credit.to_be_bytes());
        block.put(&self.max_ack_delay.to_be_bytes());
        block.put(self.key);
        if !self.rails.is_empty() {
            block.put(&[len(self.rails.len() / 6)]);
            block.put(self.rails);
        }
        block.len
    }
}

/// Returns the addresses after the key: 1 to 8, none of them zero or a group address (W-100).
fn rails<'a>(mut rest: Reader<'a>) -> Option<&'a [u8]> {
    let count = usize::from(rest.u8()?);
    let bytes = rest.bytes(6 * count)?;
    let sound = |mac: &[u8; 6]| mac != &[0; 6] && !MacAddr(*mac).is_group();
    ((1..=MAX_RAILS).contains(&count) && bytes.as_chunks::<6>().0.iter().all(sound))
        .then_some(bytes)
}

/// Compares two keys in a time that depends only on their lengths (W-20).
pub(crate) fn keys_equal(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0u8, |acc, (x, y)| acc | (x ^ y));
    (a.len() == b.len()) & (differ == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 31] = [
        1, 3, 0x05, 0xd1, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0,
        0, 0, 0, 0, 0x00, 0xb0, 0x00, 0xc8, b'k', b'e', b'y',
    ];

    fn value() -> SetUp<'static> {
        SetUp {
            max_payload: 1489,
            features: 0,
            nonce: 0x1122_3344_5566_7788,
            peer_nonce: 0,
            credit: 176,
            max_ack_delay: 200,
            key: b"key",
            rails: &[],
        }
    }

    #[test]
    fn both_directions_on_literal_bytes() {
        assert_eq!(SetUp::parse(&BYTES), Ok(value()));
        let mut out = [0u8; MAX_SETUP];
        assert_eq!(value().emit(&mut out), BYTES.len());
        assert_eq!(out[..BYTES.len()], BYTES);
    }

    /// W-22, W-17.
    #[test]
    fn malformed_blocks_are_distinguished_from_other_versions() {
        for len in 0..BYTES.len() {
            assert_eq!(SetUp::parse(&BYTES[..len]), Err(WireError::SetUp), "{len}");
        }
        let change = |at: usize, value: u8| {
            let mut bytes = BYTES.to_vec();
            bytes[at] = value;
            bytes.resize(100, 0);
            SetUp::parse(&bytes).map(|s| s.key.len()).err()
        };
        assert_eq!(change(0, 2), Some(WireError::Version));
        assert_eq!(change(1, 32), None);
        assert_eq!(change(1, 33), Some(WireError::SetUp));
        assert_eq!(change(2, 0), None); // 0x00d1 = 209
        let mut small = BYTES;
        small[2..4].copy_from_slice(&63u16.to_be_bytes());
        assert_eq!(SetUp::parse(&small), Err(WireError::SetUp));
        let mut no_nonce = BYTES;
        no_nonce[8..16].fill(0);
        assert_eq!(SetUp::parse(&no_nonce), Err(WireError::SetUp));
    }

    #[test]
    fn other_addresses_follow_the_key() {
        let rails = [2, 0, 0, 0, 1, 0xa, 2, 0, 0, 0, 2, 0xa];
        let block = SetUp {
            features: FEATURE_MOVES,
            rails: &rails,
            ..value()
        };
        let mut bytes = [0u8; MAX_SETUP];
        let len = block.emit(&mut bytes);
        assert_eq!((len, bytes[7], bytes[31]), (BYTES.len() + 13, 1, 2));
        assert_eq!(SetUp::parse(&bytes[..len]), Ok(block));
        assert_eq!(SetUp::parse(&bytes), Ok(block), "what follows is ignored");
        for short in BYTES.len()..len {
            assert_eq!(
                SetUp::parse(&bytes[..short]),
                Err(WireError::SetUp),
                "{short}"
            );
        }
        for (at, wrong) in [(31, 0), (31, 9), (32, 3)] {
            let mut bad = [0x22u8; 200];
            bad[..len].copy_from_slice(&bytes[..len]);
            bad[at] = wrong;
            assert_eq!(SetUp::parse(&bad), Err(WireError::SetUp), "{at}");
        }
        let mut zero = bytes;
        zero[32..38].fill(0);
        assert_eq!(SetUp::parse(&zero), Err(WireError::SetUp));
        let mut unflagged = bytes;
        unflagged[7] = 0;
        assert_eq!(SetUp::parse(&unflagged).map(|b| b.rails.len()), Ok(0));
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(keys_equal(b"", b""));
        assert!(keys_equal(b"abc", b"abc"));
        assert!(!keys_equal(b"abc", b"abd"));
        assert!(!keys_equal(b"abc", b"bac"), "the differences are equal");
        assert!(!keys_equal(b"abc", b"ab"));
        assert!(!keys_equal(b"", b"a"));
    }
}
