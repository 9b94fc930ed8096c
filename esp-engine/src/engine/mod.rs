//! The event loop. One poll iteration executes commands, takes received frames, serves doorbells,
//! runs timers, publishes changes to the programs, and transmits frames. Each step is bounded by a
//! constant below; the endpoint bounds its own timers.

mod capture;
mod carrier;
mod clients;
mod commands;
mod datagrams;
mod embedded;
mod held;
mod link;
mod links;
mod posted;
mod protect;
mod publish;
mod rails;
mod receive;
mod resume;
mod snapshot;
mod stats;
mod streams;
mod transmit;
mod wait;

use std::collections::HashMap;
use std::time::Duration;

use esp_proto::Instant;

use crate::clock::Clock;
use crate::command::{EngineEvent, LinkId, ListenerId, Slot};
use crate::config::{EngineConfig, EngineError};
use crate::engine_set::{ADDRESSES, Member};
use crate::handle::{self, EngineHandle, Inbox};
use crate::shm::EnginePage;
use capture::Capture;
use clients::{Clients, Object};
pub use embedded::{ConnPath, LeasedLink, LeasedSocket};
use link::Link;
use links::Links;
use posted::{Posted, posted_of};
pub use protect::frame_mtu;
use snapshot::Snapshots;
use stats::EngineStats;
use streams::{Deadlines, Owner};
use wait::Waiter;

/// Time for which the send rings of a program that died are still transmitted. Then its peers are
/// reset.
pub const LINGER: Duration = Duration::from_millis(500);
/// Time after which a stream that its program has closed is reset if the peer never finishes.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of frames taken from a link in one iteration: enough to spread the cost of the
/// system call, few enough that the first frame's program does not wait long (64 × 1.4 µs).
const RX_BATCH: usize = 64;
/// Maximum number of frames to a link's own address that are received in one iteration. More wait
/// at their source, in the ring of a stream or datagram socket.
const LOOP_QUEUE: usize = RX_BATCH;
/// Maximum number of frames in one `sendmmsg`. Measured: the gain ends between 16 and 32.
const TX_BATCH: usize = 32;
/// [`TX_BATCH`] of the UDP carrier: the number of full packets at an MTU of 1500 that one segmented
/// buffer (64 KiB) holds.
const UDP_TX_BATCH: usize = 44;
/// Maximum number of batches transmitted per link before frames are received again.
const TX_BATCHES: usize = 4;
/// Maximum number of commands executed in one iteration.
const COMMANDS_PER_POLL: usize = 64;
/// Maximum number of datagrams taken from one socket for one doorbell.
const RECORDS_PER_DOORBELL: usize = 64;
/// Maximum number of such visits to a socket that its program has closed.
const CLOSING_VISITS: usize = 16;
/// Iterations between two polls of the datagram sockets and link states while the loop is busy.
/// When it sleeps, epoll reports them.
const SIDE_INTERVAL: u32 = 16;
/// [`SIDE_INTERVAL`] of an embedded engine. Its datagram socket receives only answers to the
/// engine's own queries, and polling it is the one system call of an idle iteration.
const EMBEDDED_SIDE_INTERVAL: u32 = 256;
/// Interval at which an embedded engine polls the state of its links, if connections can move
/// between them. It has no monitor of links.
const LINK_POLL_INTERVAL: esp_proto::Duration = esp_proto::Duration::from_millis(20);

/// Pause before frames that the kernel did not take are sent again.
const SEND_RETRY: Duration = Duration::from_micros(100);
/// Time after which a frame that the device refuses is dropped, because it delays all others. A
/// full device queue drains sooner, but a virtual cable whose other end has a smaller MTU reports
/// "full" for each frame that is too long.
const SEND_PATIENCE: Duration = Duration::from_millis(5);

/// Time for which the last frames before the end are offered to a device that refuses them: enough
/// to give up each frame of a batch.
const LAST_FRAMES_TIME: Duration = Duration::from_millis(50);

type EventSink = Box<dyn FnMut(EngineEvent) + Send>;

/// Event loop over a set of links. Runs on the thread that calls [`Engine::run`].
pub struct Engine {
    clock: Clock,
    links: Links,
    clients: Clients,
    listeners: HashMap<ListenerId, commands::Listener>,
    deadlines: Deadlines,
    inbox: Inbox,
    page: EnginePage,
    waiter: Waiter,
    events: EventSink,
    /// Options of the sockets of interfaces.
    socket: netif::SocketOptions,
    monitor: Option<netif::LinkMonitor>,
    capture: Option<Capture>,
    /// Place in a set of engines, if there are several.
    member: Option<Member>,
    snapshots: Snapshots,
    stats: EngineStats,
    iteration: u32,
    side_interval: u32,
    /// Connections of some link can move to another one.
    has_rails: bool,
    /// Time at which the links' states are polled next.
    next_link_poll: Instant,
    /// Start of the last [`Engine::poll`], or end of the last [`Engine::block`].
    last_poll: Instant,
    stop: Option<Stop>,
}

