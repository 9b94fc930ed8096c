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
use crate::control::{Reply, Request, Rings};
use crate::core::{Core, default_spin};
use crate::error::EspError;
use crate::session::lock;
use crate::stream::{DEFAULT_RING, EspStream, check_key};

/// Connections that may wait when [`ListenerBuilder::backlog`] does not say.
pub const DEFAULT_BACKLOG: u16 = 128;

/// How to listen; made by [`EspListener::builder`].
#[derive(Clone, Debug)]
pub struct ListenerBuilder {
    interface: Option<String>,
    backlog: u16,
    key: Vec<u8>,
    rings: Rings,
    spin: Option<Spin>,
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

    /// Listens on this port (0: any free one) through the shared client.
    pub fn bind(&self, port: u16) -> io::Result<EspListener> {
        self.bind_at(&Client::shared()?, port)
    }

    /// The same through this client.
    pub fn bind_at(&self, client: &Client, port: u16) -> io::Result<EspListener> {
        check_key(&self.key)?;
        let request = Request::Listen {
            interface: self.interface.clone(),
            port,
            backlog: self.backlog,
            key: self.key.clone(),
        };
        match client.session().ask(&request)?.reply {
            Reply::Listening { listener, port } => Ok(EspListener {
                client: client.clone(),
                listener,
                port,
                rings: self.rings,
                spin: self.spin.unwrap_or_else(default_spin),
                nonblocking: AtomicBool::new(false),
                pending: Mutex::new(None),
            }),
            _ => Err(client.session().unexpected("a listener").into()),
        }
    }
}

/// Takes connections to a port. Dropped, it closes the port and resets the connections nobody accepted.
pub struct EspListener {
    client: Client,
    listener: u64,
    port: u16,
    rings: Rings,
    spin: Spin,
    nonblocking: AtomicBool,
    /// The request under way. All who accept wait for it; one takes the answer, the others ask again. It stays when
    /// nobody waits any more, so that no connection is lost by a call that gave up.
    pending: Mutex<Option<Call>>,
}

impl EspListener {
    /// Listens on this port (0: any free one; below 1024: superuser only) of all interfaces, through the shared client.
    pub fn bind(port: u16) -> io::Result<EspListener> {
        Self::builder().bind(port)
    }

    /// To choose interface, backlog, key, ring sizes.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder {
            interface: None,
            backlog: DEFAULT_BACKLOG,
            key: Vec::new(),
            rings: Rings { tx: DEFAULT_RING, rx: DEFAULT_RING },
            spin: None,
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
            if !cell.wait(deadline) {
                return Err(EspError::CallTimedOut { what: "accepting" }.into());
            }
        }
    }

    /// A connection if there is one, else (inner error) where to wait for news.
    pub(crate) fn attempt(&self) -> io::Result<Result<(EspStream, EspAddr), Arc<CallCell>>> {
        let mut pending = lock(&self.pending);
        let call = match pending.take() {
            Some(call) => call,
            None => {
                let request = Request::Accept { listener: self.listener, rings: self.rings };
                self.client.session().call(&request)?
            }
        };
        let Some(outcome) = call.take() else {
            let cell = Arc::clone(call.cell());
            *pending = Some(call);
            return Ok(Err(cell));
        };
        drop(pending);
        let stream = EspStream::accepted(Core::from_answer(&self.client, outcome?, self.spin)?);
        let peer = stream.peer_addr();
        Ok(Ok((stream, peer)))
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
        drop(lock(&self.pending).take());
        self.client.session().post(&Request::CloseListener { listener: self.listener });
    }
}

impl fmt::Debug for EspListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EspListener").field("port", &self.port).finish_non_exhaustive()
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
