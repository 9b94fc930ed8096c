//! The engine's tables: leased links, slots of streams, listeners with their arrivals.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esp_engine::shm::{Region, SLOTS};
use esp_engine::{
    Arrival, Command, ConnPath, LeasedLink, LeasedSocket, LinkId, ListenerId, UdpLink,
};
use esp_proto::{EndpointConfig, ListenError, NodeAddr, Port};

use super::super::events::SlotState;
use super::{EmbeddedEngine, SELF};
use crate::error::EspError;
use crate::sync::lock;

/// Operation in errors of the engine.
const USE_SOCKET: &str = "use a leased socket";

impl EmbeddedEngine {
    /// Adds a link with leased sockets.
    pub(in crate::lease) fn add(&self, leased: LeasedLink) -> Result<LinkId, EspError> {
        if self.is_forked() {
            return Err(EspError::Forked);
        }
        self.with_engine(|engine| engine.add_leased(leased))
            .inspect(|_| {
                self.links.fetch_add(1, Ordering::Relaxed);
            })
            .map_err(|error| EspError::resource(USE_SOCKET, error))
    }

    /// Adds a link with a UDP socket.
    pub(in crate::lease) fn add_udp(
        &self,
        link: UdpLink,
        incarnation: u64,
    ) -> Result<LinkId, EspError> {
        let endpoint = EndpointConfig::default();
        self.with_engine(|engine| engine.add_udp(link, endpoint, incarnation))
            .inspect(|_| {
                self.links.fetch_add(1, Ordering::Relaxed);
            })
            .map_err(|error| EspError::resource("use a UDP socket", error))
    }

    /// Binds a datagram port of a link to a slot and its rings.
    pub(in crate::lease) fn bind_datagrams(
        &self,
        link: LinkId,
        (slot, port): (u16, Port),
        region: Arc<Region>,
    ) -> Option<Result<(), ListenError>> {
        self.ask(|reply| Command::BindEdp {
            client: SELF,
            slot,
            link,
            port,
            region,
            reply,
        })
    }

    /// Closes the datagram socket of a slot.
    pub(crate) fn close_datagrams(&self, slot: u16) {
        self.send(Command::Close { client: SELF, slot });
        self.poll(true);
        lock(&self.log).slots.remove(&slot);
    }

    /// Switches a link to its spare sockets.
    pub(in crate::lease) fn use_spares(&self, link: LinkId, [esp, edp]: [LeasedSocket; 2]) {
        // On failure the link keeps its sockets, which may still work.
        if esp.make_ring().is_err() {
            return;
        }
        let _ = self.with_engine(|engine| engine.use_spares(link, esp, edp));
    }

    /// Replaces the sockets of a link.
    pub(in crate::lease) fn replace(
        &self,
        link: LinkId,
        esp: LeasedSocket,
        edp: LeasedSocket,
    ) -> Result<(), EspError> {
        self.with_engine(|engine| engine.replace_leased(link, esp, edp))
            .map_err(|error| EspError::resource(USE_SOCKET, error))
    }

    /// Closes a link's connections and listeners, here and at their peers.
    pub(in crate::lease) fn give_up(&self, link: LinkId) {
        self.with_engine(|engine| {
            engine.give_up_leased(link);
            engine.poll()
        });
    }

    /// Removes a link; false while it has connections or another thread has the engine.
    pub(in crate::lease) fn remove(&self, link: LinkId) -> bool {
        let Some(mut engine) = self.try_engine() else {
            return false;
        };
        let removed = engine.remove_leased(link);
        self.leave(engine);
        self.answer_doorbells();
        if removed {
            self.links.fetch_sub(1, Ordering::Relaxed);
        }
        removed
    }

    /// Reserves a free slot.
    pub(in crate::lease) fn take_slot(&self) -> Option<u16> {
        let mut log = lock(&self.log);
        let slots = u16::try_from(SLOTS).unwrap_or(u16::MAX);
        let slot = (0..slots).find(|slot| !log.slots.contains_key(slot))?;
        log.slots.insert(slot, SlotState::default());
        Some(slot)
    }

    /// Frees a slot that the engine does not have.
    pub(in crate::lease) fn withdraw_slot(&self, slot: u16) {
        lock(&self.log).slots.remove(&slot);
    }

    /// Closes the stream of a slot.
    pub(in crate::lease) fn close(&self, slot: u16) {
        self.send(Command::Close { client: SELF, slot });
        lock(&self.log).release(slot);
    }

    /// Listens on a port of a link; `None` if the engine refuses.
    pub(in crate::lease) fn listen(
        &self,
        link: LinkId,
        port: Port,
        backlog: u16,
        key: Vec<u8>,
    ) -> Option<ListenerId> {
        let listener = ListenerId(self.next_listener.fetch_add(1, Ordering::Relaxed));
        let link = Some(link);
        self.ask(|reply| Command::Listen {
            client: SELF,
            listener,
            link,
            port,
            backlog,
            key,
            reply,
        })?
        .ok()?;
        Some(listener)
    }

    pub(in crate::lease) fn close_listener(&self, listener: ListenerId) {
        if self.is_forked() {
            return;
        }
        self.send(Command::CloseListener { listener });
        lock(&self.log).arrivals.remove(&listener);
        self.poll(true);
    }

    /// Returns the next connection to a listener.
    pub(in crate::lease) fn arrival(&self, listener: ListenerId) -> Option<Arrival> {
        lock(&self.log).arrivals.get_mut(&listener)?.pop_front()
    }

    pub(in crate::lease) fn has_arrival(&self, listener: ListenerId) -> bool {
        lock(&self.log)
            .arrivals
            .get(&listener)
            .is_some_and(|waiting| !waiting.is_empty())
    }

    /// Returns the slots whose connections have ended, until [`EmbeddedEngine::reported`].
    pub(in crate::lease) fn closed(&self) -> Vec<u16> {
        lock(&self.log).closed.iter().copied().collect()
    }

    /// Records that the end of a slot's connection is reported to the daemon.
    pub(in crate::lease) fn reported(&self, slot: u16) {
        lock(&self.log).reported(slot);
    }

    /// Returns the slots whose connections moved since the last call.
    pub(in crate::lease) fn take_moved(&self) -> Vec<(u16, LinkId, NodeAddr)> {
        std::mem::take(&mut lock(&self.log).moved)
    }

    /// Returns link, peer and nonce of a slot's connection; `None` while it is not established.
    pub(in crate::lease) fn path_of(&self, slot: u16) -> Option<ConnPath> {
        if self.is_forked() {
            return None;
        }
        self.with_engine(|engine| engine.path_of(slot))
    }

    /// Returns [`EmbeddedEngine::path_of`]; `None` also if another thread has the engine.
    pub(in crate::lease) fn path_now(&self, slot: u16) -> Option<ConnPath> {
        let engine = self.try_engine()?;
        let path = engine.path_of(slot);
        self.leave(engine);
        path
    }
}
