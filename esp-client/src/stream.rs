//! A connection that feels like a TCP stream.

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

/// Bytes of each ring of a stream that does not ask for others.
pub const DEFAULT_RING: u32 = 1 << 20;
/// Longest job key, in bytes.
pub const MAX_KEY: usize = 32;

/// How to open a stream; made by [`EspStream::builder`].
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

    /// Through this interface; overrides the address's. Without either: the one that leads there ([`Client::route`]).
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// From this port; 0, the default: any free one.
    #[must_use]
    pub fn local_port(mut self, port: u16) -> Self {
        self.local_port = port;
        self
    }

    /// Job key, at most [`MAX_KEY`] bytes. The listener must have the same.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = key.into();
        self
    }

    /// Bytes of the send and receive rings: powers of two, 4 KiB to 64 MiB. Default [`DEFAULT_RING`] each. The daemon may
    /// give less.
    #[must_use]
    pub fn rings(mut self, tx: u32, rx: u32) -> Self {
        self.rings = Rings { tx, rx };
        self
    }

    /// How long blocking calls stay awake before they sleep. Default: by the number of processors this process may use;
    /// no spinning on one or two.
    #[must_use]
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Ends the attempt after this long (with an error of kind `TimedOut`). Without it the daemon's connect time-out ends it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Which way through the own node. Default: what [`PATH_VARIABLE`](crate::PATH_VARIABLE) says, else [`Path::Auto`].
    /// A stream with a local port of its own goes through the daemon, and so do futures.
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = Some(path);
        self
    }

    /// Connects, through the shared client.
    pub fn connect(&self, address: impl ToEspAddr) -> io::Result<EspStream> {
        let address = address.to_esp_addr()?;
        self.connect_at(&Client::shared()?, address)
    }

    /// Connects through this client.
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

    /// Over a lease, if that is the way to take; an error of the peer's, or of a way that must be taken, ends the attempt.
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

    /// The same, still connecting.
    pub(crate) fn begin_leased(
        &self,
        client: &Client,
        address: &EspAddr,
        route: &Route,
    ) -> io::Result<Option<EspStream>> {
        let path = self.path.unwrap_or_else(Path::from_environment);
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

    /// May wait for answers of the peer.
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

/// What [`EspStream::arm`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Bytes, or the end of them.
    Readable,
    /// A quarter of the ring is free, or all that was written is acknowledged.
    Writable,
    /// Connected, or over.
    State,
}

