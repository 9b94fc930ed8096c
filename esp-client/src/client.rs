//! [`Client`]: a program's connection to the daemon.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use esp_engine::{UdpAddresses, UdpLink};
use esp_proto::NodeAddr;
use esp_proto::secure::SecureCounters;

use crate::control::{ErrorKind, InterfaceInfo, Reply, Request, Status};
use crate::error::EspError;
use crate::lease::Leases;
use crate::path::Path;
use crate::protection::Protection;
use crate::session::{Session, Welcome};
use crate::sync::lock;

/// Environment variable with the path of the daemon's socket.
pub const SOCKET_VARIABLE: &str = "ESP_SOCKET";
/// Path of the daemon's socket if [`SOCKET_VARIABLE`] is not set.
pub const DEFAULT_SOCKET: &str = "/run/esp/esp.sock";

/// Returns the path of the daemon's socket: `ESP_SOCKET`, else [`DEFAULT_SOCKET`].
pub fn socket_path() -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => DEFAULT_SOCKET.into(),
    }
}

/// Returns the names of the interfaces over which ESP in UDP can run: those that are up and have an
/// IP address.
pub fn udp_interfaces() -> Vec<String> {
    UdpLink::interfaces()
}

/// A program's connection to its node's daemon. Each process has one per daemon socket; clones
/// share it.
///
/// A thread named `esp-client` reads the daemon's replies and wakes futures. The connection closes
/// when the last clone, stream, listener and datagram socket is dropped; that of [`Client::shared`]
/// stays open until the process exits.
///
/// **Threads.** All types of this crate may be used from any thread.
///
/// **Fork.** A forked child shares its parent's memory rings, so objects opened before the fork
/// must not be used in the child: requests fail with [`EspError::Forked`], and dropping has no
/// effect. [`Client::shared`] and [`Client::connect`] open a new connection in the child. The child
/// keeps the parent's socket open until it execs or exits, so the daemon notices the parent's death
/// only then.
///
/// **Exit.** Shared memory and sockets have no names in the file system, so `kill -9` leaves no
/// files. The daemon resets the streams of a process that died. With streams over leases or
/// [`Client::udp`], the exit of the process, and the drop of the client, wait at most 2 s until the
/// peers have acknowledged the ends of streams that were closed or finished writing; the remaining
/// streams are then reset.
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// State of a client; dropped with its last handle, which ends the session.
struct Owner {
    session: Arc<Session>,
    leases: Mutex<Option<Arc<Leases>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(leases) = lock(&self.leases).take() {
            leases.finish();
        }
        self.session.close();
    }
}

/// Open clients of this process. The lock of an entry is held while its client is opened, which may
/// take seconds: threads that want another client do not wait.
#[derive(Default)]
struct Registry {
    /// Process of the entries.
    pid: u32,
    /// By socket.
    open: HashMap<PathBuf, Arc<Mutex<Weak<Owner>>>>,
    /// Keeps the client of [`Client::shared`] open.
    shared: Option<Client>,
    /// Client of [`Client::udp`].
    udp: Arc<Mutex<Option<Client>>>,
}

impl Registry {
    /// Returns the entry of a socket, and removes those whose clients are closed.
    fn entry(&mut self, path: &std::path::Path) -> Arc<Mutex<Weak<Owner>>> {
        // An entry that another thread has is in use, and may be locked.
        self.open
            .retain(|_, entry| Arc::strong_count(entry) > 1 || lock(entry).strong_count() > 0);
        Arc::clone(self.open.entry(path.to_owned()).or_default())
    }
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

/// Locks the registry of this process.
fn registry() -> MutexGuard<'static, Option<Registry>> {
    let mut registry = lock(&REGISTRY);
    let pid = std::process::id();
    let open = registry.get_or_insert_default();
    if open.pid != pid {
        // After a fork the entries are the parent's; dropping them has no effect.
        *open = Registry {
            pid,
            ..Registry::default()
        };
    }
    registry
}

impl Client {
    /// Returns the connection to the daemon at [`socket_path`]. The first call opens it; it stays
    /// open until the process exits.
    pub fn shared() -> Result<Client, EspError> {
        let path = socket_path();
        Self::get(&path, true)
    }

    /// Returns the connection to the daemon at this socket; opens it if this process has none.
    pub fn connect(path: impl AsRef<std::path::Path>) -> Result<Client, EspError> {
        Self::get(path.as_ref(), false)
    }

