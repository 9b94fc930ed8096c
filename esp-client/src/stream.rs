//! [`EspStream`]: a reliable byte stream.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esp_engine::shm::Spin;

use crate::addr::{EspAddr, ToEspAddr};
use crate::client::Client;
use crate::control::{Request, Rings};
use crate::core::{Core, default_lease_spin, default_spin};
use crate::error::EspError;
use crate::lease::{self, Path};
use crate::route::{Route, RouteReason};
use crate::session::DAEMON_TIMEOUT;

/// Default size of each ring of a stream, in bytes.
pub const DEFAULT_RING: u32 = 1 << 20;
/// Maximum length of a job key, in bytes.
pub const MAX_KEY: usize = 32;

/// Options of a new stream; created by [`EspStream::builder`].
#[derive(Clone, Debug)]
pub struct StreamBuilder {
    interface: Option<String>,
    local_port: u16,
    key: Vec<u8>,
    rings: Rings,
    spin: Option<Spin>,
    timeout: Option<Duration>,
    path: Option<Path>,
}

impl StreamBuilder {
    pub(crate) fn new() -> StreamBuilder {
        StreamBuilder {
            interface: None,
            local_port: 0,
            key: Vec::new(),
            rings: Rings {
                tx: DEFAULT_RING,
                rx: DEFAULT_RING,
            },
            spin: None,
            timeout: None,
            path: None,
        }
    }

    /// Sets the interface; overrides the one in the address. Without either, [`Client::route`]
    /// chooses it.
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Sets the local port. Default 0: any free port.
    #[must_use]
    pub fn local_port(mut self, port: u16) -> Self {
        self.local_port = port;
        self
    }

    /// Sets the job key, at most [`MAX_KEY`] bytes. The listener must have the same key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets the sizes of the send and receive rings in bytes: powers of two, 4 KiB to 64 MiB.
    /// Default [`DEFAULT_RING`] each. The daemon may grant less.
    #[must_use]
    pub fn rings(mut self, tx: u32, rx: u32) -> Self {
        self.rings = Rings { tx, rx };
        self
    }

