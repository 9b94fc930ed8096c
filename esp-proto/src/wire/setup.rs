//! The set-up block of SYN and SYN+ACK (section 3).

use super::{MIN_MAX_PAYLOAD, put, take};
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
/// Maximum number of other addresses in a set-up block (W-100).
pub const MAX_RAILS: usize = 8;

/// A set-up block of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetUp<'a> {
    /// Largest payload its sender can receive, at least 64.
    pub max_payload: u16,
    /// Feature bits: [`FEATURE_MOVES`], [`FEATURE_ECN`].
    pub features: u32,
    /// The sender's nonce of the connection, random, never 0.
    pub nonce: u64,
    /// Nonce being answered; 0 in a SYN.
    pub peer_nonce: u64,
    /// Packets that its sender is ready to receive.
    pub credit: u16,
    /// Longest delay of an acknowledgement by its sender, in microseconds.
    pub max_ack_delay: u16,
    /// Job key, at most 32 bytes.
    pub key: &'a [u8],
    /// The other addresses of its sender's node, six bytes each, 1 to 8 of them; empty without
    /// [`FEATURE_MOVES`].
    pub rails: &'a [u8],
}

/// Reason why a set-up block was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetUpError {
    /// Another version, refused with RST (W-17).
    Version(u8),
    /// Malformed, dropped (W-22).
    Malformed,
}

impl<'a> SetUp<'a> {
    /// Parses the payload of a SYN or SYN+ACK. The version is checked first: the format of other
    /// versions is unknown.
    pub fn parse(payload: &'a [u8]) -> Result<Self, SetUpError> {
        match payload.first() {
            Some(&VERSION) => {}
            Some(&other) => return Err(SetUpError::Version(other)),
            None => return Err(SetUpError::Malformed),
        }
        let (fixed, rest) = take::<SETUP_LEN>(payload).ok_or(SetUpError::Malformed)?;
        let [
            _,
            key_len,
            m0,
            m1,
            f0,
            f1,
            f2,
            f3,
            n0,
            n1,
            n2,
            n3,
            n4,
            n5,
            n6,
            n7,
            tail @ ..,
        ] = *fixed;
        let [p0, p1, p2, p3, p4, p5, p6, p7, c0, c1, a0, a1] = tail;
        let key_len = usize::from(key_len);
        let key = rest.get(..key_len).ok_or(SetUpError::Malformed)?;
        let features = u32::from_be_bytes([f0, f1, f2, f3]);
        let rails = match features & FEATURE_MOVES {
            0 => &[][..],
            _ => rails(rest.get(key_len..).unwrap_or_default()).ok_or(SetUpError::Malformed)?,
        };
        let block = SetUp {
            max_payload: u16::from_be_bytes([m0, m1]),
            features,
            nonce: u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
            peer_nonce: u64::from_be_bytes([p0, p1, p2, p3, p4, p5, p6, p7]),
            credit: u16::from_be_bytes([c0, c1]),
            max_ack_delay: u16::from_be_bytes([a0, a1]),
            key,
            rails,
        };
        // W-22
        if key_len > MAX_KEY || block.nonce == 0 || block.max_payload < MIN_MAX_PAYLOAD {
            return Err(SetUpError::Malformed);
        }
        Ok(block)
    }

    /// Returns the number of bytes that `emit` writes.
    pub fn len(&self) -> usize {
        let rails = if self.rails.is_empty() {
            0
        } else {
            1 + self.rails.len()
        };
        SETUP_LEN + self.key.len() + rails
    }

    /// Always returns false: the block has a fixed part.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the block at the front of `out`, which must hold [`SetUp::len`] bytes, and returns
    /// that length.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        put(
            out,
            0,
            &[VERSION, u8::try_from(self.key.len()).unwrap_or(0)],
        );
        put(out, 2, &self.max_payload.to_be_bytes());
        put(out, 4, &self.features.to_be_bytes());
        put(out, 8, &self.nonce.to_be_bytes());
        put(out, 16, &self.peer_nonce.to_be_bytes());
        put(out, 24, &self.credit.to_be_bytes());
        put(out, 26, &self.max_ack_delay.to_be_bytes());
        put(out, SETUP_LEN, self.key);
        if !self.rails.is_empty() {
            let at = SETUP_LEN + self.key.len();
            put(out, at, &[u8::try_from(self.rails.len() / 6).unwrap_or(0)]);
            put(out, at + 1, self.rails);
        }
        self.len()
    }
}

/// Returns the addresses after the key: 1 to 8, none of them zero or a group address (W-100). Bytes
/// after them are ignored (W-22).
fn rails(behind: &[u8]) -> Option<&[u8]> {
    let (count, rest) = behind.split_first()?;
    let count = usize::from(*count);
    let bytes = rest
        .get(..6 * count)
        .filter(|_| (1..=MAX_RAILS).contains(&count))?;
    let sound = |mac: &[u8; 6]| mac != &[0; 6] && !MacAddr(*mac).is_group();
    bytes.as_chunks::<6>().0.iter().all(sound).then_some(bytes)
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

    #[test]
    fn malformed_blocks_are_distinguished_from_other_versions() {
        for len in 0..BYTES.len() {
            assert_eq!(
                SetUp::parse(&BYTES[..len]),
                Err(SetUpError::Malformed),
                "{len}"
            );
        }
        let change = |at: usize, value: u8| {
            let mut bytes = BYTES.to_vec();
            bytes[at] = value;
            bytes.resize(100, 0);
            SetUp::parse(&bytes).map(|s| s.key.len()).err()
        };
        assert_eq!(change(0, 2), Some(SetUpError::Version(2)));
        assert_eq!(change(1, 32), None);
        assert_eq!(change(1, 33), Some(SetUpError::Malformed));
        assert_eq!(change(2, 0), None); // 0x00d1 = 209
        let mut small = BYTES;
        small[2..4].copy_from_slice(&63u16.to_be_bytes());
        assert_eq!(SetUp::parse(&small), Err(SetUpError::Malformed));
        let mut no_nonce = BYTES;
        no_nonce[8..16].fill(0);
        assert_eq!(SetUp::parse(&no_nonce), Err(SetUpError::Malformed));
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
                Err(SetUpError::Malformed),
                "{short}"
            );
        }
        for (at, wrong) in [(31, 0), (31, 9), (32, 3)] {
            let mut bad = [0x22u8; 200];
            bad[..len].copy_from_slice(&bytes[..len]);
            bad[at] = wrong;
            assert_eq!(SetUp::parse(&bad), Err(SetUpError::Malformed), "{at}");
        }
        let mut zero = bytes;
        zero[32..38].fill(0);
        assert_eq!(SetUp::parse(&zero), Err(SetUpError::Malformed));
        let mut unflagged = bytes;
        unflagged[7] = 0;
        assert_eq!(SetUp::parse(&unflagged).map(|b| b.rails.len()), Ok(0));
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(keys_equal(b"", b""));
        assert!(keys_equal(b"abc", b"abc"));
        assert!(!keys_equal(b"abc", b"abd"));
        assert!(!keys_equal(b"abc", b"ab"));
        assert!(!keys_equal(b"", b"a"));
    }
}