/// A reliable byte stream to a port of another node (or of this one).
///
/// Reads and writes are copies from and to memory shared with the node's daemon; a system call happens only to wake the
/// daemon's engine when it sleeps, and to sleep. Reading and writing may go on at the same time from different threads
/// through `&EspStream`, or through the halves of [`EspStream::into_split`].
///
/// Dropped, it closes in order: what was written is still delivered, then the peer reads the end of the stream. If the
/// process ends right then, the daemon goes on for half a second only; [`EspStream::finish`] waits for delivery.
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

    /// The same, giving up after this long.
    pub fn connect_timeout(address: impl ToEspAddr, timeout: Duration) -> io::Result<EspStream> {
        StreamBuilder::new().timeout(timeout).connect(address)
    }

    /// To choose interface, local port, key, ring sizes, waiting.
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

    /// The attempt has failed: it must go on neither at the daemon nor by the same way next time.
    pub(crate) fn given_up(&self, error: &EspError) {
        match error {
            EspError::ConnectCallTimedOut { .. } => {
                self.core.abort_unheard();
                self.core.client.routes().forget(self.core.peer.mac);
            }
            EspError::ConnectTimedOut { .. } => {
                self.core.client.routes().forget(self.core.peer.mac)
            }
            _ => {}
        }
    }

    /// Own port, at the interface's own address.
    pub fn local_addr(&self) -> EspAddr {
        let core = &self.core;
        let mac = core
            .client
            .interface(Some(&core.interface))
            .map(|interface| esp_proto::MacAddr(interface.mac));
        EspAddr::new(mac.unwrap_or_default(), core.local_port).via(core.interface.clone())
    }

    /// The peer, through the interface in use.
    pub fn peer_addr(&self) -> EspAddr {
        EspAddr::new(self.core.peer.mac, self.core.peer.port).via(self.core.interface.clone())
    }

    /// The interface in use and why it was taken.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// [`Path::Lease`] or [`Path::Daemon`]: the way it takes.
    pub fn path(&self) -> Path {
        if self.core.is_leased() {
            Path::Lease
        } else {
            Path::Daemon
        }
    }

    /// The connection to the daemon this stream belongs to.
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    /// Reads what is there, without waiting and without a system call unless the engine sleeps and needs to hear of the
    /// room. `WouldBlock`: nothing there. `Ok(0)`: the peer has finished (or the buffer is empty).
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.try_read(buffer)
    }

    /// Writes what fits, without waiting and without a system call unless the engine sleeps. `WouldBlock`: no room.
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.try_write(bytes)
    }

    /// Shows `take` the bytes that are there where they lie, one slice however the ring wraps, and takes as many as it returns
    /// (returned here too). `known`: bytes that an earlier call has left; without more than those this is `WouldBlock`, or at the end of
    /// the stream what [`EspStream::try_read`] says there. While `take` runs, other threads cannot read; it may write.
    #[inline]
    pub fn try_read_with(
        &self,
        known: usize,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<usize> {
        self.core.try_read_with(known, take)
    }

    /// Writes all of the buffers, and only if `spare` bytes of room are left besides; else `WouldBlock`, and nothing is written.
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

    /// Would [`EspStream::try_read_with`] say something else than `WouldBlock`?
    #[inline]
    pub fn has_news(&self, known: usize) -> bool {
        self.core.has_news(known)
    }

    /// Bytes of the send and receive rings, as the daemon gave them.
    pub fn ring_sizes(&self) -> (usize, usize) {
        self.core.ring_sizes()
    }

    /// Number of the stream at its [`Poller`](crate::Poller), until it is dropped.
    pub fn slot(&self) -> u16 {
        self.core.slot()
    }

    /// Asks for one piece of news at the [`Poller`](crate::Poller) when this happens. **Try once more after this call**: what was there
    /// before it is not news. A change of the connection's state is news to each interest.
    pub fn arm(&self, interest: Interest) {
        self.core.arm(interest);
    }

    /// Is the connection established? The error it has ended with, if it has.
    pub fn is_connected(&self) -> io::Result<bool> {
        let connected = self.core.is_connected();
        if let Err(error) = &connected {
            self.given_up(error);
        }
        Ok(connected?)
    }

    /// Copies bytes without taking them; waits as reading does.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.peek(buffer)
    }

    /// With true, [`Read`] and [`Write`] give `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.core.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Longest wait of a read; then an error of kind `TimedOut`. `None`: as long as it takes. Zero is refused.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.core.read_timeout.set(timeout)
    }

    /// See [`EspStream::set_read_timeout`].
    pub fn read_timeout(&self) -> Option<Duration> {
        self.core.read_timeout.get()
    }

    /// Longest wait of a write for room; then an error of kind `TimedOut`. `None`: as long as it takes. Zero is refused.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.core.write_timeout.set(timeout)
    }

    /// See [`EspStream::set_write_timeout`].
    pub fn write_timeout(&self) -> Option<Duration> {
        self.core.write_timeout.get()
    }

    /// Ends one direction or both. `Write`: the peer reads the end behind what was written. `Read`: reads here give 0;
    /// what still arrives stays unread, so the peer can write until the rings are full.
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

    /// Bytes written that the peer's node has not acknowledged yet.
    pub fn unacknowledged(&self) -> u64 {
        self.core.unacknowledged()
    }

    /// Ends the sending direction and waits until the peer's node has acknowledged all that was written. For programs that
    /// exit right after writing.
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.core.finish_writing();
        self.core
            .wait_delivered(Instant::now().checked_add(timeout))
    }

    /// Resets the connection: what is not delivered yet is thrown away, the peer gets an error.
    pub fn abort(self) -> io::Result<()> {
        Ok(self.core.abort()?)
    }

    /// Two halves for two threads. The stream closes when both are dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let core = Arc::clone(&self.core);
        (ReadHalf { core }, WriteHalf { core: self.core })
    }
}

impl Read for &EspStream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.read(buffer)
    }
}

impl Write for &EspStream {
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

impl Read for EspStream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.read(buffer)
    }
}

impl Write for EspStream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.core.write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.core.write(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.core.flush();
        Ok(())
    }
}

impl fmt::Debug for EspStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EspStream")
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish()
    }
}

/// The reading half of a stream.
pub struct ReadHalf {
    pub(crate) core: Arc<Core>,
}

impl ReadHalf {
    /// As [`EspStream::try_read`].
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.try_read(buffer)
    }
}

impl Read for ReadHalf {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.read(buffer)
    }
}

impl fmt::Debug for ReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadHalf")
            .field("peer", &self.core.peer)
            .finish_non_exhaustive()
    }
}

/// The writing half of a stream. Dropped, it ends the sending direction: the peer reads the end of the stream.
pub struct WriteHalf {
    pub(crate) core: Arc<Core>,
}

impl WriteHalf {
    /// As [`EspStream::try_write`].
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.try_write(bytes)
    }

    /// As [`EspStream::finish`].
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.core.finish_writing();
        self.core
            .wait_delivered(Instant::now().checked_add(timeout))
    }

    /// As [`EspStream::abort`], for both halves.
    pub fn abort(self) -> io::Result<()> {
        Ok(self.core.abort()?)
    }
}

impl Write for WriteHalf {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.core.write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.core.write(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.core.flush();
        Ok(())
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