    fn get(path: &std::path::Path, keep: bool) -> Result<Client, EspError> {
        let entry = registry().get_or_insert_default().entry(path);
        let mut entry = lock(&entry);
        let open = entry.upgrade().map(|owner| Client { owner });
        let client = match open.filter(|client| client.session().is_alive()) {
            Some(client) => client,
            None => Self::open(path)?,
        };
        *entry = Arc::downgrade(&client.owner);
        if keep {
            let shared = client.clone();
            let earlier = registry().get_or_insert_default().shared.replace(shared);
            // Not while the registry is locked: dropping it may wait for the last bytes of its
            // streams.
            drop(earlier);
        }
        Ok(client)
    }

    fn open(path: &std::path::Path) -> Result<Client, EspError> {
        // An invalid value is an error even if all streams set their path.
        Path::from_environment()?;
        Ok(Self::of(Session::open(path, false, true)?))
    }

    /// Returns the client of this process that needs no daemon and no privilege: its streams,
    /// listeners and datagram sockets use ESP in UDP, over UDP sockets of this program. The first
    /// call binds a free UDP port on each of the node's interfaces that is up; see
    /// [`Client::interfaces`] for the addresses. The client stays open until the process exits.
    ///
    /// Packets are protected as [`Protection::from_environment`] says: if the environment names a
    /// file with a key, all packets are encrypted with it, and peers without it are not reached.
    ///
    /// # Errors
    /// No interface with an IP address is up, the required protection is not possible (a key file
    /// is not usable), or a system call failed.
    pub fn udp() -> Result<Client, EspError> {
        let entry = Arc::clone(&registry().get_or_insert_default().udp);
        let mut entry = lock(&entry);
        if let Some(client) = entry.as_ref().filter(|client| client.check().is_ok()) {
            return Ok(client.clone());
        }
        let client = Self::open_udp(UdpAddresses::EachVersion, |_, _| true, 0, (None, false))?;
        *entry = Some(client.clone());
        Ok(client)
    }

    /// Opens a client as [`Client::udp`] does, but not shared with the rest of the process, and
    /// binds this UDP port on each interface: for a server whose clients know its address.
    ///
    /// # Errors
    /// As for [`Client::udp`]; of kind `AddrInUse`, with the program that has it if known, if the
    /// port is in use.
    pub fn udp_at(port: u16) -> Result<Client, EspError> {
        Self::open_udp(UdpAddresses::EachVersion, |_, _| true, port, (None, false))
    }

    /// Opens a client as [`Client::udp`] does, over those of these addresses that `wants` selects
    /// by interface and address, with this protection instead of that of the environment, and with
    /// a notice if a [`Poller`](crate::Poller) serves it.
    pub(crate) fn open_udp(
        which: UdpAddresses,
        wants: impl Fn(&str, IpAddr) -> bool,
        port: u16,
        (protection, polled): (Option<Protection>, bool),
    ) -> Result<Client, EspError> {
        let protection = match protection {
            Some(protection) => protection,
            None => Protection::from_environment()?,
        };
        let secure = protection.config();
        let links =
            UdpLink::bind_all(which, wants, port).map_err(|error| match error.is_in_use() {
                true => EspError::denied(ErrorKind::InUse, error.to_string()),
                false => EspError::resource("open a UDP socket")(error),
            })?;
        if links.is_empty() {
            return Err(EspError::denied(
                ErrorKind::NotFound,
                "no selected interface of this node is up and has an IP address",
            ));
        }
        let interface = |link: &UdpLink| InterfaceInfo {
            name: link.name().to_owned(),
            addr: link.addr(),
            mtu: link.mtu(secure.is_some()),
            up: true,
        };
        let welcome = Welcome {
            engine: 0,
            incarnation: esp_engine::random()
                .map_err(EspError::resource("read a random number"))?,
            interfaces: links.iter().map(interface).collect(),
            leases: true,
        };
        let client = Self::of(Session::local(welcome, polled)?);
        let leases = client.leases()?;
        for link in links {
            let interface = interface(&link);
            leases.add_udp(link, interface, secure.clone())?;
        }
        Ok(client)
    }

    /// Returns the counters of the protection of packets by a key or a checksum, for each interface
    /// of a client that needs no daemon; empty without protection. With a checksum,
    /// `auth_drop_forged` counts damaged packets, and `auth_drop_setup_forged` damaged set-up
    /// packets.
    ///
    /// # Errors
    /// [`EspError::Forked`].
    pub fn key_counters(&self) -> Result<Vec<SecureCounters>, EspError> {
        let leases = lock(&self.owner.leases).clone();
        leases.map_or(Ok(Vec::new()), |leases| leases.secure_counters())
    }

