//! State shared by all sessions: the engines, the links, the tables of programs and users.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use esp_client::control::{ErrorKind, InterfaceInfo, Rings};
use esp_engine::shm::{MIN_RING, RingSizes};
use esp_engine::{
    Arrival, ClientId, Command, ConnHandle, EngineEvent, LinkCondition, LinkId, ListenerId,
    Snapshot,
};
use esp_proto::{EndpointConfig, Port};
use netif::Closer;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tracing::{debug, error, info, warn};

use crate::accounts::Accounts;
use crate::claim::InterfaceClaim;
use crate::config::{Limits, RingOptions};
use crate::engines::{Engines, Seat};
use crate::leases::{LeaseSetup, Leases};
use crate::links::Link;
use crate::peer::Credentials;
use crate::ports::{Claimant, PortClaim};
use crate::refusal::Refusal;
use crate::slots::Slots;
use crate::stats::{ControlStats, LogLimiter};

/// Minimum interval between queries of the engine's state. Requests in between wait for the next
/// one. A query copies up to 65 536 connections of each link, in steps of the engine.
const SNAPSHOT_PAUSE: Duration = Duration::from_millis(100);

/// Interval at which the assignment of a port that another engine's program uses is tried again:
/// the program may have ended.
const ENDING_CHECK: Duration = Duration::from_millis(50);

/// The control plane of one node.
pub struct Node {
    pub(crate) engines: Engines,
    /// In the order of [`esp_engine::LinkId`].
    pub(crate) links: Vec<Link>,
    pub(crate) leases: Leases,
    clients: DashMap<ClientId, Arc<Client>>,
    listeners: DashMap<ListenerId, Arc<Client>>,
    /// Charges of users.
    pub accounts: Arc<Accounts>,
    /// Counters.
    pub stats: ControlStats,
    /// Time within which a program must send Hello, complete a message, or read a reply.
    pub(crate) patience: Duration,
    rings: RingOptions,
    pub(crate) started: Instant,
    next_client: AtomicU64,
    next_listener: AtomicU64,
    corruption_logged: LogLimiter,
    last_snapshot: AsyncMutex<Option<(Instant, Arc<Snapshot>)>>,
    /// Closes the descriptors that programs have passed.
    pub(crate) closer: Closer,
    /// Claims on interfaces that were created again since the start, by interface and EtherType.
    claims: Mutex<HashMap<(String, u16), InterfaceClaim>>,
}

/// Parameters of a [`Node`].
#[derive(Debug)]
pub struct NodeOptions {
    /// The engines.
    pub engines: Engines,
    /// The links, in the engines' order.
    pub links: Vec<InterfaceInfo>,
    /// Limits.
    pub limits: Limits,
    /// Ring sizes.
    pub rings: RingOptions,
    /// Time within which a program must send Hello, complete a message, or read a reply; then it
    /// is disconnected.
    pub patience: Duration,
    /// Leases.
    pub lease: LeaseSetup,
}

/// A program, until it has disconnected and the engine has released its slots.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    /// The engine that serves it.
    engine: u8,
    /// Its place there, until it disconnects.
    seat: Mutex<Option<Seat>>,
    pub(crate) credentials: Credentials,
    pub(crate) program: String,
    slots: Mutex<Slots>,
    session: mpsc::UnboundedSender<SessionEvent>,
}

impl Client {
    /// Returns the program as one that claims ports.
    pub(crate) fn claimant(&self) -> Claimant {
        Claimant {
            uid: self.credentials.uid,
            engine: self.engine(),
        }
    }

    /// Returns the engine that serves it.
    pub(crate) fn engine(&self) -> u8 {
        self.engine
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Event for one session. The number of open `Incoming` events is bounded by the backlogs of its
/// listeners.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    Incoming {
        listener: ListenerId,
        arrival: Arrival,
    },
    IncomingGone {
        listener: ListenerId,
        handle: ConnHandle,
    },
    /// The program violated the protocol; the text is sent to it.
    Violation(String),
}

impl Node {
    /// Creates a node without programs.
    pub fn new(options: NodeOptions) -> Arc<Node> {
        let links: Vec<Link> = options.links.into_iter().map(Link::new).collect();
        Arc::new(Node {
            engines: options.engines,
            leases: Leases::new(options.lease, &links),
            links,
            clients: DashMap::new(),
            listeners: DashMap::new(),
            accounts: Accounts::new(options.limits),
            stats: ControlStats::default(),
            patience: options.patience,
            rings: options.rings,
            started: Instant::now(),
            next_client: AtomicU64::new(1),
            next_listener: AtomicU64::new(1),
            corruption_logged: LogLimiter::default(),
            last_snapshot: AsyncMutex::new(None),
            closer: Closer::default(),
            claims: Mutex::default(),
        })
    }

