//! Network interfaces and their properties.

use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use pnet::datalink::{self, NetworkInterface};
use pnet::util::MacAddr;
use socket2::{Domain, Socket, Type};

/// Properties of a network interface at the time of the query. [`LinkMonitor`](crate::LinkMonitor)
/// reports changes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Name, for example `eth0`. May change while the interface is down; the index does not.
    pub name: String,
    /// Index, unique within the network namespace.
    pub index: u32,
    /// Hardware address; all zeros if there is none.
    pub mac: MacAddr,
    /// Maximum number of bytes after the EtherType of an untagged frame.
    pub mtu: u32,
    /// The administrator has enabled it.
    pub up: bool,
    /// It has a carrier: a link partner is connected.
    pub running: bool,
    /// It is the loopback interface.
    pub loopback: bool,
    /// Link-layer type, `ARPHRD_*` of Linux; 1 is Ethernet.
    pub link_type: u16,
}

/// Reason why an interface cannot be used for raw Ethernet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The network namespace has no interface of this name.
    #[error("no interface named {name:?}; {}", existing_names(.existing))]
    NotFound {
        /// The requested name.
        name: String,
        /// Names of the existing interfaces.
        existing: Vec<String>,
    },
    /// The interface does not carry Ethernet frames.
    #[error("{name} is not an Ethernet interface but {}", link_type_name(*.link_type))]
    NotEthernet {
        /// The interface.
        name: String,
        /// `ARPHRD_*` of Linux.
        link_type: u16,
    },
    /// The system did not return the properties.
    #[error("cannot read the properties of {name}: {source}")]
    Properties {
        /// The interface.
        name: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl Interface {
    /// Creates an Ethernet interface from the description of another process, which opened sockets
    /// on it and passed them here. It may be in another network namespace, so its index is 0, which
    /// no interface has.
    #[must_use]
    pub fn described(name: String, mac: [u8; 6], mtu: u32) -> Interface {
        let mac = MacAddr::from(mac);
        Interface {
            name,
            index: 0,
            mac,
            mtu,
            up: true,
            running: true,
            loopback: false,
            link_type: 1,
        }
    }

    /// Finds an interface by name in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`InterfaceError::NotFound`] lists the existing names.
    pub fn by_name(name: &str) -> Result<Interface, InterfaceError> {
        let all = datalink::interfaces();
        match all.iter().find(|found| found.name == name) {
            Some(found) => Interface::read(found),
            None => {
                let existing = all.into_iter().map(|found| found.name).collect();
                Err(InterfaceError::NotFound {
                    name: name.to_owned(),
                    existing,
                })
            }
        }
    }

    /// Returns all interfaces of the calling thread's network namespace by index, including those
    /// unusable for Ethernet. One that vanishes during the call is omitted.
    pub fn list() -> Vec<Interface> {
        let mut all: Vec<_> = datalink::interfaces()
            .iter()
            .filter_map(|found| Interface::read(found).ok())
            .collect();
        all.sort_by_key(|interface| interface.index);
        all
    }

    /// Checks that the interface carries raw Ethernet; it may be down.
    ///
    /// # Errors
    /// [`InterfaceError::NotEthernet`].
    pub fn check_ethernet(&self) -> Result<(), InterfaceError> {
        if self.link_type != libc::ARPHRD_ETHER {
            return Err(InterfaceError::NotEthernet {
                name: self.name.clone(),
                link_type: self.link_type,
            });
        }
        Ok(())
    }

    fn read(found: &NetworkInterface) -> Result<Interface, InterfaceError> {
        Interface::complete(found).map_err(|source| InterfaceError::Properties {
            name: found.name.clone(),
            source,
        })
    }

    /// Adds the properties that pnet does not read.
    fn complete(found: &NetworkInterface) -> io::Result<Interface> {
        // Any socket accepts these requests; a Unix one exists even without IP. /sys would show the
        // namespace it was mounted in, which may be another one.
        let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
        // SAFETY: all zeros is a valid value of this plain C structure.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        // The kernel's names are shorter than this.
        for (to, from) in request.ifr_name.iter_mut().zip(found.name.bytes()) {
            *to = from as libc::c_char;
        }
        let mtu = query_mtu(&socket, &mut request)?;
        query(&socket, &mut request, libc::SIOCGIFHWADDR)?;
        // SAFETY: plain data filled by the request of that member.
        let link_type = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
        Ok(Interface {
            name: found.name.clone(),
            index: found.index,
            mac: found.mac.unwrap_or_default(),
            mtu,
            up: found.is_up(),
            running: found.is_running(),
            loopback: found.is_loopback(),
            link_type,
        })
    }
}

/// An IP address of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The interface that has it.
    pub interface: Interface,
    /// The address.
    pub ip: IpAddr,
    /// Length of its network's prefix in bits.
    pub prefix: u8,
}

