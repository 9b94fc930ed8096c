//! The loop. One turn is: commands, frames in, doorbells, timers, what changed out to the programs,
//! frames out.
//!
//! Bounds of a turn: [`COMMANDS_PER_TURN`] commands; per link one batch of [`RX_BATCH`] frames of
//! each protocol and [`TX_BATCHES`] batches of [`TX_BATCH`] frames out; [`RECORDS_PER_BELL`]
//! datagrams per rung socket; one visit per rung stream. The endpoint bounds its own timers.

mod clients;
mod commands;
mod datagrams;
mod held;
mod hosted;
mod link;
mod links;
mod posted;
mod publish;
mod rails;
mod receive;
mod snapshot;
mod stats;
mod streams;
mod transmit;
mod wait;

use std::collections::HashMap;
use std::time::Duration;

use esp_proto::Instant;

use crate::clock::Clock;
use crate::command::{EngineEvent, ListenerId};
use crate::config::{EngineConfig, EngineError};
use crate::handle::{self, EngineHandle, Inbox};
use crate::shm::EnginePage;
use clients::{Clients, Object};
pub use hosted::{LeasedLink, LeasedSocket, Place};
use link::Link;
use links::Links;
use posted::Posted;
use stats::EngineStats;
use streams::Deadlines;
use wait::Waiter;

/// What a program that died left in its send rings may still be delivered for this long; then its
/// peers are reset.
pub const LINGER: Duration = Duration::from_millis(500);
/// A stream whose program closed it but whose peer never finishes is reset after this long without
/// being finished.
pub const ORPHAN_TIMEOUT: Duration = Duration::from_secs(60);

/// Frames taken from a link in one turn: enough to spread the cost of the system call, short enough
/// that the first frame's program does not wait long (64 × 1.4 µs).
const RX_BATCH: usize = 64;
/// Frames in one sendmmsg; measured: the gain ends between 16 and 32.
const TX_BATCH: usize = 32;
/// Batches sent per link and turn before looking at the receive side again.
const TX_BATCHES: usize = 4;
/// Commands taken in one turn.
const COMMANDS_PER_TURN: usize = 64;
/// Datagrams taken from one rung socket in one turn.
const RECORDS_PER_BELL: usize = 64;
/// Such visits to a socket that its program closed with datagrams in the ring.
const CLOSING_VISITS: usize = 16;
/// While the loop is busy, the datagram socket and link events are looked at only every so many
/// turns; when it sleeps, epoll tells.
const SIDE_INTERVAL: u32 = 16;
/// The same in a program: there the socket gets only answers to the engine's own queries, and the
/// look is the one system call of a turn that finds nothing.
const HOSTED_SIDE_INTERVAL: u32 = 256;
/// A program asks for the state of its leased links so often, if it has others to go over: of them
/// no event tells.
const LOOK_INTERVAL: esp_proto::Duration = esp_proto::Duration::from_millis(20);

/// Pause before frames are offered again that the kernel did not take.
const SEND_RETRY: Duration = Duration::from_micros(100);
/// A frame the device refuses for this long is given up, lest it hold up all others for ever: a
/// full device queue empties sooner, but a virtual cable whose other end has a smaller MTU says
/// "full" to each frame too long for it.
const SEND_PATIENCE: Duration = Duration::from_millis(5);

type EventSink = Box<dyn FnMut(EngineEvent) + Send>;

/// One loop over some links. Not `Clone`; lives on the thread that calls [`Engine::run`].
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
    monitor: Option<netif::LinkMonitor>,
    stats: EngineStats,
    /// Streams and sockets whose bell rang in this turn; kept to reuse its memory.
    rung: Vec<(usize, u16)>,
    turn: u32,
    side_interval: u32,
    /// Some connections may go over to another link.
    has_rails: bool,
    /// When leased links are looked at again.
    next_look: Instant,
    /// When [`Engine::poll`] was called last.
    last_poll: Instant,
    /// When it was last polled, pushed or woken.
    turned: Instant,
    stop: Option<crate::Reply<()>>,
}

