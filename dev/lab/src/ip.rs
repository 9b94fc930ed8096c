//! IP addresses of a lab's nodes and router, and their routes and neighbours, as input of `ip
//! -batch`.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::options::{Node, WireOptions};
use crate::wire::bridge;

/// Minimum MTU of IPv6.
pub(crate) const MIN_MTU_6: u32 = 1280;

/// Versions of IP of which the nodes have addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ip {
    /// IPv4 only.
    #[default]
    #[serde(rename = "4")]
    V4,
    /// IPv6 only.
    #[serde(rename = "6")]
    V6,
    /// Both. Names are looked up as IPv4 first.
    #[serde(rename = "both")]
    Both,
}

impl Ip {
    /// Returns the versions.
    pub(crate) fn versions(self) -> &'static [Version] {
        match self {
            Ip::V4 => &[Version::V4],
            Ip::V6 => &[Version::V6],
            Ip::Both => &[Version::V4, Version::V6],
        }
    }

    /// Returns true if IPv6 is one of them.
    pub(crate) fn has_6(self) -> bool {
        self != Ip::V4
    }
}

/// One version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V4,
    V6,
}

impl Version {
    /// Returns the network of all addresses.
    pub(crate) fn network(self) -> &'static str {
        match self {
            Version::V4 => "10.99.0.0/16",
            Version::V6 => "fd00:99::/64",
        }
    }

    /// Returns the address of a node.
    pub(crate) fn address(self, node: Node) -> IpAddr {
        match self {
            Version::V4 => node.ip().into(),
            Version::V6 => node.ip6().into(),
        }
    }

    /// Returns the router's address on a segment, above those of all nodes.
    fn gateway(self, segment: usize) -> IpAddr {
        // There are two segments.
        let host = u8::try_from(segment + 1).unwrap_or(u8::MAX);
        match self {
            Version::V4 => Ipv4Addr::new(10, 99, 255, host).into(),
            Version::V6 => Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0xffff, host.into()).into(),
        }
    }

    /// Returns the length of the prefix of a segment that all nodes share, or of a single address.
    fn prefix(self, routed: bool) -> u8 {
        match (self, routed) {
            (Version::V4, false) => 24,
            (Version::V4, true) => 32,
            (Version::V6, false) => 64,
            (Version::V6, true) => 128,
        }
    }

    /// Returns the words after an address: it is used at once, without duplicate address detection.
    fn flags(self) -> &'static str {
        match self {
            Version::V4 => "",
            Version::V6 => " nodad",
        }
    }
}

/// Returns shell commands that enable IPv6 in a namespace, which holders disable.
pub(crate) const ENABLE_6: &str = "for which in all default; do
    echo 0 > /proc/sys/net/ipv6/conf/$which/disable_ipv6 || exit 1
done
";

/// Returns shell commands that make a namespace forward IP.
pub(crate) fn forwarding(ip: Ip) -> String {
    let mut text = String::new();
    for version in ip.versions() {
        text += match version {
            Version::V4 => "echo 1 > /proc/sys/net/ipv4/ip_forward || exit 1\n",
            Version::V6 => "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding || exit 1\n",
        };
    }
    text
}

/// Returns the router's addresses, and for each node the route and the neighbour on its segment.
pub(crate) fn router(wire: &WireOptions) -> String {
    let mut text = String::new();
    for version in wire.ip.versions() {
        let (prefix, flags) = (version.prefix(true), version.flags());
        for segment in 0..wire.segments() {
            let (gateway, bridge) = (version.gateway(segment), bridge(0, segment));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "address add {gateway}/{prefix} dev {bridge}{flags}");
        }
        for node in 0..wire.nodes {
            let (address, bridge) = (version.address(Node(node)), bridge(0, wire.segment(node)));
            let mac = Node(node).mac_text();
            // The router has no link-local address from which it could ask for neighbours.
            let _ = writeln!(
                text,
                "route add {address}/{prefix} dev {bridge}\n\
                 neighbour replace {address} lladdr {mac} dev {bridge} nud permanent"
            );
        }
    }
    text
}

/// Returns a node's addresses, its routes, and its neighbours.
pub(crate) fn node(wire: &WireOptions, node: usize) -> String {
    let mut text = String::new();
    for version in wire.ip.versions() {
        let _ = writeln!(
            text,
            "address add {}/{} dev eth0{}",
            version.address(Node(node)),
            version.prefix(wire.routed),
            version.flags()
        );
        let (own, host) = (wire.segment(node), version.prefix(true));
        if wire.routed {
            let gateway = version.gateway(own);
            let _ = writeln!(
                text,
                "route add {gateway}/{host} dev eth0\nroute add default via {gateway}"
            );
        }
        // Static neighbours avoid ARP and neighbour discovery on the wire.
        let is_near = |other: &usize| *other != node && wire.segment(*other) == own;
        for other in (0..wire.nodes).filter(is_near).map(Node) {
            let address = version.address(other);
            if wire.routed {
                let _ = writeln!(text, "route add {address}/{host} dev eth0");
            }
            let _ = writeln!(
                text,
                "neighbour replace {address} lladdr {} dev eth0 nud permanent",
                other.mac_text()
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LabOptions;

    fn wire(nodes: usize, ip: Ip, routed: bool) -> WireOptions {
        WireOptions {
            ip,
            routed,
            ..LabOptions::new(nodes).wire
        }
    }

    #[test]
    fn nodes_have_static_neighbours() {
        let text = node(&wire(3, Ip::Both, false), 1);
        assert_eq!(text.matches("neighbour").count(), 4);
        for line in [
            "address add 10.99.0.2/24 dev eth0\n",
            "neighbour replace 10.99.0.3 lladdr 02:e5:00:00:00:03",
            "address add fd00:99::2/64 dev eth0 nodad\n",
            "neighbour replace fd00:99::3 lladdr 02:e5:00:00:00:03",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn a_router_has_a_route_to_each_node() {
        let wire = wire(3, Ip::V6, true);
        let text = router(&wire);
        for line in [
            "address add fd00:99::ffff:1/128 dev br0 nodad\n",
            "address add fd00:99::ffff:2/128 dev br0s1 nodad\n",
            "route add fd00:99::2/128 dev br0\n",
            "route add fd00:99::3/128 dev br0s1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(!text.contains("10.99"), "{text}");
        let text = node(&wire, 2);
        assert!(text.contains("route add default via fd00:99::ffff:2\n"));
        assert!(!text.contains("neighbour"), "{text}");
    }
}
