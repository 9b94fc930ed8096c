//! [`EspListener`]: accepts connections to a port.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use esp_engine::shm::Spin;

use crate::addr::EspAddr;
use crate::call::{Call, CallCell};
use crate::client::Client;
use crate::control::{ErrorKind, Reply, Request, Rings};
use crate::core::{Core, default_lease_spin, default_spin};
use crate::error::EspError;
use crate::lease::{self, LeasedListener, Path};
use crate::session::lock;
use crate::stream::{DEFAULT_RING, EspStream, check_key};

/// Default of [`ListenerBuilder::backlog`].
pub const DEFAULT_BACKLOG: u16 = 128;

/// Period at which a listener that waits over a lease checks for connections through the daemon,
/// which come from the own node.
const STEP: Duration = Duration::from_millis(5);
const NO_SPIN: Spin = Spin {
    spins: 0,
    yields: 0,
};

/// Options of a new listener; created by [`EspListener::builder`].
#[derive(Clone, Debug)]
pub struct ListenerBuilder {
    interface: Option<String>,
    backlog: u16,
    key: Vec<u8>,
    rings: Rings,
    spin: Option<Spin>,
    path: Option<Path>,
}

impl ListenerBuilder {
    /// Sets the only interface to listen on. Default: all.
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Sets the maximum number of connections that wait for `accept`, 1 to 1024. Default
    /// [`DEFAULT_BACKLOG`].
    #[must_use]
    pub fn backlog(mut self, backlog: u16) -> Self {
        self.backlog = backlog;
        self
    }

    /// Sets the job key, at most 32 bytes. Connecting programs must have the same key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets the ring sizes of accepted streams; see
    /// [`StreamBuilder::rings`](crate::StreamBuilder::rings).
    #[must_use]
    pub fn rings(mut self, tx: u32, rx: u32) -> Self {
        self.rings = Rings { tx, rx };
        self
    }

    /// Sets how accepted streams spin; see [`StreamBuilder::spin`](crate::StreamBuilder::spin).
    #[must_use]
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Sets the data path of accepted streams; default as for
    /// [`StreamBuilder::path`](crate::StreamBuilder::path). Streams from the own node always use
    /// the daemon.
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = Some(path);
        self
    }

    /// Listens on this port (0: any free one) through the shared client.
    pub fn bind(&self, port: u16) -> io::Result<EspListener> {
        self.bind_at(&Client::shared()?, port)
    }

    /// Listens on this port (0: any free one) through this client.
    pub fn bind_at(&self, client: &Client, port: u16) -> io::Result<EspListener> {
        check_key(&self.key)?;
        let path = self.path.map_or_else(Path::from_environment, Ok)?;
        if path == Path::Daemon && client.has_leased(self.interface.as_deref(), port) {
            let message = format!(
                "connections over a lease still have port {port}, so that the daemon hears nothing of it; listen over the lease, or close \
                 them first"
            );
            return Err(EspError::Denied {
                kind: ErrorKind::InUse,
                message,
            }
            .into());
        }
        let request = Request::Listen {
            interface: self.interface.clone(),
            port,
            backlog: self.backlog,
            key: self.key.clone(),
        };
        match client.session().ask(&request)?.reply {
            Reply::Listening { listener, port } => {
                let mut bound = EspListener {
                    client: client.clone(),
                    listener,
                    port,
                    rings: self.rings,
                    spin: self.spin.unwrap_or_else(default_spin),
                    lease_spin: self.spin.unwrap_or_else(default_lease_spin),
                    nonblocking: AtomicBool::new(false),
                    pending: Mutex::new(None),
                    leased: Vec::new(),
                };
                bound.leased = self.lease(client, path, (listener, port))?;
                Ok(bound)
            }
            _ => Err(client.session().unexpected("a listener").into()),
        }
    }
}

impl ListenerBuilder {
    /// Listens over leases as far as the path setting says so.
    fn lease(
        &self,
        client: &Client,
        path: Path,
        listener: (u64, u16),
    ) -> io::Result<Vec<LeasedListener>> {
        let Some(leases) = lease::of(client, path, None)? else {
            return Ok(Vec::new());
        };
        let wanted = |name: &str| self.interface.as_deref().is_none_or(|only| only == name);
        let names = client
            .interfaces()
            .iter()
            .map(|i| i.name.as_str())
            .filter(|name| wanted(name));
        Ok(leases.listen(
            names,
            listener,
            self.backlog,
            &self.key,
            path == Path::Lease,
        )?)
    }
}

/// Accepts connections to a port. Dropping it closes the port and resets connections that were not
/// accepted.
pub struct EspListener {
    client: Client,
    listener: u64,
    port: u16,
    rings: Rings,
    spin: Spin,
    /// Spin setting of accepted streams over a lease.
    lease_spin: Spin,
    nonblocking: AtomicBool,
    /// The accept request at the daemon. All callers of `accept` wait for it; one takes the reply,
    /// the others ask again. It survives a call that timed out, so that its connection is not lost.
    pending: Mutex<Option<Call>>,
    /// The listeners in this program's embedded engine.
    leased: Vec<LeasedListener>,
}

impl EspListener {
    /// Listens on this port of all interfaces through the shared client. Port 0 means any free one;
    /// ports below 1024 are for the superuser only.
    ///
    /// A program may listen again on a port while connections of an earlier listener exist, as with
    /// std's TCP.
    ///
    /// # Errors
    /// `AddrInUse` if the port is taken. While connections over a lease use it, this includes other
    /// programs of the same user, and [`Path::Daemon`] of this program.
    pub fn bind(port: u16) -> io::Result<EspListener> {
        Self::builder().bind(port)
    }

