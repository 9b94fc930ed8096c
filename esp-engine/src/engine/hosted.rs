//! The engine without a thread of its own: in a program that holds leased ports and drives it from its own calls.
//!
//! [`Engine::poll`] does what is to be done now and never waits; [`Engine::block`] waits. Between two calls nothing happens:
//! frames wait in the socket, deadlines pass. After an absence frames are taken before timers run, so that an
//! acknowledgement that came in time counts as such.

use std::os::fd::{BorrowedFd, OwnedFd};

use esp_proto::{EndpointConfig, Instant, MacAddr};

use super::link::Link;
use super::{Engine, RX_BATCH, entropy};
use crate::command::LinkId;
use crate::config::{EngineError, IdleConfig};
use crate::handle::EngineHandle;

/// Nobody drove the engine for this long: it catches up.
const ABSENCE_NANOS: u64 = 2_000_000;
/// Batches taken then before timers run; more than a receive buffer holds.
const CATCH_UP: usize = 16384 / RX_BATCH;

/// Sockets that somebody else opened, filtered and locked for certain ports of an interface, and what belongs to them.
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
    /// Packet socket of the stream protocol.
    pub esp: OwnedFd,
    /// Packet socket of the datagram protocol.
    pub edp: OwnedFd,
}

impl Engine {
    /// An engine without links and without a thread; see [`Engine::add_leased`].
    pub fn hosted(idle: IdleConfig, events: super::EventSink) -> Result<(Engine, EngineHandle), EngineError> {
        Engine::empty(idle, events)
    }

    /// Speaks on leased sockets from now on.
    pub fn add_leased(&mut self, leased: LeasedLink) -> Result<LinkId, EngineError> {
        let mut seed = [0u8; 32];
        entropy(&mut seed)?;
        let LeasedLink { interface, mac, mtu, endpoint, incarnation, esp, edp } = leased;
        let adopt =
            |fd| netif::PacketSocket::from_fd(fd).map_err(EngineError::system("take a leased socket over"));
        let sockets = (adopt(esp)?, adopt(edp)?);
        let interface = netif::Interface::described(interface, mac.octets(), mtu);
        let link = Link::new(interface, endpoint, sockets, None, seed, incarnation);
        let index = self.links.add(link);
        let number = u16::try_from(index).map_err(|_| EngineError::NoLinks)?;
        if let Some(link) = self.links.get(index) {
            self.waiter.add_link(index, link).map_err(EngineError::system("watch a packet socket"))?;
        }
        Ok(LinkId(number))
    }

    /// Lets go of a leased link's sockets. False while it has connections; those in TIME-WAIT do not count.
    pub fn remove_leased(&mut self, link: LinkId) -> bool {
        let index = usize::from(link.0);
        let Some(found) = self.links.get(index) else { return true };
        if found.streams.iter().any(Option::is_some) || !found.tx.is_empty() {
            return false;
        }
        self.waiter.remove_link(found);
        self.links.take(index);
        self.deadlines.forget(link);
        true
    }

    /// Binds the spare sockets of a leased link as its sockets are bound, and takes those from now on: without the node's daemon the
    /// first ones may get no frames any more. What waits in these is taken first; what came in through both is sorted out as any
    /// duplicate is.
    pub fn use_spares(&mut self, link: LinkId, esp: OwnedFd, edp: OwnedFd) -> Result<(), EngineError> {
        let index = usize::from(link.0);
        let found = self.links.get_mut(index).ok_or(EngineError::NoLinks)?;
        let bound = |fd, to: &netif::PacketSocket| {
            let spare = netif::PacketSocket::from_fd(fd)?;
            spare.bind_like(to)?;
            Ok(spare)
        };
        let refused = EngineError::system("bind a spare socket");
        let both = bound(esp, found.esp_socket())
            .and_then(|esp| bound(edp, found.edp_socket()).map(|edp| (esp, edp)));
        let sockets = both.map_err(refused)?;
        self.take_sockets(index, sockets)
    }

