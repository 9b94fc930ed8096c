//! Handlers of the requests.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use esp_client::control::{ErrorKind, Reply, Request, Rings};
use esp_engine::shm::{Region, RingSizes};
use esp_engine::{Command, Slot};
use esp_proto::{FIRST_USER_PORT, NodeAddr, Port};

use super::accept::Listening;
use super::{ReplyWithFds, Session, SessionEnd};
use crate::accounts::Charge;
use crate::config::Resource;
use crate::links::{self, Link};
use crate::node::Client;
use crate::ports::{PortClaim, Ports, Purpose};
use crate::refusal::Refusal;
use crate::slots::{Holdings, SlotUse};
use crate::status;

/// Maximum length of a job key in bytes.
const MAX_KEY: usize = 32;
/// Maximum backlog.
const MAX_BACKLOG: u16 = 1024;

/// A slot with its rings, not passed to the engine yet.
pub(super) struct Prepared {
    pub(super) slot: Slot,
    sizes: RingSizes,
    pub(super) region: Arc<Region>,
    descriptor: OwnedFd,
}

impl Prepared {
    /// Returns the sizes of the rings as granted.
    fn rings(&self) -> Rings {
        Rings {
            tx: self.sizes.tx,
            rx: self.sizes.rx,
        }
    }

    /// Returns the reply that passes the stream to the program.
    pub(super) fn stream_reply(
        self,
        link: &Link,
        local_port: Port,
        (peer, peer_port): (NodeAddr, Port),
    ) -> ReplyWithFds {
        let reply = Reply::Stream {
            slot: self.slot,
            rings: self.rings(),
            interface: link.name().to_owned(),
            local_port,
            peer,
            peer_port,
        };
        (reply, vec![self.descriptor])
    }
}

