//! The handle on the connection to the daemon.

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

/// Names the socket of the node's daemon.
pub const SOCKET_VARIABLE: &str = "ESP_SOCKET";
/// Where the daemon's socket is when [`SOCKET_VARIABLE`] does not say.
pub const DEFAULT_SOCKET: &str = "/run/esp/esp.sock";

/// The daemon's socket: `ESP_SOCKET`, else [`DEFAULT_SOCKET`].
pub fn socket_path() -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => DEFAULT_SOCKET.into(),
    }
}

/// This program's connection to its node's daemon. There is one for each process and socket; clones share it.
///
/// It owns a thread, `esp-client`, that reads the daemon's answers and wakes futures. The connection ends when the last
/// clone, stream, listener and datagram socket is dropped; the one of [`Client::shared`] lives as long as the process.
///
/// **Threads.** Everything in this crate may be used from any thread.
///
/// **Fork.** A forked child shares its parent's memory rings, so nothing opened before the fork may be used in the child: requests
/// fail with [`EspError::Forked`], and dropping has no effect there. [`Client::shared`] and [`Client::connect`] open a new
/// connection in the child. The child keeps the parent's socket open until it execs or exits, so the daemon learns of the
/// parent's death only then.
///
/// **Death.** Nothing of it has a name, so nothing is left behind by `kill -9`; the daemon resets the streams of a program that died.
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
    /// The connection to the daemon at [`socket_path`], opened by the first call and kept.
    pub fn shared() -> Result<Client, EspError> {
        let path = socket_path();
        Self::get(&path, true)
    }

    /// The connection to the daemon at this socket; opened, unless this process has it open already.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, EspError> {
        Self::get(path.as_ref(), false)
    }

    fn get(path: &Path, keep: bool) -> Result<Client, EspError> {
        let mut registry = lock(&REGISTRY);
        let registry = registry.get_or_insert_default();
        let pid = std::process::id();
        if registry.pid != pid {
            // After a fork: the parent's connection is not ours. Its objects must not be ended from here, and are not.
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

    /// An error once the daemon is gone.
    pub fn check(&self) -> Result<(), EspError> {
        self.session().check()
    }

    /// The daemon's socket.
    pub fn path(&self) -> &Path {
        self.session().path()
    }

    /// The daemon's version, a text like `0.1.0`.
    pub fn daemon_version(&self) -> &str {
        &self.session().welcome().daemon
    }

    /// This program's number at the daemon.
    pub fn id(&self) -> u64 {
        self.session().welcome().client
    }

    /// Whether streams that are to go this way take a lease: the node's policy lets this program. What
    /// [`PATH_VARIABLE`](crate::PATH_VARIABLE) says: [`Path::from_environment`](crate::Path::from_environment).
    pub fn may_lease(&self, path: crate::Path) -> bool {
        self.session().welcome().leases && path != crate::Path::Daemon
    }

    /// A random number of the daemon's life: another one after each start.
    pub fn incarnation(&self) -> u64 {
        self.session().welcome().incarnation
    }

    /// The node's links as they were when the connection was opened; [`Client::status`] has them fresh.
    pub fn interfaces(&self) -> &[InterfaceInfo] {
        &self.session().welcome().interfaces
    }

    /// The link of this name, or for `None` the one the daemon takes by itself: the only one, else the first that is up.
    pub fn interface(&self, name: Option<&str>) -> Option<&InterfaceInfo> {
        let all = self.interfaces();
        match name {
            Some(name) => all.iter().find(|interface| interface.name == name),
            None => all.iter().find(|interface| interface.up).or(all.first()),
        }
    }

    /// What `espstat` shows: links, connections, listeners, datagram ports and counters of the node.
    pub fn status(&self) -> Result<Status, EspError> {
        match self.session().ask(&Request::Status)?.reply {
            Reply::Status(status) => Ok(*status),
            _ => Err(self.session().unexpected("a status")),
        }
    }

    /// The interface that leads to this peer and why it was taken. With one interface that is it; with several, each
    /// that is up is asked by EDP echo and the fastest answer wins. The answer is kept for a while.
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
