//! The engine without a thread: in a program that holds leased ports and drives it from its own
//! calls.
//!
//! [`Engine::poll`] does the work that is due and never waits; [`Engine::block`] waits. Between two
//! calls nothing runs: frames wait in the socket, timers are late. After an absence frames are
//! received before timers run, so that an acknowledgement that arrived in time prevents its
//! retransmission.

use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};

use esp_proto::{EndpointConfig, Instant, MacAddr, Port};
use netif::{PacketSocket, RecvRing, RingShape};

use super::clients::Object;
use super::link::{Link, Sockets};
use super::posted::Posted;
use super::receive::Source;
use super::streams::joined_mut;
use super::{EMBEDDED_SIDE_INTERVAL, Engine, RX_BATCH, entropy};
use crate::command::{ConnHandle, LinkId, Slot};
use crate::config::{EngineError, IdleConfig};
use crate::handle::EngineHandle;

/// Absence of polls after which received frames are taken before timers run.
const ABSENCE_NANOS: u64 = 2_000_000;
/// Maximum number of batches taken after an absence; more than a receive buffer holds.
const CATCH_UP: usize = 16384 / RX_BATCH;

/// Sockets that the daemon opened, filtered and locked for certain ports of an interface.
#[derive(Debug)]
pub struct LeasedLink {
    /// Interface name, for messages.
    pub interface: String,
    /// Its address.
    pub mac: MacAddr,
    /// Bytes after the EtherType.
    pub mtu: u32,
    /// Protocol constants.
    pub endpoint: EndpointConfig,
    /// Random number of the node's daemon, for INFO_REPLY.
    pub incarnation: u64,
    /// Ports whose frames its sockets receive.
    pub ports: RangeInclusive<Port>,
    /// Carries only connections that move here from another link with these ports.
    pub standby: bool,
    /// Packet socket of the stream protocol.
    pub esp: LeasedSocket,
    /// Packet socket of the datagram protocol.
    pub edp: LeasedSocket,
}

/// A packet socket that the daemon opened.
#[derive(Debug)]
pub struct LeasedSocket {
    /// The packet socket.
    pub socket: OwnedFd,
    /// Receive ring that it was opened with, if any. For a spare socket, the ring that
    /// [`LeasedSocket::make_ring`] creates.
    pub ring: Option<RingShape>,
}

/// Link and peer address of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Link that it runs over.
    pub link: LinkId,
    /// Address of the peer on that link.
    pub peer: MacAddr,
    /// Nonce with which the peer accepts a reset, never 0.
    pub nonce: u64,
}

impl Engine {
    /// Creates an engine without links and without a thread. Links are added by
    /// [`Engine::add_leased`].
    pub fn embedded(
        idle: IdleConfig,
        events: super::EventSink,
    ) -> Result<(Engine, EngineHandle), EngineError> {
        let (mut engine, handle) = Engine::empty(idle, events)?;
        engine.side_interval = EMBEDDED_SIDE_INTERVAL;
        Ok((engine, handle))
    }

    /// Adds a link over leased sockets.
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

    /// Removes a leased link. Returns false, without effect, while it has connections or
    /// connections of other links could move to it. Connections in TIME-WAIT do not count.
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

    /// Replaces a leased link's sockets by its spare ones, which it binds alike: without the node's
    /// daemon the first ones may receive no more frames. Frames waiting in the old sockets are
    /// taken first; frames received through both are handled as duplicates.
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

    /// Replaces the sockets of a leased link. Frames waiting in the old ones are taken first;
    /// frames received through both are handled as duplicates.
    pub fn replace_leased(
        &mut self,
        link: LinkId,
        esp: LeasedSocket,
        edp: LeasedSocket,
    ) -> Result<(), EngineError> {
        self.take_sockets(usize::from(link.0), (esp.take_over()?, edp.take_over()?))
    }

    /// Replaces a link's sockets after taking the frames that wait in the old ones.
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

    /// Resets every connection of a leased link with `Shutdown`, ends its listeners, and receives
    /// no frames from its sockets any more, because another process may use its ports from now on.
    /// Later polls transmit the resets and notify the program; then call [`Engine::remove_leased`].
    pub fn give_up_leased(&mut self, link: LinkId) {
        let now = self.clock.now();
        if let Some(found) = self.links.get_mut(usize::from(link.0)) {
            found.endpoint.shutdown_all(now);
            found.stop_receiving();
            self.waiter.remove_link(found);
        }
        self.name_rails();
    }

    /// Runs one poll iteration: commands, received frames, doorbells, timers, transmission. Returns
    /// true if there was work.
    pub fn poll(&mut self) -> bool {
        self.poll_posted(None)
    }

