//! Wire formats other than messages: addresses, connection requests, immediates and region keys.
//! All of them come from peers and are untrusted.

use crate::config::{BLOCK, IbConfig, MESSAGE_BLOCKS};
use crate::nic::{About, Place};

const ADDRESS: u32 = u32::from_le_bytes(*b"IBc2");
const KEY: u32 = u32::from_le_bytes(*b"IBk1");
const HELLO: u32 = u32::from_le_bytes(*b"IBh1");

/// Returns the 64-bit FNV-1a hash of the parts.
pub(crate) fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

macro_rules! record {
    ($(#[$doc:meta])* $name:ident = $magic:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        impl $name {
            /// Encodes the fields in little-endian order without gaps, after the magic number.
            pub(crate) fn encode(&self) -> Vec<u8> {
                let mut out = $magic.to_le_bytes().to_vec();
                $(out.extend_from_slice(&self.$field.to_le_bytes());)*
                out
            }

            /// Decodes bytes; `None` for a wrong length or magic number.
            pub(crate) fn decode(bytes: &[u8]) -> Option<$name> {
                let (magic, rest) = bytes.split_first_chunk()?;
                if u32::from_le_bytes(*magic) != $magic {
                    return None;
                }
                $(
                    let (field, rest) = rest.split_first_chunk()?;
                    let $field = <$type>::from_le_bytes(*field);
                )*
                rest.is_empty().then_some($name { $($field,)* })
            }
        }
    };
}

record! {
    /// Address of a process.
    PeerAddress = ADDRESS {
        job: u64,
        rank: u32,
        nonce: u64,
        gid: u128,
        lid: u16,
        qpn: u32,
        qkey: u32,
        ethernet: u8,
        mtu: u8,
        bandwidth: u32,
        blocks: u16,
    }
}

impl PeerAddress {
    pub(crate) fn new(config: &IbConfig, about: &About, job: u64, nonce: u64) -> PeerAddress {
        PeerAddress {
            job,
            rank: config.rank,
            nonce,
            gid: u128::from_le_bytes(about.place.gid),
            lid: about.place.lid,
            qpn: about.place.qpn,
            qkey: about.place.qkey,
            ethernet: about.ethernet.into(),
            mtu: about.mtu,
            bandwidth: about.bandwidth,
            blocks: config.blocks as u16,
        }
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            gid: self.gid.to_le_bytes(),
            lid: self.lid,
            qpn: self.qpn,
            qkey: self.qkey,
        }
    }

    /// Returns true if the values are within their limits.
    pub(crate) fn is_sound(&self) -> bool {
        (self.blocks == 0 || (8..=4096).contains(&self.blocks)) && (1..=5).contains(&self.mtu)
    }

    /// Returns the maximum length of a message to the peer (header and body), in bytes.
    pub(crate) fn max_message(&self) -> usize {
        let blocks = if self.blocks == 0 { 1 } else { MESSAGE_BLOCKS };
        blocks * BLOCK - PREFIX
    }
}

/// The sender has the receiver's part.
pub(crate) const HAVE: u8 = 1;
/// The sender waits for an answer.
pub(crate) const ASK: u8 = 2;
/// The sender closes its transport.
pub(crate) const LEAVING: u8 = 4;

record! {
    /// One side's part of a connection, as a datagram; repeated until the other side answers.
    Hello = HELLO {
        from: u32,
        to: u32,
        from_nonce: u64,
        to_nonce: u64,
        job: u64,
        flags: u8,
        qpn: u32,
        psn: u32,
        ring: u64,
        ring_key: u32,
    }
}

/// Kind of an arrival. The immediate encodes it, as in VIA-RPI: kind (3 bits), credits returned
/// (13), and the low bits of the sender's rank (16), which must match the connection's peer. After
/// a put with a notice it holds the notice's number (29 bits) instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message is in the next block.
    Message,
    /// Returned credits only.
    Credit,
    /// The peer closes its transport.
    Leave,
}

/// A classified arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Kind of the arrival, and the number of credits returned.
    Of(Kind, usize),
    /// The region of this notice is full. The next block stays empty and counts as used.
    Written(u32),
}

pub(crate) const MAX_FREED: usize = (1 << 13) - 1;
const WRITTEN: u32 = 3 << 29;
/// Maximum number of a notice; the first is 1.
pub(crate) const MAX_NOTICES: u32 = (1 << 29) - 1;

/// Returns the immediate of the last bytes of a region with a notice.
pub(crate) fn written(notice: u32) -> u32 {
    WRITTEN | (notice & MAX_NOTICES)
}

pub(crate) fn immediate(kind: Kind, freed: usize, rank: u32) -> u32 {
    (kind as u32) << 29 | (freed.min(MAX_FREED) as u32) << 16 | (rank & 0xffff)
}

/// Decodes an immediate of `peer`. `Err` describes the violation.
pub(crate) fn classify(immediate: u32, peer: u32) -> Result<Arrival, String> {
    if immediate & WRITTEN == WRITTEN && immediate >> 31 == 0 {
        return Ok(Arrival::Written(immediate & MAX_NOTICES));
    }
    if immediate & 0xffff != peer & 0xffff {
        return Err(format!("claims to be rank …{:#06x}", immediate & 0xffff));
    }
    let kind = match immediate >> 29 {
        0 => Kind::Message,
        1 => Kind::Credit,
        2 => Kind::Leave,
        other => return Err(format!("sends an immediate of kind {other}")),
    };
    Ok(Arrival::Of(kind, (immediate >> 16) as usize & MAX_FREED))
}