impl Engine {
    /// Opens the sockets of all links. `events` is called on the thread that runs the engine.
    pub fn new(
        config: EngineConfig,
        events: EventSink,
    ) -> Result<(Engine, EngineHandle), EngineError> {
        if config.links.is_empty() {
            return Err(EngineError::NoLinks);
        }
        let EngineConfig {
            endpoint,
            links,
            socket,
            idle,
            held,
            pcap,
        } = config;
        let (mut engine, handle) = Engine::empty(idle, events)?;
        for interface in links {
            let mut seed = [0u8; 32];
            entropy(&mut seed)?;
            let link = Link::open(
                interface,
                endpoint.clone(),
                &socket,
                pcap.as_deref(),
                seed,
                handle.incarnation(),
            )?;
            let index = engine.links.add(link);
            if let Some(link) = engine.links.get(index) {
                engine
                    .waiter
                    .add_link(index, link)
                    .map_err(EngineError::system("watch a packet socket"))?;
            }
        }
        for (link, ports) in held {
            if let Some(link) = engine.links.get_mut(usize::from(link.0)) {
                let _ = link.hold(ports);
            }
        }
        engine.name_rails();
        // Without link events the loop still works: a lowered MTU then shows as refused frames.
        engine.monitor = netif::LinkMonitor::open().ok();
        if let Some(monitor) = &engine.monitor {
            engine
                .waiter
                .add_monitor(monitor)
                .map_err(EngineError::system("watch link events"))?;
        }
        Ok((engine, handle))
    }

