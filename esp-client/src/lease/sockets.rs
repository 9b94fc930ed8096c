//! Opens streams, listeners and datagram sockets at the embedded engine.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esp_engine::shm::{Region, RingSizes};
use esp_engine::{Arrival, Command, ListenerId};
use esp_proto::{ConnectError, FIRST_EPHEMERAL_PORT, ListenError};

use super::engine::SELF;
use super::leases::{LeaseKind, LeasedPorts, Leases};
use crate::control::{ErrorKind, Rings};
use crate::error::{EspError, PeerName};
use crate::options::DEFAULT_RING;
use crate::sync::lock;

/// First slot of leased streams as programs see it, after all slots of the daemon.
pub(crate) const FIRST_LEASED_SLOT: u16 = 4096;
const _: () = assert!(FIRST_LEASED_SLOT as usize == esp_engine::shm::SLOTS);
/// Number of ports of a range, and so of its connections to one port of one peer.
const RANGE_PORTS: u16 = 32;
/// Maximum number of further ports that are tried in a range.
const MAX_TRIES: u16 = 1024;
/// Maximum number of ranges of one interface.
const MAX_RANGES: usize = 8;

/// A stream's or datagram socket's slot at the embedded engine.
pub(crate) struct LeasedSlot {
    pub(crate) leases: Arc<Leases>,
    pub(crate) ports: Arc<LeasedPorts>,
    pub(crate) slot: u16,
}

/// A new stream or datagram socket, with its region and addresses.
pub(crate) struct LeasedSocketParts {
    pub(crate) slot: LeasedSlot,
    pub(crate) region: Arc<Region>,
    pub(crate) local_port: u16,
}

/// A listener's part on one leased link.
pub(crate) struct LeasedListener {
    pub(crate) leases: Arc<Leases>,
    ports: Arc<LeasedPorts>,
    listener: ListenerId,
}

impl Leases {
    /// Opens a stream from any leased port of this interface. It may still be connecting. Without a
    /// daemon that keeps the ports, no new stream is opened.
    pub(crate) fn connect(
        self: &Arc<Self>,
        interface: &str,
        peer: PeerName,
        key: &[u8],
        rings: Rings,
    ) -> Result<LeasedSocketParts, EspError> {
        self.keeper().check()?;
        let sizes = sizes(rings, 0)?;
        let serves = |ports: &&Arc<LeasedPorts>| {
            ports.kind == LeaseKind::Range && ports.interface.name == interface && !ports.is_lost()
        };
        for range in 0..MAX_RANGES {
            let leased = lock(&self.table).iter().filter(serves).nth(range).cloned();
            let ports = match leased {
                Some(ports) => ports,
                // All ports of the UDP socket are in the first range.
                None if self.session.is_local() => break,
                None => {
                    let ports = self.lease(interface, None, RANGE_PORTS)?;
                    self.prepare_standbys(&ports);
                    ports
                }
            };
            let count = ports.ports.end() - ports.ports.start();
            for _ in 0..=count.min(MAX_TRIES) {
                if let Some(opened) = self.connect_from(&ports, peer, key, sizes)? {
                    return Ok(opened);
                }
            }
        }
        let text = "all leased ports are connected to that port";
        Err(EspError::denied(ErrorKind::InUse, text))
    }

    /// Opens a stream from the next port of a lease; `None`: that port already has a connection to
    /// this peer.
    fn connect_from(
        self: &Arc<Self>,
        ports: &Arc<LeasedPorts>,
        peer: PeerName,
        key: &[u8],
        sizes: RingSizes,
    ) -> Result<Option<LeasedSocketParts>, EspError> {
        let count = u32::from(*ports.ports.end() - *ports.ports.start()) + 1;
        let step = ports.next.fetch_add(1, Ordering::Relaxed) % count;
        // At most the last port of the range.
        let local_port = ports.ports.start() + u16::try_from(step).unwrap_or(0);
        let (slot, link, key) = (self.take_slot()?, ports.link, key.to_vec());
        self.open(ports, (slot, local_port), sizes, |region, reply| {
            Command::Connect {
                client: SELF,
                slot,
                link,
                local_port,
                peer: peer.addr,
                peer_port: peer.port,
                key,
                region,
                reply: Box::new(|connected| {
                    reply(match connected {
                        Ok(_) => Ok(true),
                        Err(ConnectError::InUse) => Ok(false),
                        Err(error) => {
                            Err(EspError::denied(ErrorKind::BadArgument, error.to_string()))
                        }
                    });
                }),
            }
        })
    }

