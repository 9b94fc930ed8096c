//! What carries the packets of a world: frames, or UDP datagrams.
//!
//! The network of the simulator has Ethernet addresses alone, as a datagram travels in a frame,
//! too. The endpoints of a world with a carrier over UDP know the interfaces by IP addresses.

use esp_proto::{MacAddr, NodeAddr, UDP_PORT};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Carrier of all packets of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// Raw Ethernet.
    #[default]
    Raw,
    /// UDP over IPv4.
    Udp4,
    /// UDP over IPv6.
    Udp6,
}

impl Carrier {
    /// Returns true for a carrier over UDP.
    pub fn is_udp(self) -> bool {
        self != Carrier::Raw
    }

    /// Returns the minimum MTU of an interface in bytes.
    pub fn min_mtu(self) -> u32 {
        match self {
            Carrier::Raw => 128,
            Carrier::Udp4 => 576,
            Carrier::Udp6 => 1280,
        }
    }

    /// Returns the address by which endpoints know an interface. Group addresses stay such.
    pub fn node_addr(self, mac: MacAddr) -> NodeAddr {
        let [a, b, c, d, e, f] = mac.0;
        let is_group = mac.is_group();
        let ip: IpAddr = match self {
            Carrier::Raw => return mac.into(),
            Carrier::Udp4 => {
                let ip = match [a, b, c] {
                    _ if is_group => Ipv4Addr::new(239, d, e, f),
                    [2, 0, 0] => Ipv4Addr::new(10, d, e, f),
                    // Not the address of a node, but damaged or forged.
                    _ => Ipv4Addr::new(192, 0, 2, f),
                };
                ip.into()
            }
            Carrier::Udp6 => {
                let first = if is_group { 0xff05 } else { 0xfd00 };
                let [x, y, z] = [[a, b], [c, d], [e, f]].map(u16::from_be_bytes);
                Ipv6Addr::new(first, 0, 0, 0, 0, x, y, z).into()
            }
        };
        NodeAddr::Udp(SocketAddr::new(ip, UDP_PORT))
    }

    /// Returns an Ethernet address that endpoints know by `addr`. `None`: the address is of another
    /// carrier.
    pub fn mac(self, addr: NodeAddr) -> Option<MacAddr> {
        let mac = match addr {
            NodeAddr::Mac(mac) => mac,
            NodeAddr::Udp(at) => match at.ip() {
                IpAddr::V4(ip) => {
                    let [first, d, e, f] = ip.octets();
                    if first == 10 {
                        MacAddr([2, 0, 0, d, e, f])
                    } else {
                        MacAddr([6, 0, 0, 0, 0, f])
                    }
                }
                IpAddr::V6(ip) => {
                    let [.., a, b, c, d, e, f] = ip.octets();
                    MacAddr([a, b, c, d, e, f])
                }
            },
        };
        (self.node_addr(mac) == addr).then_some(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::mac_of;

    #[test]
    fn addresses_of_both_kinds_match() {
        for carrier in [Carrier::Raw, Carrier::Udp4, Carrier::Udp6] {
            for mac in [mac_of(0), mac_of(300)] {
                let addr = carrier.node_addr(mac);
                assert_eq!(addr.is_udp(), carrier.is_udp());
                assert!(!addr.is_group());
                assert_eq!(carrier.mac(addr), Some(mac));
            }
            assert!(carrier.node_addr(MacAddr::BROADCAST).is_group());
            let other = if carrier == Carrier::Raw {
                Carrier::Udp4
            } else {
                Carrier::Raw
            };
            assert_eq!(carrier.mac(other.node_addr(mac_of(0))), None);
        }
    }
}