    /// An engine without links.
    fn empty(
        idle: crate::config::IdleConfig,
        events: EventSink,
    ) -> Result<(Engine, EngineHandle), EngineError> {
        let mut random = [0u8; 8];
        entropy(&mut random)?;
        let incarnation = u64::from_le_bytes(random) | 1;
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
            monitor: None,
            stats: EngineStats::default(),
            rung: Vec::new(),
            turn: 0,
            side_interval: SIDE_INTERVAL,
            has_rails: false,
            next_look: Instant::ZERO,
            last_poll: Clock.now(),
            turned: Clock.now(),
            stop: None,
        };
        Ok((engine, handle))
    }

    /// Runs until [`crate::Command::Shutdown`], or until every handle is dropped.
    pub fn run(mut self) {
        self.waiter.pin();
        loop {
            let now = self.clock.now();
            let work = self.turn(now, None);
            if let Some(reply) = self.stop.take() {
                self.say_goodbye();
                reply(());
                return;
            }
            if work {
                self.waiter.worked(now);
                self.waiter.disarm(now, &self.links);
                continue;
            }
            if !self.idle(now) {
                return;
            }
        }
    }

    /// One turn; true if anything happened. `posted` is a buffer for a stream of the link with that
    /// index.
    fn turn(&mut self, now: Instant, mut posted: Option<(usize, &mut Posted<'_>)>) -> bool {
        self.turn = self.turn.wrapping_add(1);
        self.stats.turns += 1;
        let mut side = self.waiter.take_side() || self.turn.is_multiple_of(self.side_interval);
        let mut work = self.take_commands(now);
        if self.waiter.take_trouble() {
            self.links.iter_mut().for_each(Link::take_errors);
            // Perhaps its interface went down.
            side = true;
            self.next_look = Instant::ZERO;
        }
        for (index, link) in self.links.numbered_mut() {
            if link.standby && !side {
                continue;
            }
            let posted = posted
                .as_mut()
                .filter(|(of, _)| *of == index)
                .map(|(_, posted)| &mut **posted);
            work |= link.receive(now, side, posted);
        }
        if side {
            work |= self.link_events(now);
        }
        work |= self.answer_bells(now);
        work |= self.expire(now);
        self.wake_readers(now);
        let moves = self.move_connections(now);
        work |= moves;
        for index in 0..self.links.len() {
            // It has something to say only to what came in just now.
            if !side && !moves && self.links.get(index).is_some_and(|link| link.standby) {
                continue;
            }
            self.publish(index, now);
            self.publish_datagrams(index);
            if let Some(link) = self.links.get_mut(index) {
                work |= link.transmit(now);
                work |= link.receive_looped(now);
                work |= link.continue_datagrams();
            }
        }
        work
    }

    /// Timers of the endpoints and of streams without a program.
    /// True if a deadline had come: who waits looks again.
    fn expire(&mut self, now: Instant) -> bool {
        let mut any = false;
        for link in self.links.iter_mut() {
            any |= link.expire(now);
        }
        while let Some(handle) = self.deadlines.due(now) {
            any = true;
            if let Some(link) = self.links.get_mut(usize::from(handle.link.0)) {
                link.linger_over(now, handle.conn);
            }
        }
        any
    }

    /// Serves every stream and socket whose bell rang.
    fn answer_bells(&mut self, now: Instant) -> bool {
        let mut rung = std::mem::take(&mut self.rung);
        rung.clear();
        self.clients.drain_bells(&mut rung);
        for &(client, slot) in &rung {
            match self.clients.object(client, slot) {
                Object::Free => {} // rang after it was closed: harmless
                Object::Stream(handle) => {
                    if let Some(link) = self.links.get_mut(usize::from(handle.link.0)) {
                        link.serve_stream(now, handle.conn);
                    }
                }
                Object::Datagrams(at, port) => {
                    if let Some(link) = self.links.get_mut(usize::from(at.0)) {
                        link.serve_datagrams(port);
                    }
                }
            }
        }
        let any = !rung.is_empty();
        self.rung = rung;
        any
    }

    fn link_events(&mut self, now: Instant) -> bool {
        let Some(monitor) = &mut self.monitor else {
            return self.look_at_links(now);
        };
        let mut any = false;
        // An error of the socket is met again next time; the loop lives without link events.
        while let Ok(Some(event)) = monitor.next_event() {
            any = true;
            for (index, link) in self.links.numbered_mut() {
                if link.interface.index == event.index
                    && link.apply(now, &event)
                    && let Ok(index) = u16::try_from(index)
                {
                    let (up, mtu, gone) = link.condition();
                    (self.events)(EngineEvent::Link {
                        link: crate::LinkId(index),
                        up,
                        mtu,
                        gone,
                    });
                }
            }
        }
        any
    }

    /// What events tell an engine that hears them; one in a program looks, now and then, and only
    /// if it can do something about it.
    fn look_at_links(&mut self, now: Instant) -> bool {
        if !self.has_rails || now < self.next_look {
            return false;
        }
        self.next_look = now + LOOK_INTERVAL;
        let mut any = false;
        for link in self.links.iter_mut() {
            any |= link.look(now);
        }
        any
    }

    /// Waits for work: spin, yield, or block. False when there is nobody left to work for.
    fn idle(&mut self, now: Instant) -> bool {
        if self.waiter.stay_awake(now) {
            return true;
        }
        self.wake_readers(Instant::from_nanos(u64::MAX));
        let deadline = self.next_deadline();
        self.page.going_to_sleep();
        // Between the last look and the flag a program may have rung without waking us.
        let quiet = !self.clients.any_bell();
        if quiet {
            self.stats.sleeps += 1;
            self.waiter.arm(now, &self.links);
            self.waiter.block(now, deadline, &mut self.stats);
        }
        self.page.awake();
        true
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        let links = self
            .links
            .iter_mut()
            .filter_map(|link| link.endpoint.poll_timeout())
            .min();
        // Frames the kernel did not take: try again soon (a full device queue empties in tens of
        // µs).
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

    /// Resets every connection, sends that, tells the programs.
    fn say_goodbye(&mut self) {
        let now = self.clock.now();
        for link in self.links.iter_mut() {
            link.endpoint.shutdown_all(now);
        }
        // As many turns as a full table needs to get its RSTs out through full socket buffers,
        // bounded.
        for _ in 0..64 {
            let mut work = false;
            for index in 0..self.links.len() {
                self.publish(index, now);
                if let Some(link) = self.links.get_mut(index) {
                    work |= link.transmit(now);
                }
            }
            if !work {
                break;
            }
        }
        self.clients.daemon_gone();
    }
}

fn entropy(buffer: &mut [u8]) -> Result<(), EngineError> {
    getrandom::fill(buffer).map_err(|e| EngineError::System {
        what: "read random bytes",
        source: std::io::Error::other(e.to_string()),
    })
}
