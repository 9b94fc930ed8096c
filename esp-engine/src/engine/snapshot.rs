//! Snapshots of the engine's state for `espstat` and metrics.

use super::Engine;
use super::link::Link;
use super::streams::Stream;
use crate::command::{ClientId, LinkCondition, LinkSnapshot, Slot, Snapshot};

impl Engine {
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let links = self
            .links
            .iter()
            .map(|link| self.link_snapshot(link))
            .collect();
        Snapshot {
            links,
            engine: self.stats.list(),
        }
    }

    fn owner(&self, link: &Link, slot: u32) -> Option<(ClientId, Slot)> {
        match link.streams.get(slot as usize)?.as_ref()? {
            Stream::Waiting { .. } => None,
            Stream::Joined(joined) => {
                Some((self.clients.id(joined.owner.client)?, joined.owner.slot))
            }
        }
    }

    fn link_snapshot(&self, link: &Link) -> LinkSnapshot {
        let LinkCondition { up, mtu, .. } = link.condition();
        let mut counters: Vec<_> = link.endpoint.counters().iter().collect();
        counters.extend(link.stats.list());
        if let Some(secure) = &link.secure {
            counters.extend(secure.named_counters());
        }
        let dropped = link.carrier.dropped();
        counters.push((
            "socket_rx_dropped",
            "frames the kernel dropped, the socket being full",
            dropped,
        ));
        counters.push((
            "link_tx_rejected",
            "frames the kernel would never take",
            link.tx.rejected(),
        ));
        LinkSnapshot {
            interface: link.interface.name.clone(),
            addr: link.endpoint.addr(),
            mtu,
            up,
            counters,
            connections: link
                .endpoint
                .connections()
                .map(|(id, info)| (id, self.owner(link, id.slot), info))
                .collect(),
            listeners: link
                .endpoint
                .listeners()
                .map(|(port, l)| {
                    (
                        port,
                        link.listeners.get(&port).copied(),
                        l.waiting,
                        l.backlog,
                    )
                })
                .collect(),
            edp_ports: link
                .datagrams
                .iter()
                .filter_map(|(port, s)| {
                    Some((*port, self.clients.id(s.owner.client)?, s.owner.slot))
                })
                .collect(),
        }
    }
}