    /// Sets how long blocking calls spin before they sleep. The default depends on the number of
    /// processors this process may use; with one or two it does not spin.
    #[must_use]
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Limits the time to connect; then the error is of kind `TimedOut`. Default: the daemon's
    /// connect time-out.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the data path within this node. Default: the value of
    /// [`PATH_VARIABLE`](crate::PATH_VARIABLE), else [`Path::Auto`]. Streams with a chosen local
    /// port and those of the `aio` module always use the daemon.
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = Some(path);
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
        if let Some(stream) = self.connect_leased(client, &address, &route, deadline)? {
            return Ok(stream);
        }
        let call = client.session().call(&request)?;
        let patience = Instant::now() + DAEMON_TIMEOUT;
        let answer = call.wait(Some(
            deadline.map_or(patience, |deadline| deadline.min(patience)),
        ));
        let Some(answer) = answer else {
            return Err(if deadline.is_some_and(|deadline| deadline < patience) {
                EspError::ConnectCallTimedOut {
                    peer: address.peer(),
                }
                .into()
            } else {
                client
                    .session()
                    .silent("a connect request is not answered")
                    .into()
            });
        };
        let stream = self.stream(client, answer?, route)?;
        if let Err(error) = stream.core.wait_connected(deadline) {
            stream.given_up(&error);
            return Err(error.into());
        }
        Ok(stream)
    }

    /// Connects over a lease if the path setting says so. `None`: the daemon is to be used.
    fn connect_leased(
        &self,
        client: &Client,
        address: &EspAddr,
        route: &Route,
        deadline: Option<Instant>,
    ) -> io::Result<Option<EspStream>> {
        let Some(stream) = self.begin_leased(client, address, route)? else {
            return Ok(None);
        };
        if let Err(error) = stream.core.wait_connected(deadline) {
            stream.given_up(&error);
            return Err(error.into());
        }
        stream.core.established();
        Ok(Some(stream))
    }

    /// Begins to connect over a lease and returns at once. `None`: the daemon is to be used.
    pub(crate) fn begin_leased(
        &self,
        client: &Client,
        address: &EspAddr,
        route: &Route,
    ) -> io::Result<Option<EspStream>> {
        let path = self.path.map_or_else(Path::from_environment, Ok)?;
        if self.local_port != 0 {
            return Ok(None);
        }
        let Some(leases) = lease::of(client, path, Some(address.mac))? else {
            return Ok(None);
        };
        let to = (address.mac, address.port);
        let opened = match leases.connect(&route.interface, to, &self.key, self.rings) {
            Ok(opened) => opened,
            Err(_) if path == Path::Auto => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let core = Core::leased(client, opened, self.spin.unwrap_or_else(default_lease_spin));
        Ok(Some(EspStream {
            core: Arc::new(core),
            route: route.clone(),
        }))
    }

    pub(crate) fn named_interface<'a>(&'a self, address: &'a EspAddr) -> Option<&'a str> {
        self.interface.as_deref().or(address.interface.as_deref())
    }

    /// Chooses the interface. May block until the peer answers an echo.
    pub(crate) fn route(&self, client: &Client, address: &EspAddr) -> Result<Route, EspError> {
        match self.named_interface(address) {
            Some(name) => Ok(Route {
                interface: name.to_owned(),
                reason: RouteReason::Named,
            }),
            None => client.route(address.mac),
        }
    }

    pub(crate) fn request(&self, address: &EspAddr, route: &Route) -> Result<Request, EspError> {
        check_key(&self.key)?;
        if address.mac.is_group() {
            return Err(EspError::BadArgument(
                "a stream cannot be connected to a broadcast or multicast address",
            ));
        }
        if address.port == 0 {
            return Err(EspError::BadArgument("port 0 cannot be connected to"));
        }
        Ok(Request::Connect {
            interface: Some(route.interface.clone()),
            local_port: self.local_port,
            peer: address.mac.octets(),
            peer_port: address.port,
            key: self.key.clone(),
            rings: self.rings,
        })
    }

    pub(crate) fn stream(
        &self,
        client: &Client,
        answer: crate::call::Answer,
        route: Route,
    ) -> Result<EspStream, EspError> {
        let core = Core::from_answer(client, answer, self.spin.unwrap_or_else(default_spin))?;
        Ok(EspStream {
            core: Arc::new(core),
            route,
        })
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), EspError> {
    if key.len() > MAX_KEY {
        Err(EspError::BadArgument("the job key is longer than 32 bytes"))
    } else {
        Ok(())
    }
}

/// Event that [`EspStream::arm`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Bytes can be read, or the end of the stream.
    Readable,
    /// A quarter of the send ring is free, or all written bytes are acknowledged.
    Writable,
    /// The connection is established or closed.
    State,
}

/// A reliable byte stream to a port of another node (or of this one).
///
/// Reads and writes copy from and to memory shared with the daemon's engine. They make a system
/// call only to wake a sleeping engine, or to sleep. One thread may read while another writes,
/// through `&EspStream` or the halves of [`EspStream::into_split`].
///
/// Dropping the stream closes it: written bytes are still delivered, then the peer reads the end of
/// the stream. If the process exits immediately, delivery continues for at most half a second;
/// [`EspStream::finish`] waits for it.
///
/// Errors are [`io::Error`]s with an [`EspError`] inside ([`EspError::of`]).
pub struct EspStream {
    pub(crate) core: Arc<Core>,
    route: Route,
}

impl EspStream {
    /// Connects to `TARGET[%IF]:PORT` (or another form of address) through the shared client.
    pub fn connect(address: impl ToEspAddr) -> io::Result<EspStream> {
        StreamBuilder::new().connect(address)
    }

    /// Connects through the shared client within `timeout`, else fails with kind `TimedOut`.
    pub fn connect_timeout(address: impl ToEspAddr, timeout: Duration) -> io::Result<EspStream> {
        StreamBuilder::new().timeout(timeout).connect(address)
    }

    /// Returns a builder to set interface, local port, key, ring sizes, spinning and path.
    pub fn builder() -> StreamBuilder {
        StreamBuilder::new()
    }

    pub(crate) fn accepted(core: Core) -> EspStream {
        let route = Route {
            interface: core.interface.clone(),
            reason: RouteReason::Named,
        };
        EspStream {
            core: Arc::new(core),
            route,
        }
    }

