//! The engine without a thread of its own: in a program that holds leased ports and drives it from
//! its own calls.
//!
//! [`Engine::poll`] does what is to be done now and never waits; [`Engine::block`] waits. Between
//! two calls nothing happens: frames wait in the socket, deadlines pass. After an absence frames
//! are taken before timers run, so that an acknowledgement that came in time counts as such.

use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};

use esp_proto::{EndpointConfig, Instant, MacAddr, Port};
use netif::{PacketSocket, RecvRing, RingShape};

use super::clients::Object;
use super::link::{Link, Sockets};
use super::posted::Posted;
use super::receive::Source;
use super::streams::joined_mut;
use super::{Engine, HOSTED_SIDE_INTERVAL, RX_BATCH, entropy};
use crate::command::{ConnHandle, LinkId, Slot};
use crate::config::{EngineError, IdleConfig};
use crate::handle::EngineHandle;

/// Nobody drove the engine for this long: it catches up.
const ABSENCE_NANOS: u64 = 2_000_000;
/// Batches taken then before timers run; more than a receive buffer holds.
const CATCH_UP: usize = 16384 / RX_BATCH;

/// Sockets that somebody else opened, filtered and locked for certain ports of an interface, and
/// what belongs to them.
#[derive(Debug)]
pub struct LeasedLink {
    /// Interface name, for people.
    pub interface: String,
    /// Its address.
    pub mac: MacAddr,
    /// Bytes behind the EtherType.
    pub mtu: u32,
    /// Protocol constants.
    pub endpoint: EndpointConfig,
    /// Random number of the node's service, for INFO_REPLY.
    pub incarnation: u64,
    /// The ports whose frames its sockets get.
    pub ports: RangeInclusive<Port>,
    /// Connections come here only from other links with these ports, when theirs fail.
    pub standby: bool,
    /// Packet socket of the stream protocol.
    pub esp: LeasedSocket,
    /// Packet socket of the datagram protocol.
    pub edp: LeasedSocket,
}

/// A packet socket that somebody else opened.
#[derive(Debug)]
pub struct LeasedSocket {
    /// It.
    pub socket: OwnedFd,
    /// The receive ring it was opened with, if any; or, of a spare, the one that
    /// [`LeasedSocket::make_ring`] makes.
    pub ring: Option<RingShape>,
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The link it runs over.
    pub link: LinkId,
    /// The address its peer has there.
    pub peer: MacAddr,
    /// The number by which the peer takes a reset, never 0.
    pub nonce: u64,
}

impl Engine {
    /// An engine without links and without a thread; see [`Engine::add_leased`].
    pub fn hosted(
        idle: IdleConfig,
        events: super::EventSink,
    ) -> Result<(Engine, EngineHandle), EngineError> {
        let (mut engine, handle) = Engine::empty(idle, events)?;
        engine.side_interval = HOSTED_SIDE_INTERVAL;
        Ok((engine, handle))
    }

    /// Speaks on leased sockets from now on.
    pub fn add_leased(&mut self, leased: LeasedLink) -> Result<LinkId, EngineError> {
        let mut seed = [0u8; 32];
        entropy(&mut seed)?;
        let LeasedLink {
            interface,
            mac,
            mtu,
            endpoint,
            incarnation,
            ports,
            standby,
            esp,
            edp,
        } = leased;
        let sockets = (esp.take_over()?, edp.take_over()?);
        let interface = netif::Interface::described(interface, mac.octets(), mtu);
        let mut link = Link::new(interface, endpoint, sockets, None, seed, incarnation);
        (link.ports, link.standby) = (ports, standby);
        let index = self.links.add(link);
        let number = u16::try_from(index).map_err(|_| EngineError::NoLinks)?;
        if let Some(link) = self.links.get(index) {
            self.waiter
                .add_link(index, link)
                .map_err(EngineError::system("watch a packet socket"))?;
        }
        self.name_rails();
        Ok(LinkId(number))
    }

    /// Lets go of a leased link's sockets. False while it has connections, or others have that
    /// might go over to it; those in TIME-WAIT do not count.
    pub fn remove_leased(&mut self, link: LinkId) -> bool {
        let index = usize::from(link.0);
        let Some(found) = self.links.get(index) else {
            return true;
        };
        let may_come = |other: &Link| found.ports.contains(other.ports.start());
        let has_any = |other: &Link| other.streams.iter().any(Option::is_some);
        if self
            .links
            .iter()
            .any(|other| may_come(other) && has_any(other))
            || !found.tx.is_empty()
        {
            return false;
        }
        self.waiter.remove_link(found);
        self.links.take(index);
        self.deadlines.forget(link);
        self.name_rails();
        true
    }