    /// Binds a datagram port (0: any free one) of this interface; `None`: the first one.
    pub(crate) fn bind_datagrams(
        self: &Arc<Self>,
        interface: Option<&str>,
        port: u16,
        rings: Rings,
    ) -> Result<LeasedSocketParts, EspError> {
        let is_it =
            |ports: &&Arc<LeasedPorts>| interface.is_none_or(|only| only == ports.interface.name);
        let ports = lock(&self.table).iter().find(is_it).cloned();
        let ports = ports.ok_or_else(|| {
            EspError::denied(ErrorKind::NotFound, "the program has no such interface")
        })?;
        let sizes = sizes(rings, 0)?;
        for port in candidates(port) {
            let (slot, link) = (self.take_slot()?, ports.link);
            let opened = self.open(&ports, (slot, port), sizes, |region, reply| {
                Command::BindEdp {
                    client: SELF,
                    slot,
                    link,
                    port,
                    region,
                    resume: false,
                    reply: Box::new(|bound| reply(Ok(bound.is_ok()))),
                }
            })?;
            if let Some(opened) = opened {
                return Ok(opened);
            }
        }
        let text = "the datagram port is in use";
        Err(EspError::denied(ErrorKind::InUse, text))
    }

    /// Creates the region of a socket and opens the socket at the engine; `None`: the engine
    /// replied false.
    fn open(
        self: &Arc<Self>,
        ports: &Arc<LeasedPorts>,
        (slot, local_port): (u16, u16),
        sizes: RingSizes,
        command: impl FnOnce(Arc<Region>, esp_engine::Reply<Result<bool, EspError>>) -> Command,
    ) -> Result<Option<LeasedSocketParts>, EspError> {
        let opened = Region::create(sizes)
            .map_err(EspError::resource("create the rings of a socket"))
            .and_then(|(region, _descriptor)| {
                let given = Arc::clone(&region);
                let reply = self.engine.ask(|reply| command(given, reply));
                let silent = || not_now("the embedded engine does not respond");
                Ok((region, reply.ok_or_else(silent)??))
            });
        match opened {
            Ok((region, true)) => Ok(Some(LeasedSocketParts {
                slot: LeasedSlot {
                    leases: Arc::clone(self),
                    ports: Arc::clone(ports),
                    slot,
                },
                region,
                local_port,
            })),
            failed => {
                lock(&self.engine.log).slots.remove(&slot);
                failed.map(|_| None)
            }
        }
    }

    fn take_slot(&self) -> Result<u16, EspError> {
        lock(&self.engine.log).take_slot().ok_or_else(|| {
            let text = "the limit of 4096 streams over leases is reached";
            EspError::denied(ErrorKind::Limit, text)
        })
    }

    /// Leases the port of a listener on these interfaces. An interface without a lease uses the
    /// daemon; with `must` it is an error.
    ///
    /// # Errors
    /// [`EspError::DaemonGone`], even without `must`: the daemon ended during the call. The next
    /// one may have reserved the port for this lease.
    pub(crate) fn listen<'a>(
        self: &Arc<Self>,
        interfaces: impl Iterator<Item = &'a str>,
        (id, port): (u64, u16),
        backlog: u16,
        key: &[u8],
        must: bool,
    ) -> Result<Vec<LeasedListener>, EspError> {
        // The listener belongs to the first daemon's connection only.
        if self.session.is_lost() {
            if must {
                return Err(not_now(
                    "the daemon was restarted, and a listener over leases can be opened only at the first daemon: restart this program",
                ));
            }
            return Ok(Vec::new());
        }
        let mut leased = Vec::new();
        for interface in interfaces {
            match self.holder(Some(interface), port) {
                Some(ports) => leased.push(ports),
                None => match self.lease(interface, Some(id), 1) {
                    Ok(ports) => leased.push(ports),
                    Err(error) if must || matches!(error, EspError::DaemonGone { .. }) => {
                        return Err(error);
                    }
                    Err(_) => {}
                },
            }
        }
        // After the loop, because an interface with the port needs no standby.
        leased.iter().for_each(|ports| self.prepare_standbys(ports));
        let listen = |ports: Arc<LeasedPorts>| {
            let listener = lock(&self.engine.log).next_listener();
            let (link, key) = (Some(ports.link), key.to_vec());
            let listening = self.engine.ask(|reply| Command::Listen {
                client: SELF,
                listener,
                link,
                port,
                backlog,
                key,
                reply,
            });
            match listening {
                Some(Ok(())) => Ok(LeasedListener {
                    leases: Arc::clone(self),
                    ports,
                    listener,
                }),
                Some(Err(ListenError::InUse)) => {
                    let text = "this program already listens on the port";
                    Err(EspError::denied(ErrorKind::InUse, text))
                }
                _ => Err(not_now("the embedded engine cannot listen on the port")),
            }
        };
        leased.into_iter().map(listen).collect()
    }
}

