//! Handlers of the requests.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use esp_client::control::{ErrorKind, Reply, Request, Rings};
use esp_engine::shm::{Region, RingSizes};
use esp_engine::{ClientId, Command, Slot};
use esp_proto::{FIRST_USER_PORT, NodeAddr, Port};

use super::accept::Listening;
use super::{ReplyWithFds, Session};
use crate::config::Resource;
use crate::links::{self, Link};
use crate::node::Client;
use crate::ports::{self, PortClaim, Ports, Purpose};
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
    pub(super) sizes: RingSizes,
    pub(super) region: Arc<Region>,
    pub(super) descriptor: OwnedFd,
}

impl Session {
    /// Handles a request. Returns `None` if the answer follows later.
    pub(super) async fn execute(
        &mut self,
        client: &Arc<Client>,
        id: u64,
        request: Request,
    ) -> Option<Result<ReplyWithFds, Refusal>> {
        let done = |()| (Reply::Done, Vec::new());
        Some(match request {
            Request::Hello { .. } => Err(Refusal::new(ErrorKind::BadRequest, "repeated Hello")),
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
            Request::Status => status::of(&self.node, self.who)
                .await
                .map(|status| (Reply::Status(Box::new(status)), Vec::new())),
        })
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
        let link = interface
            .map(|name| links::by_name(&self.node.links, name))
            .transpose()?;
        let charge = self
            .node
            .accounts
            .charge(self.who.uid, Resource::Listeners, 1)?;
        let claims = match link {
            Some((_, link)) => {
                self.claim_for_listener(client.id, std::slice::from_ref(link), port)?
            }
            None => self.claim_for_listener(client.id, &self.node.links, port)?,
        };
        let port = claims.first().map_or(port, PortClaim::port);
        let listener = self.node.add_listener(client);
        let link = link.map(|(id, _)| id);
        let listened = self
            .node
            .request(|reply| Command::Listen {
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
        self.listeners
            .insert(listener, Listening::new(claims, charge));
        Ok((
            Reply::Listening {
                listener: listener.0,
                port,
            },
            Vec::new(),
        ))
    }

    /// Claims one port on each of the links.
    fn claim_for_listener(
        &self,
        who: ClientId,
        links: &[Link],
        port: Port,
    ) -> Result<Vec<PortClaim>, Refusal> {
        let (uid, purpose) = (self.who.uid, Purpose::Listener(who));
        if port != 0 {
            return links
                .iter()
                .map(|link| {
                    link.esp
                        .take(port, uid, purpose)
                        .ok_or_else(|| in_use(link, port))
                })
                .collect();
        }
        ports::ephemeral(ports::random_start())
            .find_map(|port| {
                links
                    .iter()
                    .map(|link| link.esp.take_vacant(port, uid, purpose))
                    .collect()
            })
            .ok_or_else(no_port)
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
        let claim = self.claim_port(link, &link.esp, local_port, Purpose::Connection)?;
        let local_port = claim.port();
        let Prepared {
            slot,
            sizes,
            region,
            descriptor,
        } = self.prepare(client, SlotUse::Stream, (rings, 0), Some(claim))?;
        let started = self
            .node
            .request(|reply| Command::Connect {
                client: client.id,
                slot,
                link: id,
                local_port,
                peer,
                peer_port,
                key,
                region,
                reply,
            })
            .await
            .and_then(|answer| Ok(answer?));
        if let Err(refusal) = started {
            client.slots().withdraw(slot);
            return Err(refusal);
        }
        Ok(stream_reply(
            link.name(),
            local_port,
            (peer, peer_port),
            (slot, sizes, descriptor),
        ))
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
        let claim = self.claim_port(link, &link.edp, port, Purpose::Sole)?;
        let port = claim.port();
        let Prepared {
            slot,
            sizes,
            region,
            descriptor,
        } = self.prepare(client, SlotUse::Edp, (rings, 0), Some(claim))?;
        let bound = self
            .node
            .request(|reply| Command::BindEdp {
                client: client.id,
                slot,
                link: id,
                port,
                region,
                reply,
            })
            .await
            .and_then(|answer| Ok(answer?));
        if let Err(refusal) = bound {
            client.slots().withdraw(slot);
            return Err(refusal);
        }
        let interface = link.name().to_owned();
        Ok((
            Reply::Edp {
                slot,
                rings: granted(sizes),
                interface,
                port,
            },
            vec![descriptor],
        ))
    }

    /// Closes a slot for the program.
    fn close(&self, client: &Client, slot: Slot, kind: SlotUse) -> Result<(), Refusal> {
        if !client.slots().is(slot, kind) {
            return Err(no_slot(slot));
        }
        // The command comes first: once the slot counts as closed, it may be reused.
        let command = match kind {
            SlotUse::Stream => Command::Close {
                client: client.id,
                slot,
            },
            SlotUse::Edp => Command::CloseEdp {
                client: client.id,
                slot,
            },
        };
        let sent = self.node.send(command);
        client.slots().program_closed(slot);
        sent
    }

    fn abort(&self, client: &Client, slot: Slot) -> Result<(), Refusal> {
        if !client.slots().is(slot, SlotUse::Stream) {
            return Err(no_slot(slot));
        }
        self.node.send(Command::Abort {
            client: client.id,
            slot,
        })
    }

    /// Acquires slot, rings, charges and port of a socket. On error nothing stays acquired.
    pub(super) fn prepare(
        &self,
        client: &Client,
        kind: SlotUse,
        (rings, least_rx): (Rings, u32),
        port: Option<PortClaim>,
    ) -> Result<Prepared, Refusal> {
        let sizes = self.node.grant(rings, least_rx)?;
        let (accounts, uid) = (&self.node.accounts, self.who.uid);
        let what = match kind {
            SlotUse::Stream => Resource::Streams,
            SlotUse::Edp => Resource::EdpSockets,
        };
        let charges = vec![
            accounts.charge(uid, what, 1)?,
            accounts.charge(
                uid,
                Resource::RingBytes,
                u64::from(sizes.tx) + u64::from(sizes.rx),
            )?,
        ];
        let (region, descriptor) =
            Region::create(sizes).map_err(|error| Refusal::system("create the rings", &error))?;
        let slot = client
            .slots()
            .reserve(kind, Holdings { charges, port })
            .map_err(|_holdings| {
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

    fn claim_port(
        &self,
        link: &Link,
        ports: &Arc<Ports>,
        port: Port,
        purpose: Purpose,
    ) -> Result<PortClaim, Refusal> {
        let uid = self.who.uid;
        match port {
            0 => ports
                .take_free(ports::random_start(), uid, purpose)
                .ok_or_else(no_port),
            port => ports
                .take(port, uid, purpose)
                .ok_or_else(|| in_use(link, port)),
        }
    }

    pub(super) fn check_port(&self, port: Port) -> Result<(), Refusal> {
        if port == 0 || port >= FIRST_USER_PORT || self.who.is_root() {
            return Ok(());
        }
        let message = format!(
            "port {port} is reserved for the superuser: user {} may use {FIRST_USER_PORT} to 65535",
            self.who.uid
        );
        Err(Refusal::new(ErrorKind::Permission, message))
    }
}

/// Returns the reply that passes a stream to the program.
pub(super) fn stream_reply(
    interface: &str,
    local_port: Port,
    (peer, peer_port): (NodeAddr, Port),
    (slot, sizes, descriptor): (Slot, RingSizes, OwnedFd),
) -> ReplyWithFds {
    let reply = Reply::Stream {
        slot,
        rings: granted(sizes),
        interface: interface.to_owned(),
        local_port,
        peer,
        peer_port,
    };
    (reply, vec![descriptor])
}

fn granted(sizes: RingSizes) -> Rings {
    Rings {
        tx: sizes.tx,
        rx: sizes.rx,
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
        "all ports from 32768 to 65535 are in use: close connections, or choose a port",
    )
}

fn no_slot(slot: Slot) -> Refusal {
    Refusal::new(
        ErrorKind::NotFound,
        format!("this program has no such socket in slot {slot}"),
    )
}
