//! [`LeasedPorts`]: one lease, with its sockets.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use esp_engine::{LeasedSocket, LinkId, RingShape};
use esp_proto::NodeAddr;

use super::embedded::EmbeddedEngine;
use crate::control::LeaseRing;
use crate::error::{EspError, MISSING_DESCRIPTORS};
use crate::session::Session;

/// First slot of leased streams as programs see it, behind all slots of the daemon.
pub(crate) const FIRST_LEASED_SLOT: u16 = 4096;
const _: () = assert!(FIRST_LEASED_SLOT as usize == esp_engine::shm::SLOTS);

/// Purpose of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseKind {
    /// Connections that this program opens. Kept while the client lives.
    Range,
    /// A listener.
    Listener,
    /// The connections of another lease, after its interface has failed.
    Standby,
}

/// A lease: ports of one interface, whose sockets the embedded engine uses.
pub(crate) struct LeasedPorts {
    pub(crate) engine: Arc<EmbeddedEngine>,
    /// Id at the daemon that keeps it.
    pub(super) id: Arc<AtomicU64>,
    pub(super) link: LinkId,
    pub(super) interface: String,
    pub(super) addr: NodeAddr,
    pub(super) mtu: u32,
    pub(super) ports: RangeInclusive<u16>,
    pub(super) kind: LeaseKind,
    /// Leases to which its connections can move; set before the first connection.
    pub(super) standbys: OnceLock<Vec<Arc<LeasedPorts>>>,
    /// Counter that selects the next port.
    pub(super) next: AtomicU32,
    /// Sockets for the time without the daemon, when the first ones may receive no more frames.
    pub(super) spares: Mutex<Option<Spares>>,
    /// Reason why the next daemon did not adopt it.
    pub(super) lost: OnceLock<EspError>,
}

/// Spare sockets of a lease.
pub(super) struct Spares {
    pub(super) sockets: [LeasedSocket; 2],
    /// Session with the daemon that granted them. While it lasts they are not needed.
    session: Weak<Session>,
}

impl Spares {
    pub(super) fn new(sockets: [LeasedSocket; 2], session: &Arc<Session>) -> Spares {
        Spares {
            sockets,
            session: Arc::downgrade(session),
        }
    }

    pub(super) fn are_needed(&self) -> bool {
        self.session
            .upgrade()
            .is_none_or(|session| session.check().is_err())
    }
}

impl LeasedPorts {
    /// Returns true if new connections through this interface can use it.
    pub(super) fn serves(&self, interface: &str) -> bool {
        self.kind == LeaseKind::Range && self.interface == interface && !self.is_lost()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }
}

/// Returns the two sockets of a lease, and the two spares.
pub(super) fn sockets(
    descriptors: Vec<OwnedFd>,
    LeaseRing { slot_len, slots }: LeaseRing,
) -> Result<([LeasedSocket; 2], [LeasedSocket; 2]), EspError> {
    let [esp, edp, spare_esp, spare_edp] =
        <[OwnedFd; 4]>::try_from(descriptors).map_err(|_| EspError::Memory {
            what: format!("the sockets of a lease {MISSING_DESCRIPTORS}"),
        })?;
    let ring = (slots > 0).then_some(RingShape { slot_len, slots });
    let both =
        |esp, edp| [(esp, ring), (edp, None)].map(|(socket, ring)| LeasedSocket { socket, ring });
    Ok((both(esp, edp), both(spare_esp, spare_edp)))
}
