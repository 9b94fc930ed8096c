//! Execution of commands.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;

use esp_proto::{
    Buffers, CloseReason, ConnOptions, ConnectError, Instant, ListenError, ListenOptions, Port,
    ResetReason,
};

use super::clients::Object;
use super::datagrams::Datagrams;
use super::streams::{Joined, Owner, Stream, joined_mut};
use super::{COMMANDS_PER_POLL, Engine, Stop, publish};
use crate::command::{
    ClientId, Command, ConnHandle, EngineEvent, HoldError, LinkId, ListenerId, Slot,
};
use crate::shm::{Region, StreamState, Wake};

/// A listening port of a program on one or more links.
pub(super) struct Listener {
    owner: ClientId,
    port: Port,
    links: Vec<LinkId>,
}

impl Engine {
    /// Executes queued commands, at most [`COMMANDS_PER_POLL`]. Returns true if there were any.
    pub(super) fn take_commands(&mut self, now: Instant) -> bool {
        if std::mem::take(&mut self.waiter.inbox) {
            self.inbox.reset();
        }
        let mut any = false;
        for _ in 0..COMMANDS_PER_POLL {
            match self.inbox.take() {
                Ok(command) => {
                    any = true;
                    self.stats.commands += 1;
                    self.execute(now, command);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    // Every handle was dropped, so no command can arrive.
                    self.stop.get_or_insert_with(|| Stop {
                        reply: Box::new(|()| {}),
                        keep: false,
                    });
                    break;
                }
            }
        }
        any
    }

    fn execute(&mut self, now: Instant, command: Command) {
        match command {
            Command::AddClient {
                client,
                user,
                page,
                doorbell,
                notify,
            } => {
                let index = self.clients.add((client, user), page, doorbell, notify);
                if let Some(fd) = self.clients.doorbell(index) {
                    // If this fails, a doorbell is served when the loop wakes for another reason,
                    // after MAX_SLEEP at the latest.
                    let _ = self.waiter.add_client(fd);
                }
            }
            Command::RemoveClient { client } => self.remove_client(now, client),
            Command::Listen {
                client,
                listener,
                link,
                port,
                backlog,
                key,
                reply,
            } => {
                let owner = self.clients.index(client).map(|at| self.clients.user(at));
                let options = ListenOptions {
                    backlog,
                    key,
                    owner: owner.unwrap_or_default(),
                };
                reply(self.listen(now, client, listener, link, port, &options));
            }
            Command::CloseListener { listener } => self.close_listener(now, listener),
            Command::Attach {
                handle,
                client,
                slot,
                region,
                reply,
            } => reply(self.attach(now, handle, client, slot, region)),
            Command::Connect {
                client,
                slot,
                link,
                local_port,
                peer,
                peer_port,
                key,
                region,
                reply,
            } => {
                let options = ConnOptions {
                    buffers: buffers(&region),
                    key,
                };
                let started = match self.links.get_mut(link) {
                    Some(at) => at
                        .endpoint
                        .connect(now, local_port, peer, peer_port, options),
                    None => Err(ConnectError::BadAddress),
                };
                reply(started.and_then(|conn| {
                    let handle = ConnHandle { link, conn };
                    if self.join(handle, client, slot, region, StreamState::Connecting) {
                        return Ok(handle);
                    }
                    self.abort(now, handle, ResetReason::Aborted);
                    Err(ConnectError::InUse)
                }));
            }
            Command::Close { client, slot } => self.close(now, client, slot),
            Command::Abort { client, slot } => {
                if let Some(handle) = self.stream_of(client, slot) {
                    self.abort(now, handle, ResetReason::Aborted);
                }
            }
            Command::Refuse { handle } => self.abort(now, handle, ResetReason::Resources),
            Command::BindEdp {
                client,
                slot,
                link,
                port,
                region,
                resume,
                reply,
            } => reply(self.bind_datagrams((client, slot), link, port, region, resume)),
            Command::SetKeys(keys) => {
                for link in self.links.iter_mut() {
                    link.set_keys(keys.clone());
                }
            }
            Command::Hold { link, ports, reply } => {
                let link = self.links.get_mut(link).ok_or(HoldError::NoLink);
                reply(link.and_then(|link| link.hold(ports)));
            }
            Command::Unhold {
                link,
                ports,
                orphans,
            } => {
                if let Some(at) = self.links.get_mut(link) {
                    at.unhold(now, ports, &orphans);
                }
            }
            Command::Snapshot { reply } => self.snapshots.request(reply),
            Command::Resume {
                client,
                slot,
                link,
                image,
                region,
                reply,
            } => reply(self.resume(now, (client, slot), link, &image, region)),
            Command::Shutdown { keep, reply } => self.stop = Some(Stop { reply, keep }),
        }
    }

