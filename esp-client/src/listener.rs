//! [`EspListener`]: accepts connections to a port.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use esp_engine::shm::Spin;

use crate::addr::EspAddr;
use crate::client::Client;
use crate::control::{ErrorKind, InterfaceInfo, Reply, Request};
use crate::error::EspError;
use crate::lease::{Event, LeasedListener, candidates};
use crate::options::{DEFAULT_RING, SocketOptions, socket_options, stream_options};
use crate::path::Path;
use crate::session::{Call, ReplyCell};
use crate::socket::default_spin;
use crate::stream::EspStream;
use crate::sync::lock;

/// Default of [`ListenerBuilder::backlog`].
pub const DEFAULT_BACKLOG: u16 = 128;

/// Period at which a listener that waits over a lease checks for connections through the daemon,
/// which come from this node.
const DAEMON_CHECK: Duration = Duration::from_millis(5);
/// Pause between attempts to listen on a port that is reserved for a lease of this program.
const RESERVED_PAUSE: Duration = Duration::from_millis(50);
const NO_SPIN: Spin = Spin {
    spins: 0,
    yields: 0,
};

/// Options of a new listener; created by [`EspListener::builder`].
#[derive(Clone, Debug)]
pub struct ListenerBuilder {
    options: SocketOptions,
    backlog: u16,
}

socket_options!(
    ListenerBuilder,
    interface: "Sets the only interface to listen on. Default: all."
);
stream_options!(ListenerBuilder);

impl ListenerBuilder {
    /// Sets the maximum number of connections that wait for `accept`, 1 to 1024. Default
    /// [`DEFAULT_BACKLOG`].
    #[must_use]
    pub fn backlog(mut self, backlog: u16) -> Self {
        self.backlog = backlog;
        self
    }

    /// Listens on this port (0: any free one) through the shared client.
    pub fn bind(&self, port: u16) -> io::Result<EspListener> {
        self.bind_at(&Client::shared()?, port)
    }

    /// Listens on this port (0: any free one) through this client.
    pub fn bind_at(&self, client: &Client, port: u16) -> io::Result<EspListener> {
        self.options.check_key()?;
        let path = self.options.path()?;
        if client.session().is_local() {
            return self.bind_embedded(client, port, path);
        }
        let interface = &self.options.interface;
        if path == Path::Daemon && client.has_leased(interface.as_deref(), port) {
            let text = format!(
                "port {port} still has connections over a lease; listen over the lease, too, or close them first"
            );
            return Err(EspError::denied(ErrorKind::InUse, text).into());
        }
        let mut deadline = None;
        loop {
            match self.bind_by_daemon(client, port, path) {
                // The daemon ended before the listener had its leases, and the next one may have
                // reserved the port for them until their grace period ends.
                Err(EspError::DaemonGone { .. }) if deadline.is_none() && path == Path::Auto => {
                    deadline = Some(Instant::now() + client.session().patience());
                }
                Err(EspError::Denied {
                    kind: ErrorKind::InUse,
                    ..
                }) if deadline.is_some_and(|deadline| Instant::now() < deadline) => {
                    std::thread::sleep(RESERVED_PAUSE);
                }
                bound => return bound.map_err(io::Error::from),
            }
        }
    }

    fn bound(
        &self,
        client: &Client,
        (listener, port): (Option<u64>, u16),
        leased: Vec<LeasedListener>,
    ) -> EspListener {
        EspListener {
            client: client.clone(),
            listener,
            port,
            options: self.options.clone(),
            nonblocking: AtomicBool::new(false),
            pending: Mutex::new(None),
            leased,
        }
    }

    /// Listens at the embedded engine alone, which has the UDP sockets of a client without a
    /// daemon.
    fn bind_embedded(&self, client: &Client, port: u16, path: Path) -> io::Result<EspListener> {
        for port in candidates(port) {
            match self.lease(client, (0, port), path) {
                Ok(leased) => return Ok(self.bound(client, (None, port), leased)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error.into()),
            }
        }
        let text = "this program already listens on the port";
        Err(EspError::denied(ErrorKind::InUse, text).into())
    }

    /// Listens at the daemon, and over leases of its port.
    fn bind_by_daemon(
        &self,
        client: &Client,
        port: u16,
        path: Path,
    ) -> Result<EspListener, EspError> {
        let session = client.session();
        let request = |port| Request::Listen {
            interface: self.options.interface.clone(),
            port,
            backlog: self.backlog,
            key: self.options.key.clone(),
        };
        let answer = session.ask(&request(port))?;
        let Reply::Listening { listener, port } = answer.reply else {
            return Err(session.unexpected("a listener"));
        };
        let listener = session.keep_listener(request(port), listener, answer.connection);
        let mut bound = self.bound(client, (Some(listener), port), Vec::new());
        bound.leased = self.lease(client, (listener, port), path)?;
        if !bound.leased.is_empty() {
            session.bind_listener(listener);
        }
        Ok(bound)
    }

