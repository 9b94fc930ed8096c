//! [`Leases`]: all leases of one client, and [`LeasedPorts`]: one of them.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use esp_engine::shm::Spin;
use esp_engine::{LINGER, LeasedLink, LeasedSocket, LinkId, RingShape, UdpLink};
use esp_proto::secure::{SecureConfig, SecureCounters};
use esp_proto::{EndpointConfig, FIRST_USER_PORT};

use super::end::end_deadline;
use super::engine::EmbeddedEngine;
use super::parked::Event;
use super::registry::Registry;
use crate::control::{InterfaceInfo, LeaseRing, Reply, Request};
use crate::error::{EspError, MISSING_DESCRIPTORS};
use crate::peer_timeout::peer_timeout;
use crate::session::{Answer, Session};
use crate::sync::lock;

/// Maximum number of standbys of a lease; each uses four descriptors.
const MAX_STANDBYS: usize = 3;

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
    /// Id at the daemon that keeps it.
    pub(super) id: Arc<AtomicU64>,
    pub(super) link: LinkId,
    pub(crate) interface: InterfaceInfo,
    pub(super) ports: RangeInclusive<u16>,
    pub(super) kind: LeaseKind,
    /// Leases to which its connections can move; set before the first connection.
    standbys: OnceLock<Vec<Arc<LeasedPorts>>>,
    /// Counter that selects the next port.
    pub(super) next: AtomicU32,
    /// Sockets for the time without the daemon, when the first ones may receive no more frames.
    pub(super) spares: Mutex<Option<[LeasedSocket; 2]>>,
    /// Reason why the next daemon did not adopt it.
    pub(super) lost: OnceLock<EspError>,
}

impl LeasedPorts {
    fn new(
        (id, kind): (u64, LeaseKind),
        link: LinkId,
        interface: InterfaceInfo,
        ports: RangeInclusive<u16>,
        spares: Option<[LeasedSocket; 2]>,
    ) -> Arc<LeasedPorts> {
        Arc::new(LeasedPorts {
            id: Arc::new(AtomicU64::new(id)),
            link,
            interface,
            ports,
            kind,
            standbys: OnceLock::new(),
            next: AtomicU32::new(0),
            spares: Mutex::new(spares),
            lost: OnceLock::new(),
        })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }
}

/// All leases of one client.
pub(crate) struct Leases {
    pub(crate) engine: EmbeddedEngine,
    /// The client's own session.
    pub(super) session: Arc<Session>,
    pub(super) registry: Mutex<Registry>,
    /// A thread searches for the next daemon.
    pub(super) adopting: AtomicBool,
    pub(super) table: Mutex<Vec<Arc<LeasedPorts>>>,
    /// The client is dropped.
    finished: AtomicBool,
}

impl Leases {
    pub(super) fn new(session: &Arc<Session>) -> Result<Leases, EspError> {
        Ok(Leases {
            engine: EmbeddedEngine::new(session)?,
            session: Arc::clone(session),
            registry: Mutex::new(Registry::new(Arc::clone(session))),
            adopting: AtomicBool::new(false),
            table: Mutex::default(),
            finished: AtomicBool::new(false),
        })
    }

    /// Adds a UDP socket of this program, all of whose ports are its own.
    pub(crate) fn add_udp(
        &self,
        socket: UdpLink,
        interface: InterfaceInfo,
        secure: Option<SecureConfig>,
    ) -> Result<(), EspError> {
        let incarnation = self.session.welcome().incarnation;
        let endpoint = EndpointConfig {
            peer_timeout: peer_timeout()?,
            ..EndpointConfig::default()
        };
        let link = self
            .engine
            .with_engine(|engine| engine.add_udp(socket, endpoint, incarnation, secure))?
            .map_err(EspError::resource("use a UDP socket"))?;
        let (kind, ports) = ((0, LeaseKind::Range), FIRST_USER_PORT..=u16::MAX);
        lock(&self.table).push(LeasedPorts::new(kind, link, interface, ports, None));
        Ok(())
    }

    /// Returns the counters of each protected link.
    pub(crate) fn secure_counters(&self) -> Result<Vec<SecureCounters>, EspError> {
        self.engine.with_engine(|engine| engine.secure_counters())
    }