    /// Other sockets for the ports of a leased link. What waits in the old ones is taken first; what came in
    /// through both is sorted out as any duplicate is.
    pub fn replace_leased(&mut self, link: LinkId, esp: OwnedFd, edp: OwnedFd) -> Result<(), EngineError> {
        let index = usize::from(link.0);
        let adopt =
            |fd| netif::PacketSocket::from_fd(fd).map_err(EngineError::system("take a leased socket over"));
        let sockets = (adopt(esp)?, adopt(edp)?);
        self.take_sockets(index, sockets)
    }

    /// Behind the last frame that waits in the ones it has.
    fn take_sockets(
        &mut self,
        index: usize,
        sockets: (netif::PacketSocket, netif::PacketSocket),
    ) -> Result<(), EngineError> {
        let found = self.links.get_mut(index).ok_or(EngineError::NoLinks)?;
        let now = self.clock.now();
        for _ in 0..CATCH_UP {
            if !found.receive(now, true) {
                break;
            }
        }
        self.waiter.remove_link(found);
        found.replace_sockets(sockets);
        self.waiter.add_link(index, found).map_err(EngineError::system("watch a packet socket"))
    }

    /// Resets every connection of a leased link with `Shutdown`, ends its listeners, and takes no frame from its sockets any more: its
    /// ports may be somebody else's from now on. The next turns say so to peers and program; then [`Engine::remove_leased`].
    pub fn give_up_leased(&mut self, link: LinkId) {
        let now = self.clock.now();
        if let Some(found) = self.links.get_mut(usize::from(link.0)) {
            found.endpoint.shutdown_all(now);
            found.stop_hearing();
            self.waiter.remove_link(found);
        }
    }

    /// Does what is to be done now: commands, frames in, doorbells, timers, frames out. True if anything happened.
    pub fn poll(&mut self) -> bool {
        let now = self.clock.now();
        let absent = now.as_nanos().saturating_sub(self.last_poll.as_nanos()) > ABSENCE_NANOS;
        let mut work = false;
        if absent {
            for link in self.links.iter_mut() {
                for _ in 0..CATCH_UP {
                    if !link.receive(now, true) {
                        break;
                    }
                    work = true;
                }
            }
        }
        self.last_poll = now;
        work | self.turn(now)
    }

    /// Sends what the program wrote, without looking for frames first.
    pub fn push(&mut self) -> bool {
        let now = self.clock.now();
        let mut work = self.answer_bells(now);
        for index in 0..self.links.len() {
            if let Some(link) = self.links.get_mut(index) {
                work |= link.transmit(now);
            }
        }
        work
    }

    /// Waits for a frame, a doorbell, a command or the engine's next deadline, at most until `until` (of
    /// [`crate::Clock`]). Returns at once when a doorbell rang already. [`Engine::poll`] then does the work.
    pub fn block(&mut self, until: Option<Instant>) {
        let now = self.clock.now();
        self.wake_readers(Instant::from_nanos(u64::MAX));
        let deadline = [self.next_deadline(), until].into_iter().flatten().min();
        self.page.going_to_sleep();
        if !self.clients.any_bell() {
            self.stats.sleeps += 1;
            self.waiter.block(now, deadline, &mut self.stats);
        }
        self.page.awake();
        self.last_poll = self.clock.now();
    }

    /// Readable when [`Engine::block`] would return at once, but for its deadline ([`Engine::deadline`]). Only poll it; what made it
    /// readable may stay so until [`Engine::collect`].
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.waiter.fd()
    }

    /// When [`Engine::poll`] has to be called again, whatever happens.
    pub fn deadline(&mut self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Hears what there is, without waiting: true if there was anything. [`Engine::poll`] then does the work.
    pub fn collect(&mut self) -> bool {
        let now = self.clock.now();
        self.waiter.block(now, Some(now), &mut self.stats)
    }

    /// The number by which a connection's peer takes a reset (W-57); 0 while it is not known.
    pub fn peer_nonce(&self, handle: crate::command::ConnHandle) -> u64 {
        self.links.get(usize::from(handle.link.0)).map_or(0, |link| link.endpoint.peer_nonce(handle.conn))
    }
}
