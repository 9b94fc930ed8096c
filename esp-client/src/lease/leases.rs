//! [`Leases`]: all leases of one client.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use esp_engine::shm::Spin;
use esp_engine::{ConnPath, LINGER, LeasedLink, LinkId, UdpLink};
use esp_proto::FIRST_USER_PORT;

use super::embedded::EmbeddedEngine;
use super::ports::{LeaseKind, LeasedPorts, Spares, sockets};
use super::registry::{LeaseConnection, Registry};
use crate::control::{ErrorKind, Reply, Request};
use crate::error::EspError;
use crate::session::{Answer, Session};
use crate::sync::{Wakers, lock};

/// Maximum number of standbys of a lease; each uses four descriptors.
const MAX_STANDBYS: usize = 3;

/// All leases of one client.
pub(crate) struct Leases {
    pub(super) engine: Arc<EmbeddedEngine>,
    /// The client's own session.
    pub(super) session: Arc<Session>,
    pub(super) registry: Mutex<Registry>,
    /// Connections to register once they are established.
    pub(super) pending: Mutex<Vec<(u16, LeaseConnection)>>,
    /// A thread searches for the next daemon.
    pub(super) adopting: AtomicBool,
    pub(super) table: Mutex<Vec<Arc<LeasedPorts>>>,
    /// The daemon's refusal of leases to this program.
    pub(super) refused: Mutex<Option<EspError>>,
    pub(super) wakers: Wakers,
    /// The engine's activity when futures were last woken.
    pub(super) seen: AtomicU64,
}

impl Leases {
    pub(super) fn new(session: &Arc<Session>) -> Result<Leases, EspError> {
        Ok(Leases {
            engine: EmbeddedEngine::start(session)?,
            session: Arc::clone(session),
            registry: Mutex::new(Registry::new(Arc::clone(session))),
            pending: Mutex::default(),
            adopting: AtomicBool::new(false),
            table: Mutex::default(),
            refused: Mutex::new(None),
            wakers: Wakers::default(),
            seen: AtomicU64::new(0),
        })
    }

    /// Adds a UDP socket of this program, all of whose ports are its own.
    pub(crate) fn add_udp(&self, link: UdpLink) -> Result<(), EspError> {
        let (interface, addr, mtu) = (link.name().to_owned(), link.addr(), link.mtu());
        let link = self
            .engine
            .add_udp(link, self.session.welcome().incarnation)?;
        lock(&self.table).push(Arc::new(LeasedPorts {
            engine: Arc::clone(&self.engine),
            id: Arc::new(AtomicU64::new(0)),
            link,
            interface,
            addr,
            mtu,
            ports: FIRST_USER_PORT..=u16::MAX,
            kind: LeaseKind::Range,
            standbys: OnceLock::new(),
            next: AtomicU32::new(0),
            spares: Mutex::new(None),
            lost: OnceLock::new(),
        }));
        Ok(())
    }

    /// Requests a lease and adds its sockets to the engine.
    pub(super) fn lease(
        &self,
        interface: &str,
        listener: Option<u64>,
        count: u16,
    ) -> Result<Arc<LeasedPorts>, EspError> {
        if let Some(error) = &*lock(&self.refused) {
            return Err(error.clone());
        }
        let session = self.keeper();
        let request = Request::Lease {
            interface: Some(interface.into()),
            listener,
            count,
        };
        let answer = session.ask(&request).inspect_err(|error| {
            if let EspError::Denied { kind, .. } = error
                && matches!(kind, ErrorKind::Permission | ErrorKind::BadRequest)
            {
                *lock(&self.refused) = Some(error.clone());
            }
        })?;
        let kind = if listener.is_some() {
            LeaseKind::Listener
        } else {
            LeaseKind::Range
        };
        self.take_lease(&session, answer, kind)
    }

    /// Adds the sockets of a granted lease to the engine.
    fn take_lease(
        &self,
        session: &Arc<Session>,
        answer: Answer,
        kind: LeaseKind,
    ) -> Result<Arc<LeasedPorts>, EspError> {
        let Reply::Lease {
            lease,
            interface,
            port,
            count,
            protocol,
            ring,
        } = answer.reply
        else {
            session.give_back(&answer);
            return Err(session.unexpected("a lease"));
        };
        let Some(mac) = interface.addr.mac() else {
            session.post(&Request::EndLease { lease });
            return Err(session.unexpected("a lease of raw Ethernet"));
        };
        let end = || session.post(&Request::EndLease { lease });
        let ([esp, edp], spares) = sockets(answer.descriptors, ring).inspect_err(|_| end())?;
        let last = port.saturating_add(count.saturating_sub(1));
        let leased = LeasedLink {
            interface: interface.name.clone(),
            mac,
            mtu: interface.mtu,
            endpoint: protocol.endpoint(),
            incarnation: session.welcome().incarnation,
            ports: port..=last,
            standby: kind == LeaseKind::Standby,
            esp,
            edp,
        };
        let link = self.engine.add(leased).inspect_err(|_| end())?;
        let ports = Arc::new(LeasedPorts {
            engine: Arc::clone(&self.engine),
            id: Arc::new(AtomicU64::new(lease)),
            link,
            interface: interface.name,
            addr: interface.addr,
            mtu: interface.mtu,
            ports: port..=last,
            kind,
            standbys: OnceLock::new(),
            next: AtomicU32::new(0),
            spares: Mutex::new(Some(Spares::new(spares, session))),
            lost: OnceLock::new(),
        });
        lock(&self.table).push(Arc::clone(&ports));
        Ok(ports)
    }

