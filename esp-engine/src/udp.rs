//! UDP sockets of a program that runs its own engine.

use std::net::{IpAddr, SocketAddr};

use esp_proto::NodeAddr;
use netif::{Interface, LocalAddress, UdpOptions, UdpSocket};

use crate::config::EngineError;

/// A bound UDP socket, for [`Engine::add_udp`](crate::Engine::add_udp).
#[derive(Debug)]
pub struct UdpLink {
    pub(crate) interface: Interface,
    pub(crate) socket: UdpSocket,
}

impl UdpLink {
    /// Returns the addresses of this node over which ESP in UDP can run, with their links' names:
    /// for each interface that is up its first IPv4 address, else its first IPv6 address, under the
    /// interface's name. Without any the loopback address is returned.
    pub fn addresses() -> Vec<(String, IpAddr)> {
        candidates()
            .into_iter()
            .map(|found| (found.interface.name, found.ip))
            .collect()
    }

    /// Binds this UDP port (0: any free one) of each of these addresses whose link's name `wants`
    /// selects.
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind_all(wants: impl Fn(&str) -> bool, port: u16) -> Result<Vec<UdpLink>, EngineError> {
        let options = UdpOptions::default();
        candidates()
            .into_iter()
            .filter(|found| wants(&found.interface.name))
            .map(|found| {
                let socket = UdpSocket::bind(SocketAddr::new(found.ip, port), &options)?;
                let interface = found.interface;
                Ok(UdpLink { interface, socket })
            })
            .collect()
    }

    /// Returns the link's name.
    pub fn name(&self) -> &str {
        &self.interface.name
    }

    /// Returns the address at which the link is reached.
    pub fn addr(&self) -> NodeAddr {
        NodeAddr::Udp(self.socket.local_addr())
    }

    /// Returns the MTU of frames (W-121), in bytes.
    pub fn mtu(&self) -> u32 {
        self.addr().frame_mtu(self.interface.mtu)
    }
}

/// Returns one address of each interface that is up.
fn candidates() -> Vec<LocalAddress> {
    let mut all = netif::addresses();
    all.retain(|found| found.interface.up && found.interface.running);
    // The addresses of a link mean nothing to a peer without its scope.
    let is_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    all.retain(|found| !is_local(&found.ip));
    all.sort_by_key(|found| (found.interface.index, found.ip.is_ipv6()));
    all.dedup_by_key(|found| found.interface.index);
    if all.iter().any(|found| !found.interface.loopback) {
        all.retain(|found| !found.interface.loopback);
    }
    all
}