/// Returns the IP addresses of the calling thread's network namespace by interface index, those of
/// the loopback interface included. Interfaces that vanish during the call are omitted.
pub fn addresses() -> Vec<LocalAddress> {
    let mut all: Vec<_> = datalink::interfaces()
        .iter()
        .filter_map(|found| Some((Interface::read(found).ok()?, found)))
        .flat_map(|(interface, found)| {
            found.ips.iter().map(move |network| LocalAddress {
                interface: interface.clone(),
                ip: network.ip(),
                prefix: network.prefix(),
            })
        })
        .collect();
    all.sort_by_key(|found| found.interface.index);
    all
}

/// State of an interface that may change while it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// The administrator has enabled it, and it has a carrier.
    pub up: bool,
    /// Maximum number of bytes after the EtherType of an untagged frame.
    pub mtu: u32,
    /// Hardware address.
    pub mac: MacAddr,
}

/// Returns the state of an interface in the socket's network namespace; `None` if it has no such
/// interface any more.
pub(crate) fn state_by(socket: &Socket, index: u32) -> io::Result<Option<LinkState>> {
    // SAFETY: all zeros is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = i32::try_from(index).unwrap_or(i32::MAX);
    match query(socket, &mut request, libc::SIOCGIFNAME) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
        result => result?,
    }
    query(socket, &mut request, libc::SIOCGIFFLAGS)?;
    // SAFETY: plain data filled by the request of that member.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    let mtu = query_mtu(socket, &mut request)?;
    query(socket, &mut request, libc::SIOCGIFHWADDR)?;
    // SAFETY: plain data filled by the request of that member.
    let [a, b, c, d, e, f, ..] = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data }.map(|b| b as u8);
    Ok(Some(LinkState {
        up: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
        mtu,
        mac: MacAddr::new(a, b, c, d, e, f),
    }))
}

/// Returns the MTU of the interface that the request names.
fn query_mtu(socket: &Socket, request: &mut libc::ifreq) -> io::Result<u32> {
    query(socket, request, libc::SIOCGIFMTU)?;
    // SAFETY: plain data filled by the request of that member.
    Ok(u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// Performs one `SIOCGIF…` request.
fn query(socket: &Socket, request: &mut libc::ifreq, what: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the socket is open; these requests read and write one `ifreq`, which outlives the
    // call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what as _, request) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn existing_names(names: &[String]) -> String {
    if names.is_empty() {
        "this namespace has none".to_owned()
    } else {
        format!("existing: {}", names.join(", "))
    }
}

fn link_type_name(link_type: u16) -> String {
    match link_type {
        libc::ARPHRD_PPP => "a point-to-point link (PPP)".to_owned(),
        libc::ARPHRD_LOOPBACK => {
            "the loopback interface. Programs of one node reach each other without it; for two \
             nodes on one machine, use a veth pair"
                .to_owned()
        }
        libc::ARPHRD_INFINIBAND => "InfiniBand".to_owned(),
        libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT | libc::ARPHRD_IPGRE => {
            "an IP tunnel".to_owned()
        }
        libc::ARPHRD_NONE => "an IP tunnel (tun)".to_owned(),
        other => format!("of link type {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(link_type: u16, loopback: bool) -> Interface {
        Interface {
            name: "net0".into(),
            index: 7,
            mac: MacAddr::new(2, 0, 0, 0, 0, 1),
            mtu: 1500,
            up: true,
            running: true,
            loopback,
            link_type,
        }
    }

    #[test]
    fn unknown_name_lists_the_existing_ones() {
        let error = Interface::by_name("no-such-if0").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no-such-if0"), "{text}");
        for there in datalink::interfaces() {
            assert!(text.contains(&there.name), "{text} lacks {}", there.name);
        }
    }

    #[test]
    fn ethernet_is_accepted_and_the_rest_is_refused_by_name() {
        assert!(interface(1, false).check_ethernet().is_ok());
        let loopback = interface(libc::ARPHRD_LOOPBACK, true)
            .check_ethernet()
            .unwrap_err();
        let text = loopback.to_string();
        assert!(text.contains("but the loopback interface"), "{text}");
        let tunnel = interface(libc::ARPHRD_NONE, false)
            .check_ethernet()
            .unwrap_err();
        assert_eq!(
            tunnel.to_string(),
            "net0 is not an Ethernet interface but an IP tunnel (tun)"
        );
    }

    #[test]
    fn names_of_any_length_are_not_found() {
        for name in ["", "x", &"y".repeat(15), &"z".repeat(4000)] {
            assert!(matches!(
                Interface::by_name(name),
                Err(InterfaceError::NotFound { .. })
            ));
        }
    }
}
