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
//! | 1 | number of keys that protect its packets, 0 to [`MAX_KEYS`]; 255: not known |
//! | … | public name of each key (4), as in set-up packets (W-143) |
//! | … | each interface: kind of its address (1), address, MTU (4), length of the name (1), name |
//!
//! An address is a MAC address (kind 0, 6 bytes), or an IPv4 address (kind 4, 4 bytes) or IPv6
//! address (kind 6, 16 bytes) and a UDP port (2 bytes).
//!
//! Integers are little endian. No bytes may follow.

use std::net::{IpAddr, SocketAddr};

use esp_client::{KeyId, MAX_KEYS, MacAddr, NodeAddr};

use crate::record::Fields;

/// Version of the format. Others are refused.
pub const VERSION: u8 = 3;
/// Maximum number of interfaces. The longest address is below [`btl::MAX_ADDRESS`].
pub const MAX_INTERFACES: usize = 11;
/// Maximum length of an interface's name in bytes (Linux: IFNAMSIZ − 1).
pub const MAX_NAME: usize = 15;
const MAGIC: [u8; 4] = *b"EBTL";
/// Value in place of the number of keys if it is unknown whether there are any.
const UNKNOWN_KEYS: u8 = 255;

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
    /// Public names of the keys that protect its packets ([`esp_client::Protection::key_ids`]).
    /// `None`: not known, as over raw Ethernet, where they are those of the daemon.
    pub keys: Option<Vec<KeyId>>,
    /// Interfaces through which it is reachable.
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

/// Returns the hash of a job's key (FNV-1a, 128 bits). Like the keys of the wire format, it
/// separates jobs that meet by accident; it does not stop attackers.
pub fn job_hash(job: &[u8]) -> [u8; 16] {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in job {
        hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    }
    hash.to_le_bytes()
}

impl EthAddress {
    /// Encodes the address. Interfaces beyond [`MAX_INTERFACES`] and keys beyond [`MAX_KEYS`] are
    /// omitted, longer names cut.
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
        match &self.keys {
            None => bytes.push(UNKNOWN_KEYS),
            Some(keys) => {
                let keys = &keys[..keys.len().min(MAX_KEYS)];
                bytes.push(u8::try_from(keys.len()).unwrap_or(0));
                keys.iter().for_each(|key| bytes.extend(key.0));
            }
        }
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
    /// Describes the fault in a sentence for the user.
    pub fn decode(bytes: &[u8]) -> Result<EthAddress, String> {
        if bytes.is_empty() {
            return Err("its address is empty: it has no Ethernet transport".into());
        }
        let mut rest = Fields(bytes);
        let (magic, version) = (rest.array(), rest.array());
        let (Some(MAGIC), Some([version])) = (magic, version) else {
            return Err("its address is not that of an Ethernet transport".into());
        };
        if version != VERSION {
            return Err(format!(
                "its address has version {version}, that of this process {VERSION}: install the \
                 same version on both nodes"
            ));
        }
        let address = Self::decode_fields(&mut rest).ok_or("it is truncated");
        let checked = address.and_then(|address| address.check(rest.0));
        checked.map_err(|what| format!("its address is damaged: {what}"))
    }

    fn decode_fields(rest: &mut Fields<'_>) -> Option<EthAddress> {
        let [count] = rest.array()?;
        let mut address = EthAddress {
            port: u16::from_le_bytes(rest.array()?),
            job: rest.array()?,
            incarnation: u64::from_le_bytes(rest.array()?),
            nonce: u64::from_le_bytes(rest.array()?),
            max_send: u32::from_le_bytes(rest.array()?),
            keys: None,
            interfaces: Vec::new(),
        };
        let [keys] = rest.array()?;
        if keys != UNKNOWN_KEYS {
            let keys = (0..keys).map(|_| rest.array().map(KeyId));
            address.keys = Some(keys.collect::<Option<_>>()?);
        }
        for _ in 0..count {
            let addr = decode_addr(rest)?;
            let mtu = u32::from_le_bytes(rest.array()?);
            let [length] = rest.array()?;
            let name = rest.slice(usize::from(length))?;
            // Invalid UTF-8 becomes a name that `check` refuses.
            let name = String::from_utf8(name.to_vec()).unwrap_or_default();
            let interface = AddressInterface { addr, mtu, name };
            address.interfaces.push(interface);
        }
        Some(address)
    }

