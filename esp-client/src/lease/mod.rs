//! Leased ports: streams whose engine runs in this program, over packet sockets that the daemon opened for it.
//!
//! [`Leases`] is what one client has of them. For connections it leases rows of free ports, one row for each interface at
//! first; a listener leases its own port, beside its place at the daemon, where programs of the same node still find it.
//!
//! Leases outlive the daemon: see [`adopt`].

mod adopt;
mod alarm;
mod host;
mod news;

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use esp_engine::shm::{Region, RingSizes, Spin};
use esp_engine::{
    Arrival, Clock, Command, ConnHandle, LINGER, LeasedLink, LeasedSocket, LinkId, ListenerId, RingShape,
};
use esp_proto::{ConnectError, MacAddr};

use crate::call::Answer;
use crate::client::Client;
use crate::control::{ErrorKind, LeaseRing, Reply, Request, Rings};
use crate::error::EspError;
use crate::session::{Session, lock};
use crate::stream::DEFAULT_RING;
pub(crate) use host::Host;

/// Ports of a row: that many connections to one port of one peer go through one row.
const ROW: u16 = 32;
/// Rows of one interface at most.
const ROWS: usize = 8;
/// The caretaker's step while there are connections, and while there are none.
const CARE: Duration = Duration::from_millis(2);
const IDLE_CARE: Duration = Duration::from_millis(20);
/// Steps without anything happening, after which it waits for frames.
const QUIET_STEPS: u32 = 25;

/// Futures that wait beyond this number are woken at every step, lest tasks that look all the time fill the memory.
#[cfg(feature = "tokio")]
const MANY_WAKERS: usize = 16 * 1024;

/// Chooses the way of streams that do not choose: `auto`, `lease` or `daemon`.
pub const PATH_VARIABLE: &str = "ESP_PATH";

/// Which way a stream takes through its own node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Path {
    /// A lease if the node's policy allows one, else the daemon.
    #[default]
    Auto,
    /// A lease, or an error. To the own node, where no frame goes over the wire, still the daemon. What runs over a lease outlives the
    /// daemon: the next one adopts it.
    Lease,
    /// Through the daemon.
    Daemon,
}

impl Path {
    /// What [`PATH_VARIABLE`] says; `Auto` if nothing, or something else.
    pub fn from_environment() -> Path {
        match std::env::var(PATH_VARIABLE).as_deref() {
            Ok("lease") => Path::Lease,
            Ok("daemon") => Path::Daemon,
            _ => Path::Auto,
        }
    }
}

/// A lease: sockets in the engine, ports of the daemon's.
pub(crate) struct LeasedPorts {
    pub(crate) host: Arc<Host>,
    /// Its number at the daemon that knows it now.
    id: Arc<AtomicU64>,
    link: LinkId,
    interface: String,
    mac: [u8; 6],
    mtu: u32,
    ports: RangeInclusive<u16>,
    /// Kept while the client lives.
    row: bool,
    next: AtomicU32,
    /// Sockets for the time without the daemon, which sees to it that the first ones get their frames.
    spares: Mutex<Option<Spares>>,
    /// Why the daemon that came later did not adopt it.
    lost: OnceLock<EspError>,
}

/// The spare sockets of a lease.
struct Spares {
    sockets: [LeasedSocket; 2],
    /// With the daemon that gave them. While it lasts they are not needed.
    session: Weak<Session>,
}

impl Spares {
    fn new(sockets: [LeasedSocket; 2], session: &Arc<Session>) -> Spares {
        Spares { sockets, session: Arc::downgrade(session) }
    }

    fn are_needed(&self) -> bool {
        self.session.upgrade().is_none_or(|session| session.check().is_err())
    }
}

impl LeasedPorts {
    /// Can new connections through this interface use it?
    fn serves(&self, interface: &str) -> bool {
        self.row && self.interface == interface && !self.is_lost()
    }

    fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }
}

/// A stream over a lease.
pub(crate) struct LeasedStream {
    pub(crate) ports: Arc<LeasedPorts>,
    leases: Weak<Leases>,
    pub(crate) slot: u16,
    handle: ConnHandle,
}

/// A listener's part on one leased link.
pub(crate) struct LeasedListener {
    ports: Arc<LeasedPorts>,
    leases: Weak<Leases>,
    listener: ListenerId,
}

