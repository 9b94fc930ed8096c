//! Addresses of nodes, and ports.

use core::fmt;
use core::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use core::str::FromStr;

/// Number of an ESP or EDP port. Port 0 addresses the node itself (W-15).
pub type Port = u16;

/// First port that an unprivileged program may choose.
pub const FIRST_USER_PORT: Port = 1024;
/// First port assigned to connections that did not choose one.
pub const FIRST_EPHEMERAL_PORT: Port = 32768;

/// Default UDP port of a node's service (W-122).
pub const UDP_PORT: u16 = 2805;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address, ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Returns true for broadcast and multicast addresses.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Returns the six bytes in wire order.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Address at which packets reach a node: that of an Ethernet interface, or of a UDP socket. A node
/// has one for each interface and carrier.
///
/// The text form is `02:00:00:00:00:01` for Ethernet. For UDP it is the IP address, an IPv6 one in
/// brackets, with `@` and the UDP port if that is not [`UDP_PORT`]: `10.1.0.7`, `10.1.0.7@40000`,
/// `[fd00::7]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeAddr {
    /// Raw Ethernet.
    Mac(MacAddr),
    /// ESP in UDP (section 13 of the specification).
    Udp(SocketAddr),
}

impl NodeAddr {
    /// All nodes of an Ethernet segment.
    pub const BROADCAST: NodeAddr = NodeAddr::Mac(MacAddr::BROADCAST);

    /// Returns true for broadcast and multicast addresses, and for the unspecified IP address.
    pub fn is_group(&self) -> bool {
        match self {
            NodeAddr::Mac(mac) => mac.is_group(),
            NodeAddr::Udp(at) => {
                let ip = at.ip();
                ip.is_multicast() || ip.is_unspecified() || ip == IpAddr::from([255; 4])
            }
        }
    }

    /// Returns the MTU of frames, in bytes after the EtherType (W-08), for an interface MTU: that
    /// of raw Ethernet, or the rest after the headers of IP and UDP (W-121).
    #[must_use]
    pub fn frame_mtu(&self, mtu: u32) -> u32 {
        // The payload of a datagram includes the 2 bytes of the EtherType.
        const UDP: u32 = 8 + 2;
        const MAX_DATAGRAM: u32 = 65_507 - 2;
        match self {
            NodeAddr::Mac(_) => mtu,
            NodeAddr::Udp(SocketAddr::V4(_)) => mtu.saturating_sub(20 + UDP).min(MAX_DATAGRAM),
            NodeAddr::Udp(SocketAddr::V6(_)) => mtu.saturating_sub(40 + UDP).min(MAX_DATAGRAM),
        }
    }

    /// Returns the payload that needs no path verification (W-53, W-124), in bytes.
    pub(crate) const fn safe_payload(&self) -> u16 {
        match self {
            NodeAddr::Mac(_) => crate::wire::SAFE_PAYLOAD,
            NodeAddr::Udp(_) => crate::wire::SAFE_UDP_PAYLOAD,
        }
    }

    /// Returns true if packets can pass between the two addresses: both are Ethernet addresses, or
    /// IP addresses of one version.
    pub fn is_kind_of(&self, other: &NodeAddr) -> bool {
        match (self, other) {
            (NodeAddr::Mac(_), NodeAddr::Mac(_)) => true,
            (NodeAddr::Udp(a), NodeAddr::Udp(b)) => a.is_ipv4() == b.is_ipv4(),
            _ => false,
        }
    }

    /// Returns true for a UDP address.
    #[inline]
    pub const fn is_udp(&self) -> bool {
        matches!(self, NodeAddr::Udp(_))
    }

    /// Returns the Ethernet address, or `None` for another kind.
    #[inline]
    pub const fn mac(&self) -> Option<MacAddr> {
        match self {
            NodeAddr::Mac(mac) => Some(*mac),
            NodeAddr::Udp(_) => None,
        }
    }
}

impl Default for NodeAddr {
    /// Returns the Ethernet address of zeros.
    fn default() -> NodeAddr {
        NodeAddr::Mac(MacAddr::default())
    }
}

impl From<MacAddr> for NodeAddr {
    fn from(mac: MacAddr) -> NodeAddr {
        NodeAddr::Mac(mac)
    }
}

impl PartialEq<MacAddr> for NodeAddr {
    fn eq(&self, other: &MacAddr) -> bool {
        self.mac() == Some(*other)
    }
}

impl From<SocketAddr> for NodeAddr {
    fn from(at: SocketAddr) -> NodeAddr {
        NodeAddr::Udp(at)
    }
}

impl fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = match self {
            NodeAddr::Mac(mac) => return mac.fmt(f),
            NodeAddr::Udp(at) => at,
        };
        match at {
            SocketAddr::V4(v4) => write!(f, "{}", v4.ip())?,
            SocketAddr::V6(v6) if v6.scope_id() != 0 => {
                write!(f, "[{}%{}]", v6.ip(), v6.scope_id())?;
            }
            SocketAddr::V6(v6) => write!(f, "[{}]", v6.ip())?,
        }
        match at.port() {
            UDP_PORT => Ok(()),
            port => write!(f, "@{port}"),
        }
    }
}

