//! [`Client`]: a program's connection to the daemon.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use esp_proto::MacAddr;

use crate::control::{InterfaceInfo, Reply, Request, Status};
use crate::error::EspError;
use crate::lease::Leases;
use crate::route::Routes;
use crate::session::{Session, lock};

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
/// files. The daemon resets the streams of a process that died.
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// Ends the session when the last handle goes; the session's thread itself holds none.
struct Owner {
    session: Arc<Session>,
    routes: Routes,
    leases: Mutex<Option<Arc<Leases>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let leases = lock(&self.leases).take();
        if let Some(leases) = leases {
            leases.finish();
        }
        self.session.close();
    }
}

#[derive(Default)]
struct Registry {
    /// Process the entries were made in.
    pid: u32,
    open: HashMap<PathBuf, Weak<Owner>>,
    /// Keeps the one of the default socket.
    shared: Option<Client>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

impl Client {
    /// Returns the connection to the daemon at [`socket_path`]. The first call opens it; it stays
    /// open until the process exits.
    pub fn shared() -> Result<Client, EspError> {
        let path = socket_path();
        Self::get(&path, true)
    }

    /// Returns the connection to the daemon at this socket; opens it if this process has none.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, EspError> {
        Self::get(path.as_ref(), false)
    }

    fn get(path: &Path, keep: bool) -> Result<Client, EspError> {
        let mut registry = lock(&REGISTRY);
        let registry = registry.get_or_insert_default();
        let pid = std::process::id();
        if registry.pid != pid {
            // After a fork: the parent's connection is not ours. Its objects must not be ended from
            // here, and are not.
            *registry = Registry {
                pid,
                ..Registry::default()
            };
        }
        let open = registry
            .open
            .get(path)
            .and_then(Weak::upgrade)
            .map(|owner| Client { owner });
        let client = match open.filter(|client| client.session().is_alive()) {
            Some(client) => client,
            None => Self::open(path)?,
        };
        registry.open.retain(|_, owner| owner.strong_count() > 0);
        registry
            .open
            .insert(path.to_owned(), Arc::downgrade(&client.owner));
        if keep {
            registry.shared = Some(client.clone());
        }
        Ok(client)
    }

    fn open(path: &Path) -> Result<Client, EspError> {
        // A wrong value is an error even where all streams choose their path.
        crate::Path::from_environment()?;
        Ok(Self::of(Session::open(path)?))
    }

    /// The first handle of a session.
    pub(crate) fn of(session: Arc<Session>) -> Client {
        Client {
            owner: Arc::new(Owner {
                session,
                routes: Routes::default(),
                leases: Mutex::default(),
            }),
        }
    }

    /// The shared connection if it is open already; never waits for the daemon.
    #[cfg(feature = "tokio")]
    pub(crate) fn already_shared() -> Option<Client> {
        let registry = REGISTRY.try_lock().ok()?;
        let registry = registry
            .as_ref()
            .filter(|registry| registry.pid == std::process::id())?;
        let owner = registry.open.get(&socket_path()).and_then(Weak::upgrade)?;
        Some(Client { owner }).filter(|client| client.check().is_ok())
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.owner.session
    }

    /// Starts the engine in this program if it does not run yet. Asks the daemon for nothing.
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

    /// Has a lease of this program the port? The daemon hears nothing of it then.
    pub(crate) fn has_leased(&self, interface: Option<&str>, port: u16) -> bool {
        lock(&self.owner.leases)
            .as_ref()
            .is_some_and(|leases| leases.has(interface, port))
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.owner.routes
    }

    /// Returns an error if the connection to the daemon is lost.
    pub fn check(&self) -> Result<(), EspError> {
        self.session().check()
    }

    /// Returns the path of the daemon's socket.
    pub fn path(&self) -> &Path {
        self.session().path()
    }

    /// Returns the daemon's version, such as `0.1.0`.
    pub fn daemon_version(&self) -> &str {
        &self.session().welcome().daemon
    }

    /// Returns the id that the daemon gave this program.
    pub fn id(&self) -> u64 {
        self.session().welcome().client
    }

    /// Returns true if streams with this path setting use a lease: the node's policy allows it to
    /// this program.
    pub fn may_lease(&self, path: crate::Path) -> bool {
        self.session().welcome().leases && path != crate::Path::Daemon
    }

    /// Returns a random number that the daemon chose at its start.
    pub fn incarnation(&self) -> u64 {
        self.session().welcome().incarnation
    }

    /// Returns the node's interfaces as of the opening of the connection. [`Client::status`]
    /// returns their present state.
    pub fn interfaces(&self) -> &[InterfaceInfo] {
        &self.session().welcome().interfaces
    }

    /// Returns the interface of this name or, for `None`, the daemon's default: the first that is
    /// up, else the first.
    pub fn interface(&self, name: Option<&str>) -> Option<&InterfaceInfo> {
        let all = self.interfaces();
        match name {
            Some(name) => all.iter().find(|interface| interface.name == name),
            None => all.iter().find(|interface| interface.up).or(all.first()),
        }
    }

    /// Requests the node's links, connections, listeners, datagram ports and counters (as
    /// `espstat`).
    pub fn status(&self) -> Result<Status, EspError> {
        match self.session().ask(&Request::Status)?.reply {
            Reply::Status(status) => Ok(*status),
            _ => Err(self.session().unexpected("a status")),
        }
    }

    /// Returns the interface to this peer and the reason for the choice. With several interfaces,
    /// an EDP echo is sent over each that is up, and the fastest answer decides. The result is
    /// cached.
    ///
    /// # Errors
    /// [`EspError::NoPath`] if the peer answers over no interface.
    pub fn route(&self, peer: MacAddr) -> Result<crate::Route, EspError> {
        crate::route::find(self, peer)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("path", &self.path())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
