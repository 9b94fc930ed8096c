//! The embedded engine: without a thread, polled by a program that has leased ports.
//!
//! Between two calls nothing runs: frames wait in the socket and timers are late. After a pause,
//! frames are received before timers run, so that an acknowledgement that arrived in time prevents
//! a retransmission.

use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};

use esp_proto::secure::{SecureConfig, SecureCounters};
use esp_proto::{Duration, EndpointConfig, Instant, MacAddr, NodeAddr, Port};
use netif::{PacketSocket, RecvRing, RingShape};

use super::carrier::{Carrier, Sockets, Source};
use super::clients::Object;
use super::link::Link;
use super::posted::{Posted, posted_of};
use super::protect::OVERHEAD;
use super::streams::joined_mut;
use super::{EMBEDDED_SIDE_INTERVAL, Engine, LINK_POLL_INTERVAL, RX_BATCH, random};
use crate::command::{ConnHandle, LinkId, Slot};
use crate::config::{EngineError, IdleConfig};
use crate::handle::EngineHandle;
use crate::udp::UdpLink;

/// Pause between polls after which all received frames are taken before timers run.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum number of batches taken after such a pause; more than a receive buffer holds.
const CATCH_UP: usize = 16384 / RX_BATCH;

/// Sockets that the daemon opened for certain ports of an interface. Their filters are locked.
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
    /// Incarnation of the node's daemon, for INFO_REPLY.
    pub incarnation: u64,
    /// Ports whose frames the sockets receive.
    pub ports: RangeInclusive<Port>,
    /// The link carries only connections that move here from another link with these ports.
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
    /// Its receive ring, if any. [`LeasedSocket::make_ring`] creates that of a spare socket.
    pub ring: Option<RingShape>,
}

/// Path of a connection: its link and the peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnPath {
    /// Link that it runs over.
    pub link: LinkId,
    /// Address of the peer on that link.
    pub peer: NodeAddr,
    /// Nonce with which the peer accepts a reset (W-57), never 0.
    pub nonce: u64,
}

impl Engine {
    /// Creates an engine without links, for a caller that polls it.
    ///
    /// # Errors
    /// A system call failed.
    pub fn embedded(
        idle: IdleConfig,
        events: super::EventSink,
    ) -> Result<(Engine, EngineHandle), EngineError> {
        let (mut engine, handle) = Engine::empty(random()?, idle, events)?;
        engine.side_interval = EMBEDDED_SIDE_INTERVAL;
        Ok((engine, handle))
    }

    /// Adds a link over leased sockets.
    ///
    /// # Errors
    /// A system call failed, or there are 65536 links.
    pub fn add_leased(&mut self, leased: LeasedLink) -> Result<LinkId, EngineError> {
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
        let carrier = Carrier::ethernet(sockets, mtu);
        let addr = NodeAddr::Mac(mac);
        let mut link = Link::new((interface, addr), (endpoint, incarnation), carrier)?;
        (link.ports, link.standby) = (ports, standby);
        self.add_link(link)
    }

    /// Adds a link over a UDP socket of this program, whose packets are protected if `secure` is
    /// given.
    ///
    /// # Errors
    /// A system call failed, or there are 65536 links.
    pub fn add_udp(
        &mut self,
        link: UdpLink,
        mut endpoint: EndpointConfig,
        incarnation: u64,
        secure: Option<SecureConfig>,
    ) -> Result<LinkId, EngineError> {
        if secure.is_some() {
            endpoint.overhead = OVERHEAD;
        }
        let addr = link.addr();
        let UdpLink { interface, socket } = link;
        let carrier = Carrier::udp(socket, Vec::new());
        let mut link = Link::new((interface, addr), (endpoint, incarnation), carrier)?;
        link.standby = true;
        if let Some(secure) = secure {
            link.protect(secure)?;
        }
        self.add_link(link)
    }

    /// Returns the counters of each protected link.
    pub fn secure_counters(&self) -> Vec<SecureCounters> {
        let layers = self.links.iter().filter_map(|link| link.secure.as_ref());
        layers.map(|layer| *layer.counters()).collect()
    }

    /// Removes a leased link. Returns false, without effect, while it has connections, or while
    /// connections of other links can move to it. Connections in TIME-WAIT do not count.
    pub fn remove_leased(&mut self, link: LinkId) -> bool {
        let Some(found) = self.links.get(link) else {
            return true;
        };
        let may_move = |other: &Link| found.ports.contains(other.ports.start());
        let has_any = |other: &Link| other.streams.iter().any(Option::is_some);
        let in_use = |other: &Link| may_move(other) && has_any(other);
        if self.links.iter().any(in_use) || !found.tx.is_empty() {
            return false;
        }
        self.waiter.remove_link(found);
        self.links.take(link);
        self.update_rails();
        true
    }

