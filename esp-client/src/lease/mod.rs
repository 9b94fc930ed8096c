//! Leased ports: streams whose engine runs in this program, over packet sockets that the daemon
//! opened for it.
//!
//! [`Leases`] is what one client has of them. For connections it leases rows of free ports, one row
//! for each interface at first; a listener leases its own port, beside its place at the daemon,
//! where programs of the same node still find it.
//!
//! On a node with several interfaces each of them has *standbys*: sockets for the same ports on the
//! others, where its connections go on when its own interface fails.
//!
//! Leases outlive the daemon: see [`adopt`].

mod adopt;
mod embedded;
mod news;
mod open;
mod progress;
mod stream;
mod told;

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use esp_engine::shm::Spin;
use esp_engine::{LINGER, LeasedLink, LeasedSocket, LinkId, RingShape};
use esp_proto::MacAddr;

use crate::call::Answer;
use crate::client::Client;
use crate::control::{ErrorKind, LeaseRing, Reply, Request};
use crate::error::EspError;
use crate::session::{Session, lock};
pub(crate) use embedded::EmbeddedEngine;
pub(crate) use open::Opened;
pub(crate) use stream::{LeasedListener, LeasedStream};
use told::Told;

/// Standbys of a lease at most; each costs four descriptors.
const STANDBYS: usize = 3;

/// Environment variable with the default [`Path`] of streams: `auto`, `lease` or `daemon`.
pub const PATH_VARIABLE: &str = "ESP_PATH";

/// Data path of a stream within its own node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Path {
    /// A lease if the node's policy allows one, else the daemon.
    #[default]
    Auto,
    /// A lease; connecting fails without one. Streams to the own node, which send no frame, still
    /// use the daemon. A stream over a lease survives a restart of the daemon.
    Lease,
    /// Through the daemon.
    Daemon,
}

impl Path {
    /// Returns the value of [`PATH_VARIABLE`], or `Auto` if it is not set or empty.
    ///
    /// # Errors
    /// [`EspError::BadVariable`] for any other value. Opening a [`Client`] makes the same check.
    pub fn from_environment() -> Result<Path, EspError> {
        match std::env::var_os(PATH_VARIABLE) {
            Some(value) => Path::parse(&value.to_string_lossy()),
            None => Ok(Path::Auto),
        }
    }

    fn parse(value: &str) -> Result<Path, EspError> {
        match value {
            "" | "auto" => Ok(Path::Auto),
            "lease" => Ok(Path::Lease),
            "daemon" => Ok(Path::Daemon),
            _ => Err(EspError::BadVariable {
                variable: PATH_VARIABLE,
                value: value.to_owned(),
                expected: "auto, lease or daemon",
            }),
        }
    }
}

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Connections of this program. Kept while the client lives.
    Row,
    Listener,
    /// The connections of another one, whose interface has failed.
    Standby,
}

/// A lease: sockets in the engine, ports of the daemon's.
pub(crate) struct LeasedPorts {
    pub(crate) engine: Arc<EmbeddedEngine>,
    /// Its number at the daemon that knows it now.
    id: Arc<AtomicU64>,
    link: LinkId,
    interface: String,
    mac: [u8; 6],
    mtu: u32,
    ports: RangeInclusive<u16>,
    kind: Kind,
    /// What its connections may go over to; none until they were asked for.
    standbys: OnceLock<Vec<Arc<LeasedPorts>>>,
    next: AtomicU32,
    /// Sockets for the time without the daemon, which sees to it that the first ones get their
    /// frames.
    spares: Mutex<Option<Spares>>,
    /// Why the daemon that came later did not adopt it.
    lost: OnceLock<EspError>,
}

/// The spare sockets of a lease.
struct Spares {
    sockets: [LeasedSocket; 2],
    /// With the daemon that gave them. While it lasts they are not needed.
    session: Weak<Session>,
}

impl Spares {
    fn new(sockets: [LeasedSocket; 2], session: &Arc<Session>) -> Spares {
        Spares {
            sockets,
            session: Arc::downgrade(session),
        }
    }

    fn are_needed(&self) -> bool {
        self.session
            .upgrade()
            .is_none_or(|session| session.check().is_err())
    }
}

impl LeasedPorts {
    /// Can new connections through this interface use it?
    fn serves(&self, interface: &str) -> bool {
        self.kind == Kind::Row && self.interface == interface && !self.is_lost()
    }

    fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }
}

