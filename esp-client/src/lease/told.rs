//! What the daemon is told of connections over leases: it shows them, and resets their peers when
//! this program dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esp_engine::{LinkId, Place};
use esp_proto::MacAddr;

use super::Leases;
use crate::control::Request;
use crate::session::{Session, lock};

/// A connection as the daemon is told of it.
#[derive(Clone)]
pub(super) struct Told {
    /// The number of its lease, as in [`LeasedPorts`](super::LeasedPorts).
    pub(super) lease: Arc<AtomicU64>,
    pub(super) local_port: u16,
    pub(super) peer: MacAddr,
    pub(super) peer_port: u16,
}

impl Told {
    /// The daemon could not tell them apart.
    fn is_as(&self, other: &Told) -> bool {
        Arc::ptr_eq(&self.lease, &other.lease)
            && (self.local_port, self.peer, self.peer_port)
                == (other.local_port, other.peer, other.peer_port)
    }
}

impl Leases {
    /// Tells the daemon of a connection that is established.
    pub(super) fn tell(&self, slot: u16, told: &Told) {
        if let Some(place) = self.engine.place_of(slot) {
            self.opened(slot, told, place);
        }
    }

    /// Tells it of those that were begun and are established now.
    pub(super) fn tell_begun(&self) {
        let mut begun = lock(&self.begun);
        begun.retain(|(slot, told)| match self.engine.place_now(*slot) {
            None => true,
            Some(place) => {
                self.opened(*slot, told, place);
                false
            }
        });
    }

    fn opened(&self, slot: u16, told: &Told, Place { link, peer, nonce }: Place) {
        let lease = self
            .lease_of(link)
            .unwrap_or_else(|| Arc::clone(&told.lease));
        let told = Told {
            lease,
            peer,
            ..told.clone()
        };
        let keeper = lock(&self.keeper);
        let mut all = lock(&self.told);
        // One with these ports before it has ended, or this one could not be; the progress thread
        // may not have said so yet, and must not when the daemon takes it for this one.
        let before = all
            .iter()
            .find(|(_, (other, _))| other.is_as(&told))
            .map(|(slot, _)| *slot);
        if let Some((before, _)) = before.and_then(|slot| all.remove(&slot)) {
            report(&keeper, &before, None);
        }
        report(&keeper, &told, Some(nonce));
        all.insert(slot, (told, nonce));
    }

    /// A connection has gone over to another path: the daemon shows it there, and that is where it
    /// would have to reset it.
    pub(super) fn moved(&self, slot: u16, link: LinkId, peer: MacAddr) {
        let Some(lease) = self.lease_of(link) else {
            return;
        };
        let keeper = lock(&self.keeper);
        let mut all = lock(&self.told);
        let Some((told, nonce)) = all.get_mut(&slot) else {
            return;
        };
        if peer != told.peer || !Arc::ptr_eq(&lease, &told.lease) {
            // In this order: a user at the limit has room for it then.
            report(&keeper, told, None);
            (told.lease, told.peer) = (lease, peer);
            report(&keeper, told, Some(*nonce));
        }
    }

    /// The number of the lease that a link belongs to.
    fn lease_of(&self, link: LinkId) -> Option<Arc<AtomicU64>> {
        lock(&self.table)
            .iter()
            .find(|ports| ports.link == link)
            .map(|ports| Arc::clone(&ports.id))
    }

    /// Tells it of those that have ended. The progress thread does, and who
    /// [finishes](Leases::finish): then no slot is given out any more.
    pub(super) fn tell_closed(&self) {
        for slot in self.engine.closed() {
            lock(&self.begun).retain(|begun| begun.0 != slot);
            self.closed(slot);
            self.engine.told(slot);
        }
    }

    fn closed(&self, slot: u16) {
        let keeper = lock(&self.keeper);
        let closed = lock(&self.told).remove(&slot);
        if let Some((told, _)) = closed {
            report(&keeper, &told, None);
        }
    }
}

pub(super) fn report(keeper: &Session, told: &Told, nonce: Option<u64>) {
    let Told {
        lease,
        local_port,
        peer,
        peer_port,
    } = told;
    keeper.post(&Request::LeaseConnection {
        lease: lease.load(Ordering::Relaxed),
        local_port: *local_port,
        peer: peer.octets(),
        peer_port: *peer_port,
        nonce,
    });
}