    /// Binds the spare sockets of a leased link as its sockets are bound, and takes those from now
    /// on: without the node's daemon the first ones may get no frames any more. What waits in these
    /// is taken first; what came in through both is sorted out as any duplicate is.
    pub fn use_spares(
        &mut self,
        link: LinkId,
        esp: LeasedSocket,
        edp: LeasedSocket,
    ) -> Result<(), EngineError> {
        let index = usize::from(link.0);
        let found = self.links.get_mut(index).ok_or(EngineError::NoLinks)?;
        let sockets = (
            esp.bind_like(found.esp_socket())?,
            edp.bind_like(found.edp_socket())?,
        );
        self.take_sockets(index, sockets)
    }

    /// Other sockets for the ports of a leased link. What waits in the old ones is taken first;
    /// what came in through both is sorted out as any duplicate is.
    pub fn replace_leased(
        &mut self,
        link: LinkId,
        esp: LeasedSocket,
        edp: LeasedSocket,
    ) -> Result<(), EngineError> {
        self.take_sockets(usize::from(link.0), (esp.take_over()?, edp.take_over()?))
    }

    /// Behind the last frame that waits in the ones it has.
    fn take_sockets(&mut self, index: usize, sockets: Sockets) -> Result<(), EngineError> {
        let found = self.links.get_mut(index).ok_or(EngineError::NoLinks)?;
        let now = self.clock.now();
        for _ in 0..CATCH_UP {
            if !found.receive(now, true, None) {
                break;
            }
        }
        self.waiter.remove_link(found);
        found.replace_sockets(sockets);
        self.waiter
            .add_link(index, found)
            .map_err(EngineError::system("watch a packet socket"))
    }

    /// Resets every connection of a leased link with `Shutdown`, ends its listeners, and takes no
    /// frame from its sockets any more: its ports may be somebody else's from now on. The next
    /// turns say so to peers and program; then [`Engine::remove_leased`].
    pub fn give_up_leased(&mut self, link: LinkId) {
        let now = self.clock.now();
        if let Some(found) = self.links.get_mut(usize::from(link.0)) {
            found.endpoint.shutdown_all(now);
            found.stop_hearing();
            self.waiter.remove_link(found);
        }
        self.name_rails();
    }

    /// Does what is to be done now: commands, frames in, doorbells, timers, frames out. True if
    /// anything happened.
    pub fn poll(&mut self) -> bool {
        self.poll_posted(None)
    }

    /// The same with a buffer for a stream of the first program, by its slot: what comes in order
    /// goes there first, and by way of the ring only what finds no room. The number is that of the
    /// bytes in the buffer; the ring counts them as delivered, so the program now
    /// [consumes](crate::shm::RxConsumer::consume) as many. None are while the ring has bytes that
    /// nobody has read.
    pub fn poll_into(&mut self, slot: Slot, buffer: &mut [u8]) -> (bool, usize) {
        let Some(handle) = self.stream_at(slot) else {
            return (self.poll(), 0);
        };
        let index = usize::from(handle.link.0);
        let joined = self
            .links
            .get_mut(index)
            .and_then(|link| joined_mut(&mut link.streams, handle.conn));
        let start = joined.and_then(|joined| {
            joined.rx.poll_consumed().ok()?;
            (joined.rx.unread() == 0).then(|| joined.rx.put_total())
        });
        let Some(start) = start else {
            return (self.poll(), 0);
        };
        let mut posted = Posted::new(handle.conn, start, buffer);
        let work = self.poll_posted(Some((index, &mut posted)));
        (work, posted.filled())
    }