    /// Listens over leases, too, if the path setting and the daemon allow it.
    fn lease(
        &self,
        client: &Client,
        listener: (u64, u16),
        path: Path,
    ) -> Result<Vec<LeasedListener>, EspError> {
        let Some(leases) = client.leases_for(path, None)? else {
            return Ok(Vec::new());
        };
        let SocketOptions { interface, key, .. } = &self.options;
        // The daemon leases raw Ethernet only.
        let is_local = client.session().is_local();
        let is_wanted = |own: &&InterfaceInfo| {
            (is_local || !own.addr.is_udp())
                && interface.as_deref().is_none_or(|only| only == own.name)
        };
        let interfaces = client.interfaces();
        let names = interfaces.iter().filter(is_wanted);
        let names = names.map(|own| own.name.as_str());
        leases.listen(names, listener, self.backlog, key, path == Path::Lease)
    }
}

/// Accepts connections to a port. Dropping it closes the port and resets connections that were not
/// accepted.
pub struct EspListener {
    client: Client,
    /// Id at the daemon; `None`: there is none, all connections come to the embedded engine.
    listener: Option<u64>,
    port: u16,
    options: SocketOptions,
    nonblocking: AtomicBool,
    /// Accept request at the daemon. All callers of `accept` wait for it; one takes the reply, the
    /// others send the next request. It survives a call that times out, so that its connection is
    /// not lost.
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
            options: SocketOptions::new(DEFAULT_RING),
            backlog: DEFAULT_BACKLOG,
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
                Ok(stream) => {
                    let peer = stream.peer_addr();
                    return Ok((stream, peer));
                }
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

    /// Waits for the daemon's reply or a connection over a lease; false at the deadline.
    fn wait(&self, cell: &ReplyCell, deadline: Option<Instant>) -> bool {
        let Some(first) = self.leased.first() else {
            return cell.wait(deadline);
        };
        let is_lost = || self.leased.iter().all(|leased| leased.lost().is_some());
        let ready = || self.leased.iter().any(LeasedListener::has_arrival) || is_lost();
        // Spins only at first, because listeners wait long.
        let mut spin = self.options.spin.unwrap_or_else(default_spin);
        loop {
            let step = Instant::now() + DAEMON_CHECK;
            let until = deadline.map_or(step, |deadline| deadline.min(step));
            if is_lost() {
                return cell.wait(deadline);
            }
            let engine = &first.leases.engine;
            if engine.wait(spin, Event::Arrival, ready, Some(until))
                || cell.wait(Some(Instant::now()))
            {
                return true;
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return false;
            }
            spin = NO_SPIN;
        }
    }

    /// Registers the task to be woken by the progress thread, because it receives no events of
    /// leases.
    #[cfg(feature = "tokio")]
    pub(crate) fn register(&self, cx: &std::task::Context<'_>) {
        if let Some(first) = self.leased.first() {
            first.leases.engine.tasks.register(cx);
        }
    }

    fn accept_leased(&self) -> io::Result<Option<EspStream>> {
        if let Some(first) = self.leased.first() {
            first.leases.engine.poll();
        }
        let (client, options) = (&self.client, &self.options);
        for leased in &self.leased {
            if let Some((parts, peer)) = leased.accept(options.rings)? {
                let stream = EspStream::leased(client, parts, peer, options.spin);
                leased.leases.report_opened(true);
                return Ok(Some(stream));
            }
        }
        Ok(None)
    }

    /// Returns a connection if there is one, else (inner error) the cell to wait on.
    pub(crate) fn attempt(&self) -> io::Result<Result<EspStream, Arc<ReplyCell>>> {
        let session = self.client.session();
        // The reply to the pending request goes to the parent.
        if session.is_forked() {
            return Err(EspError::Forked.into());
        }
        if let Some(accepted) = self.accept_leased()? {
            return Ok(Ok(accepted));
        }
        let Some(listener) = self.listener else {
            return Ok(Err(Arc::default()));
        };
        let mut pending = lock(&self.pending);
        let call = match pending.take() {
            Some(call) => Ok(call),
            None => session.call(&Request::Accept {
                listener,
                rings: self.options.rings,
            }),
        };
        let reply = match call {
            Ok(call) => {
                let Some(reply) = call.take() else {
                    let cell = Arc::clone(call.cell());
                    *pending = Some(call);
                    return Ok(Err(cell));
                };
                reply
            }
            Err(error) => Err(error),
        };
        drop(pending);
        match reply {
            Ok(answer) => {
                let stream = EspStream::granted(&self.client, &answer, self.options.spin)?;
                Ok(Ok(stream))
            }
            Err(error) if !matches!(error, EspError::DaemonGone { .. }) => Err(error.into()),
            Err(error) => {
                // Connections from this node end with the daemon, those over leases do not.
                let lost: Option<Vec<_>> = self.leased.iter().map(LeasedListener::lost).collect();
                match lost {
                    None => Ok(Err(Arc::default())),
                    Some(lost) => Err(lost.first().map_or(error, |lost| (*lost).clone()).into()),
                }
            }
        }
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
        let pending = self
            .pending
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if self.client.session().is_forked() {
            // The parent has the listener and the call, and may have held their locks at the fork.
            std::mem::forget(pending.take());
            return;
        }
        drop(pending.take());
        if let Some(listener) = self.listener {
            let session = self.client.session();
            session.close_listener(listener);
        }
    }
}

impl fmt::Debug for EspListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EspListener")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