/// What a new stream is made of.
pub(crate) struct Opened {
    pub(crate) stream: LeasedStream,
    pub(crate) region: Arc<Region>,
    pub(crate) interface: String,
    pub(crate) local_port: u16,
    pub(crate) peer: MacAddr,
    pub(crate) peer_port: u16,
}

/// A connection as the daemon is told of it.
#[derive(Clone)]
struct Told {
    /// The number of its lease, as in [`LeasedPorts`].
    lease: Arc<AtomicU64>,
    local_port: u16,
    peer: MacAddr,
    peer_port: u16,
}

/// All leases of one client.
pub(crate) struct Leases {
    host: Arc<Host>,
    /// The client's own.
    session: Arc<Session>,
    /// With the daemon that keeps the ports now: `session`, until that daemon is gone and another has adopted the leases. Locked before
    /// `told`.
    keeper: Mutex<Arc<Session>>,
    /// A thread has been started to find one.
    adopting: AtomicBool,
    table: Mutex<Vec<Arc<LeasedPorts>>>,
    /// Connections the daemon knows, by slot, with the nonce that the peer takes a reset by.
    told: Mutex<HashMap<u16, (Told, u64)>>,
    /// Connections that were begun, of which the daemon is told when they are established.
    begun: Mutex<Vec<(u16, ConnHandle, Told)>>,
    /// The node's word that this program gets none.
    refused: Mutex<Option<EspError>>,
    #[cfg(feature = "tokio")]
    wakers: Mutex<Vec<std::task::Waker>>,
    /// The host's activity when futures were last woken.
    #[cfg(feature = "tokio")]
    seen: AtomicU64,
}