    fn poll_posted(&mut self, mut posted: Option<(usize, &mut Posted<'_>)>) -> bool {
        let now = self.clock.now();
        let absent = now.as_nanos().saturating_sub(self.last_poll.as_nanos()) > ABSENCE_NANOS;
        let mut work = false;
        if absent {
            for (index, link) in self.links.numbered_mut() {
                for _ in 0..CATCH_UP {
                    let posted = posted
                        .as_mut()
                        .filter(|(of, _)| *of == index)
                        .map(|(_, posted)| &mut **posted);
                    if !link.receive(now, true, posted) {
                        break;
                    }
                    work = true;
                }
            }
        }
        (self.last_poll, self.turned) = (now, now);
        self.waiter.disarm(now, &self.links);
        work | self.turn(now, posted)
    }

    /// When the last [`Engine::poll`] or [`Engine::push`] began or the last [`Engine::block`]
    /// ended: who only wants to know about now need not ask the clock.
    pub fn turned(&self) -> Instant {
        self.turned
    }

    /// Sends what the program wrote, without looking for frames first.
    pub fn push(&mut self) -> bool {
        let now = self.clock.now();
        self.turned = now;
        let mut work = self.answer_bells(now);
        for index in 0..self.links.len() {
            if let Some(link) = self.links.get_mut(index)
                && !link.standby
            {
                work |= link.transmit(now);
            }
        }
        work
    }

    /// Returns true while bytes of the first program's stream in this slot wait for the windows or
    /// for the socket, as of the last poll.
    #[inline]
    pub fn has_unsent(&self, slot: Slot) -> bool {
        self.stream_at(slot).is_some_and(|handle| {
            let link = self.links.get(usize::from(handle.link.0));
            link.is_some_and(|link| !link.tx.is_empty() || link.endpoint.has_unsent(handle.conn))
        })
    }

    /// Returns true while bytes of any stream wait for the windows or for the socket.
    pub fn any_unsent(&self) -> bool {
        self.links
            .iter()
            .any(|link| !link.tx.is_empty() || link.endpoint.any_unsent())
    }

    /// Waits for a frame, a doorbell, a command or the engine's next deadline, at most until
    /// `until` (of [`crate::Clock`]). Returns at once when a doorbell rang already.
    /// [`Engine::poll`] then does the work.
    pub fn block(&mut self, until: Option<Instant>) {
        let now = self.clock.now();
        self.wake_readers(Instant::from_nanos(u64::MAX));
        let deadline = [self.next_deadline(), until].into_iter().flatten().min();
        self.page.going_to_sleep();
        if !self.clients.any_bell() {
            self.stats.sleeps += 1;
            self.waiter.arm(now, &self.links);
            self.waiter.block(now, deadline, &mut self.stats);
        }
        self.page.awake();
        self.last_poll = self.clock.now();
        self.turned = self.last_poll;
        if self.has_rails && self.last_poll >= self.next_look {
            self.waiter.want_side();
        }
    }

    /// Readable when [`Engine::block`] would return at once, but for its deadline
    /// ([`Engine::deadline`]). Only poll it, and only behind [`Engine::watch`]; what made it
    /// readable may stay so until [`Engine::collect`].
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.waiter.fd()
    }

    /// Somebody is about to sleep on [`Engine::wait_fd`], until `watch(false)`. While nobody does,
    /// frames of streams do not make it readable in a program that only polls.
    pub fn watch(&mut self, watch: bool) {
        self.waiter.watched(watch);
        if watch {
            self.arm();
        }
    }

    /// Whether a caller of [`Engine::watch`] sleeps on [`Engine::wait_fd`].
    pub fn is_watched(&self) -> bool {
        self.waiter.is_watched()
    }

    /// Makes frames of streams end a sleep on [`Engine::wait_fd`], until the engine is polled again
    /// more than a millisecond later.
    pub fn arm(&mut self) {
        let now = self.clock.now();
        self.waiter.arm(now, &self.links);
    }

    /// When [`Engine::poll`] has to be called again, whatever happens.
    pub fn deadline(&mut self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Hears what there is, without waiting: true if there was anything. [`Engine::poll`] then does
    /// the work.
    pub fn collect(&mut self) -> bool {
        let now = self.clock.now();
        self.waiter.block(now, Some(now), &mut self.stats)
    }

    /// Where the first program's stream is in this slot, and the number by which its peer takes a
    /// reset (W-57); `None` while that is not known.
    pub fn place_of(&self, slot: Slot) -> Option<Place> {
        let ConnHandle { link, conn } = self.stream_at(slot)?;
        let endpoint = &self.links.get(usize::from(link.0))?.endpoint;
        let (peer, nonce) = (endpoint.peer_of(conn)?, endpoint.peer_nonce(conn));
        (nonce != 0).then_some(Place { link, peer, nonce })
    }

    /// A stream of the first program, which is the only one of a hosted engine. It may have another
    /// name since the last turn.
    #[inline]
    fn stream_at(&self, slot: Slot) -> Option<ConnHandle> {
        match self.clients.object(0, slot) {
            Object::Stream(handle) => Some(handle),
            _ => None,
        }
    }
}

impl LeasedSocket {
    fn take_over(self) -> Result<Source, EngineError> {
        let taken = || {
            let socket = PacketSocket::from_fd(self.socket)?;
            let ring = self
                .ring
                .map(|shape| RecvRing::map(&socket, shape))
                .transpose()?;
            Ok(Source { socket, ring })
        };
        taken().map_err(EngineError::system("take a leased socket over"))
    }

    /// Of a spare.
    fn bind_like(self, other: &PacketSocket) -> Result<Source, EngineError> {
        let source = self.take_over()?;
        source
            .socket
            .bind_like(other)
            .map_err(EngineError::system("bind a spare socket"))?;
        Ok(source)
    }

    /// Gives a spare its ring: it takes memory, so only before [`Engine::use_spares`]; and the
    /// kernel takes some 15 ms, so not within.
    pub fn make_ring(&self) -> std::io::Result<()> {
        let Some(shape) = self.ring else {
            return Ok(());
        };
        PacketSocket::from_fd(self.socket.try_clone()?)?.set_ring(shape)
    }
}
