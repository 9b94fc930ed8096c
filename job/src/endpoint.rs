//! Endpoints of programs that belong to no job, such as those of libfabric, and their names.
//!
//! A name is all that a peer needs to reach an endpoint, in at most [`MAX_NAME`] bytes, because
//! users of libfabric reserve no more:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | version, 2 |
//! | 8 | identity of the endpoint |
//! | … | each transport |
//!
//! The transport within the node comes first: 32 (1), process (4), descriptor (2). Each other
//! transport: number of interfaces, plus 16 if over UDP (1); port of the listener (2); maximum
//! length of a message / 64 (2); if raw, the incarnation of the node's daemon (8); each interface.
//! An interface: 0 (1) and a MAC address (6); or 4 or 6 (1), the IP address and the UDP port (2),
//! by which a daemon may serve transports over Ethernet, too; then the MTU (2). Integers are little
//! endian. Interfaces that do not fit are omitted.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use btl::Btl;
use btl_eth::address::{AddressInterface, EthAddress, encode_addr};
use btl_eth::{Carrier, EthBtl, EthConfig, EthError};
use esp_client::{MacAddr, NodeAddr, Protection};
use p2p::{Endpoint, Regions, TransportAddress};
use shm_btl::{OpenAddress, ShmBtl, ShmConfig};

use crate::{Options, Transport};

/// Maximum length of an endpoint's name, in bytes.
pub const MAX_NAME: usize = 64;
const VERSION: u8 = 2;
/// Key of all endpoints, which therefore reach each other but no job.
const KEY: &str = "endpoint";
/// Flag of a transport over UDP.
const UDP: u8 = 16;
/// First byte of the transport within the node.
const SHM: u8 = 32;
/// Unit of the maximum length of a message, in bytes.
const UNIT: u32 = 64;

/// An open endpoint.
#[derive(Debug)]
pub struct OpenEndpoint {
    /// The layer.
    pub endpoint: Endpoint,
    /// Its name.
    pub name: Vec<u8>,
}

/// The peers that endpoints of this node can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those of this node and of other ones.
    Network,
    /// Those of this node, through shared memory; with the reason of each other transport.
    Node(String),
}

/// Returns the peers that an endpoint opened on this node can probably reach. Shared memory alone
/// is sufficient unless the options name interfaces.
///
/// # Errors
/// The reason of each transport if no endpoint can be opened.
pub fn check(options: &Options) -> Result<Reach, String> {
    let mut reasons = String::new();
    for (carrier, name) in carriers(options) {
        match config(0, carrier, options).and_then(|config| config.interfaces()) {
            Ok(names) if !names.is_empty() => return Ok(Reach::Network),
            Ok(_) => push(&mut reasons, name, "no interface is up and has an address"),
            Err(error) => push(&mut reasons, name, &error.to_string()),
        }
    }
    if options.transports.contains(&Transport::Shm) && options.interfaces.is_empty() {
        return Ok(Reach::Node(reasons));
    }
    Err(reasons)
}

/// Returns the name of an endpoint before it is opened, which has no identity and no addresses. No
/// peer can be reached by it.
#[must_use]
pub fn unopened() -> Vec<u8> {
    encode(0, &[])
}

/// Opens an endpoint over all transports of the options that support endpoints and work here. Its
/// peers may access the memory that `regions` exposes.
///
/// # Errors
/// The reason of each transport if there is none.
pub fn open(options: &Options, regions: Arc<Regions>) -> Result<OpenEndpoint, String> {
    let mut identity = [0; 8];
    getrandom::fill(&mut identity).map_err(|error| format!("no random numbers: {error}"))?;
    let identity = u64::from_le_bytes(identity);
    let (mut transports, mut reasons) = (Vec::<Box<dyn Btl>>::new(), String::new());
    if options.transports.contains(&Transport::Shm) {
        let mut config = ShmConfig::open(identity, KEY);
        config.thresholds = options.thresholds.unwrap_or(config.thresholds);
        match ShmBtl::new(config) {
            Ok(transport) => transports.push(Box::new(transport)),
            Err(error) => push(&mut reasons, "shm", &error.to_string()),
        }
    }
    for (carrier, name) in carriers(options) {
        match config(identity, carrier, options).and_then(EthBtl::new) {
            Ok(transport) => transports.push(Box::new(transport)),
            Err(error) => push(&mut reasons, name, &error.to_string()),
        }
    }
    if transports.is_empty() {
        return Err(reasons);
    }
    let endpoint = Endpoint::open(transports, identity, regions, &options.p2p);
    let endpoint = endpoint.map_err(|failed| failed.error.to_string())?;
    let name = encode(identity, &endpoint.addresses());
    Ok(OpenEndpoint { endpoint, name })
}

