//! Options of a virtual cluster, and the addresses of its nodes.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::ip::{Ip, MIN_MTU_6};

/// Maximum number of nodes: the host numbers of 10.99.0.0/24.
pub const MAX_NODES: usize = 254;
/// Maximum number of interfaces of a node.
pub const MAX_RAILS: usize = 8;
/// Maximum MTU of a veth pair.
pub const MAX_MTU: u32 = 65535;
/// Minimum MTU of IPv4, which the nodes use as well.
pub const MIN_MTU: u32 = 576;
/// Number of frames that a port of the switch queues under `--rate` before it drops.
pub const QUEUE_FRAMES: u32 = 64;

/// Options of a lab.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// Name of at most 32 letters, digits, `-` and `_`. `None`: a unique one.
    pub name: Option<String>,
    /// The wire.
    pub wire: WireOptions,
    /// Interfaces of each node, 1 to [`MAX_RAILS`], each on a switch of its own: `eth0`, `eth1`, …
    pub rails: usize,
    /// Start an esp-daemon in each node, on all its interfaces.
    pub daemon: bool,
    /// Carriers of the daemons.
    pub carriers: Carriers,
    /// Lines added to the config file of each esp-daemon, which otherwise has the node's name only.
    pub daemon_config: String,
    /// Cores of each node's daemon, by node number modulo the length; empty: all.
    pub daemon_cpus: Vec<Vec<usize>>,
    /// Folder with the programs and `esp-daemon`. `None`: that of the running
    /// program.
    pub programs: Option<PathBuf>,
    /// Use a user namespace. `None`: unless this is the superuser.
    pub rootless: Option<bool>,
}

/// Options of the nodes' wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireOptions {
    /// Number of nodes, 1 to [`MAX_NODES`].
    pub nodes: usize,
    /// MTU in bytes, [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: u32,
    /// Bits per second from the switch to each node.
    pub rate: Option<u64>,
    /// Frames lost, per million, in both directions.
    pub loss_ppm: u32,
    /// False: TCP and UDP pass packets of at most the MTU to the wire (no segmentation offload).
    /// True: a packet of up to 64 KiB crosses the wire whole, and is one frame for loss and queue.
    pub offload: bool,
    /// The second half of the nodes is on a segment of its own, and the switch is a router between
    /// the two: IP passes, Ethernet frames do not.
    #[serde(default)]
    pub routed: bool,
    /// IP addresses of the nodes.
    #[serde(default)]
    pub ip: Ip,
}

impl WireOptions {
    /// Returns the number of the segment of a node, 0 or 1.
    pub(crate) fn segment(&self, node: usize) -> usize {
        usize::from(self.routed && node >= self.nodes.div_ceil(2))
    }

    /// Returns the number of segments of a rail.
    pub(crate) fn segments(&self) -> usize {
        1 + usize::from(self.routed)
    }
}

/// Carriers that the daemons of a lab serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carriers {
    /// Raw Ethernet.
    #[default]
    Raw,
    /// UDP. The nodes' names are those of IP addresses.
    Udp,
    /// Both. The nodes' names are those of Ethernet addresses.
    Both,
}

impl LabOptions {
    /// Creates options of `nodes` nodes with daemons on a wire of MTU 1500 without loss.
    pub fn new(nodes: usize) -> LabOptions {
        let wire = WireOptions {
            nodes,
            mtu: 1500,
            rate: None,
            loss_ppm: 0,
            offload: true,
            routed: false,
            ip: Ip::V4,
        };
        LabOptions {
            name: None,
            wire,
            rails: 1,
            daemon: true,
            carriers: Carriers::Raw,
            daemon_config: String::new(),
            daemon_cpus: Vec::new(),
            programs: None,
            rootless: None,
        }
    }

    /// Replaces the wire.
    #[must_use]
    pub fn with_wire(mut self, wire: WireOptions) -> LabOptions {
        self.wire = wire;
        self
    }

