//! Waiting for connections.

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

/// Connections that may wait when [`ListenerBuilder::backlog`] does not say.
pub const DEFAULT_BACKLOG: u16 = 128;

/// While a listener waits for connections over a lease, it looks this often for one through the daemon (from the own node).
const STEP: Duration = Duration::from_millis(5);
const NO_SPIN: Spin = Spin {
    spins: 0,
    yields: 0,
};

/// How to listen; made by [`EspListener::builder`].
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
    /// On this interface only; default: all.
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Connections that may wait for `accept`, 1 to 1024. Default [`DEFAULT_BACKLOG`].
    #[must_use]
    pub fn backlog(mut self, backlog: u16) -> Self {
        self.backlog = backlog;
        self
    }

    /// Job key, at most 32 bytes; who connects must have the same.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = key.into();
        self
    }

    /// Ring sizes of the accepted streams, see [`StreamBuilder::rings`](crate::StreamBuilder::rings).
    #[must_use]
    pub fn rings(mut self, tx: u32, rx: u32) -> Self {
        self.rings = Rings { tx, rx };
        self
    }

    /// How the accepted streams wait, see [`StreamBuilder::spin`](crate::StreamBuilder::spin).
    #[must_use]
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Which way through the own node the accepted streams take; default as for [`StreamBuilder::path`](crate::StreamBuilder::path).
    /// Streams from the own node come through the daemon in any case.
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = Some(path);
        self
    }

    /// Listens on this port (0: any free one) through the shared client.
    pub fn bind(&self, port: u16) -> io::Result<EspListener> {
        self.bind_at(&Client::shared()?, port)
    }

    /// The same through this client.
    pub fn bind_at(&self, client: &Client, port: u16) -> io::Result<EspListener> {
        check_key(&self.key)?;
        let path = self.path.unwrap_or_else(Path::from_environment);
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
    /// The listener's part over leases, if that is the way to take.
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

/// Takes connections to a port. Dropped, it closes the port and resets the connections nobody accepted.
pub struct EspListener {
    client: Client,
    listener: u64,
    port: u16,
    rings: Rings,
    spin: Spin,
    /// Of accepted streams over a lease.
    lease_spin: Spin,
    nonblocking: AtomicBool,
    /// The request under way. All who accept wait for it; one takes the answer, the others ask again. It stays when
    /// nobody waits any more, so that no connection is lost by a call that gave up.
    pending: Mutex<Option<Call>>,
    /// Its part in this program's own engine.
    leased: Vec<LeasedListener>,
}

impl EspListener {
    /// Listens on this port (0: any free one; below 1024: superuser only) of all interfaces, through the shared client.
    ///
    /// Connections of an earlier listener do not keep a program from listening there again, as with std's TCP. Those over a lease keep
    /// others out, also programs of the same user, and this program from listening by [`Path::Daemon`]: `AddrInUse`.
    pub fn bind(port: u16) -> io::Result<EspListener> {
        Self::builder().bind(port)
    }

    /// To choose interface, backlog, key, ring sizes.
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

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The connection to the daemon this listener belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The next connection and who made it. Any number of threads may wait.
    pub fn accept(&self) -> io::Result<(EspStream, EspAddr)> {
        self.accept_until(None)
    }

    /// The same, giving up after this long (kind `TimedOut`).
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

    /// Futures are woken to look again soon.
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

    /// A connection if there is one, else (inner error) where to wait for news.
    pub(crate) fn attempt(&self) -> io::Result<Result<(EspStream, EspAddr), Arc<CallCell>>> {
        // The request under way is the parent's, and nobody would answer it here.
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

    /// The daemon is gone: from the own node nobody comes any more, but over leases they do, as long as these live.
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

    /// Accepts without end.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// With true, `accept` gives `WouldBlock` instead of waiting. The first such call asks the daemon; a connection is seen
    /// by a later one.
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

/// See [`EspListener::incoming`].
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
