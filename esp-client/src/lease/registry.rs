//! [`Registry`]: the connections over leases that the daemon knows. It shows them in `espstat`, and
//! resets them at their peers when this program dies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esp_proto::NodeAddr;

use crate::control::Request;
use crate::error::PeerName;
use crate::session::Session;

/// A connection over a lease.
#[derive(Clone)]
pub(super) struct LeaseConnection {
    /// Id of its lease at the daemon.
    pub(super) lease: Arc<AtomicU64>,
    pub(super) local_port: u16,
    pub(super) peer: PeerName,
}

impl LeaseConnection {
    /// Returns true if the daemon could not distinguish the two.
    fn is_same(&self, other: &LeaseConnection) -> bool {
        Arc::ptr_eq(&self.lease, &other.lease)
            && (self.local_port, self.peer) == (other.local_port, other.peer)
    }

    /// Reports the connection, or with `None` its end.
    fn report(&self, keeper: &Session, nonce: Option<u64>) {
        keeper.post(&Request::LeaseConnection {
            lease: self.lease.load(Ordering::Relaxed),
            local_port: self.local_port,
            peer: self.peer.addr,
            peer_port: self.peer.port,
            nonce,
        });
    }
}

/// Connections reported to the daemon, and the session with it.
pub(super) struct Registry {
    /// Session with the daemon that keeps the leased ports. At first the client's own; after the
    /// end of that daemon, the session with the one that adopted the leases.
    keeper: Arc<Session>,
    /// Connections by slot, with the nonce that authenticates a reset to the peer.
    known: HashMap<u16, (LeaseConnection, u64)>,
}

impl Registry {
    pub(super) fn new(keeper: Arc<Session>) -> Registry {
        Registry {
            keeper,
            known: HashMap::new(),
        }
    }

    pub(super) fn keeper(&self) -> &Arc<Session> {
        &self.keeper
    }

    /// Reports an established connection.
    pub(super) fn opened(&mut self, slot: u16, connection: LeaseConnection, nonce: u64) {
        // An earlier connection with the same ports has ended, perhaps unreported. A later report
        // of its end would remove the new one.
        let is_same = |other: &LeaseConnection| other.is_same(&connection);
        let earlier = self.known.iter().find(|(_, (other, _))| is_same(other));
        if let Some(slot) = earlier.map(|(slot, _)| *slot) {
            self.closed(slot);
        }
        connection.report(&self.keeper, Some(nonce));
        self.known.insert(slot, (connection, nonce));
    }

    /// Reports that a connection moved to a link of this lease and a peer's address.
    pub(super) fn moved(&mut self, slot: u16, lease: Arc<AtomicU64>, peer: NodeAddr) {
        let Some((connection, nonce)) = self.known.get_mut(&slot) else {
            return;
        };
        if peer != connection.peer.addr || !Arc::ptr_eq(&lease, &connection.lease) {
            // The end first, because the user may be at the limit of connections.
            connection.report(&self.keeper, None);
            connection.lease = lease;
            connection.peer.addr = peer;
            connection.report(&self.keeper, Some(*nonce));
        }
    }

    /// Reports the end of a connection.
    pub(super) fn closed(&mut self, slot: u16) {
        if let Some((connection, _)) = self.known.remove(&slot) {
            connection.report(&self.keeper, None);
        }
    }

    /// Replaces the keeper by the daemon that adopted some leases, and reports their connections.
    pub(super) fn set_keeper(
        &mut self,
        keeper: Arc<Session>,
        is_adopted: impl Fn(&Arc<AtomicU64>) -> bool,
    ) {
        for (connection, nonce) in self.known.values() {
            if is_adopted(&connection.lease) {
                connection.report(&keeper, Some(*nonce));
            }
        }
        self.keeper = keeper;
    }
}