    /// Polls with a buffer for a stream, by its slot. Bytes received in order are copied to the
    /// buffer first; only bytes beyond it go to the ring. Returns whether there was work, and the
    /// number of bytes in the buffer. The ring counts these as delivered, so the program now
    /// [consumes](crate::shm::RxConsumer::consume) as many. The buffer is not used while the ring
    /// has unread bytes.
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
        (self.last_poll, self.polled_at) = (now, now);
        self.waiter.disarm(now, &self.links);
        work | self.poll_at(now, posted)
    }

    /// Returns the start of the last poll, or the end of the last [`Engine::block`]: the present
    /// time without reading the clock.
    pub fn polled_at(&self) -> Instant {
        self.polled_at
    }

    /// Serves doorbells and transmits, without receiving frames. Returns true if there was work.
    pub fn poll_doorbells(&mut self) -> bool {
        let now = self.clock.now();
        self.polled_at = now;
        let mut work = self.serve_doorbells(now);
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
    /// `until` (of [`crate::Clock`]). Returns at once if a doorbell has rung already.
    /// [`Engine::poll`] then does the work.
    pub fn block(&mut self, until: Option<Instant>) {
        let now = self.clock.now();
        self.wake_readers(Instant::from_nanos(u64::MAX));
        let deadline = [self.next_deadline(), until].into_iter().flatten().min();
        self.page.going_to_sleep();
        if !self.clients.any_doorbell() {
            self.stats.sleeps += 1;
            self.waiter.arm(now, &self.links);
            self.waiter.block(now, deadline, &mut self.stats);
        }
        self.page.awake();
        self.last_poll = self.clock.now();
        self.polled_at = self.last_poll;
        if self.has_rails && self.last_poll >= self.next_link_poll {
            self.waiter.want_side();
        }
    }

    /// Returns a descriptor that is readable when [`Engine::block`] would return at once for
    /// another reason than its deadline ([`Engine::deadline`]). Only poll it, and only after
    /// [`Engine::watch`]; it may stay readable until [`Engine::collect`].
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.waiter.fd()
    }

    /// Sets whether a caller sleeps on [`Engine::wait_fd`]. Otherwise frames of streams do not make
    /// it readable in a program that only polls.
    pub fn watch(&mut self, watch: bool) {
        self.waiter.watched(watch);
        if watch {
            self.arm();
        }
    }

    /// Returns whether a caller of [`Engine::watch`] sleeps on [`Engine::wait_fd`].
    pub fn is_watched(&self) -> bool {
        self.waiter.is_watched()
    }

    /// Makes frames of streams end a sleep on [`Engine::wait_fd`], until the engine is polled again
    /// more than a millisecond later.
    pub fn arm(&mut self) {
        let now = self.clock.now();
        self.waiter.arm(now, &self.links);
    }

    /// Returns the time at which [`Engine::poll`] must be called again at the latest.
    pub fn deadline(&mut self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Collects pending epoll events without waiting. Returns true if there were any.
    /// [`Engine::poll`] then does the work.
    pub fn collect(&mut self) -> bool {
        let now = self.clock.now();
        self.waiter.block(now, Some(now), &mut self.stats)
    }

    /// Returns where the stream in this slot runs, and the nonce with which its peer accepts a
    /// reset (W-57). `None` while that is not known.
    pub fn place_of(&self, slot: Slot) -> Option<Place> {
        let ConnHandle { link, conn } = self.stream_at(slot)?;
        let endpoint = &self.links.get(usize::from(link.0))?.endpoint;
        let (peer, nonce) = (endpoint.peer_of(conn)?, endpoint.peer_nonce(conn));
        (nonce != 0).then_some(Place { link, peer, nonce })
    }

    /// Returns the connection in a slot of the program, which is the only one of an embedded
    /// engine. A move changes it.
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

    /// Takes over a spare socket and binds it like `other`.
    fn bind_like(self, other: &PacketSocket) -> Result<Source, EngineError> {
        let source = self.take_over()?;
        source
            .socket
            .bind_like(other)
            .map_err(EngineError::system("bind a spare socket"))?;
        Ok(source)
    }

    /// Creates the receive ring of a spare socket. That takes memory and some 15 ms, so it is done
    /// before [`Engine::use_spares`].
    pub fn make_ring(&self) -> std::io::Result<()> {
        let Some(shape) = self.ring else {
            return Ok(());
        };
        PacketSocket::from_fd(self.socket.try_clone()?)?.set_ring(shape)
    }
}