impl fmt::Debug for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error of parsing text that is not a [`NodeAddr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an address (six hexadecimal bytes like 02:00:00:00:00:01, an IPv4 address, or an IPv6 \
     address in brackets; @PORT may follow an IP address)"
)]
pub struct ParseAddrError;

impl FromStr for NodeAddr {
    type Err = ParseAddrError;
    fn from_str(text: &str) -> Result<Self, ParseAddrError> {
        if let Ok(mac) = text.parse() {
            return Ok(NodeAddr::Mac(mac));
        }
        let (ip, port) = match text.split_once('@') {
            None => (text, UDP_PORT),
            Some((ip, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {
                let port = port.parse().ok().filter(|&port| port != 0);
                (ip, port.ok_or(ParseAddrError)?)
            }
            Some(_) => return Err(ParseAddrError),
        };
        let at = match ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')) {
            None => SocketAddrV4::new(ip.parse().map_err(|_| ParseAddrError)?, port).into(),
            Some(ip) => {
                let (ip, scope) = match ip.split_once('%') {
                    None => (ip, 0),
                    Some((ip, scope)) => (ip, scope.parse().map_err(|_| ParseAddrError)?),
                };
                let ip = ip.parse().map_err(|_| ParseAddrError)?;
                SocketAddrV6::new(ip, port, 0, scope).into()
            }
        };
        Ok(NodeAddr::Udp(at))
    }
}

/// Error of parsing an address that is not six hexadecimal bytes separated by `:` or `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address (six hexadecimal bytes, like 02:00:00:00:00:01)")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;
    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut octets = [0u8; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let digits = |part: &&str| {
                (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
            };
            let part = parts.next().filter(digits).ok_or(ParseMacError)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        match parts.next() {
            Some(_) => Err(ParseMacError),
            None => Ok(MacAddr(octets)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    #[test]
    fn text_form_round_trips() {
        let mac = MacAddr([0x02, 0, 0xab, 0xcd, 0xef, 0x01]);
        assert_eq!(mac.to_string(), "02:00:ab:cd:ef:01");
        assert_eq!(format!("{mac:?}"), "02:00:ab:cd:ef:01");
        assert_eq!("02:00:ab:cd:ef:01".parse(), Ok(mac));
        assert_eq!("2-0-AB-cd-ef-1".parse(), Ok(mac));
    }

    #[test]
    fn node_addresses_round_trip() {
        for text in [
            "02:00:ab:cd:ef:01",
            "10.1.0.7",
            "10.1.0.7@40000",
            "[fd00::7]",
            "[fd00::7]@1",
            "[fe80::1%3]",
        ] {
            let address: NodeAddr = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!("10.1.0.7@2805".parse(), "10.1.0.7".parse::<NodeAddr>());
        let socket: SocketAddr = "10.1.0.7:40000".parse().unwrap();
        assert_eq!("10.1.0.7@40000".parse(), Ok(NodeAddr::from(socket)));
        for bad in [
            "10.1.0",
            "fd00::7",
            "10.1.0.7@",
            "10.1.0.7@0",
            "10.1.0.7@+5",
            "[fd00::7",
            "[10.1.0.7]",
        ] {
            assert_eq!(bad.parse::<NodeAddr>(), Err(ParseAddrError), "{bad}");
        }
    }

    /// W-08, W-121.
    #[test]
    fn headers_of_ip_and_udp_are_part_of_the_mtu() {
        for (text, mtu, frame) in [
            ("02:00:00:00:00:01", 1500, 1500),
            ("10.1.0.7", 1500, 1470),
            ("[fd00::7]", 1500, 1450),
            ("10.1.0.7", 65_536, 65_505),
            ("[fd00::7]", 65_536, 65_486),
            ("[fd00::7]", u32::MAX, 65_505),
            ("10.1.0.7", 10, 0),
        ] {
            let address: NodeAddr = text.parse().unwrap();
            assert_eq!(address.frame_mtu(mtu), frame, "{text} {mtu}");
            assert_eq!(format!("{address:?}"), text);
        }
    }

    /// W-07, W-122.
    #[test]
    fn group_addresses_are_recognized() {
        for (text, group) in [
            ("01:00:5e:00:00:01", true),
            ("10.1.0.7", false),
            ("224.0.0.1", true),
            ("255.255.255.255", true),
            ("0.0.0.0", true),
            ("[ff02::1]", true),
            ("[::]", true),
            ("[fd00::7]", false),
        ] {
            assert_eq!(
                text.parse::<NodeAddr>().unwrap().is_group(),
                group,
                "{text}"
            );
        }
    }

    #[test]
    fn malformed_text_is_refused() {
        for bad in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "0g:0:0:0:0:0",
            "002:0:0:0:0:0",
            "+2:0:0:0:0:0",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad}");
        }
    }
}