    /// Returns a builder to set interface, backlog, key, ring sizes, spinning and path.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder {
            interface: None,
            backlog: DEFAULT_BACKLOG,
            key: Vec::new(),
            rings: Rings {
                tx: DEFAULT_RING,
                rx: DEFAULT_RING,
            },
            spin: None,
            path: None,
        }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the client this listener belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for the next connection and returns it with the peer's address. Any number of threads
    /// may wait.
    pub fn accept(&self) -> io::Result<(EspStream, EspAddr)> {
        self.accept_until(None)
    }

    /// Waits for the next connection for at most `timeout`, then fails with kind `TimedOut`.
    pub fn accept_timeout(&self, timeout: Duration) -> io::Result<(EspStream, EspAddr)> {
        self.accept_until(Instant::now().checked_add(timeout))
    }

    fn accept_until(&self, deadline: Option<Instant>) -> io::Result<(EspStream, EspAddr)> {
        loop {
            let cell = match self.attempt()? {
                Ok(accepted) => return Ok(accepted),
                Err(cell) => cell,
            };
            if self.nonblocking.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if !self.wait(&cell, deadline) {
                return Err(EspError::CallTimedOut { what: "accepting" }.into());
            }
        }
    }

    /// Waits for the daemon's answer, or for a connection over a lease.
    fn wait(&self, cell: &CallCell, deadline: Option<Instant>) -> bool {
        let Some(first) = self.leased.first() else {
            return cell.wait(deadline);
        };
        // Awake at the beginning only: a listener waits for long.
        let mut spin = self.spin;
        loop {
            let step = Instant::now() + STEP;
            let until = deadline.map_or(step, |deadline| deadline.min(step));
            let there = || {
                self.leased.iter().any(LeasedListener::waiting)
                    || self.leased.iter().all(|leased| leased.lost().is_some())
            };
            if first
                .engine()
                .wait(std::mem::replace(&mut spin, NO_SPIN), there, Some(until))
                || cell.wait(Some(Instant::now()))
            {
                return true;
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return false;
            }
        }
    }

    /// Wakes the task soon, so that it checks again.
    #[cfg(feature = "tokio")]
    pub(crate) fn wake_later(&self, cx: &std::task::Context<'_>) {
        if let Some(first) = self.leased.first() {
            first.wake_later(cx);
        }
    }

    fn accept_leased(&self) -> io::Result<Option<(EspStream, EspAddr)>> {
        if let Some(first) = self.leased.first() {
            first.engine().poll(true);
        }
        for leased in &self.leased {
            if let Some(opened) = leased.accept(self.rings)? {
                let stream =
                    EspStream::accepted(Core::leased(&self.client, opened, self.lease_spin));
                stream.core.established();
                let peer = stream.peer_addr();
                return Ok(Some((stream, peer)));
            }
        }
        Ok(None)
    }

    /// Returns a connection if there is one, else (inner error) the cell to wait on.
    pub(crate) fn attempt(&self) -> io::Result<Result<(EspStream, EspAddr), Arc<CallCell>>> {
        // The pending request is the parent's; its reply does not arrive here.
        if self.client.session().is_forked() {
            return Err(EspError::Forked.into());
        }
        if let Some(accepted) = self.accept_leased()? {
            return Ok(Ok(accepted));
        }
        let mut pending = lock(&self.pending);
        let call = match pending.take() {
            Some(call) => call,
            None => {
                let request = Request::Accept {
                    listener: self.listener,
                    rings: self.rings,
                };
                match self.client.session().call(&request) {
                    Ok(call) => call,
                    Err(error) => return self.without_daemon(error),
                }
            }
        };
        let Some(outcome) = call.take() else {
            let cell = Arc::clone(call.cell());
            *pending = Some(call);
            return Ok(Err(cell));
        };
        drop(pending);
        let answer = match outcome {
            Ok(answer) => answer,
            Err(error) if self.client.check().is_err() => return self.without_daemon(error),
            Err(error) => return Err(error.into()),
        };
        let stream = EspStream::accepted(Core::from_answer(&self.client, answer, self.spin)?);
        let peer = stream.peer_addr();
        Ok(Ok((stream, peer)))
    }

    /// Continues without the daemon: no connections from the own node arrive, but those over live
    /// leases do.
    fn without_daemon(
        &self,
        error: EspError,
    ) -> io::Result<Result<(EspStream, EspAddr), Arc<CallCell>>> {
        match self
            .leased
            .iter()
            .map(LeasedListener::lost)
            .collect::<Option<Vec<&EspError>>>()
        {
            // One of them lives.
            None => Ok(Err(Arc::default())),
            Some(lost) => Err(lost.first().map_or(error, |lost| (*lost).clone()).into()),
        }
    }

    /// Returns an iterator over connections that never ends.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Makes `accept` return `WouldBlock` instead of waiting. The first such call sends a request
    /// to the daemon; a later one returns the connection.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for EspListener {
    fn drop(&mut self) {
        self.leased.clear();
        drop(lock(&self.pending).take());
        self.client.session().post(&Request::CloseListener {
            listener: self.listener,
        });
    }
}

impl fmt::Debug for EspListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EspListener")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Iterator over accepted connections; see [`EspListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a EspListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<EspStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}
