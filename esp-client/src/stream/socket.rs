//! [`EspStream`]: a reliable byte stream.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::halves::{ReadHalf, WriteHalf};
use super::rings::{Interest, StreamRings};
use crate::addr::EspAddr;
use crate::client::Client;
use crate::error::EspError;
use crate::path::Path;
use crate::route::{Route, RouteReason};

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
    pub(crate) rings: Arc<StreamRings>,
    route: Route,
}

impl EspStream {
    pub(crate) fn new(rings: StreamRings, route: Route) -> EspStream {
        EspStream {
            rings: Arc::new(rings),
            route,
        }
    }

    /// Returns the stream of an accepted connection.
    pub(crate) fn accepted(rings: StreamRings) -> EspStream {
        let route = Route {
            interface: rings.interface.clone(),
            reason: RouteReason::Named,
        };
        Self::new(rings, route)
    }

    /// Withdraws a failed attempt if the error demands it, and removes the cached route.
    pub(crate) fn connect_failed(&self, error: &EspError) {
        if let EspError::ConnectCallTimedOut { .. } = error {
            self.rings.abort_later();
        }
        if let EspError::ConnectCallTimedOut { .. } | EspError::ConnectTimedOut { .. } = error {
            self.rings.client.routes().forget(self.rings.peer.addr);
        }
    }

    /// Returns the local address: the interface's MAC address and the local port.
    pub fn local_addr(&self) -> EspAddr {
        let rings = &self.rings;
        let interface = rings.client.interface(Some(&rings.interface));
        let addr = interface.map(|interface| interface.addr);
        EspAddr::new(addr.unwrap_or_default(), rings.local_port).via(rings.interface.clone())
    }

    /// Returns the peer's address, with the interface in use.
    pub fn peer_addr(&self) -> EspAddr {
        EspAddr::new(self.rings.peer.addr, self.rings.peer.port).via(self.rings.interface.clone())
    }

    /// Returns the interface in use and the reason for its choice.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Returns the data path in use: [`Path::Lease`] or [`Path::Daemon`].
    pub fn path(&self) -> Path {
        if self.rings.is_leased() {
            Path::Lease
        } else {
            Path::Daemon
        }
    }

    /// Returns the client this stream belongs to.
    pub fn client(&self) -> &Client {
        &self.rings.client
    }

    /// Reads available bytes without waiting. Returns 0 at the end of the stream (or for an empty
    /// buffer).
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are available; else the error that closed the connection.
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.rings.try_read(buffer)
    }

    /// Writes as many bytes as the send ring has room for, without waiting, and returns their
    /// number.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; else the error that closed the connection.
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.rings.try_write(bytes)
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
        self.rings.try_read_with(known, take)
    }

    /// Writes all buffers or nothing, and leaves at least `spare` bytes of the send ring free.
    ///
    /// # Errors
    /// `WouldBlock` if the ring has not enough room.
    #[inline]
    pub fn try_write_whole(&self, buffers: &[IoSlice<'_>], spare: usize) -> io::Result<()> {
        self.rings.try_write_whole(buffers, spare)
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
        self.rings.try_write_more(buffers)
    }

    /// Returns true if [`EspStream::try_read_with`] would not return `WouldBlock`.
    #[inline]
    pub fn has_news(&self, known: usize) -> bool {
        self.rings.has_news(known)
    }

    /// Returns the sizes of the send and receive rings in bytes.
    pub fn ring_sizes(&self) -> (usize, usize) {
        self.rings.ring_sizes()
    }

    /// Returns the slot that identifies the stream at its [`Poller`](crate::Poller) while it lives.
    pub fn slot(&self) -> u16 {
        self.rings.slot()
    }

    /// Requests one event at the [`Poller`](crate::Poller) when `interest` becomes true. **Try the
    /// operation once more after this call**: a condition that was true before causes no event. A
    /// change of the connection's state is an event for every interest.
    pub fn arm(&self, interest: Interest) {
        self.rings.arm(interest);
    }

    /// Returns true if the connection is established.
    ///
    /// # Errors
    /// The error that closed the connection.
    pub fn is_connected(&self) -> io::Result<bool> {
        let connected = self.rings.is_connected();
        if let Err(error) = &connected {
            self.connect_failed(error);
        }
        Ok(connected?)
    }

    /// Copies bytes without consuming them; blocks as `read` does.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.rings.peek(buffer)
    }

    /// Makes [`Read`](std::io::Read) and [`Write`](std::io::Write) return `WouldBlock` instead of
    /// waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.rings.blocking.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Sets the maximum wait of a read; then the error is of kind `TimedOut`. `None`: no limit.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.rings.blocking.read.set(timeout)
    }

    /// Sets the maximum wait of a write for room in the ring; then the error is of kind `TimedOut`.
    /// `None`: no limit.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.rings.blocking.write.set(timeout)
    }

    /// Ends one direction or both. After `Write` the peer reads the end of the stream behind the
    /// written bytes. After `Read`, reads return 0 and arriving bytes stay unread, so the peer can
    /// write until the rings are full.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.rings.check()?;
            self.rings.finish_writing();
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.rings.finish_reading();
        }
        Ok(())
    }

    /// Returns the number of written bytes that the peer's node has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.rings.unacknowledged()
    }

    /// Ends the sending direction and waits until the peer's node has acknowledged all written
    /// bytes. Programs that exit right after writing call this.
    ///
    /// # Errors
    /// Kind `TimedOut` after `timeout`; else the error that closed the connection.
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.rings.finish_writing();
        self.rings
            .wait_delivered(Instant::now().checked_add(timeout))
    }

    /// Resets the connection: undelivered bytes are discarded, and the peer gets an error.
    pub fn abort(self) -> io::Result<()> {
        Ok(self.rings.abort()?)
    }

    /// Splits the stream into a reading and a writing half, for use by two threads. The stream
    /// closes when both are dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let rings = Arc::clone(&self.rings);
        (ReadHalf { rings }, WriteHalf { rings: self.rings })
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
