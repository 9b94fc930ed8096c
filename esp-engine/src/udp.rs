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

/// Selection of an interface's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpAddresses {
    /// The first IPv4 address, otherwise the first IPv6 address.
    First,
    /// The first of each version of IP. If an interface has both, the link of the IPv6 address has
    /// a name of its own, such as `eth0/ipv6`.
    EachVersion,
}

impl UdpLink {
    /// Returns the names of the interfaces that are up and have an IP address; the loopback
    /// interface only without any other.
    pub fn interfaces() -> Vec<String> {
        candidates(UdpAddresses::First)
            .into_iter()
            .map(|found| found.interface.name)
            .collect()
    }

    /// Binds this UDP port (0: any free one) at the addresses that `wants` selects by interface and
    /// address. See [`UdpLink::interfaces`].
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind_all(
        which: UdpAddresses,
        wants: impl Fn(&str, IpAddr) -> bool,
        port: u16,
    ) -> Result<Vec<UdpLink>, EngineError> {
        let options = UdpOptions::default();
        let mut links: Vec<UdpLink> = Vec::new();
        for LocalAddress {
            mut interface, ip, ..
        } in candidates(which)
        {
            if !wants(&interface.name, ip) {
                continue;
            }
            let socket = UdpSocket::bind(SocketAddr::new(ip, port), &options)?;
            if links
                .last()
                .is_some_and(|last| last.interface.index == interface.index)
            {
                interface.name += "/ipv6";
            }
            links.push(UdpLink { interface, socket });
        }
        Ok(links)
    }

    /// Returns the link's name.
    pub fn name(&self) -> &str {
        &self.interface.name
    }

    /// Returns the address at which the link is reached.
    pub fn addr(&self) -> NodeAddr {
        NodeAddr::Udp(self.socket.local_addr())
    }

    /// Returns the MTU of frames (W-121, W-141), in bytes.
    pub fn mtu(&self, protected: bool) -> u32 {
        crate::frame_mtu(self.addr(), self.interface.mtu, protected)
    }
}

/// Returns the addresses of the interfaces that are up, IPv4 first.
fn candidates(which: UdpAddresses) -> Vec<LocalAddress> {
    let mut all = netif::addresses();
    all.retain(|found| found.interface.up && found.interface.running);
    // The address of a link is useless to a peer without its scope.
    let is_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    all.retain(|found| !is_local(&found.ip));
    all.sort_by_key(|found| (found.interface.index, found.ip.is_ipv6()));
    all.dedup_by_key(|found| {
        let version = which == UdpAddresses::EachVersion && found.ip.is_ipv6();
        (found.interface.index, version)
    });
    if all.iter().any(|found| !found.interface.loopback) {
        all.retain(|found| !found.interface.loopback);
    }
    all
}