/// All leases of one client.
pub(crate) struct Leases {
    engine: Arc<EmbeddedEngine>,
    /// The client's own.
    session: Arc<Session>,
    /// With the daemon that keeps the ports now: `session`, until that daemon is gone and another
    /// has adopted the leases. Locked before `told`.
    keeper: Mutex<Arc<Session>>,
    /// A thread has been started to find one.
    adopting: AtomicBool,
    table: Mutex<Vec<Arc<LeasedPorts>>>,
    /// Connections the daemon knows, by slot, with the nonce that the peer takes a reset by.
    told: Mutex<HashMap<u16, (Told, u64)>>,
    /// Connections that were begun, of which the daemon is told when they are established.
    begun: Mutex<Vec<(u16, Told)>>,
    /// The node's word that this program gets none.
    refused: Mutex<Option<EspError>>,
    #[cfg(feature = "tokio")]
    wakers: Mutex<Vec<std::task::Waker>>,
    /// The engine's activity when futures were last woken.
    #[cfg(feature = "tokio")]
    seen: AtomicU64,
}

impl Leases {
    pub(crate) fn start(session: &Arc<Session>) -> Result<Arc<Leases>, EspError> {
        let leases = Arc::new(Leases {
            engine: EmbeddedEngine::start(session)?,
            session: Arc::clone(session),
            keeper: Mutex::new(Arc::clone(session)),
            adopting: AtomicBool::new(false),
            table: Mutex::default(),
            told: Mutex::default(),
            begun: Mutex::default(),
            refused: Mutex::new(None),
            #[cfg(feature = "tokio")]
            wakers: Mutex::default(),
            #[cfg(feature = "tokio")]
            seen: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&leases);
        std::thread::Builder::new()
            .name("esp-lease".into())
            .spawn(move || progress::run(&weak))
            .map_err(|error| EspError::Memory {
                what: format!("no thread could be started: {error}"),
            })?;
        Ok(leases)
    }

    /// Asks the daemon for a lease and puts its sockets into the engine.
    fn lease(
        &self,
        interface: &str,
        listener: Option<u64>,
        count: u16,
    ) -> Result<Arc<LeasedPorts>, EspError> {
        if let Some(error) = &*lock(&self.refused) {
            return Err(error.clone());
        }
        let session = self.keeper();
        let request = Request::Lease {
            interface: Some(interface.into()),
            listener,
            count,
        };
        let answer = session.ask(&request).inspect_err(|error| {
            if matches!(
                error,
                EspError::Denied {
                    kind: ErrorKind::Permission | ErrorKind::BadRequest,
                    ..
                }
            ) {
                *lock(&self.refused) = Some(error.clone());
            }
        })?;
        let kind = if listener.is_some() {
            Kind::Listener
        } else {
            Kind::Row
        };
        self.take_lease(&session, answer, kind)
    }

    /// Puts the sockets of a lease that was granted into the engine.
    fn take_lease(
        &self,
        session: &Arc<Session>,
        answer: Answer,
        kind: Kind,
    ) -> Result<Arc<LeasedPorts>, EspError> {
        let Answer {
            reply:
                Reply::Lease {
                    lease,
                    interface,
                    port,
                    count,
                    protocol,
                    ring,
                },
            descriptors,
        } = answer
        else {
            session.dispose(&answer);
            return Err(session.unexpected("a lease"));
        };
        let end = || session.post(&Request::EndLease { lease });
        let ([esp, edp], spares) = sockets(descriptors, ring).inspect_err(|_| end())?;
        let last = port.saturating_add(count.saturating_sub(1));
        let leased = LeasedLink {
            interface: interface.name.clone(),
            mac: MacAddr(interface.mac),
            mtu: interface.mtu,
            endpoint: protocol.endpoint(),
            incarnation: session.welcome().incarnation,
            ports: port..=last,
            standby: kind == Kind::Standby,
            esp,
            edp,
        };
        let link = self.engine.add(leased).inspect_err(|_| end())?;
        let ports = Arc::new(LeasedPorts {
            engine: Arc::clone(&self.engine),
            id: Arc::new(AtomicU64::new(lease)),
            link,
            interface: interface.name,
            mac: interface.mac,
            mtu: interface.mtu,
            ports: port..=last,
            kind,
            standbys: OnceLock::new(),
            next: AtomicU32::new(0),
            spares: Mutex::new(Some(Spares::new(spares, session))),
            lost: OnceLock::new(),
        });
        lock(&self.table).push(Arc::clone(&ports));
        Ok(ports)
    }

    /// Asks for the ports of a lease on the node's other interfaces, but those where it has them
    /// anyway. Before its first connection: what is opened without does not move. What is refused
    /// (somebody has a port there, a limit) is done without.
    fn prepare_standbys(&self, ports: &LeasedPorts) {
        let session = self.keeper();
        if !session.welcome().standbys
            || ports.kind == Kind::Standby
            || ports.standbys.get().is_some()
        {
            return;
        }
        let elsewhere = |name: &str| self.holder(Some(name), *ports.ports.start()).is_none();
        let others = session
            .welcome()
            .interfaces
            .iter()
            .map(|other| other.name.as_str());
        let lease = ports.id.load(std::sync::atomic::Ordering::Relaxed);
        let standby = |name: &str| {
            let answer = session
                .ask(&Request::Standby {
                    lease,
                    interface: name.into(),
                })
                .ok()?;
            self.take_lease(&session, answer, Kind::Standby).ok()
        };
        let all = others
            .filter(|name| elsewhere(name))
            .take(STANDBYS)
            .filter_map(standby)
            .collect();
        let _ = ports.standbys.set(all);
    }

    /// The session with the daemon that keeps the ports now.
    fn keeper(&self) -> Arc<Session> {
        Arc::clone(&lock(&self.keeper))
    }

    /// The lease that has this port already: connections that an earlier listener accepted keep it,
    /// or it is one of a row.
    fn holder(&self, interface: Option<&str>, port: u16) -> Option<Arc<LeasedPorts>> {
        let here = |ports: &LeasedPorts| interface.is_none_or(|name| name == ports.interface);
        let there =
            |ports: &LeasedPorts| ports.ports.contains(&port) && !ports.is_lost() && here(ports);
        lock(&self.table).iter().find(|ports| there(ports)).cloned()
    }

    /// Does a lease have this port, on this or on any interface? The daemon hears nothing of it
    /// then.
    pub(crate) fn has(&self, interface: Option<&str>, port: u16) -> bool {
        self.holder(interface, port).is_some()
    }

    pub(crate) fn engine(&self) -> &Arc<EmbeddedEngine> {
        &self.engine
    }

    /// Before the program lets go of all: streams that were closed get half a second to deliver and
    /// to end. The wait is for what turns of the engine bring about: nothing else would end the
    /// sleep between them.
    pub(crate) fn finish(&self) {
        if self.engine.is_forked() {
            return;
        }
        if self.session.answers().is_some() && !self.engine.is_over() {
            self.engine.wait(
                Spin::default(),
                || self.engine.is_over(),
                Some(Instant::now() + LINGER),
            );
        }
        // What it is not told of it resets at the peers.
        self.tell_closed();
    }
}

impl Drop for Leases {
    /// The client closes its own session; one with a later daemon is ours.
    fn drop(&mut self) {
        let keeper = self.keeper();
        if !Arc::ptr_eq(&keeper, &self.session) {
            keeper.close();
        }
    }
}

/// The two sockets of a lease, and the two spares.
fn sockets(
    descriptors: Vec<OwnedFd>,
    LeaseRing { slot_len, slots }: LeaseRing,
) -> Result<([LeasedSocket; 2], [LeasedSocket; 2]), EspError> {
    let missing =
        "the sockets of a lease did not come; is this process at its limit of open files?";
    let [esp, edp, spare_esp, spare_edp] =
        <[OwnedFd; 4]>::try_from(descriptors).map_err(|_| EspError::Memory {
            what: missing.into(),
        })?;
    let ring = (slots > 0).then_some(RingShape { slot_len, slots });
    let both = |esp, edp| {
        [
            LeasedSocket { socket: esp, ring },
            LeasedSocket {
                socket: edp,
                ring: None,
            },
        ]
    };
    Ok((both(esp, edp), both(spare_esp, spare_edp)))
}

fn denied(kind: ErrorKind, message: &str) -> EspError {
    EspError::Denied {
        kind,
        message: message.into(),
    }
}

/// Has this client leases, or may it have some?
pub(crate) fn of(
    client: &Client,
    path: Path,
    peer: Option<MacAddr>,
) -> io::Result<Option<Arc<Leases>>> {
    let own = peer.is_some_and(|peer| {
        client
            .interfaces()
            .iter()
            .any(|own| own.mac == peer.octets())
    });
    // Who must have a lease asks for it, and hears why not.
    if path == Path::Daemon || own || (path == Path::Auto && !client.session().welcome().leases) {
        return Ok(None);
    }
    match client.leases() {
        Ok(leases) => Ok(Some(leases)),
        Err(_) if path == Path::Auto => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_path_is_an_error_that_names_the_valid_ones() {
        assert_eq!(Path::parse("lease"), Ok(Path::Lease));
        assert_eq!(Path::parse(""), Ok(Path::Auto));
        let error = Path::parse("nonsense").map_err(|error| error.to_string());
        let text = "invalid ESP_PATH=\"nonsense\": expected auto, lease or daemon";
        assert_eq!(error, Err(text.to_owned()));
    }
}
