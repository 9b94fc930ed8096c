//! [`EspStream`]: a reliable byte stream.

mod connect;
mod read;
mod write;

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use esp_engine::shm::{Region, RxView, Spin, StreamState, Wake};

use crate::addr::EspAddr;
use crate::client::Client;
use crate::control::{Reply, Request};
use crate::error::{EspError, PeerName};
use crate::lease::{FIRST_LEASED_SLOT, LeasedSocketParts};
use crate::path::Path;
use crate::session::{Answer, Held};
use crate::socket::{Socket, SocketEngine, socket_settings};
pub use connect::{Connecting, StreamBuilder};

/// A reliable byte stream to a port of another node (or of this one).
///
/// Reads and writes copy from and to memory shared with the daemon's engine. They make a system
/// call only to wake a sleeping engine, or to sleep. One thread may read while another writes,
/// through `&EspStream`.
///
/// Dropping the stream closes it: written bytes are still delivered, then the peer reads the end of
/// the stream. That holds even if the process exits immediately. For a stream through the daemon,
/// the daemon delivers the rest. Without it ([`Path::Lease`], [`Client::udp`]) the exit of the
/// process waits for the peers' acknowledgements, as does the drop of the client, for at most 2 s;
/// a process that is killed, or calls `abort`, `_exit` or `exec`, loses the bytes in flight.
/// [`EspStream::finish`] waits until all bytes are delivered. Dropping a stream that is still
/// connecting, and to which nothing was written, withdraws the attempt.
///
/// Errors are [`io::Error`]s with an [`EspError`] inside ([`EspError::of`]).
pub struct EspStream {
    /// In memory of its own, because streams are moved.
    socket: Box<Socket>,
    peer: PeerName,
    /// Position of the receive ring, for waits that hold the engine: a thread that holds the lock
    /// of the ring may be waiting for it.
    arrived: RxView,
    read_shut: AtomicBool,
    /// Number of bytes written with "more follows" of which the engine was not notified.
    held: AtomicUsize,
    /// Dropping it resets the connection.
    aborted: bool,
}

socket_settings!(EspStream);

impl EspStream {
    fn new((socket, region): (Socket, Arc<Region>), peer: PeerName) -> EspStream {
        EspStream {
            socket: Box::new(socket),
            peer,
            arrived: RxView::new(region),
            read_shut: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            aborted: false,
        }
    }

    /// Returns the stream of a daemon's reply.
    pub(crate) fn granted(
        client: &Client,
        answer: &Answer,
        spin: Option<Spin>,
    ) -> Result<EspStream, EspError> {
        let Reply::Stream {
            slot,
            rings,
            ref interface,
            local_port,
            peer: addr,
            peer_port: port,
        } = answer.reply
        else {
            client.session().give_back(answer);
            return Err(client.session().unexpected("a stream"));
        };
        let local = (interface.clone(), local_port);
        let socket = Socket::granted(client, answer, (slot, rings), local, (Held::Stream, spin))?;
        Ok(Self::new(socket, PeerName { addr, port }))
    }

    /// Returns a stream over a lease, and registers it at the daemon.
    pub(crate) fn leased(
        client: &Client,
        parts: LeasedSocketParts,
        peer: PeerName,
        spin: Option<Spin>,
    ) -> EspStream {
        parts.slot.register(parts.local_port, peer);
        Self::new(Socket::embedded(client, parts, spin), peer)
    }

    /// Returns the local address: the interface's address and the local port.
    pub fn local_addr(&self) -> EspAddr {
        let Socket {
            client,
            interface,
            port,
            ..
        } = &*self.socket;
        let addr = client.interface(Some(interface)).map(|own| own.addr);
        EspAddr::new(addr.unwrap_or_default(), *port).via(interface.clone())
    }

    /// Returns the peer's address, with the interface in use.
    pub fn peer_addr(&self) -> EspAddr {
        EspAddr::new(self.peer.addr, self.peer.port).via(self.socket.interface.clone())
    }

    /// Returns the data path in use: [`Path::Lease`] or [`Path::Daemon`].
    pub fn path(&self) -> Path {
        match self.socket.engine {
            SocketEngine::Embedded(_) => Path::Lease,
            SocketEngine::Daemon(_) => Path::Daemon,
        }
    }

    /// Returns the slot that identifies the stream at its [`Poller`](crate::Poller) while it lives.
    pub fn slot(&self) -> u16 {
        match &self.socket.engine {
            SocketEngine::Daemon(slot) => *slot,
            SocketEngine::Embedded(lease) => FIRST_LEASED_SLOT + lease.slot,
        }
    }