/// Length of the prefix of a message in its block: lengths of header and body.
pub(crate) const PREFIX: usize = 8;

pub(crate) fn prefix(header: usize, body: usize) -> [u8; PREFIX] {
    let mut bytes = [0; PREFIX];
    bytes[0] = header as u8;
    bytes[1] = !bytes[0];
    bytes[4..].copy_from_slice(&(body as u32).to_le_bytes());
    bytes
}

/// Returns the lengths of header and body, if both fit into `max` bytes.
pub(crate) fn read_prefix(bytes: &[u8], max: usize) -> Option<(usize, usize)> {
    let [header, inverse, 0, 0, b0, b1, b2, b3] = *bytes else {
        return None;
    };
    let (header_length, body) = (
        usize::from(header),
        u32::from_le_bytes([b0, b1, b2, b3]) as usize,
    );
    let fits = header_length <= btl::MAX_HEADER && body.saturating_add(header_length) <= max;
    (fits && inverse == !header).then_some((header_length, body))
}

record! {
    /// Key of memory that a peer may read and write. `notice` is the number of its notice, or 0.
    /// `check`: see [`Key::sealed`].
    Key = KEY {
        nonce: u64,
        address: u64,
        length: u64,
        rkey: u32,
        notice: u32,
        check: u32,
    }
}

impl Key {
    /// Returns the key with its checksum.
    pub(crate) fn sealed(self) -> Key {
        let (nonce, address) = (self.nonce.to_le_bytes(), self.address.to_le_bytes());
        let (length, rkey) = (self.length.to_le_bytes(), self.rkey.to_le_bytes());
        let notice = self.notice.to_le_bytes();
        let check = hash(&[&nonce, &address, &length, &rkey, &notice]) as u32;
        Key { check, ..self }
    }

    /// Decodes a key; `None` if it is not a key of `owner`.
    pub(crate) fn of(bytes: &[u8], owner: u64) -> Option<Key> {
        Key::decode(bytes).filter(|key| key.nonce == owner && *key == key.sealed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::About;

    #[test]
    fn addresses_and_requests_round_trip_and_damage_is_detected() {
        let about = About {
            mtu: 5,
            place: Place {
                gid: [7; 16],
                lid: 3,
                qpn: 9,
                qkey: 11,
            },
            ..About::default()
        };
        let address = PeerAddress::new(&IbConfig::new(3, 9, b"k"), &about, 5, 6);
        let bytes = address.encode();
        assert_eq!(PeerAddress::decode(&bytes), Some(address));
        assert!(
            address.is_sound() && address.place() == about.place && bytes.len() <= btl::MAX_ADDRESS
        );
        assert!((0..bytes.len()).all(|length| PeerAddress::decode(&bytes[..length]).is_none()));
        assert_eq!(PeerAddress::decode(&[&bytes[..], &[0]].concat()), None);
        let hello = Hello {
            from: 1,
            to: 2,
            from_nonce: 3,
            to_nonce: 4,
            job: 5,
            flags: 6,
            qpn: 7,
            psn: 8,
            ring: 9,
            ring_key: 10,
        };
        let bytes = hello.encode();
        assert!(bytes.len() <= crate::nic::MAX_DATAGRAM && Hello::decode(&bytes) == Some(hello));
        assert_eq!(PeerAddress::decode(&bytes), None);
    }

    #[test]
    fn arrivals_are_classified_by_their_immediate() {
        for kind in [Kind::Message, Kind::Credit, Kind::Leave] {
            for freed in [0, 1, 64, MAX_FREED] {
                let word = immediate(kind, freed, 0x12345);
                assert_eq!(classify(word, 0x12345), Ok(Arrival::Of(kind, freed)));
            }
            assert!(classify(immediate(kind, 0, 4), 5).is_err());
        }
        assert!((4..8).all(|kind| classify(kind << 29 | 5, 5).is_err()));
        for notice in [1, 5, MAX_NOTICES] {
            assert_eq!(classify(written(notice), 9), Ok(Arrival::Written(notice)));
        }
    }

    #[test]
    fn a_prefix_cannot_point_outside() {
        assert_eq!(read_prefix(&prefix(64, 100), 164), Some((64, 100)));
        assert_eq!(read_prefix(&prefix(64, 101), 164), None);
        assert_eq!(read_prefix(&prefix(65, 0), 164), None);
        assert_eq!(
            read_prefix(&prefix(0, u32::MAX as usize), usize::MAX - 1),
            Some((0, u32::MAX as usize))
        );
        assert_eq!(read_prefix(&[0; 8], 100), None);
        assert_eq!(read_prefix(&[], 100), None);
    }

    #[test]
    fn every_bit_of_a_key_is_checked() {
        let key = Key {
            nonce: 1,
            address: 2,
            length: 3,
            rkey: 4,
            notice: 5,
            check: 0,
        };
        let key = key.sealed();
        let bytes = key.encode();
        assert!(bytes.len() <= btl::MAX_KEY);
        assert_eq!(Key::of(&bytes, 1), Some(key));
        assert_eq!(Key::of(&bytes, 2), None);
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Key::of(&wrong, 1), None);
        }
    }
}