    /// Cleans up after a failed attempt: withdraws it and forgets the cached route.
    pub(crate) fn given_up(&self, error: &EspError) {
        match error {
            EspError::ConnectCallTimedOut { .. } => {
                self.core.abort_unheard();
                self.core.client.routes().forget(self.core.peer.mac);
            }
            EspError::ConnectTimedOut { .. } => {
                self.core.client.routes().forget(self.core.peer.mac);
            }
            _ => {}
        }
    }

    /// Returns the local address: the interface's MAC address and the local port.
    pub fn local_addr(&self) -> EspAddr {
        let core = &self.core;
        let mac = core
            .client
            .interface(Some(&core.interface))
            .map(|interface| esp_proto::MacAddr(interface.mac));
        EspAddr::new(mac.unwrap_or_default(), core.local_port).via(core.interface.clone())
    }

    /// Returns the peer's address, with the interface in use.
    pub fn peer_addr(&self) -> EspAddr {
        EspAddr::new(self.core.peer.mac, self.core.peer.port).via(self.core.interface.clone())
    }

    /// Returns the interface in use and the reason for its choice.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Returns the data path in use: [`Path::Lease`] or [`Path::Daemon`].
    pub fn path(&self) -> Path {
        if self.core.is_leased() {
            Path::Lease
        } else {
            Path::Daemon
        }
    }

    /// Returns the client this stream belongs to.
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    /// Reads available bytes without waiting. Returns 0 at the end of the stream (or for an empty
    /// buffer).
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are available; else the error that closed the connection.
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.try_read(buffer)
    }

    /// Writes as many bytes as the send ring has room for, without waiting, and returns their
    /// number.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; else the error that closed the connection.
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.try_write(bytes)
    }

    /// Passes the readable bytes to `take` as one contiguous slice without copying, and consumes
    /// the number that `take` returns, which is also the result. Other threads cannot read while
    /// `take` runs; `take` may write to the stream.
    ///
    /// `known` is the number of bytes that an earlier call left unconsumed.
    ///
    /// # Errors
    /// `WouldBlock` if no more than `known` bytes are readable. At the end of the stream the result
    /// is that of [`EspStream::try_read`].
    #[inline]
    pub fn try_read_with(
        &self,
        known: usize,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<usize> {
        self.core.try_read_with(known, take)
    }

    /// Writes all buffers or nothing, and leaves at least `spare` bytes of the send ring free.
    ///
    /// # Errors
    /// `WouldBlock` if the ring has not enough room.
    #[inline]
    pub fn try_write_whole(&self, buffers: &[IoSlice<'_>], spare: usize) -> io::Result<()> {
        self.core.try_write_whole(buffers, spare)
    }

    /// Like [`try_write_whole`](EspStream::try_write_whole), but more is about to follow (cf.
    /// `MSG_MORE`): the engine is not notified, so that this write and the next ones share frames.
    ///
    /// Held bytes are sent with the next write without "more", by [`flush`](std::io::Write::flush),
    /// when the sending direction ends, and when 8 KiB of them wait. Nothing else sends them.
    ///
    /// # Errors
    /// `WouldBlock` if the ring has no room for all bytes; what was held is then sent.
    pub fn try_write_more(&self, buffers: &[IoSlice<'_>]) -> io::Result<()> {
        self.core.try_write_more(buffers)
    }

    /// Returns true if [`EspStream::try_read_with`] would not return `WouldBlock`.
    #[inline]
    pub fn has_news(&self, known: usize) -> bool {
        self.core.has_news(known)
    }

    /// Returns the sizes of the send and receive rings in bytes.
    pub fn ring_sizes(&self) -> (usize, usize) {
        self.core.ring_sizes()
    }

    /// Returns the slot that identifies the stream at its [`Poller`](crate::Poller) while it lives.
    pub fn slot(&self) -> u16 {
        self.core.slot()
    }

    /// Requests one event at the [`Poller`](crate::Poller) when `interest` becomes true. **Try the
    /// operation once more after this call**: a condition that was true before causes no event. A
    /// change of the connection's state is an event for every interest.
    pub fn arm(&self, interest: Interest) {
        self.core.arm(interest);
    }

    /// Returns true if the connection is established.
    ///
    /// # Errors
    /// The error that closed the connection.
    pub fn is_connected(&self) -> io::Result<bool> {
        let connected = self.core.is_connected();
        if let Err(error) = &connected {
            self.given_up(error);
        }
        Ok(connected?)
    }

    /// Copies bytes without consuming them; blocks as `read` does.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.peek(buffer)
    }

    /// Makes [`Read`] and [`Write`] return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.core.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the maximum wait of a read; then the error is of kind `TimedOut`. `None`: no limit.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.core.read_timeout.set(timeout)
    }

    /// Returns the value of [`EspStream::set_read_timeout`].
    pub fn read_timeout(&self) -> Option<Duration> {
        self.core.read_timeout.get()
    }

    /// Sets the maximum wait of a write for room in the ring; then the error is of kind `TimedOut`.
    /// `None`: no limit.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.core.write_timeout.set(timeout)
    }

    /// Returns the value of [`EspStream::set_write_timeout`].
    pub fn write_timeout(&self) -> Option<Duration> {
        self.core.write_timeout.get()
    }

    /// Ends one direction or both. After `Write` the peer reads the end of the stream behind the
    /// written bytes. After `Read`, reads return 0 and arriving bytes stay unread, so the peer can
    /// write until the rings are full.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.core.check()?;
            self.core.finish_writing();
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.core.finish_reading();
        }
        Ok(())
    }

    /// Returns the number of written bytes that the peer's node has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.core.unacknowledged()
    }

    /// Ends the sending direction and waits until the peer's node has acknowledged all written
    /// bytes. Programs that exit right after writing call this.
    ///
    /// # Errors
    /// Kind `TimedOut` after `timeout`; else the error that closed the connection.
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.core.finish_writing();
        self.core
            .wait_delivered(Instant::now().checked_add(timeout))
    }

    /// Resets the connection: undelivered bytes are discarded, and the peer gets an error.
    pub fn abort(self) -> io::Result<()> {
        Ok(self.core.abort()?)
    }

    /// Splits the stream into a reading and a writing half, for use by two threads. The stream
    /// closes when both are dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let core = Arc::clone(&self.core);
        (ReadHalf { core }, WriteHalf { core: self.core })
    }
}