impl Session {
    /// Handles a request. Returns `None` if the answer follows later.
    pub(super) async fn execute(
        &mut self,
        client: &Arc<Client>,
        id: u64,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Result<ReplyWithFds, Refusal>> {
        let done = |()| (Reply::Done, Vec::new());
        Some(match request {
            Request::Hello { .. } => Err(Refusal::new(ErrorKind::BadRequest, "repeated Hello")),
            // Answered by `status`.
            Request::Status => return None,
            Request::Listen {
                interface,
                port,
                backlog,
                key,
            } => {
                self.listen(client, interface.as_deref(), port, backlog, key)
                    .await
            }
            Request::CloseListener { listener } => self.close_listener(listener).map(done),
            Request::Accept { listener, rings } => match self.accept(id, listener, rings).await {
                Ok(()) => return None,
                Err(refusal) => Err(refusal),
            },
            Request::CancelAccept { accept } => {
                self.cancel_accept(accept);
                Ok(done(()))
            }
            Request::Connect {
                interface,
                local_port,
                peer,
                peer_port,
                key,
                rings,
            } => {
                let to = (peer, peer_port);
                self.connect(client, interface.as_deref(), local_port, to, key, rings)
                    .await
            }
            Request::ResumeStream { slot, rings } => self
                .resume_stream(client, slot, rings, &descriptors)
                .await
                .map(done),
            Request::ResumeEdp {
                interface,
                port,
                slot,
                rings,
            } => {
                let at = (interface.as_str(), port);
                self.resume_edp(client, at, slot, rings, &descriptors)
                    .await
                    .map(done)
            }
            Request::Close { slot } => self.close(client, slot, SlotUse::Stream).map(done),
            Request::Abort { slot } => self.abort(client, slot).map(done),
            Request::BindEdp {
                interface,
                port,
                rings,
            } => {
                self.bind_edp(client, interface.as_deref(), port, rings)
                    .await
            }
            Request::CloseEdp { slot } => self.close(client, slot, SlotUse::Edp).map(done),
            Request::Lease {
                interface,
                listener,
                count,
            } => {
                self.grant_lease(client, interface.as_deref(), listener, count)
                    .await
            }
            Request::Adopt {
                interface,
                port,
                count,
            } => self.adopt_lease(client, &interface, port, count).await,
            Request::Standby { lease, interface } => {
                self.grant_standby(client, lease, &interface).await
            }
            Request::EndLease { lease } => self.end_lease(client, lease).map(done),
            Request::LeaseConnection {
                lease,
                local_port,
                peer,
                peer_port,
                nonce,
            } => self
                .lease_connection(client, lease, (local_port, peer, peer_port), nonce)
                .map(done),
        })
    }

    /// Answers with the status, once no other program of the user has an unread one: a user's
    /// programs hold the memory of only one at a time.
    pub(super) async fn status(&mut self, id: u64) -> Result<(), SessionEnd> {
        let answer = if self.take_status_turn().await? {
            let status = status::of(&self.node, self.credentials).await;
            status.map(|status| (Reply::Status(Box::new(status)), Vec::new()))
        } else {
            let why = "another program of this user has not read its status; retry later";
            Err(Refusal::new(ErrorKind::Limit, why))
        };
        self.answer(id, answer);
        Ok(())
    }

    /// Waits for the permit to have a status; false if it is not granted in time. Handles events
    /// during the wait, because their queue would grow.
    async fn take_status_turn(&mut self) -> Result<bool, SessionEnd> {
        let turn = self.node.accounts.status_turn(self.credentials.uid);
        let (None, Some(turn)) = (&self.status_turn, turn) else {
            return Ok(true);
        };
        let wait = tokio::time::timeout(self.node.patience, turn.acquire_owned());
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => self.event(event).await?,
                taken = &mut wait => {
                    self.status_turn = taken.ok().and_then(Result::ok);
                    return Ok(self.status_turn.is_some());
                }
            }
        }
    }

    async fn listen(
        &mut self,
        client: &Arc<Client>,
        interface: Option<&str>,
        port: Port,
        backlog: u16,
        key: Vec<u8>,
    ) -> Result<ReplyWithFds, Refusal> {
        self.check_port(port)?;
        check_key(&key)?;
        if !(1..=MAX_BACKLOG).contains(&backlog) {
            return Err(Refusal::bad_argument(format!(
                "backlog {backlog} is out of range: expected 1 to {MAX_BACKLOG}"
            )));
        }
        let (link, links) = match interface {
            Some(name) => {
                let (id, link) = links::by_name(&self.node.links, name)?;
                (Some(id), std::slice::from_ref(link))
            }
            None => (None, self.node.links.as_slice()),
        };
        let accounts = &self.node.accounts;
        let charge = accounts.charge(self.credentials.uid, Resource::Listeners, 1)?;
        let claims = self
            .claim_for_listener(client, links, port)
            .or_else(|refusal| {
                if self.node.free_orphaned_ports() {
                    self.claim_for_listener(client, links, port)
                } else {
                    Err(refusal)
                }
            })?;
        if port != 0 {
            self.node.assign_port(client.claimant(), port).await?;
        }
        let port = claims.first().map_or(port, PortClaim::port);
        let listener = self.node.add_listener(client);
        let listened = self
            .node
            .engines
            .request(client.engine(), |reply| Command::Listen {
                client: client.id,
                listener,
                link,
                port,
                backlog,
                key,
                reply,
            })
            .await
            .and_then(|answer| Ok(answer?));
        if let Err(refusal) = listened {
            self.node.remove_listener(listener);
            return Err(refusal);
        }
        let listening = Listening::new(claims, charge);
        self.listeners.insert(listener, listening);
        let listener = listener.0;
        Ok((Reply::Listening { listener, port }, Vec::new()))
    }

    /// Claims one port on each of the links.
    fn claim_for_listener(
        &self,
        client: &Client,
        links: &[Link],
        port: Port,
    ) -> Result<Vec<PortClaim>, Refusal> {
        let (claimant, purpose) = (client.claimant(), Purpose::Listener(client.id));
        if port != 0 {
            let take = |link: &Link| {
                let claim = link.esp.take(port, claimant, purpose);
                claim.ok_or_else(|| in_use(link, port))
            };
            return links.iter().map(take).collect();
        }
        let vacant = |port| {
            let take = |link: &Link| link.esp.take_vacant(port, claimant, purpose);
            links.iter().map(take).collect()
        };
        let engines = &self.node.engines;
        let found = engines.free_port(client.engine(), vacant);
        found.ok_or_else(no_port)
    }

    async fn connect(
        &self,
        client: &Arc<Client>,
        interface: Option<&str>,
        local_port: Port,
        (peer, peer_port): (NodeAddr, Port),
        key: Vec<u8>,
        rings: Rings,
    ) -> Result<ReplyWithFds, Refusal> {
        self.check_port(local_port)?;
        check_key(&key)?;
        if peer.is_group() || peer == NodeAddr::default() {
            return Err(Refusal::bad_argument(format!(
                "{peer} is not a unicast address"
            )));
        }
        if peer_port == 0 {
            return Err(Refusal::bad_argument("invalid peer port 0"));
        }
        let (id, link) = links::to_send_on(&self.node.links, interface)?;
        let at = (link, &link.esp);
        let claim = self
            .claim_port(client, at, local_port, Purpose::Connection)
            .await?;
        let local_port = claim.port();
        let prepared = self.prepare(client, SlotUse::Stream, (rings, 0), Some(claim))?;
        let command = |reply| Command::Connect {
            client: client.id,
            slot: prepared.slot,
            link: id,
            local_port,
            peer,
            peer_port,
            key,
            region: Arc::clone(&prepared.region),
            reply,
        };
        self.start(client, prepared.slot, command).await?;
        Ok(prepared.stream_reply(link, local_port, (peer, peer_port)))
    }

    async fn bind_edp(
        &self,
        client: &Arc<Client>,
        interface: Option<&str>,
        port: Port,
        rings: Rings,
    ) -> Result<ReplyWithFds, Refusal> {
        self.check_port(port)?;
        let (id, link) = links::choose(&self.node.links, interface)?;
        let at = (link, &link.edp);
        let claim = self.claim_port(client, at, port, Purpose::Sole).await?;
        let port = claim.port();
        let prepared = self.prepare(client, SlotUse::Edp, (rings, 0), Some(claim))?;
        let command = |reply| Command::BindEdp {
            client: client.id,
            slot: prepared.slot,
            link: id,
            port,
            region: Arc::clone(&prepared.region),
            resume: false,
            reply,
        };
        self.start(client, prepared.slot, command).await?;
        let reply = Reply::Edp {
            slot: prepared.slot,
            rings: prepared.rings(),
            interface: link.name().to_owned(),
            port,
        };
        Ok((reply, vec![prepared.descriptor]))
    }

    /// Passes the socket of a slot to the engine, and frees the slot if the engine refuses it.
    pub(super) async fn start<T: Send + 'static, E: Into<Refusal> + Send + 'static>(
        &self,
        client: &Client,
        slot: Slot,
        command: impl FnOnce(esp_engine::Reply<Result<T, E>>) -> Command,
    ) -> Result<(), Refusal> {
        let answer = self.node.engines.request(client.engine(), command).await;
        let started = answer.and_then(|answer| answer.map_err(Into::into));
        if started.is_err() {
            client.slots().withdraw(slot);
        }
        started.map(drop)
    }

    /// Closes a slot for the program.
    fn close(&self, client: &Client, slot: Slot, kind: SlotUse) -> Result<(), Refusal> {
        if !client.slots().is(slot, kind) {
            return Err(no_slot(slot));
        }
        // The command comes first: once the slot counts as closed, it may be reused.
        let command = Command::Close {
            client: client.id,
            slot,
        };
        let sent = self.node.engines.send(client.engine(), command);
        client.slots().program_closed(slot);
        sent
    }

    fn abort(&self, client: &Client, slot: Slot) -> Result<(), Refusal> {
        if !client.slots().is(slot, SlotUse::Stream) {
            return Err(no_slot(slot));
        }
        let command = Command::Abort {
            client: client.id,
            slot,
        };
        self.node.engines.send(client.engine(), command)
    }

    /// Acquires slot, rings, charges and port of a socket. On an error, all are released.
    pub(super) fn prepare(
        &self,
        client: &Client,
        kind: SlotUse,
        (rings, min_rx): (Rings, u32),
        port: Option<PortClaim>,
    ) -> Result<Prepared, Refusal> {
        let sizes = self.node.grant(rings, min_rx)?;
        let charges = self.charge_socket(kind, sizes)?;
        let (region, descriptor) =
            Region::create(sizes).map_err(|error| Refusal::system("create the rings", &error))?;
        let slot = client
            .slots()
            .reserve(
                kind,
                Holdings {
                    charges,
                    rings: sizes,
                    port,
                },
            )
            .ok_or_else(|| {
                Refusal::new(
                    ErrorKind::Limit,
                    "too many streams and datagram sockets: a program may have 4096",
                )
            })?;
        Ok(Prepared {
            slot,
            sizes,
            region,
            descriptor,
        })
    }

    /// Charges the user for a socket and its rings. The receive ring of a stream counts twice: data
    /// after a gap waits in the engine's memory, at most as much as the ring has room for.
    pub(super) fn charge_socket(
        &self,
        kind: SlotUse,
        sizes: RingSizes,
    ) -> Result<Vec<Charge>, Refusal> {
        let (accounts, uid) = (&self.node.accounts, self.credentials.uid);
        let what = match kind {
            SlotUse::Stream => Resource::Streams,
            SlotUse::Edp => Resource::EdpSockets,
        };
        let after_a_gap = match kind {
            SlotUse::Stream => sizes.rx,
            SlotUse::Edp => 0,
        };
        let bytes = [sizes.tx, sizes.rx, after_a_gap]
            .map(u64::from)
            .iter()
            .sum();
        Ok(vec![
            accounts.charge(uid, what, 1)?,
            accounts.charge(uid, Resource::RingBytes, bytes)?,
        ])
    }

    /// Claims a port, or any free one (port 0), for the program's engine.
    pub(super) async fn claim_port(
        &self,
        client: &Client,
        (link, ports): (&Link, &Arc<Ports>),
        port: Port,
        purpose: Purpose,
    ) -> Result<PortClaim, Refusal> {
        let claimant = client.claimant();
        if port == 0 {
            let vacant = |port| ports.take_vacant(port, claimant, purpose);
            let found = self.node.engines.free_port(client.engine(), vacant);
            return found.ok_or_else(no_port);
        }
        let claim = ports.take(port, claimant, purpose);
        let claim = claim.ok_or_else(|| in_use(link, port))?;
        self.node.assign_port(claimant, port).await?;
        Ok(claim)
    }

    pub(super) fn check_port(&self, port: Port) -> Result<(), Refusal> {
        if port == 0 || port >= FIRST_USER_PORT || self.credentials.is_root() {
            return Ok(());
        }
        let message = format!(
            "port {port} is reserved for the superuser: user {} may use {FIRST_USER_PORT} to 65535",
            self.credentials.uid
        );
        Err(Refusal::new(ErrorKind::Permission, message))
    }
}

fn check_key(key: &[u8]) -> Result<(), Refusal> {
    if key.len() > MAX_KEY {
        let message = format!(
            "job key of {} bytes is too long: expected at most {MAX_KEY}",
            key.len()
        );
        return Err(Refusal::bad_argument(message));
    }
    Ok(())
}

pub(super) fn in_use(link: &Link, port: Port) -> Refusal {
    let message = format!(
        "port {port} is in use on {}; `espstat` shows the owner",
        link.name()
    );
    Refusal::new(ErrorKind::InUse, message)
}

fn no_port() -> Refusal {
    Refusal::new(
        ErrorKind::InUse,
        "all ports that esp-daemon can choose are in use: close connections, or choose a port",
    )
}

fn no_slot(slot: Slot) -> Refusal {
    Refusal::new(
        ErrorKind::NotFound,
        format!("this program has no such socket in slot {slot}"),
    )
}
