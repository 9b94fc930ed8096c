//! [`StreamBuilder`] connects streams; [`Connecting`] is an attempt that does not block.

use std::io;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::EspStream;
use crate::addr::{EspAddr, ToEspAddr};
use crate::client::Client;
use crate::control::Request;
use crate::error::EspError;
use crate::options::{DEFAULT_RING, SocketOptions, socket_options, stream_options};
use crate::path::Path;
use crate::session::{Call, DAEMON_TIMEOUT};

/// Options of a new stream; created by [`EspStream::builder`].
#[derive(Clone, Debug)]
pub struct StreamBuilder {
    options: SocketOptions,
    local_port: u16,
    timeout: Option<Duration>,
}

impl EspStream {
    /// Connects to `TARGET[%IF]:PORT` (or another form of address) through the shared client.
    pub fn connect(address: impl ToEspAddr) -> io::Result<EspStream> {
        Self::builder().connect(address)
    }

    /// Returns a builder to set interface, local port, key, ring sizes, spinning, time-out and
    /// path.
    pub fn builder() -> StreamBuilder {
        StreamBuilder {
            options: SocketOptions::new(DEFAULT_RING),
            local_port: 0,
            timeout: None,
        }
    }
}

socket_options!(
    StreamBuilder,
    interface: "Sets the interface; overrides the one in the address. Without either, \
        [`Client::route`] chooses it."
);
stream_options!(StreamBuilder);

impl StreamBuilder {
    /// Sets the local port. Default 0: any free port.
    #[must_use]
    pub fn local_port(mut self, port: u16) -> Self {
        self.local_port = port;
        self
    }

    /// Limits the time to connect, after which the error is of kind `TimedOut`. Default: the
    /// daemon's connect time-out.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Connects through the shared client.
    ///
    /// # Errors
    /// See [`EspError`]: unknown names, an unreachable daemon or peer, a refused connection.
    pub fn connect(&self, address: impl ToEspAddr) -> io::Result<EspStream> {
        self.connect_at(&Client::shared()?, address)
    }

    /// Connects through this client. Errors are those of [`StreamBuilder::connect`].
    ///
    /// If the daemon ends before the stream is connected, the attempt is repeated at the next one:
    /// until the time-out, or without one for as long as calls wait for the next daemon
    /// ([`Client::set_daemon_wait`]).
    pub fn connect_at(&self, client: &Client, address: impl ToEspAddr) -> io::Result<EspStream> {
        let begin = Instant::now();
        let deadline = self.timeout.and_then(|timeout| begin.checked_add(timeout));
        let limit = self.timeout.unwrap_or_else(|| client.session().patience());
        let peer = address.to_esp_addr(client)?;
        let stream = loop {
            let stream = self.begin_at(client, &peer)?.wait(deadline)?;
            match stream.wait_connected(deadline) {
                Err(_) if stream.is_unsent() && begin.elapsed() < limit => {}
                decided => {
                    decided?;
                    break stream;
                }
            }
        };
        if let Some(lease) = stream.socket.lease() {
            lease.leases.report_opened(true);
        }
        Ok(stream)
    }

    /// Begins to connect and does not wait for the peer.
    ///
    /// If the daemon ends before the stream is connected, the stream ends with
    /// [`EspError::DaemonGone`], and the program may begin again.
    ///
    /// It may block in three cases: if the address has a name that is looked up
    /// ([`resolve`](crate::resolve)), if neither builder nor address names the interface and there
    /// are several ([`Client::route`]), and if it needs further leased ports of the daemon, which
    /// happens once for every 32 streams to one port of a peer.
    pub fn begin_at(&self, client: &Client, address: impl ToEspAddr) -> io::Result<Connecting> {
        let peer = address.to_esp_addr(client)?;
        self.options.check_key()?;
        if peer.addr.is_group() {
            let text = "cannot connect a stream to a broadcast or multicast address";
            return Err(EspError::BadArgument(text.into()).into());
        }
        if peer.port == 0 {
            return Err(EspError::BadArgument("cannot connect to port 0".into()).into());
        }
        let named = self.options.interface.clone();
        let interface = match named.or_else(|| peer.interface.clone()) {
            Some(name) => name,
            None => client.route(peer.addr)?,
        };
        let state = match self.begin_leased(client, &peer, &interface)? {
            Some(stream) => {
                client.session().notify_poller();
                ConnectingState::Leased(stream)
            }
            None => ConnectingState::Requested(client.session().call(&Request::Connect {
                interface: Some(interface),
                local_port: self.local_port,
                peer: peer.addr,
                peer_port: peer.port,
                key: self.options.key.clone(),
                rings: self.options.rings,
            })?),
        };
        Ok(Connecting {
            client: client.clone(),
            builder: self.clone(),
            state,
            peer,
        })
    }

