//! The address of a transport: what a peer needs to connect to it.
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
//! | 4 | maximum length of a message that it accepts, header and body |
//! | … | each interface: kind of its address (1), address, MTU (4), length of the name (1), name |
//!
//! An address is a MAC address (kind 0, 6 bytes), or an IPv4 address (kind 4, 4 bytes) or IPv6
//! address (kind 6, 16 bytes) and a UDP port (2 bytes).
//!
//! Integers are little endian. No bytes may follow.

use std::net::{IpAddr, SocketAddr};

use esp_client::{MacAddr, NodeAddr};

/// Version of the format. Others are refused.
pub const VERSION: u8 = 2;
/// Maximum number of interfaces. The longest address is below [`btl::MAX_ADDRESS`].
pub const MAX_INTERFACES: usize = 12;
/// Maximum length of an interface's name in bytes (Linux: IFNAMSIZ − 1).
pub const MAX_NAME: usize = 15;
const MAGIC: [u8; 4] = *b"EBTL";

/// A decoded address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthAddress {
    /// Port of the listener, on all interfaces.
    pub port: u16,
    /// Hash of the job's key, see [`job_hash`].
    pub job: [u8; 16],
    /// Incarnation of the node's daemon: changes with each start.
    pub incarnation: u64,
    /// Nonce of the transport.
    pub nonce: u64,
    /// Maximum length of a message that it accepts, header and body, in bytes.
    pub max_send: u32,
    /// Interfaces at which it is reachable.
    pub interfaces: Vec<AddressInterface>,
}

/// An interface of the peer's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressInterface {
    /// Address.
    pub addr: NodeAddr,
    /// MTU of frames in bytes, after the EtherType.
    pub mtu: u32,
    /// Name at its node, for messages to the user.
    pub name: String,
}

/// Error of decoding an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The rank has no Ethernet transport.
    #[error("its address is empty: it has no Ethernet transport")]
    Empty,
    /// Not an address of this transport.
    #[error("its address is not one of an Ethernet transport")]
    Foreign,
    /// An address of another version.
    #[error(
        "its address has version {0}, this one {VERSION}: install the same version on both nodes"
    )]
    Version(u8),
    /// A field is invalid.
    #[error("its address is damaged: {0}")]
    Damaged(&'static str),
}

/// Returns the hash of a job's key (FNV-1a, 128 bits). Like the keys of the wire format it
/// separates jobs by accident, not against attackers.
pub fn job_hash(job: &[u8]) -> [u8; 16] {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in job {
        hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    }
    hash.to_le_bytes()
}

impl EthAddress {
    /// Encodes the address. Interfaces beyond [`MAX_INTERFACES`] are omitted, longer names cut.
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
            encode_addr(&mut bytes, interface.addr);
            bytes.extend(interface.mtu.to_le_bytes());
            bytes.push(u8::try_from(end).unwrap_or(0));
            bytes.extend(&interface.name.as_bytes()[..end]);
        }
        bytes
    }

    /// Decodes an address from untrusted bytes.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn decode(bytes: &[u8]) -> Result<EthAddress, AddressError> {
        use AddressError::{Damaged, Foreign};
        if bytes.is_empty() {
            return Err(AddressError::Empty);
        }
        let mut rest = Reader(bytes);
        if rest.array() != Some(MAGIC) {
            return Err(Foreign);
        }
        let [version, count] = rest.array().ok_or(Foreign)?;
        if version != VERSION {
            return Err(AddressError::Version(version));
        }
        let short = Damaged("it is truncated");
        let mut address = EthAddress {
            port: u16::from_le_bytes(rest.array().ok_or(short.clone())?),
            job: rest.array().ok_or(short.clone())?,
            incarnation: u64::from_le_bytes(rest.array().ok_or(short.clone())?),
            nonce: u64::from_le_bytes(rest.array().ok_or(short.clone())?),
            max_send: u32::from_le_bytes(rest.array().ok_or(short.clone())?),
            interfaces: Vec::new(),
        };
        if address.port < 1024 {
            return Err(Damaged("its port is below 1024"));
        }
        if count == 0 || usize::from(count) > MAX_INTERFACES {
            return Err(Damaged("it has no interface, or too many"));
        }
        for _ in 0..count {
            let addr = decode_addr(&mut rest).ok_or(short.clone())?;
            let mtu = u32::from_le_bytes(rest.array().ok_or(short.clone())?);
            let [length] = rest.array().ok_or(short.clone())?;
            let name = rest.slice(usize::from(length)).ok_or(short.clone())?;
            let name = std::str::from_utf8(name).ok().filter(|name| {
                !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control)
            });
            let name = name
                .ok_or(Damaged("the name of an interface is invalid"))?
                .to_owned();
            if addr.is_group() || addr == NodeAddr::default() {
                return Err(Damaged("the address of an interface is invalid"));
            }
            address
                .interfaces
                .push(AddressInterface { addr, mtu, name });
        }
        if rest.0.is_empty() {
            Ok(address)
        } else {
            Err(Damaged("bytes follow its end"))
        }
    }
}