/// Returns the ports to try for a wanted port; 0 is any.
pub(crate) fn candidates(port: u16) -> RangeInclusive<u16> {
    match port {
        0 => FIRST_EPHEMERAL_PORT..=u16::MAX,
        port => port..=port,
    }
}

fn not_now(text: &str) -> EspError {
    EspError::denied(ErrorKind::Unavailable, text)
}

impl LeasedSlot {
    /// Registers a connection for the report to the daemon, which shows it once it is established,
    /// and resets it when this program dies.
    pub(crate) fn register(&self, local_port: u16, peer: PeerName) {
        let lease = Arc::clone(&self.ports.id);
        self.leases.register(self.slot, lease, local_port, peer);
    }

    pub(crate) fn abort(&self) {
        self.leases.engine.send(Command::Abort {
            client: SELF,
            slot: self.slot,
        });
        self.leases.engine.poll();
    }

    /// Closes a stream. The progress thread delivers the written bytes while the process lives, and
    /// [`super::end`] when the client or the process ends.
    pub(crate) fn close(&self) {
        let (engine, slot) = (&self.leases.engine, self.slot);
        self.leases.unregister(slot);
        engine.send(Command::Close { client: SELF, slot });
        lock(&engine.log).release(slot);
        engine.poll();
    }

    /// Closes a datagram socket.
    pub(crate) fn close_datagrams(&self) {
        let (engine, slot) = (&self.leases.engine, self.slot);
        if !engine.is_forked() {
            engine.send(Command::Close { client: SELF, slot });
            // The slot is free once the engine has reported its end.
            lock(&engine.log).release(slot);
            engine.poll();
        }
    }
}

impl LeasedListener {
    pub(crate) fn has_arrival(&self) -> bool {
        let log = lock(&self.leases.engine.log);
        let waiting = log.arrivals.get(&self.listener);
        waiting.is_some_and(|waiting| !waiting.is_empty())
    }

    /// Returns the error that ended the listener, if any.
    pub(crate) fn lost(&self) -> Option<&EspError> {
        self.ports.lost.get()
    }

    /// Returns the next connection and its peer, if there is one.
    pub(crate) fn accept(
        &self,
        rings: Rings,
    ) -> Result<Option<(LeasedSocketParts, PeerName)>, EspError> {
        let engine = &self.leases.engine;
        loop {
            let Some(arrival) = lock(&engine.log).arrival(self.listener) else {
                return Ok(None);
            };
            let Arrival {
                handle,
                port,
                peer: addr,
                peer_port,
            } = arrival;
            let least = esp_proto::min_listener_capacity(self.ports.interface.mtu);
            let (sizes, slot) = sizes(rings, least)
                .and_then(|sizes| Ok((sizes, self.leases.take_slot()?)))
                .inspect_err(|_| engine.send(Command::Refuse { handle }))?;
            let attached = self
                .leases
                .open(&self.ports, (slot, port), sizes, |region, reply| {
                    Command::Attach {
                        handle,
                        client: SELF,
                        slot,
                        region,
                        reply: Box::new(|attached| reply(Ok(attached))),
                    }
                })
                .inspect_err(|_| engine.send(Command::Refuse { handle }))?;
            if let Some(opened) = attached {
                let peer = PeerName {
                    addr,
                    port: peer_port,
                };
                return Ok(Some((opened, peer)));
            }
        }
    }
}

impl Drop for LeasedListener {
    fn drop(&mut self) {
        let (engine, listener) = (&self.leases.engine, self.listener);
        if !engine.is_forked() {
            engine.send(Command::CloseListener { listener });
            lock(&engine.log).arrivals.remove(&listener);
            engine.poll();
        }
    }
}

/// Returns the ring sizes of a socket. 0 selects the default, as at the daemon.
fn sizes(wanted: Rings, min_rx: u32) -> Result<RingSizes, EspError> {
    let one = |size: u32| if size == 0 { DEFAULT_RING } else { size };
    let sizes = RingSizes {
        tx: one(wanted.tx),
        rx: one(wanted.rx).max(min_rx.next_power_of_two()),
    };
    let checked = sizes.check().map(|()| sizes);
    checked.map_err(|error| EspError::denied(ErrorKind::BadArgument, error.to_string()))
}