/// Decodes a name, which is untrusted, to the identity and addresses of an endpoint.
#[must_use]
pub fn parse(name: &[u8]) -> Option<(u64, Vec<TransportAddress>)> {
    let mut rest = Reader(name);
    let [version] = rest.take()?;
    if version != VERSION || name.len() > MAX_NAME {
        return None;
    }
    let identity = u64::from_le_bytes(rest.take()?);
    let mut addresses = Vec::new();
    while let Some([head]) = rest.take() {
        if head == SHM {
            let pid = u32::from_le_bytes(rest.take()?);
            let data = u16::from_le_bytes(rest.take()?).into();
            addresses.push(TransportAddress {
                transport: "shm".to_owned(),
                address: OpenAddress {
                    identity,
                    pid,
                    data,
                }
                .encode(),
            });
            continue;
        }
        let (udp, count) = (head & UDP != 0, head & !UDP);
        let port = u16::from_le_bytes(rest.take()?);
        let max_send = u32::from(u16::from_le_bytes(rest.take()?)) * UNIT;
        let incarnation = if udp {
            identity
        } else {
            u64::from_le_bytes(rest.take()?)
        };
        let mut interfaces = Vec::new();
        for place in 0..count {
            let addr = rest.addr()?;
            let mtu = u32::from(u16::from_le_bytes(rest.take()?));
            let name = format!("if{place}");
            interfaces.push(AddressInterface { addr, mtu, name });
        }
        if count == 0 {
            return None;
        }
        let address = EthAddress {
            port,
            job: EthBtl::open_key(KEY.as_bytes()),
            incarnation,
            nonce: identity,
            max_send,
            // A name has no room for them.
            keys: None,
            interfaces,
        };
        addresses.push(TransportAddress {
            transport: if udp { "udp" } else { "eth" }.to_owned(),
            address: address.encode(),
        });
    }
    (!addresses.is_empty()).then_some((identity, addresses))
}