    /// Replaces the sockets of a leased link with spare ones, bound like the old ones, which may
    /// receive no more frames once the daemon has ended. Frames waiting in the old sockets are
    /// taken first; frames received through both are handled as duplicates.
    ///
    /// # Errors
    /// The link does not exist, or a system call failed.
    pub fn use_spares(
        &mut self,
        link: LinkId,
        esp: LeasedSocket,
        edp: LeasedSocket,
    ) -> Result<(), EngineError> {
        let found = self.links.get_mut(link).ok_or(EngineError::NoLinks)?;
        let bound = found.carrier.packet_sockets();
        let [old_esp, old_edp] = bound.ok_or(EngineError::NoLinks)?;
        let sockets = (esp.bind_like(old_esp)?, edp.bind_like(old_edp)?);
        self.take_sockets(link, sockets)
    }

    /// Replaces the sockets of a leased link with bound ones, as [`Engine::use_spares`] does.
    ///
    /// # Errors
    /// The link does not exist, or a system call failed.
    pub fn replace_leased(
        &mut self,
        link: LinkId,
        esp: LeasedSocket,
        edp: LeasedSocket,
    ) -> Result<(), EngineError> {
        self.take_sockets(link, (esp.take_over()?, edp.take_over()?))
    }

    /// Replaces a link's sockets after taking the frames that wait in the old ones.
    fn take_sockets(&mut self, link: LinkId, sockets: Sockets) -> Result<(), EngineError> {
        let found = self.links.get_mut(link).ok_or(EngineError::NoLinks)?;
        let now = self.clock.now();
        for _ in 0..CATCH_UP {
            if !found.receive(now, true, None) {
                break;
            }
        }
        self.waiter.remove_link(found);
        found.carrier.replace_sockets(sockets);
        self.waiter
            .add_link(link, found)
            .map_err(EngineError::system("watch a packet socket"))
    }

    /// Resets every connection of a leased link with `Shutdown`, ends its listeners, and stops
    /// receiving, because another process may use the ports from now on. Later polls transmit the
    /// resets and notify the program; then call [`Engine::remove_leased`].
    pub fn give_up_leased(&mut self, link: LinkId) {
        let now = self.clock.now();
        if let Some(found) = self.links.get_mut(link) {
            found.endpoint.shutdown_all(now);
            found.gone = true;
            self.waiter.remove_link(found);
        }
        self.update_rails();
    }

    /// Runs one poll iteration: commands, received frames, doorbells, timers, transmission. Returns
    /// true if there was work.
    pub fn poll(&mut self) -> bool {
        self.poll_posted(None)
    }

    /// Runs one poll iteration that receives over every link, including those without a connection.
    /// Returns true if there was work.
    pub fn poll_all_links(&mut self) -> bool {
        self.waiter.side = true;
        self.poll_posted(None)
    }

    /// Polls with a buffer for the stream in a slot. Bytes received in order are copied to the
    /// buffer first, later ones to the ring. Returns whether there was work, and the number of
    /// bytes in the buffer. The ring counts these as delivered, so the caller must
    /// [consume](crate::shm::RxConsumer::consume) as many. The buffer is not used while the ring
    /// has unread bytes.
    pub fn poll_into(&mut self, slot: Slot, buffer: &mut [u8]) -> (bool, usize) {
        let Some(handle) = self.stream_at(slot) else {
            return (self.poll(), 0);
        };
        let joined = self
            .links
            .get_mut(handle.link)
            .and_then(|link| joined_mut(&mut link.streams, handle.conn));
        let start = joined.and_then(|joined| {
            joined.rx.poll_consumed().ok()?;
            (joined.rx.unread() == 0).then(|| joined.rx.put_total())
        });
        let Some(start) = start else {
            return (self.poll(), 0);
        };
        let mut posted = Posted::new(handle.conn, start, buffer);
        let work = self.poll_posted(Some((handle.link, &mut posted)));
        (work, posted.filled())
    }