    /// Adds a program.
    pub(crate) fn add_client(
        &self,
        credentials: Credentials,
        program: String,
        seat: Seat,
        session: mpsc::UnboundedSender<SessionEvent>,
    ) -> Arc<Client> {
        let id = ClientId(self.next_client.fetch_add(1, Ordering::Relaxed));
        let client = Arc::new(Client {
            id,
            engine: seat.engine(),
            seat: Mutex::new(Some(seat)),
            credentials,
            program,
            slots: Mutex::default(),
            session,
        });
        self.clients.insert(id, Arc::clone(&client));
        client
    }

    /// Removes a program. Slots that the engine still uses are freed as `Closed` events arrive.
    pub(crate) fn remove_client(&self, client: &Client) {
        client.slots().disconnect();
        let seat = client.seat.lock();
        drop(seat.unwrap_or_else(PoisonError::into_inner).take());
        // A stopped engine uses no slots.
        let command = Command::RemoveClient { client: client.id };
        let engine_gone = self.engines.send(client.engine(), command).is_err();
        if engine_gone || client.slots().is_empty() {
            self.clients.remove(&client.id);
        }
    }

    /// Registers a listener, so that its connections are dispatched even before the engine has
    /// answered.
    pub(crate) fn add_listener(&self, client: &Arc<Client>) -> ListenerId {
        let id = ListenerId(self.next_listener.fetch_add(1, Ordering::Relaxed));
        self.listeners.insert(id, Arc::clone(client));
        id
    }

    pub(crate) fn remove_listener(&self, id: ListenerId) {
        self.listeners.remove(&id);
    }

    pub(crate) fn client(&self, id: ClientId) -> Option<Arc<Client>> {
        self.clients.get(&id).map(|client| Arc::clone(&client))
    }

    pub(crate) fn listener_owner(&self, id: ListenerId) -> Option<Arc<Client>> {
        self.listeners.get(&id).map(|client| Arc::clone(&client))
    }

    /// Processes the engines' events until the engines end. Work per event is constant.
    pub async fn dispatch(self: Arc<Self>, mut events: mpsc::UnboundedReceiver<(u8, EngineEvent)>) {
        while let Some((engine, event)) = events.recv().await {
            self.event(engine, &event);
        }
    }

    fn event(&self, engine: u8, event: &EngineEvent) {
        match *event {
            EngineEvent::Incoming { listener, arrival } => {
                let event = SessionEvent::Incoming { listener, arrival };
                let owner = self.listener_owner(listener);
                if owner.is_none_or(|client| client.session.send(event).is_err()) {
                    self.refuse(engine, arrival.handle);
                }
            }
            EngineEvent::IncomingGone { listener, handle } => {
                if let Some(client) = self.listener_owner(listener) {
                    let event = SessionEvent::IncomingGone { listener, handle };
                    let _ = client.session.send(event);
                }
            }
            EngineEvent::Closed {
                client,
                slot,
                reason,
            } => {
                debug!(client = client.0, slot, ?reason, "slot closed");
                let Some(client) = self.client(client) else {
                    return;
                };
                let finished = {
                    let mut slots = client.slots();
                    slots.engine_closed(slot);
                    slots.is_finished()
                };
                if finished {
                    self.clients.remove(&client.id);
                }
            }
            EngineEvent::Moved { from, link, .. } if from == link => {}
            EngineEvent::Moved {
                client, slot, link, ..
            } => {
                let link = self.links.get(usize::from(link.0));
                if let (Some(client), Some(link)) = (self.client(client), link) {
                    let take = |port: &PortClaim| port.take_on(&link.esp, client.credentials.uid);
                    client.slots().moved(slot, take);
                }
            }
            // Every engine reports the changes of a link.
            EngineEvent::Link { .. } if engine != 0 => {}
            EngineEvent::Link { link, condition } => self.link_changed(link, condition),
            EngineEvent::NotAttached { link, ref why } => {
                let interface = self.links.get(usize::from(link.0)).map(Link::name);
                warn!(
                    interface,
                    why, "the interface was created again and cannot be used"
                );
            }
            EngineEvent::CaptureEnded { ref path, ref why } => {
                let path = path.display();
                error!(%path, %why, "cannot write the pcap file: further frames are not recorded");
            }
            EngineEvent::Corrupted { client, slot, what } => {
                self.stats.programs_corrupted_memory.add();
                if let Some(client) = self.client(client) {
                    let Credentials { uid, pid, .. } = client.credentials;
                    let program = &client.program;
                    if self.corruption_logged.allow() {
                        warn!(
                            uid,
                            pid, program, slot, what, "program disconnected: corrupt shared memory"
                        );
                    }
                    let message = format!("the shared memory of slot {slot} is corrupt: {what}");
                    let _ = client.session.send(SessionEvent::Violation(message));
                }
            }
        }
    }