    /// Requests one event at the [`Poller`](crate::Poller) when `interest` becomes true. **Try the
    /// operation once more after this call**: a condition that is already true causes no event. A
    /// change of the connection's state is an event for every interest.
    pub fn arm(&self, interest: Wake) {
        self.socket.waiting.status.arm_fd(interest);
    }

    /// Returns true if the connection is established.
    ///
    /// # Errors
    /// The error that closed the connection.
    pub fn is_connected(&self) -> io::Result<bool> {
        let connected = self.state() != StreamState::Connecting;
        self.failure()
            .map_or(Ok(connected), |error| Err(error.into()))
    }

    /// Ends one direction or both. After `Write` the peer reads the written bytes, then the end of
    /// the stream. After `Read`, reads return 0 and arriving bytes stay unread, so the peer can
    /// write until the rings are full.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.socket.check()?;
            self.finish_writing();
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.finish_reading();
        }
        Ok(())
    }

    /// Ends the sending direction and waits until the peer's node has acknowledged all written
    /// bytes. For programs that exit right after writing.
    ///
    /// # Errors
    /// Kind `TimedOut` after `timeout`; else the error that closed the connection.
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.socket.check_fork()?;
        self.finish_writing();
        let deadline = Instant::now().checked_add(timeout);
        let done = || self.unacknowledged() == 0 || self.has_ended();
        if !self.socket.wait(Wake::Writable, done, deadline) {
            let what = "waiting for the acknowledgement";
            return Err(EspError::CallTimedOut { what }.into());
        }
        if self.unacknowledged() == 0 {
            return Ok(());
        }
        Err(self.write_error())
    }

    /// Resets the connection: undelivered bytes are discarded, and the peer gets an error.
    pub fn abort(mut self) {
        self.aborted = true;
    }

    /// Waits until the connection is established.
    fn wait_connected(&self, deadline: Option<Instant>) -> Result<(), EspError> {
        let decided = || self.state() != StreamState::Connecting || self.has_ended();
        if !self.socket.wait(Wake::State, decided, deadline) {
            return Err(EspError::ConnectCallTimedOut(self.peer));
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// Returns true if the daemon ended before the stream was connected, and there may be another
    /// one: the peer has no connection, and nothing was delivered.
    pub(crate) fn is_unsent(&self) -> bool {
        let lost = self.socket.waiting.lost.get().is_some();
        lost && self.state() == StreamState::Connecting
            && self.socket.client.session().check().is_ok()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_connected(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.socket
            .poll(cx, Wake::State, || match self.is_connected() {
                Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
                decided => decided.map(drop),
            })
    }

    fn state(&self) -> StreamState {
        self.socket.waiting.status.state()
    }

    fn is_closed(&self) -> bool {
        matches!(self.state(), StreamState::Closed(_))
    }

    /// Returns true if the connection is closed or its engine is gone.
    fn has_ended(&self) -> bool {
        self.is_closed() || self.socket.check().is_err()
    }

    /// Returns the error that closed the connection; `None` while it is open, or if both sides
    /// closed it.
    fn failure(&self) -> Option<EspError> {
        match self.state() {
            StreamState::Closed(reason) => EspError::of_close(reason, self.peer),
            StreamState::Connecting | StreamState::Open => self.socket.check().err(),
        }
    }
}

impl Drop for EspStream {
    fn drop(&mut self) {
        // Takes no lock in a forked child, where another thread may have held it.
        let unused = || self.state() == StreamState::Connecting && self.unacknowledged() == 0;
        let aborts = || self.aborted || unused();
        match &self.socket.engine {
            SocketEngine::Embedded(lease) if lease.leases.engine.is_forked() => {}
            SocketEngine::Embedded(lease) => {
                if aborts() {
                    lease.abort();
                }
                self.finish_writing();
                lease.close();
            }
            SocketEngine::Daemon(slot) => {
                let (session, slot) = (self.socket.client.session(), *slot);
                if session.is_forked() {
                    return;
                }
                let mut requests = Vec::with_capacity(2);
                // Without finishing the writing, which the engine could see before the request.
                if aborts() {
                    requests.push(Request::Abort { slot });
                } else {
                    self.finish_writing();
                }
                requests.push(Request::Close { slot });
                session.release(slot, &self.socket.waiting, requests);
            }
        }
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
