//! Snapshots of the engine's state for `espstat` and metrics. They are made in steps, because there
//! may be ten thousand connections.

use std::collections::VecDeque;

use super::Engine;
use super::clients::Clients;
use super::link::Link;
use super::streams::Stream;
use crate::command::{
    ClientId, LinkCondition, LinkSnapshot, OwnedConnection, Reply, Slot, Snapshot,
};

/// Maximum number of connection slots that one iteration examines: no more work than two receive
/// batches.
const SLOTS_PER_POLL: u32 = 128;

/// Snapshots that were requested, and the progress of the first one.
#[derive(Default)]
pub(super) struct Snapshots {
    requests: VecDeque<Reply<Snapshot>>,
    /// Links that are complete.
    links: Vec<LinkSnapshot>,
    /// Next link.
    link: usize,
    /// Its connections in the slots below `slot`.
    connections: Vec<OwnedConnection>,
    slot: u32,
}

impl Snapshots {
    pub(super) fn request(&mut self, reply: Reply<Snapshot>) {
        self.requests.push_back(reply);
    }
}

impl Engine {
    /// Makes one step of the first snapshot that was requested. Returns true if there was one.
    pub(super) fn continue_snapshot(&mut self) -> bool {
        if self.snapshots.requests.is_empty() {
            return false;
        }
        let mut left = SLOTS_PER_POLL;
        while let Some(id) = self.links.numbers().nth(self.snapshots.link) {
            let Snapshots {
                slot, connections, ..
            } = &mut self.snapshots;
            // A link may have been removed since the last step.
            let end = match self.links.get(id) {
                Some(link) => {
                    let end = link.endpoint.slots().min(*slot + left);
                    let clients = &self.clients;
                    let found = link.endpoint.connections_in(*slot..end);
                    connections.extend(
                        found.map(|(conn, info)| (conn, owner(clients, link, conn.slot), info)),
                    );
                    left -= end - *slot;
                    *slot = end;
                    link.endpoint.slots()
                }
                None => 0,
            };
            if *slot < end {
                return true;
            }
            let connections = std::mem::take(connections);
            if let Some(link) = self.links.get(id) {
                let done = self.link_snapshot(link, connections);
                self.snapshots.links.push(done);
            }
            self.snapshots.link += 1;
            self.snapshots.slot = 0;
        }
        let Snapshots {
            mut requests,
            links,
            ..
        } = std::mem::take(&mut self.snapshots);
        if let Some(reply) = requests.pop_front() {
            reply(Snapshot {
                links,
                engine: self.stats.list(),
            });
        }
        self.snapshots.requests = requests;
        true
    }

    fn link_snapshot(&self, link: &Link, connections: Vec<OwnedConnection>) -> LinkSnapshot {
        let LinkCondition { up, mtu, .. } = link.condition();
        let mut counters: Vec<_> = link.endpoint.counters().iter().collect();
        counters.extend(link.stats.list());
        if let Some(secure) = &link.secure {
            counters.extend(secure.named_counters());
        }
        let dropped = link.carrier.dropped();
        counters.push((
            "socket_rx_dropped",
            "frames dropped by the kernel because the socket's receive buffer was full",
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
            connections,
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

/// Returns the owner of a connection.
fn owner(clients: &Clients, link: &Link, slot: u32) -> Option<(ClientId, Slot)> {
    match link.streams.get(slot as usize)?.as_ref()? {
        Stream::Waiting { .. } => None,
        Stream::Joined(joined) => Some((clients.id(joined.owner.client)?, joined.owner.slot)),
    }
}
