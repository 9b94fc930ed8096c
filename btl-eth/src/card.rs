//! The business card: what a peer needs to reach this process.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | `EBTL` |
//! | 1 | version, [`VERSION`] |
//! | 1 | number of interfaces, 1 to [`MAX_INTERFACES`] |
//! | 2 | port of the listener |
//! | 16 | hash of the job key |
//! | 8 | incarnation of the node's daemon |
//! | 8 | nonce of this transport |
//! | 4 | longest message it takes, header and body |
//! | … | each interface: address (6), MTU (4), length of the name (1), name |
//!
//! Integers are little endian. Nothing may follow.

use esp_client::MacAddr;

/// Another one is refused.
pub const VERSION: u8 = 1;
/// More are left out; the longest card stays below [`btl::MAX_ADDRESS`].
pub const MAX_INTERFACES: usize = 16;
/// Longest name of an interface, in bytes (Linux: IFNAMSIZ − 1).
pub const MAX_NAME: usize = 15;
const MAGIC: [u8; 4] = *b"EBTL";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Of the listener, on every interface.
    pub port: u16,
    /// See [`job_hash`].
    pub job: [u8; 16],
    /// Another number after each start of the daemon.
    pub incarnation: u64,
    /// Another number for each transport made.
    pub nonce: u64,
    /// Longest message it takes, header and body.
    pub max_send: u32,
    /// Where it can be reached.
    pub interfaces: Vec<CardInterface>,
}

/// An interface of the peer's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInterface {
    /// Address.
    pub mac: MacAddr,
    /// Bytes behind the EtherType.
    pub mtu: u32,
    /// As its node calls it, for people.
    pub name: String,
}

/// Why a card is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// Of a rank that has no such transport.
    #[error("its card is empty: it has no Ethernet transport")]
    Empty,
    /// Not one of ours.
    #[error("its card is not one of an Ethernet transport")]
    Foreign,
    /// Another version.
    #[error(
        "its card is of version {0}, this is {VERSION}; install the same version on both nodes"
    )]
    Version(u8),
    /// Ours, and wrong.
    #[error("its card is damaged: {0}")]
    Damaged(&'static str),
}

/// A job key of any length as 16 bytes (FNV-1a). It keeps jobs apart by accident, not by malice, as the wire format's keys do.
pub fn job_hash(job: &[u8]) -> [u8; 16] {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in job {
        hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    }
    hash.to_le_bytes()
}

impl Card {
    /// As bytes. Interfaces beyond [`MAX_INTERFACES`] are left out, longer names cut.
    pub fn encode(&self) -> Vec<u8> {
        let interfaces = &self.interfaces[..self.interfaces.len().min(MAX_INTERFACES)];
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(MAGIC);
        bytes.push(VERSION);
        bytes.push(u8::try_from(interfaces.len()).unwrap_or(0));
        bytes.extend(self.port.to_le_bytes());
        bytes.extend(self.job);
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.nonce.to_le_bytes());
        bytes.extend(self.max_send.to_le_bytes());
        for interface in interfaces {
            let mut end = interface.name.len().min(MAX_NAME);
            while !interface.name.is_char_boundary(end) {
                end -= 1;
            }
            bytes.extend(interface.mac.octets());
            bytes.extend(interface.mtu.to_le_bytes());
            bytes.push(u8::try_from(end).unwrap_or(0));
            bytes.extend(&interface.name.as_bytes()[..end]);
        }
        bytes
    }

    /// From bytes that anybody may have written.
    pub fn decode(bytes: &[u8]) -> Result<Card, CardError> {
        use CardError::{Damaged, Foreign};
        if bytes.is_empty() {
            return Err(CardError::Empty);
        }
        let mut rest = Take(bytes);
        if rest.array() != Some(MAGIC) {
            return Err(Foreign);
        }
        let [version, count] = rest.array().ok_or(Foreign)?;
        if version != VERSION {
            return Err(CardError::Version(version));
        }
        let short = Damaged("it ends too early");
        let mut card = Card {
            port: u16::from_le_bytes(rest.array().ok_or(short.clone())?),
            job: rest.array().ok_or(short.clone())?,
            incarnation: u64::from_le_bytes(rest.array().ok_or(short.clone())?),
            nonce: u64::from_le_bytes(rest.array().ok_or(short.clone())?),
            max_send: u32::from_le_bytes(rest.array().ok_or(short.clone())?),
            interfaces: Vec::new(),
        };
        if card.port < 1024 {
            return Err(Damaged("its port is below 1024"));
        }
        if count == 0 || usize::from(count) > MAX_INTERFACES {
            return Err(Damaged("it names no interface, or too many"));
        }
        for _ in 0..count {
            let mac = MacAddr(rest.array().ok_or(short.clone())?);
            let mtu = u32::from_le_bytes(rest.array().ok_or(short.clone())?);
            let [length] = rest.array().ok_or(short.clone())?;
            let name = rest.slice(usize::from(length)).ok_or(short.clone())?;
            let name = std::str::from_utf8(name).ok().filter(|name| {
                !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control)
            });
            let name = name.ok_or(Damaged("the name of an interface"))?.to_owned();
            if mac.is_group() || mac == MacAddr([0; 6]) {
                return Err(Damaged("the address of an interface"));
            }
            card.interfaces.push(CardInterface { mac, mtu, name });
        }
        if rest.0.is_empty() {
            Ok(card)
        } else {
            Err(Damaged("something follows its end"))
        }
    }
}