    fn abort(&mut self, now: Instant, handle: ConnHandle, reason: ResetReason) {
        if let Some(link) = self.links.get_mut(handle.link) {
            link.endpoint.abort(now, handle.conn, reason);
        }
    }

    fn stream_of(&self, client: ClientId, slot: Slot) -> Option<ConnHandle> {
        match self.clients.object(self.clients.index(client)?, slot) {
            Object::Stream(handle) => Some(handle),
            _ => None,
        }
    }

    fn listen(
        &mut self,
        now: Instant,
        client: ClientId,
        listener: ListenerId,
        link: Option<LinkId>,
        port: Port,
        options: &ListenOptions,
    ) -> Result<(), ListenError> {
        let wanted = match link {
            Some(link) => vec![link],
            None => self.links.numbered().map(|(id, _)| id).collect(),
        };
        let mut done = Vec::with_capacity(wanted.len());
        for id in wanted {
            let Some(link) = self.links.get_mut(id) else {
                return Err(ListenError::BadPort);
            };
            if let Err(error) = link.endpoint.listen(port, options.clone()) {
                self.unlisten(now, port, &done);
                return Err(error);
            }
            link.listeners.insert(port, listener);
            // A UDP link of an embedded engine is polled once it has a connection.
            link.standby &= link.endpoint.addr().is_udp();
            done.push(id);
        }
        self.listeners.insert(
            listener,
            Listener {
                owner: client,
                port,
                links: done,
            },
        );
        Ok(())
    }

    fn unlisten(&mut self, now: Instant, port: Port, links: &[LinkId]) {
        for &id in links {
            if let Some(link) = self.links.get_mut(id) {
                link.endpoint.unlisten(now, port);
                link.listeners.remove(&port);
            }
        }
    }

    fn close_listener(&mut self, now: Instant, listener: ListenerId) {
        if let Some(Listener { port, links, .. }) = self.listeners.remove(&listener) {
            self.unlisten(now, port, &links);
        }
    }

    /// Joins a connection to a slot and its rings. Returns false if the program does not exist or
    /// the slot is not free.
    fn join(
        &mut self,
        handle: ConnHandle,
        client: ClientId,
        slot: Slot,
        region: Arc<Region>,
        state: StreamState,
    ) -> bool {
        let Some(index) = self.clients.index(client) else {
            return false;
        };
        let Some(link) = self.links.get_mut(handle.link) else {
            return false;
        };
        if !self.clients.occupy(index, slot, Object::Stream(handle)) {
            return false;
        }
        let joined = Joined::new(
            handle.conn,
            Owner {
                client: index,
                slot,
            },
            region,
        );
        joined.region.set_state(state);
        link.endpoint
            .set_owner(handle.conn, self.clients.user(index));
        link.standby = false;
        link.insert_stream(Stream::Joined(joined));
        true
    }

    fn attach(
        &mut self,
        now: Instant,
        handle: ConnHandle,
        client: ClientId,
        slot: Slot,
        region: Arc<Region>,
    ) -> bool {
        let buffers = buffers(&region);
        let link = self.links.get(handle.link);
        let waits = link.and_then(|link| link.streams.get(handle.conn.slot as usize));
        if !matches!(waits, Some(Some(Stream::Waiting { id, .. })) if *id == handle.conn) {
            return false;
        }
        if !self.join(handle, client, slot, region, StreamState::Open) {
            self.abort(now, handle, ResetReason::Resources);
            return false;
        }
        let Some(link) = self.links.get_mut(handle.link) else {
            return false;
        };
        if !link.endpoint.attach(now, handle.conn, buffers) {
            link.insert_stream(Stream::Waiting {
                id: handle.conn,
                listener: None,
            });
            if let Some(index) = self.clients.index(client) {
                self.clients.vacate(index, slot);
            }
            return false;
        }
        if let Some(joined) = joined_mut(&mut link.streams, handle.conn) {
            joined.keep_image(&link.endpoint);
        }
        true
    }

