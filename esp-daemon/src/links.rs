//! The daemon's interfaces, as the control plane sees them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use esp_client::control::{ErrorKind, InterfaceInfo};
use esp_engine::{LinkConfig, LinkId};
use esp_proto::{MacAddr, NodeAddr};

use crate::ports::Ports;
use crate::refusal::Refusal;

/// Returns the description of a link at the start.
pub(crate) fn describe(link: &LinkConfig, protected: bool) -> InterfaceInfo {
    let (interface, addr) = match link {
        LinkConfig::Ethernet(interface) => {
            (interface, NodeAddr::Mac(MacAddr(interface.mac.octets())))
        }
        LinkConfig::Udp {
            interface, local, ..
        } => (interface, NodeAddr::Udp(*local)),
    };
    InterfaceInfo {
        name: interface.name.clone(),
        addr,
        mtu: esp_engine::frame_mtu(addr, interface.mtu, protected),
        up: interface.up && interface.running,
    }
}

/// An interface with its current state and its ports.
#[derive(Debug)]
pub(crate) struct Link {
    name: String,
    state: Mutex<InterfaceInfo>,
    /// Stream ports.
    pub(crate) esp: Arc<Ports>,
    /// Datagram ports.
    pub(crate) edp: Arc<Ports>,
}

impl Link {
    pub(crate) fn new(state: InterfaceInfo) -> Link {
        Link {
            name: state.name.clone(),
            state: Mutex::new(state),
            esp: Arc::default(),
            edp: Arc::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the current state.
    pub(crate) fn state(&self) -> MutexGuard<'_, InterfaceInfo> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn info(&self) -> InterfaceInfo {
        self.state().clone()
    }
}

/// Returns the link with this name.
pub(crate) fn by_name<'a>(links: &'a [Link], name: &str) -> Result<(LinkId, &'a Link), Refusal> {
    let found = numbered(links).find(|(_, link)| link.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = links.iter().map(Link::name).collect();
        let message = format!(
            "esp-daemon does not serve interface {name:?}; it serves: {}",
            names.join(", ")
        );
        Refusal::new(ErrorKind::NotFound, message)
    })
}

/// Returns the link with this address.
pub(crate) fn by_addr(links: &[Link], addr: NodeAddr) -> Option<(LinkId, &Link)> {
    numbered(links).find(|(_, link)| link.state().addr == addr)
}

/// Returns the named link; without a name, the first that is up, otherwise the first.
pub(crate) fn choose<'a>(
    links: &'a [Link],
    name: Option<&str>,
) -> Result<(LinkId, &'a Link), Refusal> {
    match name {
        Some(name) => by_name(links, name),
        None => numbered(links)
            .find(|(_, link)| link.state().up)
            .or_else(|| numbered(links).next())
            .ok_or_else(|| Refusal::new(ErrorKind::NotFound, "esp-daemon serves no interface")),
    }
}

/// Returns the link of [`choose`] if it is up.
pub(crate) fn to_send_on<'a>(
    links: &'a [Link],
    name: Option<&str>,
) -> Result<(LinkId, &'a Link), Refusal> {
    let (id, link) = choose(links, name)?;
    if !link.state().up {
        let message = format!(
            "{} is down: disabled or without carrier (`ip link show {0}`)",
            link.name
        );
        return Err(Refusal::new(ErrorKind::LinkDown, message));
    }
    Ok((id, link))
}

fn numbered(links: &[Link]) -> impl Iterator<Item = (LinkId, &Link)> {
    // The settings allow far fewer than 65536 interfaces.
    links
        .iter()
        .enumerate()
        .map(|(index, link)| (LinkId(index as u16), link))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, up: bool) -> Link {
        Link::new(InterfaceInfo {
            name: name.into(),
            addr: MacAddr([2, 0, 0, 0, 0, 1]).into(),
            mtu: 1500,
            up,
        })
    }

    #[test]
    fn link_is_chosen_by_name_or_by_being_up() {
        let links = [link("a", false), link("b", true)];
        assert_eq!(to_send_on(&links, None).unwrap().0, LinkId(1));
        assert_eq!(to_send_on(&links, Some("b")).unwrap().0, LinkId(1));
        assert_eq!(
            to_send_on(&links, Some("a")).unwrap_err().kind,
            ErrorKind::LinkDown
        );
        let missing = to_send_on(&links, Some("c")).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::NotFound);
        assert!(missing.message.contains("a, b"), "{}", missing.message);
        assert_eq!(
            to_send_on(&links[..1], None).unwrap_err().kind,
            ErrorKind::LinkDown
        );
        assert_eq!(choose(&links[..1], None).unwrap().0, LinkId(0));
        assert_eq!(to_send_on(&[], None).unwrap_err().kind, ErrorKind::NotFound);
        *links[0].state() = InterfaceInfo {
            mtu: 9000,
            up: true,
            ..links[0].info()
        };
        assert_eq!(to_send_on(&links, Some("a")).unwrap().1.info().mtu, 9000);
    }
}
