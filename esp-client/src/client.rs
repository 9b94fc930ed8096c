//! [`Client`]: a program's connection to the daemon.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use esp_proto::MacAddr;

use crate::control::{InterfaceInfo, Reply, Request, Status};
use crate::error::EspError;
use crate::lease::Leases;
use crate::path::Path;
use crate::route::Routes;
use crate::session::Session;
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

/// State of a client; dropped with its last handle, which ends the session.
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

/// Open clients of this process, by socket.
#[derive(Default)]
struct Registry {
    /// Process of the entries.
    pid: u32,
    open: HashMap<PathBuf, Weak<Owner>>,
    /// Keeps that of [`Client::shared`] open.
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
    pub fn connect(path: impl AsRef<std::path::Path>) -> Result<Client, EspError> {
        Self::get(path.as_ref(), false)
    }

    fn get(path: &std::path::Path, keep: bool) -> Result<Client, EspError> {
        let mut registry = lock(&REGISTRY);
        let registry = registry.get_or_insert_default();
        let pid = std::process::id();
        if registry.pid != pid {
            // After a fork the entries are the parent's; dropping them has no effect.
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

    fn open(path: &std::path::Path) -> Result<Client, EspError> {
        // An invalid value is an error even if all streams set their path.
        Path::from_environment()?;
        Ok(Self::of(Session::open(path)?))
    }

    /// Returns the first handle of a session.
    pub(crate) fn of(session: Arc<Session>) -> Client {
        Client {
            owner: Arc::new(Owner {
                session,
                routes: Routes::default(),
                leases: Mutex::default(),
            }),
        }
    }

    /// Returns the shared connection if it is open, without waiting for the daemon.
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
        peer: Option<MacAddr>,
    ) -> Result<Option<Arc<Leases>>, EspError> {
        let is_own = |peer: MacAddr| self.interfaces().iter().any(|own| own.mac == peer.octets());
        match path {
            _ if peer.is_some_and(is_own) => Ok(None),
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
    pub fn path(&self) -> &std::path::Path {
        self.session().path()
    }

    /// Returns the id that the daemon gave this program.
    pub fn id(&self) -> u64 {
        self.session().welcome().client
    }

    /// Returns true if streams with this path setting use a lease: the node's policy allows it to
    /// this program.
    pub fn may_lease(&self, path: Path) -> bool {
        self.session().welcome().leases && path != Path::Daemon
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
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("path", &self.path())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