/// Request to end the loop.
struct Stop {
    /// Called at the end.
    reply: crate::Reply<()>,
    /// The connections are left to the next engine.
    keep: bool,
}

impl Engine {
    /// Opens the sockets of all links. `events` is called on the thread that runs the engine.
    ///
    /// # Errors
    /// No interface was given, a socket cannot be opened, or a system call failed.
    pub fn new(
        config: EngineConfig,
        events: EventSink,
    ) -> Result<(Engine, EngineHandle), EngineError> {
        if config.links.is_empty() {
            return Err(EngineError::NoLinks);
        }
        let EngineConfig {
            mut endpoint,
            links,
            socket,
            idle,
            held,
            secure,
            pcap,
            adoption,
            member,
        } = config;
        if secure.is_some() {
            endpoint.overhead = protect::OVERHEAD;
        }
        let incarnation = match &member {
            Some(member) => member.set.incarnation(),
            None => random()?,
        };
        let member = member.filter(|member| member.set.engines() > 1);
        let (mut engine, handle) = Engine::empty(incarnation, idle, events)?;
        engine.capture = pcap.as_deref().map(Capture::create).transpose()?;
        for (id, link) in (0..).map(LinkId).zip(links) {
            let endpoint = (endpoint.clone(), handle.incarnation());
            let member = member.clone().map(|member| (member, id));
            let capture = engine.capture.clone();
            let mut link = Link::open(link, endpoint, &socket, (member, capture))?;
            if let Some(secure) = &secure {
                link.protect(secure.clone())?;
            }
            engine.add_link(link)?;
        }
        (engine.socket, engine.member) = (socket, member);
        for (link, ports) in held {
            if let Some(link) = engine.links.get_mut(link) {
                let _ = link.hold(ports);
            }
        }
        engine.expect_resumptions(engine.clock.now() + adoption);
        // The loop works without a monitor; a lowered MTU then appears as refused frames.
        engine.monitor = netif::LinkMonitor::open().ok();
        if let Some(monitor) = &engine.monitor {
            engine
                .waiter
                .add_monitor(monitor)
                .map_err(EngineError::system("watch the interfaces"))?;
        }
        Ok((engine, handle))
    }

    /// Adds a link, which connections can move to and from.
    fn add_link(&mut self, link: Link) -> Result<LinkId, EngineError> {
        let id = self.links.add(link).ok_or(EngineError::NoLinks)?;
        if let Some(link) = self.links.get(id) {
            self.waiter
                .add_link(id, link)
                .map_err(EngineError::system("watch a packet socket"))?;
        }
        self.update_rails();
        Ok(id)
    }

    /// Creates an engine without links.
    fn empty(
        incarnation: u64,
        idle: crate::config::IdleConfig,
        events: EventSink,
    ) -> Result<(Engine, EngineHandle), EngineError> {
        let (page, page_fd) =
            EnginePage::create().map_err(EngineError::system("create the engine's page"))?;
        let (handle, inbox) = handle::channel(page_fd, incarnation)
            .map_err(EngineError::system("create an eventfd"))?;
        let mut waiter = Waiter::new(idle).map_err(EngineError::system("create an epoll set"))?;
        waiter
            .add_inbox(inbox.wake_fd())
            .map_err(EngineError::system("watch the command queue"))?;
        let engine = Engine {
            clock: Clock,
            links: Links::default(),
            clients: Clients::default(),
            listeners: HashMap::new(),
            deadlines: Deadlines::default(),
            inbox,
            page,
            waiter,
            events,
            socket: netif::SocketOptions::default(),
            monitor: None,
            capture: None,
            member: None,
            snapshots: Snapshots::default(),
            stats: EngineStats::default(),
            iteration: 0,
            side_interval: SIDE_INTERVAL,
            has_rails: false,
            next_link_poll: Instant::ZERO,
            last_poll: Clock.now(),
            stop: None,
        };
        Ok((engine, handle))
    }

