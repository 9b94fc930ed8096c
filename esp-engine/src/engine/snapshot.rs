//! Snapshots of the engine's state for `espstat` and metrics.

use super::Engine;
use super::link::{Link, LinkStats};
use super::streams::Stream;
use crate::command::{ClientId, LinkSnapshot, Slot, Snapshot};

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
        let (up, mtu, _) = link.condition();
        let mut counters: Vec<_> = link.endpoint.counters().iter().collect();
        counters.extend(link.stats.list());
        let dropped = link.esp.socket.statistics().map_or(0, |s| s.dropped);
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
            mac: link.endpoint.mac(),
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

impl LinkStats {
    fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
        vec![
            (
                "link_rx_not_for_us",
                "frames for other stations or sent by this one",
                self.rx_not_for_us,
            ),
            (
                "link_rx_unparsable",
                "frames without a whole Ethernet header",
                self.rx_unparsable,
            ),
            (
                "link_rx_truncated",
                "frames longer than the MTU",
                self.rx_truncated,
            ),
            ("link_rx_vlan", "frames of a VLAN", self.rx_vlan),
            (
                "link_rx_errors",
                "receive calls that failed",
                self.rx_errors,
            ),
            ("link_tx_errors", "send calls that failed", self.tx_errors),
            (
                "link_tx_blocked",
                "send calls the kernel took only in part",
                self.tx_blocked,
            ),
            (
                "link_tx_given_up",
                "frames the device refused for too long",
                self.tx_given_up,
            ),
            ("link_rx_batches", "receive batches", self.rx_batches),
            ("link_tx_batches", "send batches", self.tx_batches),
            (
                "link_loop_overflow",
                "frames to the own address dropped, the queue being full",
                self.loop_overflow,
            ),
            (
                "link_datagram_overflow",
                "datagrams dropped, the program's ring being full",
                self.datagram_overflow,
            ),
            (
                "link_datagram_refused",
                "datagrams of programs that could not be sent",
                self.datagram_refused,
            ),
        ]
    }
}
