//! What the engine has: leased links, streams by their slots, listeners and who came to them.

use std::sync::atomic::Ordering;

use esp_engine::shm::SLOTS;
use esp_engine::{
    Arrival, Command, ConnHandle, LeasedLink, LeasedSocket, LinkId, ListenerId, Place,
};
use esp_proto::{MacAddr, Port};

use super::{EmbeddedEngine, SELF};
use crate::error::EspError;
use crate::session::lock;

impl EmbeddedEngine {
    /// Speaks on leased sockets from now on.
    pub(in crate::lease) fn add(&self, leased: LeasedLink) -> Result<LinkId, EspError> {
        if self.is_forked() {
            return Err(EspError::Forked);
        }
        self.with_engine(|engine| engine.add_leased(leased))
            .inspect(|_| {
                self.links.fetch_add(1, Ordering::Relaxed);
            })
            .map_err(|error| EspError::Memory {
                what: format!("use a leased socket: {error}"),
            })
    }

    /// Speaks on a link's spare sockets from now on.
    pub(in crate::lease) fn use_spares(&self, link: LinkId, [esp, edp]: [LeasedSocket; 2]) {
        // What cannot be made ready or bound is of no use, and the first ones may still be.
        if esp.make_ring().is_err() {
            return;
        }
        let _ = self.with_engine(|engine| engine.use_spares(link, esp, edp));
    }

    /// Other sockets for a link's ports.
    pub(in crate::lease) fn replace(
        &self,
        link: LinkId,
        esp: LeasedSocket,
        edp: LeasedSocket,
    ) -> Result<(), EspError> {
        self.with_engine(|engine| engine.replace_leased(link, esp, edp))
            .map_err(|error| EspError::Memory {
                what: format!("use a leased socket: {error}"),
            })
    }

    /// Ends a link's connections and listeners here and at their peers.
    pub(in crate::lease) fn give_up(&self, link: LinkId) {
        self.with_engine(|engine| {
            engine.give_up_leased(link);
            engine.poll()
        });
    }

    /// Lets go of a link's sockets; false while it has connections or somebody else has the engine.
    pub(in crate::lease) fn remove(&self, link: LinkId) -> bool {
        if self.is_forked() {
            return false;
        }
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

    /// A slot nobody uses, from now on in use.
    pub(in crate::lease) fn take_slot(&self) -> Option<u16> {
        let mut news = lock(&self.news);
        let slots = u16::try_from(SLOTS).unwrap_or(u16::MAX);
        let slot = (0..slots).find(|slot| !news.slots.contains_key(slot))?;
        news.slots.insert(slot, (false, false));
        Some(slot)
    }

    /// The engine never had it.
    pub(in crate::lease) fn withdraw_slot(&self, slot: u16) {
        lock(&self.news).slots.remove(&slot);
    }

    /// The program's last word about a slot.
    pub(in crate::lease) fn close(&self, slot: u16) {
        self.tell(Command::Close { client: SELF, slot });
        lock(&self.news).let_go(slot, true);
    }

    pub(in crate::lease) fn connect(
        &self,
        command: impl FnOnce(esp_engine::Reply<Result<ConnHandle, esp_proto::ConnectError>>) -> Command,
    ) -> Option<Result<ConnHandle, esp_proto::ConnectError>> {
        self.ask(command)
    }

    pub(in crate::lease) fn attach(
        &self,
        command: impl FnOnce(esp_engine::Reply<bool>) -> Command,
    ) -> bool {
        self.ask(command).unwrap_or(false)
    }

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
        self.tell(Command::CloseListener { listener });
        lock(&self.news).arrivals.remove(&listener);
        self.poll(true);
    }

    pub(in crate::lease) fn arrival(&self, listener: ListenerId) -> Option<Arrival> {
        lock(&self.news).arrivals.get_mut(&listener)?.pop_front()
    }

    pub(in crate::lease) fn has_arrival(&self, listener: ListenerId) -> bool {
        lock(&self.news)
            .arrivals
            .get(&listener)
            .is_some_and(|waiting| !waiting.is_empty())
    }

    /// Slots whose connections have ended, of which the daemon was not
    /// [told](EmbeddedEngine::told).
    pub(in crate::lease) fn closed(&self) -> Vec<u16> {
        lock(&self.news).closed.iter().copied().collect()
    }

    /// Slots whose connections go over another path since the last call.
    pub(in crate::lease) fn take_moved(&self) -> Vec<(u16, LinkId, MacAddr)> {
        std::mem::take(&mut lock(&self.news).moved)
    }

    /// The daemon knows that the slot's connection has ended.
    pub(in crate::lease) fn told(&self, slot: u16) {
        lock(&self.news).told(slot);
    }

    /// Where the connection of a slot is; `None` while it is not established.
    pub(in crate::lease) fn place_of(&self, slot: u16) -> Option<Place> {
        if self.is_forked() {
            return None;
        }
        self.with_engine(|engine| engine.place_of(slot))
    }

    /// The same if nobody has the engine now.
    pub(in crate::lease) fn place_now(&self, slot: u16) -> Option<Place> {
        if self.is_forked() {
            return None;
        }
        let engine = self.try_engine()?;
        let place = engine.place_of(slot);
        self.leave(engine);
        place
    }
}