    /// Runs until [`crate::Command::Shutdown`], or until every handle is dropped.
    pub fn run(mut self) {
        self.waiter.pin();
        loop {
            let now = self.clock.now();
            let work = self.poll_at(now, None);
            if let Some(Stop { reply, keep }) = self.stop.take() {
                if keep {
                    self.leave();
                } else {
                    self.shut_down();
                }
                reply(());
                return;
            }
            if work {
                self.waiter.worked(now);
                self.waiter.disarm(now, &self.links);
            } else if !self.waiter.stay_awake(now) {
                self.sleep(now, None);
            }
        }
    }

    /// Runs one iteration. Returns true if there was work. `posted` has a link's index and a buffer
    /// for one of its streams.
    fn poll_at(&mut self, now: Instant, mut posted: Option<(LinkId, &mut Posted<'_>)>) -> bool {
        self.iteration = self.iteration.wrapping_add(1);
        self.stats.polls += 1;
        let mut side = std::mem::take(&mut self.waiter.side)
            || self.iteration.is_multiple_of(self.side_interval);
        let mut work = self.take_commands(now) | self.take_looped(now);
        if std::mem::take(&mut self.waiter.socket_error) {
            self.links.iter_mut().for_each(|link| link.take_errors(now));
            // The interface may have gone down.
            side = true;
            self.next_link_poll = Instant::ZERO;
        }
        for (id, link) in self.links.numbered_mut() {
            if link.standby && !side {
                continue;
            }
            link.receiving = link.receive(now, side, posted_of(&mut posted, id));
            work |= link.receiving;
        }
        if side {
            work |= self.poll_link_states(now);
        }
        if let Some(event) = self.capture.as_ref().and_then(Capture::ended) {
            (self.events)(event);
        }
        work |= self.serve_doorbells(now);
        work |= self.expire(now);
        self.wake_readers(now, false);
        let moves = self.move_connections(now);
        work |= moves;
        self.clients.grant_visits();
        for id in self.links.numbers() {
            if !side && !moves && self.links.get(id).is_some_and(Link::rests) {
                continue;
            }
            self.publish(id, now);
            self.publish_datagrams(id);
            if let Some(link) = self.links.get_mut(id) {
                work |= link.transmit(now);
                work |= link.receive_loopback(now);
                work |= link.continue_datagrams(now, &mut self.clients);
            }
        }
        // Last, so that it shows the effect of the commands before it.
        work |= self.continue_snapshot();
        work
    }

    /// Receives frames to this node that other engines have sent. Returns true if there were any.
    fn take_looped(&mut self, now: Instant) -> bool {
        let Some(member) = &self.member else {
            return false;
        };
        let frames = member.take_looped(LOOP_QUEUE);
        let any = !frames.is_empty();
        for (link, frame) in frames {
            let Some(link) = self.links.get_mut(link) else {
                continue;
            };
            if member.owns(frame.get(ADDRESSES..).unwrap_or_default()) {
                link.receive_looped(now, frame);
            } else {
                // The port has been assigned to another engine since.
                link.stats.rx_other_engine += 1;
            }
        }
        any
    }

    /// Runs the timers of the endpoints, and those of streams without a program. Returns true if
    /// one expired.
    fn expire(&mut self, now: Instant) -> bool {
        let mut any = false;
        for link in self.links.iter_mut() {
            any |= link.expire(now);
        }
        while let Some(Owner { client, slot }) = self.deadlines.due(now) {
            any = true;
            if let Object::Stream(handle) = self.clients.object(client, slot)
                && let Some(link) = self.links.get_mut(handle.link)
            {
                let next = link.reset_lingering(now, handle.conn);
                self.deadlines.add(next);
            }
        }
        any
    }

    /// Serves streams and sockets whose doorbells rang, as many of each user as its visits allow.
    /// Returns true if there were any.
    fn serve_doorbells(&mut self, now: Instant) -> bool {
        let mut any = false;
        self.clients.grant_visits();
        for client in self.clients.order() {
            self.clients.collect_bells(client);
            while let Some(slot) = self.clients.next_bell(client) {
                any = true;
                self.serve_slot(now, client, slot);
            }
        }
        any
    }

    #[inline]
    fn serve_slot(&mut self, now: Instant, client: usize, slot: Slot) {
        match self.clients.object(client, slot) {
            Object::Free => {} // rang before it was closed: harmless
            Object::Stream(handle) => {
                if let Some(link) = self.links.get_mut(handle.link) {
                    link.serve_stream(now, handle.conn);
                }
            }
            Object::Datagrams(at, port) => {
                if let Some(link) = self.links.get_mut(at) {
                    link.serve_datagrams(now, port, &mut self.clients);
                }
            }
        }
    }

    /// Polls the states of the links: after a change of interfaces or, in an embedded engine, at
    /// intervals. Returns true if one has changed.
    fn poll_link_states(&mut self, now: Instant) -> bool {
        let due = match &mut self.monitor {
            Some(monitor) => monitor.changed(),
            None => self.has_rails && now >= self.next_link_poll,
        };
        if !due {
            return false;
        }
        self.next_link_poll = now + LINK_POLL_INTERVAL;
        let (mut any, mut other_links) = (false, false);
        for (id, link) in self.links.numbered_mut() {
            let before = link.endpoint.addr();
            let mut changed = link.poll_state(now);
            if link.gone {
                // Frames that remain in its sockets make them readable, and are not read.
                self.waiter.remove_link(link);
            }
            if link.gone && self.monitor.is_some() {
                let to = (&mut self.waiter, &mut self.events);
                let attached = attach_again((id, link), now, &self.socket, to);
                (changed, other_links) = (changed || attached, other_links || attached);
            }
            if changed {
                any = true;
                other_links |= before != link.endpoint.addr();
                (self.events)(EngineEvent::Link {
                    link: id,
                    condition: link.condition(),
                });
            }
        }
        if other_links {
            self.update_rails();
        }
        any
    }

    /// Blocks until there may be work or until the next deadline, at most until `until`.
    fn sleep(&mut self, now: Instant, until: Option<Instant>) {
        self.wake_readers(now, true);
        let deadline = [self.next_deadline(), until].into_iter().flatten().min();
        self.page.going_to_sleep();
        // A doorbell may have rung between the last poll and the flag, without a wake-up.
        if !self.clients.any_doorbell() {
            self.stats.sleeps += 1;
            self.waiter.arm(now, &self.links);
            self.waiter.block(now, deadline, &mut self.stats);
        }
        self.page.awake();
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        let links = self.links.iter_mut().filter_map(Link::poll_timeout).min();
        // Frames that the kernel refused are sent again soon: a full device queue drains in tens of
        // µs.
        let stuck = self
            .links
            .iter()
            .any(|link| !link.tx.is_empty())
            .then(|| self.clock.now() + SEND_RETRY);
        [links, self.deadlines.next(), stuck]
            .into_iter()
            .flatten()
            .min()
    }

    /// Resets every connection, transmits the resets and notifies the programs.
    fn shut_down(&mut self) {
        let now = self.clock.now();
        for link in self.links.iter_mut() {
            link.endpoint.shutdown_all(now);
        }
        let end = now + LAST_FRAMES_TIME;
        // Bounded by the iterations that the RSTs of a full table need with full socket buffers,
        // and by the time for which a device may refuse a frame.
        let mut rounds = 64;
        while rounds > 0 {
            let now = self.clock.now();
            let (mut work, mut refused) = (false, false);
            for id in self.links.numbers() {
                self.publish(id, now);
                if let Some(link) = self.links.get_mut(id) {
                    work |= link.transmit(now);
                    work |= link.receive_loopback(now);
                    refused |= !link.tx.is_empty();
                }
            }
            if work {
                rounds -= 1;
            } else if refused && now < end {
                std::thread::sleep(SEND_RETRY);
            } else {
                break;
            }
        }
        self.clients.daemon_gone();
    }

    /// Transmits the frames that are ready and ends, without resetting connections: the next engine
    /// resumes them.
    fn leave(&mut self) {
        let now = self.clock.now();
        self.poll_at(now, None);
        self.clients.daemon_gone();
    }
}

/// Attaches a link whose interface was removed and created again. Returns true if it was.
fn attach_again(
    (id, link): (LinkId, &mut Link),
    now: Instant,
    options: &netif::SocketOptions,
    (waiter, events): (&mut Waiter, &mut EventSink),
) -> bool {
    let attached = link.attach_again(now, options);
    if let Ok(true) = attached {
        // If this fails, the sockets are polled when the loop wakes for another reason.
        let _ = waiter.add_link(id, link);
    }
    attached.unwrap_or_else(|error| {
        let why = error.to_string();
        events(EngineEvent::NotAttached { link: id, why });
        false
    })
}

/// Returns an unpredictable number that is not 0, such as an incarnation.
///
/// # Errors
/// The system has no random numbers.
pub fn random() -> Result<u64, EngineError> {
    let mut random = [0u8; 8];
    entropy(&mut random)?;
    Ok(u64::from_le_bytes(random) | 1)
}

fn entropy(buffer: &mut [u8]) -> Result<(), EngineError> {
    getrandom::fill(buffer).map_err(|e| EngineError::System {
        what: "read random bytes",
        source: std::io::Error::other(e.to_string()),
    })
}