impl Leases {
    pub(crate) fn start(session: &Arc<Session>) -> Result<Arc<Leases>, EspError> {
        let leases = Arc::new(Leases {
            host: Host::start(session)?,
            session: Arc::clone(session),
            keeper: Mutex::new(Arc::clone(session)),
            adopting: AtomicBool::new(false),
            table: Mutex::default(),
            told: Mutex::default(),
            begun: Mutex::default(),
            refused: Mutex::new(None),
            #[cfg(feature = "tokio")]
            wakers: Mutex::default(),
            #[cfg(feature = "tokio")]
            seen: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&leases);
        std::thread::Builder::new()
            .name("esp-lease".into())
            .spawn(move || care(&weak))
            .map_err(|error| EspError::Memory { what: format!("no thread could be started: {error}") })?;
        Ok(leases)
    }

    /// Asks the daemon for a lease and puts its sockets into the engine.
    fn lease(
        &self,
        interface: &str,
        listener: Option<u64>,
        count: u16,
    ) -> Result<Arc<LeasedPorts>, EspError> {
        if let Some(error) = &*lock(&self.refused) {
            return Err(error.clone());
        }
        let session = self.keeper();
        let request = Request::Lease { interface: Some(interface.into()), listener, count };
        let answer = session.ask(&request).inspect_err(|error| {
            if matches!(error, EspError::Denied { kind: ErrorKind::Permission | ErrorKind::BadRequest, .. }) {
                *lock(&self.refused) = Some(error.clone());
            }
        })?;
        let Answer { reply: Reply::Lease { lease, interface, port, count, protocol, ring }, descriptors } =
            answer
        else {
            session.dispose(&answer);
            return Err(session.unexpected("a lease"));
        };
        let end = || session.post(&Request::EndLease { lease });
        let ([esp, edp], spares) = sockets(descriptors, ring).inspect_err(|_| end())?;
        let leased = LeasedLink {
            interface: interface.name.clone(),
            mac: MacAddr(interface.mac),
            mtu: interface.mtu,
            endpoint: protocol.endpoint(),
            incarnation: session.welcome().incarnation,
            esp,
            edp,
        };
        let link = self.host.add(leased).inspect_err(|_| end())?;
        let last = port.saturating_add(count.saturating_sub(1));
        let ports = Arc::new(LeasedPorts {
            host: Arc::clone(&self.host),
            id: Arc::new(AtomicU64::new(lease)),
            link,
            interface: interface.name,
            mac: interface.mac,
            mtu: interface.mtu,
            ports: port..=last,
            row: listener.is_none(),
            next: AtomicU32::new(0),
            spares: Mutex::new(Some(Spares::new(spares, &session))),
            lost: OnceLock::new(),
        });
        lock(&self.table).push(Arc::clone(&ports));
        Ok(ports)
    }

    /// The session with the daemon that keeps the ports now.
    fn keeper(&self) -> Arc<Session> {
        Arc::clone(&lock(&self.keeper))
    }

    /// Opens a stream from any port of a row on this interface. It may still be connecting. While no daemon keeps the ports
    /// nothing new is opened, as on the daemon's path.
    pub(crate) fn connect(
        self: &Arc<Self>,
        interface: &str,
        (peer, peer_port): (MacAddr, u16),
        key: &[u8],
        rings: Rings,
    ) -> Result<Opened, EspError> {
        self.keeper().check()?;
        let sizes = sizes(rings, 0)?;
        for row in 0..ROWS {
            let rows = || lock(&self.table).iter().filter(|p| p.serves(interface)).nth(row).cloned();
            let ports = match rows() {
                Some(ports) => ports,
                None => self.lease(interface, None, ROW)?,
            };
            for _ in 0..ROW {
                match self.connect_from(&ports, (peer, peer_port), key, sizes) {
                    Err(Attempt::PortTaken) => {}
                    Err(Attempt::Failed(error)) => return Err(error),
                    Ok(opened) => return Ok(opened),
                }
            }
        }
        Err(denied(ErrorKind::InUse, "all leased ports are connected to that port"))
    }

    fn connect_from(
        self: &Arc<Self>,
        ports: &Arc<LeasedPorts>,
        (peer, peer_port): (MacAddr, u16),
        key: &[u8],
        sizes: RingSizes,
    ) -> Result<Opened, Attempt> {
        let count = u32::from(*ports.ports.end() - *ports.ports.start()) + 1;
        let step = ports.next.fetch_add(1, Ordering::Relaxed) % count;
        // At most the last port of the row.
        let local_port = ports.ports.start() + u16::try_from(step).unwrap_or(0);
        let (region, slot) = self.prepare(sizes).map_err(Attempt::Failed)?;
        let (link, key, given) = (ports.link, key.to_vec(), Arc::clone(&region));
        let client = host::SELF;
        let answer = self.host.connect(|reply| Command::Connect {
            client,
            slot,
            link,
            local_port,
            peer,
            peer_port,
            key,
            region: given,
            reply,
        });
        let failed = |attempt| {
            self.host.withdraw_slot(slot);
            Err(attempt)
        };
        match answer {
            Some(Ok(handle)) => {
                let stream = self.stream(ports, slot, handle);
                let interface = ports.interface.clone();
                Ok(Opened { stream, region, interface, local_port, peer, peer_port })
            }
            Some(Err(ConnectError::InUse)) => failed(Attempt::PortTaken),
            Some(Err(error)) => failed(Attempt::Failed(denied(ErrorKind::BadArgument, &error.to_string()))),
            None => failed(Attempt::Failed(denied(ErrorKind::Unavailable, "the engine does not answer"))),
        }
    }

    fn prepare(&self, sizes: RingSizes) -> Result<(Arc<Region>, u16), EspError> {
        let (region, _descriptor) = Region::create(sizes)
            .map_err(|error| EspError::Memory { what: format!("make the rings: {error}") })?;
        let slot = self
            .host
            .take_slot()
            .ok_or_else(|| denied(ErrorKind::Limit, "a program may have 4096 streams over leases"))?;
        Ok((region, slot))
    }

    fn stream(self: &Arc<Self>, ports: &Arc<LeasedPorts>, slot: u16, handle: ConnHandle) -> LeasedStream {
        LeasedStream { ports: Arc::clone(ports), leases: Arc::downgrade(self), slot, handle }
    }

    /// The lease that has this port already: connections that an earlier listener accepted keep it, or it is one of a row.
    fn holder(&self, interface: Option<&str>, port: u16) -> Option<Arc<LeasedPorts>> {
        let here = |ports: &LeasedPorts| interface.is_none_or(|name| name == ports.interface);
        let there = |ports: &LeasedPorts| ports.ports.contains(&port) && !ports.is_lost() && here(ports);
        lock(&self.table).iter().find(|ports| there(ports)).cloned()
    }

    /// Does a lease have this port, on this or on any interface? The daemon hears nothing of it then.
    pub(crate) fn has(&self, interface: Option<&str>, port: u16) -> bool {
        self.holder(interface, port).is_some()
    }

    /// Leases the port of a listener on these interfaces. What cannot be leased comes through the daemon, unless it `must` be.
    pub(crate) fn listen<'a>(
        self: &Arc<Self>,
        interfaces: impl Iterator<Item = &'a str>,
        (listener, port): (u64, u16),
        backlog: u16,
        key: &[u8],
        must: bool,
    ) -> Result<Vec<LeasedListener>, EspError> {
        // The listener's number is one of the daemon that the client began with.
        self.session.check()?;
        let mut all = Vec::new();
        for interface in interfaces {
            let ports = match self.holder(Some(interface), port) {
                Some(ports) => ports,
                None => match self.lease(interface, Some(listener), 1) {
                    Ok(ports) => ports,
                    Err(error) if must => return Err(error),
                    Err(_) => continue,
                },
            };
            let id = self
                .host
                .listen(ports.link, port, backlog, key.to_vec())
                .ok_or_else(|| denied(ErrorKind::Unavailable, "the engine does not listen"))?;
            all.push(LeasedListener { ports, leases: Arc::downgrade(self), listener: id });
        }
        Ok(all)
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Before the program lets go of all: streams that were closed get half a second to deliver and to end.
    pub(crate) fn finish(&self) {
        if self.session.answers().is_some() && !self.host.is_forked() && !self.host.is_idle() {
            self.host.wait(Spin::default(), || self.host.is_idle(), Some(Instant::now() + LINGER));
        }
    }

    /// Tells the daemon of a connection that is established.
    fn tell(&self, stream: &LeasedStream, told: Told) {
        let Some(nonce) = self.host.peer_nonce(stream.handle) else { return };
        self.opened(stream.slot, told, nonce);
    }

    /// Tells it of those that were begun and are established now.
    fn tell_begun(&self) {
        let mut begun = lock(&self.begun);
        begun.retain(|(slot, handle, told)| match self.host.peer_nonce_now(*handle) {
            None | Some(0) => true,
            Some(nonce) => {
                self.opened(*slot, told.clone(), nonce);
                false
            }
        });
    }

    fn opened(&self, slot: u16, told: Told, nonce: u64) {
        let keeper = lock(&self.keeper);
        report(&keeper, &told, Some(nonce));
        lock(&self.told).insert(slot, (told, nonce));
    }

    fn closed(&self, slot: u16) {
        let keeper = lock(&self.keeper);
        let closed = lock(&self.told).remove(&slot);
        if let Some((told, _)) = closed {
            report(&keeper, &told, None);
        }
    }

    /// Leases whose daemon is gone go on over their spare sockets. Those that another one has adopted by now have new sockets already.
    fn use_spares(&self) {
        let table = lock(&self.table).clone();
        for ports in table {
            let spares = lock(&ports.spares).take_if(|spares| spares.are_needed());
            if let Some(Spares { sockets, .. }) = spares {
                self.host.use_spares(ports.link, sockets);
            }
        }
    }

    /// What is to be done now and then; true while there are connections.
    fn care(self: &Arc<Self>) -> bool {
        self.host.care();
        if self.keeper().check().is_err() && !self.host.is_forked() {
            self.use_spares();
            adopt::start(self);
        }
        self.tell_begun();
        for slot in self.host.take_closed() {
            lock(&self.begun).retain(|begun| begun.0 != slot);
            self.closed(slot);
            self.host.told(slot);
        }
        #[cfg(feature = "tokio")]
        self.wake_futures();
        lock(&self.table).retain(|ports| {
            // Two: here, and in a stream or listener.
            let unused = (!ports.row || ports.is_lost()) && Arc::strong_count(ports) == 1;
            if unused && self.host.remove(ports.link) {
                if !ports.is_lost() {
                    self.keeper().post(&Request::EndLease { lease: ports.id.load(Ordering::Relaxed) });
                }
                return false;
            }
            true
        });
        !self.host.is_idle() || lock(&self.table).iter().any(|ports| !ports.row)
    }

    /// Futures are woken to look again when the caretaker finds that something happened since. (They look once more behind
    /// this call, so what came before it is not missed.)
    #[cfg(feature = "tokio")]
    fn wake_later(&self, cx: &std::task::Context<'_>) {
        let mut wakers = lock(&self.wakers);
        if !wakers.last().is_some_and(|last| last.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        self.host.alarm().keep();
    }

    /// Does something wait for the caretaker's next step?
    fn is_awaited(&self) -> bool {
        #[cfg(feature = "tokio")]
        if !lock(&self.wakers).is_empty() {
            return true;
        }
        !lock(&self.begun).is_empty()
    }

    #[cfg(feature = "tokio")]
    fn wake_futures(&self) {
        let now = self.host.activity();
        let quiet = self.seen.swap(now, Ordering::Relaxed) == now;
        let mut wakers = lock(&self.wakers);
        if quiet && wakers.len() < MANY_WAKERS {
            return;
        }
        let all = std::mem::take(&mut *wakers);
        drop(wakers);
        all.into_iter().for_each(std::task::Waker::wake);
    }
}

impl Drop for Leases {
    /// The client closes its own session; one with a later daemon is ours.
    fn drop(&mut self) {
        let keeper = self.keeper();
        if !Arc::ptr_eq(&keeper, &self.session) {
            keeper.close();
        }
    }
}

fn report(keeper: &Session, told: &Told, nonce: Option<u64>) {
    let Told { lease, local_port, peer, peer_port } = told;
    keeper.post(&Request::LeaseConnection {
        lease: lease.load(Ordering::Relaxed),
        local_port: *local_port,
        peer: peer.octets(),
        peer_port: *peer_port,
        nonce,
    });
}

/// The two sockets of a lease, and the two spares.
fn sockets(
    descriptors: Vec<OwnedFd>,
    LeaseRing { slot_len, slots }: LeaseRing,
) -> Result<([LeasedSocket; 2], [LeasedSocket; 2]), EspError> {
    let missing = "the sockets of a lease did not come; is this process at its limit of open files?";
    let [esp, edp, spare_esp, spare_edp] =
        <[OwnedFd; 4]>::try_from(descriptors).map_err(|_| EspError::Memory { what: missing.into() })?;
    let ring = Some(RingShape { slot_len, slots });
    let both = |esp, edp| [LeasedSocket { socket: esp, ring }, LeasedSocket { socket: edp, ring: None }];
    Ok((both(esp, edp), both(spare_esp, spare_edp)))
}

enum Attempt {
    PortTaken,
    Failed(EspError),
}

impl LeasedStream {
    /// Its name at the engine.
    pub(crate) fn handle(&self) -> ConnHandle {
        self.handle
    }

    /// The connection is established: the daemon shows it, and resets it when this program dies.
    pub(crate) fn established(&self, local_port: u16, peer: MacAddr, peer_port: u16) {
        if let Some(leases) = self.leases.upgrade() {
            leases.tell(self, self.told(local_port, peer, peer_port));
        }
    }

    fn told(&self, local_port: u16, peer: MacAddr, peer_port: u16) -> Told {
        Told { lease: Arc::clone(&self.ports.id), local_port, peer, peer_port }
    }

    /// The same for one that nobody waits for.
    pub(crate) fn begun(&self, local_port: u16, peer: MacAddr, peer_port: u16) {
        if let Some(leases) = self.leases.upgrade() {
            let told = self.told(local_port, peer, peer_port);
            lock(&leases.begun).push((self.slot, self.handle, told));
        }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.ports.host
    }

    pub(crate) fn abort(&self) {
        self.host().tell(Command::Abort { client: host::SELF, slot: self.slot });
        self.host().poll(true);
    }

    /// The program's last word. What was written gets half a second to be acknowledged, as if the program died right
    /// behind; the caretaker does the rest while the process lives. Who serves many streams from one thread waits for none of them,
    /// but for all at the end ([`Leases::finish`]).
    pub(crate) fn close(&self, delivered: impl FnMut() -> bool) {
        let polled = self.leases.upgrade().is_some_and(|leases| leases.session.answers().is_some());
        if !polled {
            self.host().wait(Spin::default(), delivered, Some(Instant::now() + LINGER));
        }
        self.host().close(self.slot);
        self.host().poll(true);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn wake_later(&self, cx: &std::task::Context<'_>) {
        if let Some(leases) = self.leases.upgrade() {
            leases.wake_later(cx);
        }
    }
}

impl LeasedListener {
    pub(crate) fn host(&self) -> &Host {
        &self.ports.host
    }

    pub(crate) fn waiting(&self) -> bool {
        self.host().has_arrival(self.listener)
    }

    /// Why nobody will come here any more.
    pub(crate) fn lost(&self) -> Option<&EspError> {
        self.ports.lost.get()
    }

    /// The next connection, if there is one.
    pub(crate) fn accept(&self, rings: Rings) -> Result<Option<Opened>, EspError> {
        let Some(leases) = self.leases.upgrade() else { return Ok(None) };
        while let Some(Arrival { handle, port, peer, peer_port }) = self.host().arrival(self.listener) {
            let (region, slot) = sizes(rings, esp_proto::least_listener_capacity(self.ports.mtu))
                .and_then(|sizes| leases.prepare(sizes))
                .inspect_err(|_| self.host().tell(Command::Refuse { handle }))?;
            let (client, given) = (host::SELF, Arc::clone(&region));
            let attached =
                self.host().attach(|reply| Command::Attach { handle, client, slot, region: given, reply });
            if attached {
                let stream = leases.stream(&self.ports, slot, handle);
                let interface = self.ports.interface.clone();
                return Ok(Some(Opened { stream, region, interface, local_port: port, peer, peer_port }));
            }
            self.host().withdraw_slot(slot);
        }
        Ok(None)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn wake_later(&self, cx: &std::task::Context<'_>) {
        if let Some(leases) = self.leases.upgrade() {
            leases.wake_later(cx);
        }
    }
}

impl Drop for LeasedListener {
    fn drop(&mut self) {
        self.host().close_listener(self.listener);
    }
}

/// Looks after the leases while nobody calls.
fn care(leases: &Weak<Leases>) {
    let mut quiet = 0;
    let mut seen = 0;
    while let Some(held) = leases.upgrade() {
        let busy = held.care();
        let most = if held.is_awaited() { CARE } else { IDLE_CARE };
        let activity = held.host.activity();
        quiet = if activity == seen { quiet + 1 } else { 0 };
        seen = activity;
        let host = Arc::clone(&held.host);
        drop(held);
        if busy && quiet >= QUIET_STEPS {
            // Streams are open, and nothing happens: a frame ends the wait. What was readable before it may still be: so the
            // step comes in any case.
            quiet = QUIET_STEPS;
            host.wait_for_frames(IDLE_CARE - CARE);
        }
        let alarm = host.alarm().clone();
        drop(host);
        if busy {
            alarm.sleep(Clock.now().as_nanos(), CARE, most);
        } else {
            std::thread::sleep(IDLE_CARE);
        }
    }
}

/// The rings of a stream; 0 leaves a size to us, as it does at the daemon.
fn sizes(wanted: Rings, least_rx: u32) -> Result<RingSizes, EspError> {
    let one = |size: u32| if size == 0 { DEFAULT_RING } else { size };
    let sizes = RingSizes { tx: one(wanted.tx), rx: one(wanted.rx).max(least_rx.next_power_of_two()) };
    sizes.check().map_err(|error| denied(ErrorKind::BadArgument, &error.to_string()))?;
    Ok(sizes)
}

fn denied(kind: ErrorKind, message: &str) -> EspError {
    EspError::Denied { kind, message: message.into() }
}

/// Has this client leases, or may it have some?
pub(crate) fn of(client: &Client, path: Path, peer: Option<MacAddr>) -> io::Result<Option<Arc<Leases>>> {
    let own = peer.is_some_and(|peer| client.interfaces().iter().any(|own| own.mac == peer.octets()));
    // Who must have a lease asks for it, and hears why not.
    if path == Path::Daemon || own || (path == Path::Auto && !client.session().welcome().leases) {
        return Ok(None);
    }
    match client.leases() {
        Ok(leases) => Ok(Some(leases)),
        Err(_) if path == Path::Auto => Ok(None),
        Err(error) => Err(error.into()),
    }
}