    /// Returns the first handle of a session.
    pub(crate) fn of(session: Arc<Session>) -> Client {
        Client {
            owner: Arc::new(Owner {
                session,
                leases: Mutex::default(),
            }),
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.owner.session
    }

    /// Returns the leases of this client. The first call starts the embedded engine.
    pub(crate) fn leases(&self) -> Result<Arc<Leases>, EspError> {
        if self.session().is_forked() {
            return Err(EspError::Forked);
        }
        let mut leases = lock(&self.owner.leases);
        match &*leases {
            Some(leases) => Ok(Arc::clone(leases)),
            None => Ok(Arc::clone(leases.insert(Leases::start(self.session())?))),
        }
    }

    /// Returns the leases for a stream to this peer (or a listener) with this path setting; `None`
    /// if it uses the daemon.
    pub(crate) fn leases_for(
        &self,
        path: Path,
        peer: Option<NodeAddr>,
    ) -> Result<Option<Arc<Leases>>, EspError> {
        let is_own = |peer: NodeAddr| {
            let welcome = self.session().welcome();
            welcome.interfaces.iter().any(|own| own.addr == peer)
        };
        match path {
            _ if self.session().is_local() => self.leases().map(Some),
            // The daemon leases raw Ethernet only.
            _ if peer.is_some_and(|peer| peer.is_udp() || is_own(peer)) => Ok(None),
            Path::Daemon => Ok(None),
            // Without a permission the daemon's refusal says why.
            Path::Lease => self.leases().map(Some),
            Path::Auto if self.may_lease(path) => Ok(self.leases().ok()),
            Path::Auto => Ok(None),
        }
    }

    /// Returns true if a lease of this program has the port on this interface (`None`: on any), so
    /// that the daemon receives none of its frames.
    pub(crate) fn has_leased(&self, interface: Option<&str>, port: u16) -> bool {
        let leases = lock(&self.owner.leases);
        leases
            .as_ref()
            .is_some_and(|leases| leases.holder(interface, port).is_some())
    }

    /// Returns an error if the connection to the daemon is lost, even while this program waits for
    /// the next one.
    pub fn check(&self) -> Result<(), EspError> {
        self.session().check_connected()
    }

    /// Returns an error once this program has stopped waiting for the next daemon: everything that
    /// it opened at the daemon has ended.
    pub fn check_waiting(&self) -> Result<(), EspError> {
        self.session().check()
    }

    /// Sets the time for which this program waits when the daemon ends: its streams, listeners and
    /// datagram sockets then continue at the next daemon, and calls wait until then. After that
    /// time the error is [`EspError::DaemonGone`]. Default 35 s; zero: no wait.
    pub fn set_daemon_wait(&self, wait: Duration) {
        self.session().set_patience(wait);
    }

    /// Returns the path of the daemon's socket.
    pub fn path(&self) -> &std::path::Path {
        &self.session().path
    }

    /// Returns true if streams with this path setting may use a lease: the node's policy allows
    /// this program leases.
    pub fn may_lease(&self, path: Path) -> bool {
        self.session().welcome().leases && path != Path::Daemon
    }

    /// Returns the random number that the current or last daemon chose at its start.
    pub fn incarnation(&self) -> u64 {
        self.session().welcome().incarnation
    }

    /// Returns the node's interfaces as they were when the connection to the current or last daemon
    /// was opened. [`Client::status`] returns their current state.
    pub fn interfaces(&self) -> Vec<InterfaceInfo> {
        self.session().welcome().interfaces.clone()
    }

    /// Returns the interface with this name or, for `None`, the daemon's default: the first that is
    /// up, else the first; see [`Client::interfaces`].
    pub fn interface(&self, name: Option<&str>) -> Option<InterfaceInfo> {
        let welcome = self.session().welcome();
        let all = &welcome.interfaces;
        let found = match name {
            Some(name) => all.iter().find(|interface| interface.name == name),
            None => all.iter().find(|interface| interface.up).or(all.first()),
        };
        found.cloned()
    }

    /// Returns the MTU of the interface with this name.
    pub(crate) fn mtu(&self, name: &str) -> Option<u32> {
        let welcome = self.session().welcome();
        let mut all = welcome.interfaces.iter();
        all.find(|interface| interface.name == name)
            .map(|found| found.mtu)
    }

    /// Requests the node's links, connections, listeners, datagram ports and counters, as `espstat`
    /// does.
    pub fn status(&self) -> Result<Status, EspError> {
        match self.session().ask(&Request::Status)?.reply {
            Reply::Status(status) => Ok(*status),
            _ => Err(self.session().unexpected("a status")),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}
