//! [`Registry`]: the connections over leases that are reported to the daemon. The daemon shows them
//! in `espstat`, and resets them at their peers when this program dies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esp_engine::{Engine, LinkId};

use super::leases::Leases;
use crate::control::Request;
use crate::error::PeerName;
use crate::session::Session;
use crate::sync::lock;

/// A connection over a lease.
pub(super) struct LeaseConnection {
    /// Id of its lease at the daemon.
    pub(super) lease: Arc<AtomicU64>,
    pub(super) local_port: u16,
    pub(super) peer: PeerName,
    /// Nonce that authenticates a reset to the peer. `None` until the connection is established and
    /// reported.
    nonce: Option<u64>,
}

impl LeaseConnection {
    /// Reports the connection, or with `None` its end.
    fn report(&self, keeper: &Session, nonce: Option<u64>) {
        keeper.post(Request::LeaseConnection {
            lease: self.lease.load(Ordering::Relaxed),
            local_port: self.local_port,
            peer: self.peer.addr,
            peer_port: self.peer.port,
            nonce,
        });
    }

    fn report_end(&self, keeper: &Session) {
        if self.nonce.is_some() {
            self.report(keeper, None);
        }
    }
}

/// Connections over leases by slot, and the session with the daemon to which they are reported.
pub(super) struct Registry {
    /// Session with the daemon that keeps the leased ports. At first the client's own; after the
    /// end of that daemon, the session with the one that adopted the leases.
    pub(super) keeper: Arc<Session>,
    connections: HashMap<u16, LeaseConnection>,
}

impl Registry {
    pub(super) fn new(keeper: Arc<Session>) -> Registry {
        Registry {
            keeper,
            connections: HashMap::new(),
        }
    }

    /// Reports an established connection.
    fn opened(&mut self, slot: u16, mut connection: LeaseConnection, nonce: u64) {
        // An earlier connection with the same ports has ended, perhaps unreported. A later report
        // of its end would remove the new one.
        let is_same = |earlier: &LeaseConnection| {
            Arc::ptr_eq(&earlier.lease, &connection.lease)
                && (earlier.local_port, earlier.peer) == (connection.local_port, connection.peer)
        };
        let earlier = self.connections.extract_if(|_, earlier| is_same(earlier));
        earlier.for_each(|(_, earlier)| earlier.report_end(&self.keeper));
        connection.report(&self.keeper, Some(nonce));
        connection.nonce = Some(nonce);
        self.connections.insert(slot, connection);
    }

    /// Replaces the keeper with the daemon that adopted some leases, and reports their connections.
    pub(super) fn set_keeper(
        &mut self,
        keeper: Arc<Session>,
        is_adopted: impl Fn(&Arc<AtomicU64>) -> bool,
    ) {
        for connection in self.connections.values() {
            if connection.nonce.is_some() && is_adopted(&connection.lease) {
                connection.report(&keeper, connection.nonce);
            }
        }
        self.keeper = keeper;
    }
}

impl Leases {
    /// Adds a connection, which is reported once it is established.
    pub(super) fn register(&self, slot: u16, lease: Arc<AtomicU64>, port: u16, peer: PeerName) {
        let connection = LeaseConnection {
            lease,
            local_port: port,
            peer,
            nonce: None,
        };
        lock(&self.registry).connections.insert(slot, connection);
        self.report_opened(false);
    }

    /// Removes a connection that the program closes before it is reported.
    pub(super) fn unregister(&self, slot: u16) {
        let connections = &mut lock(&self.registry).connections;
        if connections.get(&slot).is_some_and(|it| it.nonce.is_none()) {
            connections.remove(&slot);
        }
    }

    /// Reports the connections that have been established. With `wait` it takes the engine from a
    /// thread that has it; without, it returns false in this case, and the progress thread reports
    /// them later.
    pub(crate) fn report_opened(&self, wait: bool) -> bool {
        let mut complete = true;
        let mut path_of = |slot| {
            let get = |engine: &mut Engine| engine.path_of(slot);
            if wait {
                self.engine.with_engine(get).ok().flatten()
            } else {
                let path = self.engine.try_with(get);
                complete &= path.is_some();
                path.flatten()
            }
        };
        let mut registry = lock(&self.registry);
        let all = registry.connections.iter();
        let new = all.filter(|(_, it)| it.nonce.is_none());
        let new: Vec<u16> = new.map(|(slot, _)| *slot).collect();
        for slot in new {
            if let Some(path) = path_of(slot)
                && let Some(mut connection) = registry.connections.remove(&slot)
            {
                connection.lease = self.lease_of(path.link).unwrap_or(connection.lease);
                connection.peer.addr = path.peer;
                registry.opened(slot, connection, path.nonce);
            }
        }
        complete
    }

    /// Reports the connections that moved to another interface or address of the peer.
    pub(super) fn report_moved(&self) {
        let moved = std::mem::take(&mut lock(&self.engine.log).moved);
        let Registry {
            keeper,
            connections,
        } = &mut *lock(&self.registry);
        for (slot, (link, peer)) in moved {
            if let Some(connection) = connections.get_mut(&slot)
                && let Some(lease) = self.lease_of(link)
                && connection.nonce.is_some()
            {
                // The end first, because the user may be at the limit of connections.
                connection.report_end(keeper);
                (connection.lease, connection.peer.addr) = (lease, peer);
                connection.report(keeper, connection.nonce);
            }
        }
    }

    /// Reports connections that have ended. Only the progress thread and [`Leases::finish`] may
    /// call it, so that no slot is reused during the call.
    pub(super) fn report_closed(&self) {
        let closed: Vec<u16> = lock(&self.engine.log).closed.iter().copied().collect();
        for slot in closed {
            let mut registry = lock(&self.registry);
            if let Some(connection) = registry.connections.remove(&slot) {
                connection.report_end(&registry.keeper);
            }
            drop(registry);
            lock(&self.engine.log).reported(slot);
        }
    }

    /// Returns the id of the lease of a link.
    fn lease_of(&self, link: LinkId) -> Option<Arc<AtomicU64>> {
        let table = lock(&self.table);
        let ports = table.iter().find(|ports| ports.link == link)?;
        Some(Arc::clone(&ports.id))
    }
}
