//! State shared by all sessions: the engine, the links, the tables of programs and users.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use esp_client::control::{InterfaceInfo, Rings};
use esp_engine::shm::{MIN_RING, RingSizes};
use esp_engine::{
    Arrival, ClientId, Command, ConnHandle, EngineEvent, EngineGone, LinkCondition, LinkId,
    ListenerId, Reply, Snapshot,
};
use esp_proto::EndpointConfig;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tracing::{debug, error, info, warn};

use crate::accounts::Accounts;
use crate::claim::InterfaceClaim;
use crate::config::{Limits, RingOptions};
use crate::leases::{LeaseSetup, Leases};
use crate::links::Link;
use crate::peer::Credentials;
use crate::ports::PortClaim;
use crate::refusal::Refusal;
use crate::slots::Slots;
use crate::stats::{ControlStats, Seldom};

/// Minimum interval between queries of the engine's state. Requests in between wait for the next
/// one. A query copies up to 65 536 connections of each link, in steps of the engine.
const SNAPSHOT_PAUSE: Duration = Duration::from_millis(100);

/// The control plane of one node.
pub struct Node {
    engine: SendCommand,
    /// Page in which programs see whether the engine sleeps.
    pub(crate) page: OwnedFd,
    /// Random number that identifies this run of the engine.
    pub(crate) incarnation: u64,
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
    corruption_logged: Seldom,
    last_snapshot: AsyncMutex<Option<(Instant, Arc<Snapshot>)>>,
    /// Claims on interfaces that were made again since the start.
    claims: Mutex<Vec<InterfaceClaim>>,
}

/// Queues a command for the engine; waits while the queue is full, which the engine empties in
/// every poll. Fails when the engine's thread has ended.
pub type SendCommand = Box<dyn Fn(Command) -> Result<(), EngineGone> + Send + Sync>;

/// Parameters of a [`Node`].
#[derive(Debug)]
pub struct NodeOptions {
    /// Page in which programs see whether the engine sleeps.
    pub page: OwnedFd,
    /// Random number that identifies this run of the engine.
    pub incarnation: u64,
    /// The links, in the engine's order.
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
    pub(crate) credentials: Credentials,
    pub(crate) program: String,
    slots: Mutex<Slots>,
    session: mpsc::UnboundedSender<SessionEvent>,
}

impl Client {
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
    pub fn new(engine: SendCommand, options: NodeOptions) -> Arc<Node> {
        let links: Vec<Link> = options.links.into_iter().map(Link::new).collect();
        Arc::new(Node {
            engine,
            page: options.page,
            incarnation: options.incarnation,
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
            corruption_logged: Seldom::default(),
            last_snapshot: AsyncMutex::new(None),
            claims: Mutex::default(),
        })
    }

    /// Sends a command that has no answer.
    pub(crate) fn send(&self, command: Command) -> Result<(), Refusal> {
        (self.engine)(command).map_err(|_| Refusal::unavailable())
    }