fn encode_addr(bytes: &mut Vec<u8>, addr: NodeAddr) {
    let at = match addr {
        NodeAddr::Mac(mac) => {
            bytes.push(0);
            bytes.extend(mac.octets());
            return;
        }
        NodeAddr::Udp(at) => at,
    };
    match at.ip() {
        IpAddr::V4(ip) => {
            bytes.push(4);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(6);
            bytes.extend(ip.octets());
        }
    }
    bytes.extend(at.port().to_le_bytes());
}

fn decode_addr(from: &mut Reader<'_>) -> Option<NodeAddr> {
    let ip: IpAddr = match from.array()? {
        [0] => return Some(NodeAddr::Mac(MacAddr(from.array()?))),
        [4] => from.array::<4>()?.into(),
        [6] => from.array::<16>()?.into(),
        _ => return None,
    };
    let port = u16::from_le_bytes(from.array()?);
    (port != 0).then(|| NodeAddr::Udp(SocketAddr::new(ip, port)))
}

/// Reads fields from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
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

    fn address(interfaces: usize) -> EthAddress {
        let interface = |n: usize| AddressInterface {
            addr: match n % 3 {
                0 => MacAddr([2, 0, 0, 0, 0, n as u8]).into(),
                1 => SocketAddr::from(([10, 1, 0, n as u8], 40000)).into(),
                _ => SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, n as u16], 40000)).into(),
            },
            mtu: 9000,
            name: format!("interface-{n:05}"),
        };
        EthAddress {
            port: 40000,
            job: job_hash(b"job"),
            incarnation: 7,
            nonce: 9,
            max_send: 65536,
            interfaces: (0..interfaces).map(interface).collect(),
        }
    }

    #[test]
    fn addresses_round_trip_and_fit() {
        for count in [1, 2, MAX_INTERFACES] {
            let bytes = address(count).encode();
            assert!(bytes.len() <= btl::MAX_ADDRESS, "{} bytes", bytes.len());
            assert_eq!(EthAddress::decode(&bytes), Ok(address(count)));
        }
        let cut = EthAddress::decode(&address(40).encode()).unwrap();
        assert_eq!(cut.interfaces.len(), MAX_INTERFACES);
    }

    #[test]
    fn every_cut_and_addition_is_an_error() {
        let bytes = address(2).encode();
        assert_eq!(EthAddress::decode(&[]), Err(AddressError::Empty));
        for end in 1..bytes.len() {
            assert!(EthAddress::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(
            EthAddress::decode(&longer),
            Err(AddressError::Damaged("bytes follow its end"))
        );
    }

    #[test]
    fn wrong_fields_are_named() {
        let changed = |at: usize, to: u8| {
            let mut bytes = address(1).encode();
            bytes[at] = to;
            EthAddress::decode(&bytes)
        };
        assert_eq!(changed(0, b'X'), Err(AddressError::Foreign));
        assert_eq!(changed(4, 9), Err(AddressError::Version(9)));
        assert_eq!(
            changed(5, 0),
            Err(AddressError::Damaged("it has no interface, or too many"))
        );
        assert_eq!(
            changed(7, 0),
            Err(AddressError::Damaged("its port is below 1024"))
        );
        assert_eq!(
            changed(45, 1),
            Err(AddressError::Damaged(
                "the address of an interface is invalid"
            ))
        );
        assert_eq!(
            changed(55, 0),
            Err(AddressError::Damaged("the name of an interface is invalid"))
        );
        assert_eq!(
            changed(56, 0xff),
            Err(AddressError::Damaged("the name of an interface is invalid"))
        );
        assert_eq!(
            changed(56, b'\n'),
            Err(AddressError::Damaged("the name of an interface is invalid"))
        );
    }

    #[test]
    fn jobs_have_different_hashes() {
        assert_eq!(
            job_hash(b""),
            0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128.to_le_bytes()
        );
        // Published test vector of FNV-1a, 128 bits.
        assert_eq!(
            job_hash(b"a"),
            0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964_u128.to_le_bytes()
        );
        assert_ne!(job_hash(b"job-1"), job_hash(b"job-2"));
    }
}