    /// Requests a lease and adds its sockets to the engine.
    pub(super) fn lease(
        &self,
        interface: &str,
        listener: Option<u64>,
        count: u16,
    ) -> Result<Arc<LeasedPorts>, EspError> {
        let session = self.current_keeper()?;
        let answer = session.ask(&Request::Lease {
            interface: Some(interface.into()),
            listener,
            count,
        })?;
        let kind = match listener {
            Some(_) => LeaseKind::Listener,
            None => LeaseKind::Range,
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
        let ports = port..=port.saturating_add(count.saturating_sub(1));
        let add = || {
            let mac = interface.addr.mac();
            let mac = mac.ok_or_else(|| session.unexpected("a lease of raw Ethernet"))?;
            let ([esp, edp], spares) = sockets(answer.descriptors, ring)?;
            let leased = LeasedLink {
                interface: interface.name.clone(),
                mac,
                mtu: interface.mtu,
                endpoint: protocol.endpoint(),
                incarnation: session.welcome().incarnation,
                ports: ports.clone(),
                standby: kind == LeaseKind::Standby,
                esp,
                edp,
            };
            let link = self
                .engine
                .with_engine(|engine| engine.add_leased(leased))?;
            Ok((
                link.map_err(EspError::resource("use a leased socket"))?,
                spares,
            ))
        };
        let (link, spares) =
            add().inspect_err(|_: &EspError| session.post(Request::EndLease { lease }))?;
        let ports = LeasedPorts::new((lease, kind), link, interface, ports, Some(spares));
        self.keep(session, &ports)?;
        Ok(ports)
    }

    /// Adds a lease that this session granted to the table.
    ///
    /// # Errors
    /// The daemon has ended, and the next one has adopted the leases of the table: it would no
    /// longer adopt this one.
    pub(super) fn keep(&self, session: &Session, ports: &Arc<LeasedPorts>) -> Result<(), EspError> {
        let registry = lock(&self.registry);
        if std::ptr::eq(&*registry.keeper, session) {
            lock(&self.table).push(Arc::clone(ports));
            return Ok(());
        }
        drop(registry);
        let _ = self
            .engine
            .with_engine(|engine| engine.remove_leased(ports.link));
        let why = "it ended before its lease was in use";
        Err(EspError::gone(&self.session.path, why))
    }

    /// Leases the ports of a lease on the node's other interfaces, too, if the daemon allows it.
    /// Call it before the first connection, because only later ones can move.
    pub(super) fn prepare_standbys(&self, ports: &LeasedPorts) {
        let session = self.keeper();
        if ports.kind == LeaseKind::Standby || ports.standbys.get().is_some() {
            return;
        }
        let lease = ports.id.load(Ordering::Relaxed);
        let standby = |interface: &InterfaceInfo| {
            let interface = interface.name.clone();
            let answer = session.ask(&Request::Standby { lease, interface }).ok()?;
            self.take_lease(&session, answer, LeaseKind::Standby).ok()
        };
        let first = *ports.ports.start();
        let welcome = session.welcome();
        let others = welcome.interfaces.iter();
        let all = others
            .filter(|other| self.holder(Some(&other.name), first).is_none())
            .take(MAX_STANDBYS)
            .filter_map(standby)
            .collect();
        let _ = ports.standbys.set(all);
    }

    /// Returns the session with the daemon that keeps the ports.
    pub(super) fn keeper(&self) -> Arc<Session> {
        Arc::clone(&lock(&self.registry).keeper)
    }

    /// Returns the session of the daemon that grants leases; a new one if the last daemon has
    /// ended.
    ///
    /// # Errors
    /// There is no daemon, or the leases are not adopted yet.
    fn current_keeper(&self) -> Result<Arc<Session>, EspError> {
        let mut registry = lock(&self.registry);
        if !registry.keeper.is_lost() {
            return Ok(Arc::clone(&registry.keeper));
        }
        if lock(&self.table).iter().any(|ports| !ports.is_lost()) {
            let why = "the next daemon has not adopted the leases yet";
            return Err(EspError::gone(&self.session.path, why));
        }
        let next = Session::open(&self.session.path, false, false)?;
        registry.set_keeper(Arc::clone(&next), |_| false);
        next.announce_loss(self.engine.progress.waker());
        Ok(next)
    }

    /// Returns the lease that has this port on this interface (`None`: on any): that of a range, or
    /// that of an earlier listener, whose connections keep it.
    pub(crate) fn holder(&self, interface: Option<&str>, port: u16) -> Option<Arc<LeasedPorts>> {
        let has = |ports: &&Arc<LeasedPorts>| {
            interface.is_none_or(|name| name == ports.interface.name)
                && ports.ports.contains(&port)
                && !ports.is_lost()
        };
        lock(&self.table).iter().find(has).cloned()
    }

    /// Switches to the spare sockets if the daemon that keeps the ports is gone. Returns true if it
    /// is.
    pub(super) fn use_spares(&self) -> bool {
        // Held until the end: the spares of a daemon that adopts the leases must stay unused.
        let registry = lock(&self.registry);
        if !registry.keeper.is_lost() {
            return false;
        }
        let table = lock(&self.table).clone();
        for ports in table {
            let spares = lock(&ports.spares).take();
            // On failure the link keeps its sockets, which may still work.
            if let Some([esp, edp]) = spares
                && esp.make_ring().is_ok()
            {
                let _ = self
                    .engine
                    .with_engine(|engine| engine.use_spares(ports.link, esp, edp));
            }
        }
        true
    }

    /// Ends the streams, which are closed, and the progress thread, because the client is about to
    /// be dropped. The peers of a polled client get half a second to close their streams, too.
    pub(crate) fn finish(&self) {
        if self.engine.is_forked() {
            return;
        }
        let end = end_deadline();
        let is_idle = || lock(&self.engine.log).all_closed();
        if self.session.notice.is_some() && !is_idle() {
            let deadline = Some(Instant::now() + LINGER);
            self.engine
                .wait(Spin::default(), Event::Poll, is_idle, deadline);
        }
        self.engine.end_streams(end);
        self.finished.store(true, Ordering::Relaxed);
        self.engine.progress.interrupt();
        // Otherwise the daemon would reset them at their peers.
        self.report_closed();
        self.keeper().close();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
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