/// Implements `Write` for a type with a field `core`.
macro_rules! write_to_core {
    ($($type:ty),*) => {$(
        impl Write for $type {
            #[inline]
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.core.write(&[IoSlice::new(bytes)])
            }

            fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                self.core.write(buffers)
            }

            /// Sends what [`EspStream::try_write_more`] holds back. No other write is held back.
            fn flush(&mut self) -> io::Result<()> {
                self.core.flush();
                Ok(())
            }
        }
    )*};
}
write_to_core!(EspStream, &EspStream, WriteHalf);

/// Implements `Read` for a type with a field `core`.
macro_rules! read_from_core {
    ($($type:ty),*) => {$(
        impl Read for $type {
            #[inline]
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.core.read(buffer)
            }
        }
    )*};
}
read_from_core!(EspStream, &EspStream, ReadHalf);

impl fmt::Debug for EspStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EspStream")
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish()
    }
}

/// Reading half of a stream.
pub struct ReadHalf {
    pub(crate) core: Arc<Core>,
}

impl ReadHalf {
    /// See [`EspStream::try_read`].
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.try_read(buffer)
    }
}

impl fmt::Debug for ReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadHalf")
            .field("peer", &self.core.peer)
            .finish_non_exhaustive()
    }
}

/// Writing half of a stream. Dropping it ends the sending direction.
pub struct WriteHalf {
    pub(crate) core: Arc<Core>,
}

impl WriteHalf {
    /// See [`EspStream::try_write`].
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.try_write(bytes)
    }

    /// See [`EspStream::finish`].
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.core.finish_writing();
        self.core
            .wait_delivered(Instant::now().checked_add(timeout))
    }

    /// Resets the connection for both halves; see [`EspStream::abort`].
    pub fn abort(self) -> io::Result<()> {
        Ok(self.core.abort()?)
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if !self.core.client.session().is_forked() {
            self.core.finish_writing();
        }
    }
}

impl fmt::Debug for WriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteHalf")
            .field("peer", &self.core.peer)
            .finish_non_exhaustive()
    }
}