    fn link_changed(&self, link: LinkId, condition: LinkCondition) {
        let Some(found) = self.links.get(usize::from(link.0)) else {
            return;
        };
        let LinkCondition {
            up,
            mtu,
            gone,
            addr,
            index,
        } = condition;
        let interface = found.name();
        let before = {
            let mut state = found.state();
            (state.up, state.mtu) = (up && !gone, mtu);
            std::mem::replace(&mut state.addr, addr)
        };
        info!(interface, up, mtu, gone, "link changed");
        if before != addr {
            warn!(
                interface,
                %before, now = %addr,
                "the address changed: connections over the interface have ended"
            );
        }
        let made_again = self.leases.update_interface(link, index, addr);
        if made_again && !gone {
            info!(
                interface,
                index, "the interface was created again: attached"
            );
            let EndpointConfig {
                esp_ethertype,
                edp_ethertype,
                ..
            } = *self.leases.endpoint();
            for ethertype in [esp_ethertype, edp_ethertype] {
                match InterfaceClaim::take(interface, index, ethertype) {
                    Ok(claim) => {
                        let key = (interface.to_owned(), ethertype);
                        self.claims().insert(key, claim);
                    }
                    Err(error) => warn!(interface, %error, "two daemons serve the interface"),
                }
            }
        }
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<(String, u16), InterfaceClaim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a lease. Its ports are freed (drop) after the command.
    pub(crate) fn end_lease(&self, id: u64) {
        if let Some(lease) = self.leases.remove(id) {
            for engine in self.engines.numbers() {
                // One engine resets the peers. A stopped engine has no sockets.
                let orphans = match engine {
                    0 => lease.orphans(),
                    _ => Vec::new(),
                };
                let command = Command::Unhold {
                    link: lease.link,
                    ports: lease.ports(),
                    orphans,
                };
                let _ = self.engines.send(engine, command);
            }
        }
    }

    /// Frees the ports of reserved leases whose programs have ended. Returns true if there were
    /// any.
    pub(crate) fn free_orphaned_ports(&self) -> bool {
        let dead = self.leases.orphaned();
        dead.iter().for_each(|lease| self.end_lease(*lease));
        !dead.is_empty()
    }

    /// Refuses an incoming connection of an engine.
    pub(crate) fn refuse(&self, engine: u8, handle: ConnHandle) {
        self.stats.refused_incoming.add();
        let _ = self.engines.send(engine, Command::Refuse { handle });
    }

    /// Assigns a port that the program has claimed to its engine, and waits until the frames reach
    /// it. Also waits until the streams of ended programs of other engines are closed.
    pub(crate) async fn assign_port(&self, program: Claimant, port: Port) -> Result<(), Refusal> {
        if self.engines.count() == 1 {
            return Ok(());
        }
        let used_by_others = |port, engine| {
            let mut ports = self.links.iter().flat_map(|link| [&link.esp, &link.edp]);
            ports.any(|ports| ports.used_by_others(port, engine))
        };
        let end = Instant::now() + esp_engine::LINGER + ENDING_CHECK;
        loop {
            let assigned = self.engines.assign(port, program, used_by_others).await;
            let in_use = assigned
                .as_ref()
                .is_err_and(|refusal| refusal.kind == ErrorKind::InUse);
            if !in_use || Instant::now() >= end {
                return assigned;
            }
            tokio::time::sleep(ENDING_CHECK).await;
        }
    }

    /// Returns the engines' state, fetched after this call began.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Refusal> {
        let requested = Instant::now();
        let mut last = self.last_snapshot.lock().await;
        if let Some((taken, snapshot)) = last.as_ref() {
            if *taken >= requested {
                return Ok(Arc::clone(snapshot));
            }
            tokio::time::sleep_until((*taken + SNAPSHOT_PAUSE).into()).await;
        }
        let taken = Instant::now();
        let snapshot = Arc::new(self.engines.snapshot().await?);
        *last = Some((taken, Arc::clone(&snapshot)));
        Ok(snapshot)
    }

    /// Returns the ring sizes granted for a request; 0 leaves a size to the daemon. The receive
    /// ring has at least `min_rx` bytes, regardless of the request and the limit.
    pub(crate) fn grant(&self, wanted: Rings, min_rx: u32) -> Result<RingSizes, Refusal> {
        let one = |name: &str, wanted: u32| match wanted {
            0 => Ok(self.rings.default.0),
            size if size.is_power_of_two() && size >= MIN_RING => Ok(size.min(self.rings.max.0)),
            _ => Err(Refusal::bad_argument(format!(
                "invalid {name} ring of {wanted} bytes: expected a power of two of at least {MIN_RING}, or 0 for \
                 the default"
            ))),
        };
        // Beyond 2^31 (impossible for an MTU) the check below refuses it.
        let min_rx = min_rx.checked_next_power_of_two().unwrap_or(u32::MAX);
        let sizes = RingSizes {
            tx: one("send", wanted.tx)?,
            rx: one("receive", wanted.rx)?.max(min_rx),
        };
        sizes.check().map_err(Refusal::bad_argument)?;
        Ok(sizes)
    }

    /// Returns the number of programs connected, or disconnected and not yet released.
    pub fn programs(&self) -> usize {
        self.clients.len()
    }

    /// Returns true if there is no program, listener, port or charge.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
            && self.listeners.is_empty()
            && self.leases.is_empty()
            && self.accounts.is_empty()
            && self
                .links
                .iter()
                .all(|link| link.esp.is_empty() && link.edp.is_empty())
    }
}