    fn poll_posted(&mut self, mut posted: Option<(LinkId, &mut Posted<'_>)>) -> bool {
        let now = self.clock.now();
        let mut work = false;
        if now.since(self.last_poll) > PAUSE {
            for (id, link) in self.links.numbered_mut() {
                for _ in 0..CATCH_UP {
                    if !link.receive(now, true, posted_of(&mut posted, id)) {
                        break;
                    }
                    work = true;
                }
            }
        }
        // Links at rest must publish and answer the received frames, too.
        self.waiter.side |= work;
        self.last_poll = now;
        self.waiter.disarm(now, &self.links);
        work | self.poll_at(now, posted)
    }

    /// Returns the start of the last poll, or the end of the last [`Engine::block`], without
    /// reading the clock.
    pub fn polled_at(&self) -> Instant {
        self.last_poll
    }

    /// Serves doorbells and transmits, without receiving frames. Returns true if there was work.
    /// This is not a poll: acknowledgements and timers still wait for one.
    pub fn poll_doorbells(&mut self) -> bool {
        let now = self.clock.now();
        let mut work = self.serve_doorbells(now);
        for link in self.links.iter_mut().filter(|link| !link.rests()) {
            work |= link.transmit(now);
        }
        work
    }

    /// Returns true while bytes of the stream in this slot wait for the windows or for the socket,
    /// as of the last poll.
    #[inline]
    pub fn has_unsent(&self, slot: Slot) -> bool {
        self.stream_at(slot).is_some_and(|handle| {
            let link = self.links.get(handle.link);
            link.is_some_and(|link| !link.tx.is_empty() || link.endpoint.has_unsent(handle.conn))
        })
    }

    /// Returns true while bytes of any stream wait for the windows or for the socket.
    pub fn any_unsent(&self) -> bool {
        self.links
            .iter()
            .any(|link| !link.tx.is_empty() || link.endpoint.any_unsent())
    }

    /// Returns true while a peer has not acknowledged the end of a stream that its program has
    /// closed or finished writing, as of the last poll.
    pub fn has_unacknowledged_ends(&self) -> bool {
        self.links.iter().any(Link::has_unacknowledged_ends)
    }

    /// Resets every stream, because the program ends: its peers get `Aborted` for a stream that the
    /// program has closed, and `ProgramDied` for one that it has not. Also polls once, which
    /// transmits the resets.
    pub fn reset_streams(&mut self) {
        let now = self.clock.now();
        for link in self.links.iter_mut() {
            link.reset_streams(now);
        }
        self.poll_all_links();
    }

    /// Waits for work for [`Engine::poll`]: a frame, a doorbell, a command or the engine's next
    /// deadline, at most until `until` (of [`crate::Clock`]).
    pub fn block(&mut self, until: Option<Instant>) {
        self.sleep(self.clock.now(), until);
        self.last_poll = self.clock.now();
        if self.has_rails && self.last_poll >= self.next_link_poll {
            self.waiter.side = true;
        }
    }

    /// Returns a descriptor that is readable when [`Engine::block`] would return at once for a
    /// reason other than its deadline ([`Engine::deadline`]). Only poll it, and only after
    /// [`Engine::watch`]; it may stay readable until [`Engine::collect`].
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.waiter.fd()
    }

    /// Sets whether a thread sleeps on [`Engine::wait_fd`]. If not, frames of streams do not make
    /// it readable while the program polls.
    pub fn watch(&mut self, watch: bool) {
        let was = std::mem::replace(&mut self.waiter.watched, watch);
        if watch || was {
            self.arm();
        }
    }

    /// Returns true if a thread sleeps on [`Engine::wait_fd`], as set by [`Engine::watch`].
    pub fn is_watched(&self) -> bool {
        self.waiter.watched
    }

    /// Returns true while frames of streams make [`Engine::wait_fd`] readable.
    pub fn is_armed(&self) -> bool {
        self.waiter.is_armed()
    }

    /// Makes frames of streams end a sleep on [`Engine::wait_fd`]. A poll more than a millisecond
    /// later undoes this, unless the descriptor is watched.
    pub fn arm(&mut self) {
        let now = self.clock.now();
        self.waiter.arm(now, &self.links);
    }

    /// Returns the maximum pause between polls with which a failed interface is noticed in time;
    /// `None` if no connection could move to another one.
    pub fn link_poll_interval(&self) -> Option<Duration> {
        let in_use = |link: &Link| link.streams.iter().any(Option::is_some);
        (self.has_rails && self.links.iter().any(in_use)).then_some(LINK_POLL_INTERVAL)
    }

    /// Returns the time at which [`Engine::poll`] must be called again at the latest.
    pub fn deadline(&mut self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Collects pending epoll events without waiting. Returns true if there were any.
    pub fn collect(&mut self) -> bool {
        let now = self.clock.now();
        self.waiter.block(now, Some(now), &mut self.stats)
    }

    /// Returns the path of the stream in this slot; `None` before it is established.
    pub fn path_of(&self, slot: Slot) -> Option<ConnPath> {
        let ConnHandle { link, conn } = self.stream_at(slot)?;
        let endpoint = &self.links.get(link)?.endpoint;
        let (peer, nonce) = (endpoint.peer_of(conn)?, endpoint.peer_nonce(conn));
        (nonce != 0).then_some(ConnPath { link, peer, nonce })
    }

    /// Returns the connection in a slot of the first program, the only one of an embedded engine. A
    /// move changes it.
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

    /// Creates the receive ring of a spare socket before [`Engine::use_spares`], because it takes
    /// about 15 ms.
    ///
    /// # Errors
    /// Those of the system.
    pub fn make_ring(&self) -> std::io::Result<()> {
        let Some(shape) = self.ring else {
            return Ok(());
        };
        PacketSocket::from_fd(self.socket.try_clone()?)?.set_ring(shape)
    }
}