    /// Checks the limits.
    pub fn check(&self) -> Result<(), LabError> {
        let WireOptions {
            nodes,
            mtu,
            loss_ppm,
            ..
        } = self.wire;
        let bad = |text: String| Err(LabError::BadOption(text));
        if !(1..=MAX_NODES).contains(&nodes) {
            return bad(format!(
                "invalid number of nodes {nodes}: write 1 to {MAX_NODES}"
            ));
        }
        if !(1..=MAX_RAILS).contains(&self.rails) {
            return bad(format!(
                "invalid number of interfaces {}: write 1 to {MAX_RAILS}",
                self.rails
            ));
        }
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            return bad(format!("invalid MTU {mtu}: write {MIN_MTU} to {MAX_MTU}"));
        }
        if self.wire.ip.has_6() && mtu < MIN_MTU_6 {
            return bad(format!(
                "invalid MTU {mtu}: IPv6 needs at least {MIN_MTU_6}"
            ));
        }
        if loss_ppm > 1_000_000 {
            return bad(format!(
                "invalid loss of {loss_ppm} per million frames: write at most 1000000"
            ));
        }
        if self.wire.routed && (self.rails > 1 || loss_ppm > 0 || nodes < 2) {
            return bad(
                "a routed lab has at least two nodes, one interface each, and loses no frames"
                    .into(),
            );
        }
        if self.wire.routed && self.daemon && self.carriers == Carriers::Raw {
            return bad(
                "raw Ethernet does not pass the router: choose the carrier udp or both".into(),
            );
        }
        self.name.as_deref().map_or(Ok(()), check_name)
    }
}

/// Checks a name: it names a folder, and the paths of sockets must stay short.
pub(crate) fn check_name(name: &str) -> Result<(), LabError> {
    let fine = !name.is_empty()
        && name.len() <= 32
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if fine {
        Ok(())
    } else {
        Err(LabError::BadOption(format!(
            "invalid name `{name}` of a lab: write at most 32 letters, digits, - and _"
        )))
    }
}

/// Number of a node, from which its addresses follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(pub usize);

impl Node {
    /// Returns the last byte of both addresses, 1 to 254.
    fn host(self) -> u8 {
        // Labs have at most 254 nodes, see LabOptions::check.
        u8::try_from(self.0 + 1).unwrap_or(u8::MAX)
    }

    /// Returns the Ethernet address, 02:e5:00:00:00:(number + 1).
    pub fn mac(self) -> [u8; 6] {
        [0x02, 0xe5, 0, 0, 0, self.host()]
    }

    /// Returns the Ethernet address as text.
    pub fn mac_text(self) -> String {
        format!("02:e5:00:00:00:{:02x}", self.host())
    }

    /// Returns the Ethernet address of one of its interfaces: 02:e5:00:00:(rail):(number + 1).
    pub fn rail_mac(self, rail: usize) -> [u8; 6] {
        // At most 8, see LabOptions::check.
        [
            0x02,
            0xe5,
            0,
            0,
            u8::try_from(rail).unwrap_or(u8::MAX),
            self.host(),
        ]
    }

    /// Returns the IPv4 address: 10.99.0.(number + 1).
    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, self.host())
    }

    /// Returns the IPv6 address: fd00:99::(number + 1), in hexadecimal.
    pub fn ip6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, self.host().into())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

impl FromStr for Node {
    type Err = LabError;

    /// Parses `node1` or `1`.
    fn from_str(text: &str) -> Result<Node, LabError> {
        let number = text.strip_prefix("node").unwrap_or(text).parse().ok();
        number
            .map(Node)
            // `node01` and `+1` do not name nodes.
            .filter(|node| text == node.to_string() || text == node.0.to_string())
            .ok_or_else(|| {
                let text = text.escape_debug();
                LabError::BadOption(format!("`{text}` is not a node of a lab (node0, node1, …)"))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_from_the_number() {
        assert_eq!(Node(0).mac_text(), "02:e5:00:00:00:01");
        assert_eq!(Node(253).mac(), [2, 0xe5, 0, 0, 0, 254]);
        assert_eq!(Node(9).ip().to_string(), "10.99.0.10");
        assert_eq!(Node(9).ip6().to_string(), "fd00:99::a");
        assert_eq!(Node(3).to_string(), "node3");
    }

    #[test]
    fn limits_are_checked() {
        let with = |change: fn(&mut LabOptions)| {
            let mut options = LabOptions::new(2);
            change(&mut options);
            options.check().is_ok()
        };
        assert!(with(|_| ()));
        assert!(with(|o| o.wire.mtu = MAX_MTU));
        assert!(!with(|o| o.wire.mtu = MAX_MTU + 1));
        assert!(!with(|o| o.wire.mtu = 100));
        assert!(with(|o| (o.wire.mtu, o.wire.ip) = (1280, Ip::V6)));
        assert!(!with(|o| (o.wire.mtu, o.wire.ip) = (1279, Ip::Both)));
        assert!(!with(|o| o.wire.nodes = 0));
        assert!(!with(|o| o.wire.nodes = 255));
        assert!(with(|o| o.rails = 8));
        assert!(!with(|o| o.rails = 0));
        assert!(!with(|o| o.rails = 9));
        assert!(with(|o| o.name = Some("a-1_B".into())));
        for bad in ["", "a/b", "..", "ä", "012345678901234567890123456789012"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
