//! What a virtual cluster should be like, and the addresses of its nodes.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// Most nodes of a lab: the host numbers of 10.99.0.0/24.
pub const MAX_NODES: usize = 254;
/// Most interfaces of a node.
pub const MAX_RAILS: usize = 8;
/// Largest MTU a veth pair takes.
pub const MAX_MTU: u32 = 65535;
/// Smallest MTU: IPv4's, which the nodes speak too.
pub const MIN_MTU: u32 = 576;
/// Frames a port of the switch holds back under `--rate` before it drops.
pub const QUEUE_FRAMES: u32 = 64;

/// How to make a lab.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// Its name: letters, digits, `-`, `_`, at most 32. `None`: a unique one.
    pub name: Option<String>,
    /// The wire.
    pub wire: WireOptions,
    /// Interfaces of each node, 1 to [`MAX_RAILS`], each on a switch of its own: `eth0`, `eth1`, …
    pub rails: usize,
    /// Start an esp-daemon in each node, on all its interfaces.
    pub daemon: bool,
    /// Lines for each esp-daemon's config file (which has the node's name, and nothing else of its
    /// own).
    pub daemon_config: String,
    /// Cores each node's daemon may run on, by node number modulo the length; empty: all.
    pub daemon_cpus: Vec<Vec<usize>>,
    /// The folder with `esplab`, `esping`, `espstat` and `esp-daemon`. `None`: that of the running
    /// program.
    pub programs: Option<PathBuf>,
    /// Use a user namespace. `None`: unless this is the superuser.
    pub rootless: Option<bool>,
}

/// What the nodes' wire is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireOptions {
    /// Number of nodes, 1 to [`MAX_NODES`].
    pub nodes: usize,
    /// MTU in bytes, [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: u32,
    /// Bits per second from the switch to each node.
    pub rate: Option<u64>,
    /// Frames lost, per million, whatever their direction.
    pub loss_ppm: u32,
    /// False: TCP hands whole segments of MTU size to the wire (no segmentation offload).
    pub offload: bool,
}

impl LabOptions {
    /// `nodes` nodes with daemons on a perfect wire of MTU 1500.
    pub fn new(nodes: usize) -> LabOptions {
        let wire = WireOptions {
            nodes,
            mtu: 1500,
            rate: None,
            loss_ppm: 0,
            offload: true,
        };
        LabOptions {
            name: None,
            wire,
            rails: 1,
            daemon: true,
            daemon_config: String::new(),
            daemon_cpus: Vec::new(),
            programs: None,
            rootless: None,
        }
    }

    /// The same on this wire.
    #[must_use]
    pub fn with_wire(mut self, wire: WireOptions) -> LabOptions {
        self.wire = wire;
        self
    }

    /// Refuses what cannot be made.
    pub fn check(&self) -> Result<(), LabError> {
        let WireOptions {
            nodes,
            mtu,
            loss_ppm,
            ..
        } = self.wire;
        let bad = |text: String| Err(LabError::BadOption(text));
        if !(1..=MAX_NODES).contains(&nodes) {
            return bad(format!("{nodes} nodes cannot be made: 1 to {MAX_NODES}"));
        }
        if !(1..=MAX_RAILS).contains(&self.rails) {
            return bad(format!(
                "{} interfaces for each node cannot be made: 1 to {MAX_RAILS}",
                self.rails
            ));
        }
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            return bad(format!("MTU {mtu} cannot be made: {MIN_MTU} to {MAX_MTU}"));
        }
        if loss_ppm > 1_000_000 {
            return bad(format!(
                "a loss of {loss_ppm} per million frames cannot be made"
            ));
        }
        self.name.as_deref().map_or(Ok(()), check_name)
    }
}

/// A lab's name becomes a folder's and must keep the sockets' paths short.
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
            "`{name}` is no name of a lab: letters, digits, - and _, at most 32"
        )))
    }
}

/// Addresses of a node, known from its number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(pub usize);

impl Node {
    /// Last byte of both addresses: 1 to 254.
    fn host(self) -> u8 {
        // Labs have at most 254 nodes, see LabOptions::check.
        u8::try_from(self.0 + 1).unwrap_or(u8::MAX)
    }

    /// Its Ethernet address, 02:e5:00:00:00:(number + 1).
    pub fn mac(self) -> [u8; 6] {
        [0x02, 0xe5, 0, 0, 0, self.host()]
    }

    /// The Ethernet address as text.
    pub fn mac_text(self) -> String {
        format!("02:e5:00:00:00:{:02x}", self.host())
    }

    /// The Ethernet address of one of its interfaces: 02:e5:00:00:(rail):(number + 1).
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

    /// Its IPv4 address, for comparisons with TCP: 10.99.0.(number + 1).
    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, self.host())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(Node(0).mac_text(), "02:e5:00:00:00:01");
        assert_eq!(Node(253).mac(), [2, 0xe5, 0, 0, 0, 254]);
        assert_eq!(Node(9).ip().to_string(), "10.99.0.10");
        assert_eq!(Node(3).to_string(), "node3");
    }

    #[test]
    fn limits_are_kept() {
        let with = |change: fn(&mut LabOptions)| {
            let mut options = LabOptions::new(2);
            change(&mut options);
            options.check().is_ok()
        };
        assert!(with(|_| ()));
        assert!(with(|o| o.wire.mtu = MAX_MTU));
        assert!(!with(|o| o.wire.mtu = MAX_MTU + 1));
        assert!(!with(|o| o.wire.mtu = 100));
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
