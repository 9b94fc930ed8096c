//! [`StreamBuilder`]: connects streams.

use std::io;
use std::time::{Duration, Instant};

use super::rings::StreamRings;
use super::socket::EspStream;
use crate::addr::{EspAddr, ToEspAddr};
use crate::client::Client;
use crate::control::Request;
use crate::error::{EspError, PeerName};
use crate::options::{DEFAULT_RING, SocketOptions, socket_options, stream_options};
use crate::path::Path;
use crate::region::{default_lease_spin, default_spin};
use crate::route::{Route, RouteReason};
use crate::session::{Answer, DAEMON_TIMEOUT};

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
        StreamBuilder::default().connect(address)
    }

    /// Connects through the shared client within `timeout`, else fails with kind `TimedOut`.
    pub fn connect_timeout(address: impl ToEspAddr, timeout: Duration) -> io::Result<EspStream> {
        StreamBuilder::default().timeout(timeout).connect(address)
    }

    /// Returns a builder to set interface, local port, key, ring sizes, spinning and path.
    pub fn builder() -> StreamBuilder {
        StreamBuilder::default()
    }
}

impl Default for StreamBuilder {
    fn default() -> Self {
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

    /// Limits the time to connect; then the error is of kind `TimedOut`. Default: the daemon's
    /// connect time-out.
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
        let address = address.to_esp_addr()?;
        self.connect_at(&Client::shared()?, address)
    }

    /// Connects through this client. Errors are those of [`StreamBuilder::connect`].
    pub fn connect_at(&self, client: &Client, address: impl ToEspAddr) -> io::Result<EspStream> {
        let deadline = self
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout));
        let address = address.to_esp_addr()?;
        let route = self.route(client, &address)?;
        let request = self.request(&address, &route)?;
        let stream = match self.begin_leased(client, &address, &route)? {
            Some(stream) => stream,
            None => self.ask_daemon(client, &request, (route, address.peer()), deadline)?,
        };
        stream
            .rings
            .wait_connected(deadline)
            .inspect_err(|error| stream.connect_failed(error))?;
        stream.rings.register_lease();
        Ok(stream)
    }

    /// Sends a connect request and waits for the daemon's reply.
    fn ask_daemon(
        &self,
        client: &Client,
        request: &Request,
        (route, peer): (Route, PeerName),
        deadline: Option<Instant>,
    ) -> Result<EspStream, EspError> {
        let session = client.session();
        let call = session.call(request)?;
        let daemon_deadline = Instant::now() + DAEMON_TIMEOUT;
        let earlier = deadline.filter(|&deadline| deadline < daemon_deadline);
        match call.wait(Some(earlier.unwrap_or(daemon_deadline))) {
            Some(answer) => self.stream(client, answer?, route),
            None if earlier.is_some() => Err(EspError::ConnectCallTimedOut(peer)),
            None => Err(session.silent("a connect request is not answered")),
        }
    }

    /// Begins to connect over a lease and returns at once. `None`: use the daemon.
    pub(super) fn begin_leased(
        &self,
        client: &Client,
        address: &EspAddr,
        route: &Route,
    ) -> Result<Option<EspStream>, EspError> {
        let path = self.options.path()?;
        if self.local_port != 0 {
            return Ok(None);
        }
        let Some(leases) = client.leases_for(path, Some(address.addr))? else {
            return Ok(None);
        };
        let SocketOptions { key, rings, .. } = &self.options;
        let opened = match leases.connect(&route.interface, address.peer(), key, *rings) {
            Ok(opened) => opened,
            Err(_) if path == Path::Auto => return Ok(None),
            Err(error) => return Err(error),
        };
        let spin = self.options.spin.unwrap_or_else(default_lease_spin);
        let rings = StreamRings::leased(client, opened, spin);
        Ok(Some(EspStream::new(rings, route.clone())))
    }

    /// Returns the interface that the builder or the address names.
    pub(crate) fn named_interface<'a>(&'a self, address: &'a EspAddr) -> Option<&'a str> {
        self.options
            .interface
            .as_deref()
            .or(address.interface.as_deref())
    }

    /// Chooses the interface. May block until the peer answers an echo.
    pub(crate) fn route(&self, client: &Client, address: &EspAddr) -> Result<Route, EspError> {
        match self.named_interface(address) {
            Some(name) => Ok(Route {
                interface: name.to_owned(),
                reason: RouteReason::Named,
            }),
            None => client.route(address.addr),
        }
    }

    /// Returns the connect request.
    pub(crate) fn request(&self, address: &EspAddr, route: &Route) -> Result<Request, EspError> {
        self.options.check_key()?;
        if address.addr.is_group() {
            return Err(EspError::BadArgument(
                "cannot connect a stream to a broadcast or multicast address",
            ));
        }
        if address.port == 0 {
            return Err(EspError::BadArgument("cannot connect to port 0"));
        }
        Ok(Request::Connect {
            interface: Some(route.interface.clone()),
            local_port: self.local_port,
            peer: address.addr,
            peer_port: address.port,
            key: self.options.key.clone(),
            rings: self.options.rings,
        })
    }

    /// Returns the stream of the daemon's reply.
    pub(crate) fn stream(
        &self,
        client: &Client,
        answer: Answer,
        route: Route,
    ) -> Result<EspStream, EspError> {
        let spin = self.options.spin.unwrap_or_else(default_spin);
        let rings = StreamRings::from_answer(client, answer, spin)?;
        Ok(EspStream::new(rings, route))
    }
}