    /// Leases the ports of a lease on the node's other interfaces, too, as far as the daemon
    /// allows. Call it before the first connection, because only later ones can move.
    pub(super) fn prepare_standbys(&self, ports: &LeasedPorts) {
        let session = self.keeper();
        if !session.welcome().standbys
            || ports.kind == LeaseKind::Standby
            || ports.standbys.get().is_some()
        {
            return;
        }
        let elsewhere = |name: &str| self.holder(Some(name), *ports.ports.start()).is_none();
        let others = session
            .welcome()
            .interfaces
            .iter()
            .map(|other| other.name.as_str());
        let lease = ports.id.load(Ordering::Relaxed);
        let standby = |name: &str| {
            let answer = session
                .ask(&Request::Standby {
                    lease,
                    interface: name.into(),
                })
                .ok()?;
            self.take_lease(&session, answer, LeaseKind::Standby).ok()
        };
        let all = others
            .filter(|name| elsewhere(name))
            .take(MAX_STANDBYS)
            .filter_map(standby)
            .collect();
        let _ = ports.standbys.set(all);
    }

    /// Returns the session with the daemon that keeps the ports.
    pub(super) fn keeper(&self) -> Arc<Session> {
        Arc::clone(lock(&self.registry).keeper())
    }

    /// Returns the lease that has this port: one of a range, or that of an earlier listener, whose
    /// connections keep it.
    pub(super) fn holder(&self, interface: Option<&str>, port: u16) -> Option<Arc<LeasedPorts>> {
        let here = |ports: &LeasedPorts| interface.is_none_or(|name| name == ports.interface);
        let there =
            |ports: &LeasedPorts| ports.ports.contains(&port) && !ports.is_lost() && here(ports);
        lock(&self.table).iter().find(|ports| there(ports)).cloned()
    }

    /// Returns true if a lease has this port on this interface (`None`: on any).
    pub(crate) fn has(&self, interface: Option<&str>, port: u16) -> bool {
        self.holder(interface, port).is_some()
    }

    pub(crate) fn engine(&self) -> &Arc<EmbeddedEngine> {
        &self.engine
    }

    /// Gives closed streams of a polled client half a second to deliver and to close. The client is
    /// about to be dropped.
    pub(crate) fn finish(&self) {
        if self.engine.is_forked() {
            return;
        }
        if self.session.notice().is_some() && !self.engine.is_idle() {
            self.engine.wait(
                Spin::default(),
                || self.engine.is_idle(),
                Some(Instant::now() + LINGER),
            );
        }
        // Else the daemon would reset them at their peers.
        self.report_closed();
    }

    /// Reports an established connection to the daemon.
    pub(super) fn register(&self, slot: u16, connection: LeaseConnection) {
        if let Some(path) = self.engine.path_of(slot) {
            self.report_opened(slot, connection, path);
        }
    }

    fn report_opened(&self, slot: u16, mut connection: LeaseConnection, path: ConnPath) {
        if let Some(lease) = self.id_of(path.link) {
            connection.lease = lease;
        }
        connection.peer.addr = path.peer;
        lock(&self.registry).opened(slot, connection, path.nonce);
    }

    /// Reports pending connections that are established now.
    pub(super) fn report_pending(&self) {
        lock(&self.pending).retain(|(slot, connection)| match self.engine.path_now(*slot) {
            None => true,
            Some(path) => {
                self.report_opened(*slot, connection.clone(), path);
                false
            }
        });
    }

    /// Reports connections that moved to another interface.
    pub(super) fn report_moved(&self) {
        for (slot, link, peer) in self.engine.take_moved() {
            if let Some(lease) = self.id_of(link) {
                lock(&self.registry).moved(slot, lease, peer);
            }
        }
    }

    /// Reports connections that have ended. Only the progress thread and [`Leases::finish`] may
    /// call it, so that no slot is reused meanwhile.
    pub(super) fn report_closed(&self) {
        for slot in self.engine.closed() {
            lock(&self.pending).retain(|pending| pending.0 != slot);
            lock(&self.registry).closed(slot);
            self.engine.reported(slot);
        }
    }

    /// Returns the id of the lease of a link.
    fn id_of(&self, link: LinkId) -> Option<Arc<AtomicU64>> {
        let table = lock(&self.table);
        let ports = table.iter().find(|ports| ports.link == link)?;
        Some(Arc::clone(&ports.id))
    }

    /// Registers a task that the progress thread wakes when the engine had work. (The task checks
    /// again after this call, so nothing is missed.)
    #[cfg(feature = "tokio")]
    pub(super) fn wake_later(&self, cx: &std::task::Context<'_>) {
        self.wakers.register(cx);
    }
}

impl Drop for Leases {
    /// Closes the session with a later daemon; the client closes its own.
    fn drop(&mut self) {
        let keeper = self.keeper();
        if !Arc::ptr_eq(&keeper, &self.session) {
            keeper.close();
        }
    }
}