    fn close(&mut self, now: Instant, client: ClientId, slot: Slot) {
        let Some(index) = self.clients.index(client) else {
            return;
        };
        match self.clients.object(index, slot) {
            Object::Free => {}
            Object::Datagrams(link, port) => {
                if let Some(at) = self.links.get_mut(link) {
                    at.finish_datagrams(now, port, &mut self.clients);
                }
            }
            Object::Stream(handle) => {
                if let Some(link) = self.links.get_mut(handle.link) {
                    let deadline = link.close_stream(now, handle.conn);
                    self.deadlines.add(deadline);
                }
            }
        }
    }

    fn bind_datagrams(
        &mut self,
        (client, slot): (ClientId, Slot),
        link: LinkId,
        port: Port,
        region: Arc<Region>,
        resume: bool,
    ) -> Result<(), ListenError> {
        let index = self.clients.index(client).ok_or(ListenError::InUse)?;
        let at = self.links.get_mut(link).ok_or(ListenError::BadPort)?;
        let owner = Owner {
            client: index,
            slot,
        };
        let socket = if resume {
            Datagrams::resume(owner, region).map_err(|_| ListenError::InUse)?
        } else {
            Datagrams::new(owner, region)
        };
        at.endpoint.edp_bind(port)?;
        if !self
            .clients
            .occupy(index, slot, Object::Datagrams(link, port))
        {
            at.endpoint.edp_unbind(port);
            return Err(ListenError::InUse);
        }
        socket.region.set_state(StreamState::Open);
        at.datagrams.insert(port, socket);
        if resume {
            // Records that the program wrote before this engine took over.
            at.serve_datagrams(self.clock.now(), port, &mut self.clients);
        }
        Ok(())
    }

    /// Closes a datagram socket.
    pub(super) fn close_datagrams(&mut self, index: usize, slot: Slot, link: LinkId, port: Port) {
        let Some(at) = self.links.get_mut(link) else {
            return;
        };
        at.endpoint.edp_unbind(port);
        // Its records were copied, so no frame in the send batch refers to its rings.
        at.datagrams.remove(&port);
        if let Some(client) = self.clients.id(index) {
            (self.events)(EngineEvent::Closed {
                client,
                slot,
                reason: None,
            });
        }
        self.clients.vacate(index, slot);
    }

    fn remove_client(&mut self, now: Instant, client: ClientId) {
        let Some(index) = self.clients.index(client) else {
            return;
        };
        if let Some(fd) = self.clients.doorbell(index) {
            self.waiter.remove_client(fd);
        }
        let own: Vec<ListenerId> = self
            .listeners
            .iter()
            .filter(|(_, l)| l.owner == client)
            .map(|(id, _)| *id)
            .collect();
        for listener in own {
            self.close_listener(now, listener);
        }
        for object in self.clients.mark_gone(index) {
            match object {
                Object::Free => {}
                Object::Datagrams(link, port) => {
                    if let Some(at) = self.links.get_mut(link) {
                        at.finish_datagrams(now, port, &mut self.clients);
                    }
                }
                Object::Stream(handle) => {
                    if let Some(link) = self.links.get_mut(handle.link) {
                        let deadline = link.orphan_stream(now, handle.conn);
                        self.deadlines.add(deadline);
                    }
                }
            }
        }
    }

    /// Closes a datagram socket whose rings are corrupt, and reports its program.
    pub(super) fn cut_off_datagrams(&mut self, link: LinkId, port: Port, what: &'static str) {
        let Some(at) = self.links.get_mut(link) else {
            return;
        };
        let Some(socket) = at.datagrams.get_mut(&port) else {
            return;
        };
        let reason = CloseReason::Aborted(ResetReason::Protocol);
        socket.region.set_state(StreamState::Closed(reason));
        let (owner, clients, stats) = (socket.owner, &mut self.clients, &mut self.stats);
        publish::wake(socket.waiters(), Wake::All, clients, stats);
        publish::report_corruption(owner, what, clients, stats, &mut self.events);
        self.close_datagrams(owner.client, owner.slot, link, port);
    }
}

/// Returns the sizes of a stream's rings.
pub(super) fn buffers(region: &Region) -> Buffers {
    let sizes = region.sizes();
    Buffers {
        rx: sizes.rx,
        tx: sizes.tx,
    }
}