    /// Begins to connect over a lease. `None`: use the daemon.
    fn begin_leased(
        &self,
        client: &Client,
        address: &EspAddr,
        interface: &str,
    ) -> Result<Option<EspStream>, EspError> {
        let path = self.options.path()?;
        if self.local_port != 0 {
            return Ok(None);
        }
        let Some(leases) = client.leases_for(path, Some(address.addr))? else {
            return Ok(None);
        };
        let (options, peer) = (&self.options, address.peer());
        match leases.connect(interface, peer, &options.key, options.rings) {
            Ok(parts) => Ok(Some(EspStream::leased(client, parts, peer, options.spin))),
            Err(_) if path == Path::Auto => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Connection attempt, created by [`StreamBuilder::begin_at`]. Dropping it withdraws the attempt.
pub struct Connecting {
    client: Client,
    builder: StreamBuilder,
    state: ConnectingState,
    peer: EspAddr,
}

enum ConnectingState {
    /// Waits for the daemon's reply.
    Requested(Call),
    /// Begun over a lease, without the daemon.
    Leased(EspStream),
    Taken,
}

impl Connecting {
    /// Returns the stream, once, when the daemon has replied. It may still be connecting
    /// ([`EspStream::is_connected`]); bytes written before are sent afterwards.
    pub fn poll(&mut self) -> Option<io::Result<EspStream>> {
        match std::mem::replace(&mut self.state, ConnectingState::Taken) {
            ConnectingState::Leased(stream) => Some(Ok(stream)),
            ConnectingState::Requested(call) => {
                let Some(reply) = call.take() else {
                    self.state = ConnectingState::Requested(call);
                    return None;
                };
                let spin = self.builder.options.spin;
                let stream =
                    reply.and_then(|answer| EspStream::granted(&self.client, &answer, spin));
                Some(stream.map_err(io::Error::from))
            }
            ConnectingState::Taken => None,
        }
    }

    /// Waits for the daemon's reply, at most until the caller's deadline or [`DAEMON_TIMEOUT`].
    fn wait(mut self, deadline: Option<Instant>) -> io::Result<EspStream> {
        let session = self.client.session();
        let is_late = || deadline.is_some_and(|deadline| deadline <= Instant::now());
        if let ConnectingState::Requested(call) = &self.state {
            loop {
                let daemon = session.connection();
                let of_daemon = Instant::now() + DAEMON_TIMEOUT;
                let until = deadline.map_or(of_daemon, |deadline| deadline.min(of_daemon));
                // The next daemon has the full time, too.
                let is_next = || session.is_waiting() || session.connection() != daemon;
                if call.cell().wait(Some(until)) || is_late() || !is_next() {
                    break;
                }
            }
        }
        if let Some(decided) = self.poll() {
            return decided;
        }
        Err(if is_late() {
            EspError::ConnectCallTimedOut(self.peer.peer()).into()
        } else {
            let waiting_for = "a connect request is not answered";
            self.client.session().silent(waiting_for).into()
        })
    }

    /// Polls for the daemon's reply.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_reply(&mut self, cx: &Context<'_>) -> Poll<io::Result<EspStream>> {
        if let ConnectingState::Requested(call) = &self.state {
            ready!(call.cell().poll(cx));
        }
        self.poll().map_or(Poll::Pending, Poll::Ready)
    }
}

impl std::fmt::Debug for Connecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connecting")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