/// Returns a name as text: `esp://` and its bytes in hexadecimal.
#[must_use]
pub fn to_text(name: &[u8]) -> String {
    name.iter().fold("esp://".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses a name from the text that [`to_text`] returned.
#[must_use]
pub fn from_text(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("esp://")?;
    if digits.len() > 2 * MAX_NAME || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect()
}

fn push(reasons: &mut String, name: &str, reason: &str) {
    let separator = if reasons.is_empty() { "" } else { "; " };
    let _ = write!(reasons, "{separator}{name}: {reason}");
}

/// Returns the carriers of the options, with the transports' names.
fn carriers(options: &Options) -> impl Iterator<Item = (Carrier, &'static str)> {
    let transports = options.transports.iter();
    transports.filter_map(|transport| match transport {
        Transport::Eth => Some((Carrier::Raw, "eth")),
        Transport::Udp => Some((Carrier::Udp, "udp")),
        Transport::Shm | Transport::Ib => None,
    })
}

fn config(identity: u64, carrier: Carrier, options: &Options) -> Result<EthConfig, EthError> {
    let checksum = options.checksum == Some(true);
    let protection = Protection::chosen(&options.key_files, options.auth, checksum)?;
    let mut config = EthConfig::open(identity, KEY.as_bytes());
    config.carrier = carrier;
    config.include.clone_from(&options.interfaces);
    config.exclude.clone_from(&options.not_interfaces);
    config.protection = Some(protection);
    Ok(config)
}

fn encode(identity: u64, addresses: &[TransportAddress]) -> Vec<u8> {
    let mut name = vec![VERSION];
    name.extend(identity.to_le_bytes());
    for address in addresses {
        if let Some(found) = OpenAddress::decode(&address.address)
            && let Ok(data) = u16::try_from(found.data)
        {
            name.push(SHM);
            name.extend(found.pid.to_le_bytes());
            name.extend(data.to_le_bytes());
        }
    }
    let addresses = addresses.iter().filter_map(|address| {
        let decoded = EthAddress::decode(&address.address).ok()?;
        Some((address.transport == "udp", decoded))
    });
    for (udp, address) in addresses {
        let head = name.len();
        name.push(if udp { UDP } else { 0 });
        name.extend(address.port.to_le_bytes());
        let units = u16::try_from(address.max_send / UNIT).unwrap_or(u16::MAX);
        name.extend(units.to_le_bytes());
        if !udp {
            name.extend(address.incarnation.to_le_bytes());
        }
        let mut count = 0;
        for interface in &address.interfaces {
            let bytes = encode_interface(interface);
            if name.len() + bytes.len() <= MAX_NAME && count < UDP - 1 {
                name.extend(bytes);
                count += 1;
            }
        }
        match count {
            0 => name.truncate(head),
            count => name[head] |= count,
        }
    }
    name
}

fn encode_interface(interface: &AddressInterface) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(24);
    encode_addr(&mut bytes, interface.addr);
    let mtu = u16::try_from(interface.mtu).unwrap_or(u16::MAX);
    bytes.extend(mtu.to_le_bytes());
    bytes
}

/// Reads fields from the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn addr(&mut self) -> Option<NodeAddr> {
        let ip: IpAddr = match self.take()? {
            [0] => return Some(NodeAddr::Mac(MacAddr(self.take()?))),
            [4] => self.take::<4>()?.into(),
            [6] => self.take::<16>()?.into(),
            _ => return None,
        };
        let port = u16::from_le_bytes(self.take()?);
        Some(NodeAddr::Udp(SocketAddr::new(ip, port)))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(transport: &str, addrs: &[NodeAddr]) -> TransportAddress {
        let interface = |(place, addr): (usize, &NodeAddr)| AddressInterface {
            addr: *addr,
            mtu: 1500,
            name: format!("if{place}"),
        };
        let address = EthAddress {
            port: 5000,
            job: EthBtl::open_key(KEY.as_bytes()),
            incarnation: if transport == "udp" { 7 } else { 9 },
            nonce: 7,
            max_send: 65_600,
            keys: None,
            interfaces: addrs.iter().enumerate().map(interface).collect(),
        };
        TransportAddress {
            transport: transport.into(),
            address: address.encode(),
        }
    }

    fn udp(text: &str) -> NodeAddr {
        NodeAddr::Udp(text.parse().unwrap())
    }

    #[test]
    fn names_have_the_addresses_that_fit() {
        let mac = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 1]));
        let both = [
            address("eth", &[mac]),
            address("udp", &[udp("[fd00::7]:2805")]),
        ];
        let mixed = [address("eth", &[mac, udp("10.1.0.7:2805")])];
        assert_eq!(parse(&encode(7, &mixed)), Some((7, mixed.to_vec())));
        let name = encode(7, &both);
        assert!(name.len() <= MAX_NAME, "{}", name.len());
        assert_eq!(parse(&name), Some((7, both.to_vec())));
        assert_eq!(from_text(&to_text(&name)), Some(name));
        // The longest name that loses nothing.
        let within = TransportAddress {
            transport: "shm".into(),
            address: OpenAddress {
                identity: 7,
                pid: 1 << 22,
                data: 40_000,
            }
            .encode(),
        };
        let all = [&[within], &both[..]].concat();
        let name = encode(7, &all);
        assert_eq!((name.len(), parse(&name)), (MAX_NAME, Some((7, all))));
        let v4: Vec<NodeAddr> = (1..9).map(|n| udp(&format!("10.1.0.{n}:99"))).collect();
        let name = encode(7, &[address("udp", &v4)]);
        let (_, found) = parse(&name).unwrap();
        let found = EthAddress::decode(&found[0].address).unwrap();
        assert_eq!((found.interfaces.len(), name.len()), (5, 59));
    }

    #[test]
    fn shared_memory_is_sufficient_unless_interfaces_are_named() {
        let mut options = Options {
            transports: vec![Transport::Shm],
            ..Options::default()
        };
        assert_eq!(check(&options), Ok(Reach::Node(String::new())));
        options.interfaces = vec!["none0".to_owned()];
        assert_eq!(check(&options), Err(String::new()));
        options.transports = Vec::new();
        options.interfaces.clear();
        assert_eq!(check(&options), Err(String::new()));
    }

    #[test]
    fn nothing_is_reached_by_a_name_before_the_endpoint_is_open() {
        assert_eq!(parse(&unopened()), None);
        assert_eq!(from_text(&to_text(&unopened())), Some(unopened()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80)
        ) {
            let _ = parse(&bytes);
            let _ = from_text(&String::from_utf8_lossy(&bytes));
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Some((_, addresses)) = parse(&bytes) {
                prop_assert!(addresses.len() <= MAX_NAME);
            }
        }
    }
}