/// Bytes from the front.
struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(interfaces: usize) -> Card {
        let interface = |n: usize| CardInterface {
            mac: MacAddr([2, 0, 0, 0, 0, n as u8]),
            mtu: 9000,
            name: format!("interface-{n:05}"),
        };
        Card {
            port: 40000,
            job: job_hash(b"job"),
            incarnation: 7,
            nonce: 9,
            max_send: 65536,
            interfaces: (0..interfaces).map(interface).collect(),
        }
    }

    #[test]
    fn a_card_round_trips_and_fits() {
        for count in [1, 2, MAX_INTERFACES] {
            let bytes = card(count).encode();
            assert!(bytes.len() <= btl::MAX_ADDRESS, "{} bytes", bytes.len());
            assert_eq!(Card::decode(&bytes), Ok(card(count)));
        }
        let cut = Card::decode(&card(40).encode()).unwrap();
        assert_eq!(cut.interfaces.len(), MAX_INTERFACES);
    }

    #[test]
    fn every_cut_and_every_addition_is_noticed() {
        let bytes = card(2).encode();
        assert_eq!(Card::decode(&[]), Err(CardError::Empty));
        for end in 1..bytes.len() {
            assert!(Card::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(
            Card::decode(&longer),
            Err(CardError::Damaged("something follows its end"))
        );
    }

    #[test]
    fn wrong_fields_are_named() {
        let changed = |at: usize, to: u8| {
            let mut bytes = card(1).encode();
            bytes[at] = to;
            Card::decode(&bytes)
        };
        assert_eq!(changed(0, b'X'), Err(CardError::Foreign));
        assert_eq!(changed(4, 2), Err(CardError::Version(2)));
        assert_eq!(
            changed(5, 0),
            Err(CardError::Damaged("it names no interface, or too many"))
        );
        assert_eq!(
            changed(7, 0),
            Err(CardError::Damaged("its port is below 1024"))
        );
        assert_eq!(
            changed(44, 1),
            Err(CardError::Damaged("the address of an interface"))
        );
        assert_eq!(
            changed(54, 0),
            Err(CardError::Damaged("the name of an interface"))
        );
        assert_eq!(
            changed(55, 0xff),
            Err(CardError::Damaged("the name of an interface"))
        );
        assert_eq!(
            changed(55, b'\n'),
            Err(CardError::Damaged("the name of an interface"))
        );
    }

    #[test]
    fn jobs_have_different_hashes() {
        assert_eq!(
            job_hash(b""),
            0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128.to_le_bytes()
        );
        // Published test vector of FNV-1a with 128 bits.
        assert_eq!(
            job_hash(b"a"),
            0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964_u128.to_le_bytes()
        );
        assert_ne!(job_hash(b"job-1"), job_hash(b"job-2"));
    }
}