    fn check(self, rest: &[u8]) -> Result<EthAddress, &'static str> {
        if self.port < 1024 {
            return Err("its port is below 1024");
        }
        if self.keys.as_ref().is_some_and(|keys| keys.len() > MAX_KEYS) {
            return Err("it has too many keys");
        }
        if !(1..=MAX_INTERFACES).contains(&self.interfaces.len()) {
            return Err("it has no interface, or too many");
        }
        for AddressInterface { addr, name, .. } in &self.interfaces {
            let length = 1..=MAX_NAME;
            if !length.contains(&name.len()) || name.chars().any(char::is_control) {
                return Err("the name of an interface is invalid");
            }
            if addr.is_group() || *addr == NodeAddr::default() {
                return Err("the address of an interface is invalid");
            }
        }
        if !rest.is_empty() {
            return Err("bytes follow its end");
        }
        Ok(self)
    }
}

/// Appends the address of a node: 0 and a MAC address, or 4 or 6, an IP address and a port.
pub fn encode_addr(bytes: &mut Vec<u8>, addr: NodeAddr) {
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

fn decode_addr(from: &mut Fields<'_>) -> Option<NodeAddr> {
    let ip: IpAddr = match from.array()? {
        [0] => return Some(NodeAddr::Mac(MacAddr(from.array()?))),
        [4] => from.array::<4>()?.into(),
        [6] => from.array::<16>()?.into(),
        _ => return None,
    };
    let port = u16::from_le_bytes(from.array()?);
    (port != 0).then(|| NodeAddr::Udp(SocketAddr::new(ip, port)))
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
            keys: Some((0..MAX_KEYS).map(|n| KeyId([n as u8; 4])).collect()),
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
        let mut longest = address(40);
        for interface in &mut longest.interfaces {
            interface.addr = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], 40000)).into();
        }
        longest.keys = Some(vec![KeyId([7; 4]); 40]);
        let bytes = longest.encode();
        assert!(bytes.len() <= btl::MAX_ADDRESS, "{} bytes", bytes.len());
        let cut = EthAddress::decode(&bytes).unwrap();
        let keys = cut.keys.as_ref().map(Vec::len);
        assert_eq!(
            (cut.interfaces.len(), keys),
            (MAX_INTERFACES, Some(MAX_KEYS))
        );
        for keys in [None, Some(Vec::new())] {
            let other = EthAddress { keys, ..address(1) };
            assert_eq!(EthAddress::decode(&other.encode()), Ok(other));
        }
    }

    #[test]
    fn every_cut_and_addition_is_an_error() {
        let bytes = address(2).encode();
        for end in 0..bytes.len() {
            assert!(EthAddress::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        let error = EthAddress::decode(&longer).unwrap_err();
        assert!(error.contains("bytes follow its end"), "{error}");
    }

    #[test]
    fn wrong_fields_are_named() {
        for (at, to, part) in [
            (0, b'X', "not that of an Ethernet transport"),
            (4, 9, "version 9"),
            (5, 0, "no interface"),
            (7, 0, "port is below 1024"),
            (44, 5, "truncated"),
            (46, 1, "address of an interface"),
            (56, 0, "name of an interface"),
            (57, 0xff, "name of an interface"),
            (57, b'\n', "name of an interface"),
        ] {
            let keys = Some(Vec::new());
            let mut bytes = EthAddress { keys, ..address(1) }.encode();
            bytes[at] = to;
            let error = EthAddress::decode(&bytes).unwrap_err();
            assert!(error.contains(part), "{at}: {error}");
        }
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