    /// Sends a command and waits for its answer, for one poll of the engine.
    pub(crate) async fn request<T: Send + 'static>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.send(command(Box::new(move |value| {
            let _ = answer.send(value); // the requester may have ended
        })))?;
        answered.await.map_err(|_| Refusal::unavailable())
    }

    /// Adds a program.
    pub(crate) fn add_client(
        &self,
        credentials: Credentials,
        program: String,
        session: mpsc::UnboundedSender<SessionEvent>,
    ) -> Arc<Client> {
        let id = ClientId(self.next_client.fetch_add(1, Ordering::Relaxed));
        let client = Arc::new(Client {
            id,
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
        // A stopped engine uses no slots.
        let engine_gone = self
            .send(Command::RemoveClient { client: client.id })
            .is_err();
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

    /// Processes the engine's events until the engine ends. Work per event is constant.
    pub async fn dispatch(self: Arc<Self>, mut events: mpsc::UnboundedReceiver<EngineEvent>) {
        while let Some(event) = events.recv().await {
            self.event(&event);
        }
    }

    fn event(&self, event: &EngineEvent) {
        match *event {
            EngineEvent::Incoming { listener, arrival } => {
                let event = SessionEvent::Incoming { listener, arrival };
                let owner = self.listener_owner(listener);
                if owner.is_none_or(|client| client.session.send(event).is_err()) {
                    self.refuse(arrival.handle);
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
            EngineEvent::Link { link, condition } => self.link_changed(link, condition),
            EngineEvent::NotAttached { link, ref why } => {
                let interface = self.links.get(usize::from(link.0)).map(Link::name);
                warn!(
                    interface,
                    why, "the interface was made again and cannot be used"
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
                    if self.corruption_logged.now() {
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
            info!(interface, index, "the interface was made again: attached");
            let EndpointConfig {
                esp_ethertype,
                edp_ethertype,
                ..
            } = *self.leases.endpoint();
            for ethertype in [esp_ethertype, edp_ethertype] {
                match InterfaceClaim::take(interface, index, ethertype) {
                    Ok(claim) => self.claims().push(claim),
                    Err(error) => warn!(interface, %error, "two daemons serve the interface"),
                }
            }
        }
    }

    fn claims(&self) -> MutexGuard<'_, Vec<InterfaceClaim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a lease. Its ports are freed (drop) after the command.
    pub(crate) fn end_lease(&self, id: u64) {
        if let Some(lease) = self.leases.remove(id) {
            // A stopped engine has no sockets.
            let _ = self.send(Command::Unhold {
                link: lease.link,
                ports: lease.ports(),
                orphans: lease.orphans(),
            });
        }
    }

    /// Frees the ports that are reserved for programs that have ended. Returns true if there were
    /// any.
    pub(crate) fn free_ports_of_the_dead(&self) -> bool {
        let dead = self.leases.reserved_by_the_dead();
        dead.iter().for_each(|lease| self.end_lease(*lease));
        !dead.is_empty()
    }

    /// Refuses an incoming connection.
    pub(crate) fn refuse(&self, handle: ConnHandle) {
        self.stats.refused_incoming.add();
        let _ = self.send(Command::Refuse { handle });
    }

    /// Returns the engine's state, fetched after this call began.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Refusal> {
        let asked = Instant::now();
        let mut last = self.last_snapshot.lock().await;
        if let Some((taken, snapshot)) = last.as_ref() {
            if *taken >= asked {
                return Ok(Arc::clone(snapshot));
            }
            tokio::time::sleep_until((*taken + SNAPSHOT_PAUSE).into()).await;
        }
        let taken = Instant::now();
        let snapshot = Arc::new(self.request(|reply| Command::Snapshot { reply }).await?);
        *last = Some((taken, Arc::clone(&snapshot)));
        Ok(snapshot)
    }

    /// Returns the ring sizes granted for a request; 0 leaves a size to the daemon. The receive
    /// ring has at least `least_rx` bytes, whatever was requested or is allowed.
    pub(crate) fn grant(&self, wanted: Rings, least_rx: u32) -> Result<RingSizes, Refusal> {
        let one = |name: &str, wanted: u32| match wanted {
            0 => Ok(self.rings.default.0),
            size if size.is_power_of_two() && size >= MIN_RING => Ok(size.min(self.rings.max.0)),
            _ => Err(Refusal::bad_argument(format!(
                "invalid {name} ring of {wanted} bytes: expected a power of two from {MIN_RING} on, or 0 for \
                 the default"
            ))),
        };
        // Beyond 2^31 (impossible for an MTU) the check below refuses it.
        let least_rx = least_rx.checked_next_power_of_two().unwrap_or(u32::MAX);
        let sizes = RingSizes {
            tx: one("send", wanted.tx)?,
            rx: one("receive", wanted.rx)?.max(least_rx),
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
