//! [`EdpSocket`]: a bound datagram port.

mod node_info;

use std::fmt;
use std::io;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use esp_engine::Engine;
use esp_engine::shm::record::{DgramHeader, HEADER_LEN, MAX_DATAGRAM, record_len};
use esp_engine::shm::{StreamState, Wake};
use esp_proto::{EdpKind, NodeAddr};

use crate::client::Client;
use crate::control::{Reply, Request};
use crate::error::EspError;
use crate::options::{SocketOptions, socket_options};
use crate::session::Held;
use crate::socket::{Socket, SocketEngine, socket_settings};
use crate::sync::lock;
pub use node_info::NodeInfo;

/// Default size of each ring of a datagram socket, in bytes.
pub const DEFAULT_EDP_RING: u32 = 256 << 10;
/// Length of the header after the EtherType in bytes; the MTU includes it (W-08).
const EDP_HEADER_LEN: usize = 11;
/// Port of a node's own services (W-70, W-71).
pub const NODE_PORT: u16 = 0;

/// Event and operation of calls that receive.
const RECEIVING: (Wake, &str) = (Wake::Readable, "receiving a datagram");

/// Returns the current time on the clock of [`DatagramInfo::received_nanos`]: nanoseconds of
/// CLOCK_MONOTONIC.
pub fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(part(now.tv_nsec))
}

/// Source, kind and arrival time of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramInfo {
    /// Sender.
    pub src: NodeAddr,
    /// Sender's port; 0 for its node.
    pub src_port: u16,
    /// Data, or a node's reply to a request.
    pub kind: EdpKind,
    /// Sequence number set by the sender; a reply repeats the request's.
    pub sequence: u16,
    /// Time at which the engine received it; see [`monotonic_nanos`].
    pub received_nanos: u64,
    /// Full length in bytes; bytes beyond the buffer are lost.
    pub len: usize,
}

/// Options of a new datagram socket; created by [`EdpSocket::builder`].
#[derive(Clone, Debug)]
pub struct EdpBuilder {
    options: SocketOptions,
}

socket_options!(
    EdpBuilder,
    interface: "Sets the interface. Default: the first that is up, else the first."
);

impl EdpBuilder {
    /// Binds this port (0: any free one) through the shared client.
    pub fn bind(&self, port: u16) -> io::Result<EdpSocket> {
        Ok(self.bind_at(&Client::shared()?, port)?)
    }

    /// Binds this port (0: any free one) through this client.
    pub fn bind_at(&self, client: &Client, port: u16) -> Result<EdpSocket, EspError> {
        let SocketOptions {
            interface,
            rings,
            spin,
            ..
        } = self.options.clone();
        if client.session().is_local() {
            let leases = client.leases()?;
            let parts = leases.bind_datagrams(interface.as_deref(), port, rings)?;
            let (socket, _) = Socket::embedded(client, parts, spin);
            return Ok(EdpSocket { socket });
        }
        let session = client.session();
        let request = Request::BindEdp {
            interface,
            port,
            rings,
        };
        let answer = session.ask(&request)?;
        let Reply::Edp {
            slot,
            rings,
            interface,
            port,
        } = &answer.reply
        else {
            session.give_back(&answer);
            return Err(session.unexpected("a datagram socket"));
        };
        let local = (interface.clone(), *port);
        let held = Held::Edp {
            interface: interface.clone(),
            port: *port,
        };
        let with = (held, spin);
        let (socket, _) = Socket::granted(client, &answer, (*slot, *rings), local, with)?;
        Ok(EdpSocket { socket })
    }
}

/// A bound datagram port of one interface.
pub struct EdpSocket {
    socket: Socket,
}

socket_settings!(EdpSocket);

impl EdpSocket {
    /// Binds this port (0: any free one) through the shared client.
    pub fn bind(port: u16) -> io::Result<EdpSocket> {
        Self::builder().bind(port)
    }

    /// Returns a builder to set interface, ring sizes and spinning.
    pub fn builder() -> EdpBuilder {
        EdpBuilder {
            options: SocketOptions::new(DEFAULT_EDP_RING),
        }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.socket.port
    }

    /// Returns the name of the interface.
    pub fn interface(&self) -> &str {
        &self.socket.interface
    }

    /// Returns the interface's address.
    pub fn addr(&self) -> NodeAddr {
        let Socket {
            client, interface, ..
        } = &self.socket;
        let own = client.interface(Some(interface)).map(|own| own.addr);
        own.unwrap_or_default()
    }

    /// Returns the maximum length of a datagram in bytes, which the next daemon may change. The
    /// body of a request (echo, information) is limited to one byte less.
    pub fn max_payload(&self) -> usize {
        let mtu = self.socket.client.mtu(&self.socket.interface);
        let mtu = mtu.and_then(|mtu| usize::try_from(mtu).ok());
        mtu.map_or(MAX_DATAGRAM, |mtu| mtu.saturating_sub(EDP_HEADER_LEN))
            .min(MAX_DATAGRAM)
    }

    /// Sends a datagram to a port of a node. Waits only for room in the send ring; delivery is
    /// neither guaranteed nor reported.
    pub fn send_to(
        &self,
        bytes: &[u8],
        dst: impl Into<NodeAddr>,
        dst_port: u16,
    ) -> io::Result<usize> {
        self.send(&header(EdpKind::Data, dst.into(), dst_port, 0), bytes)
    }

    /// Sends an echo request to a node, or with the broadcast address to all nodes of the segment.
    /// A broadcast request has at most 64 bytes; a longer one is not sent, and the interface counts
    /// it as `datagram_refused`. Each node answers 100 of them a second, and 32 at once.
    pub fn send_echo(
        &self,
        dst: impl Into<NodeAddr>,
        sequence: u16,
        body: &[u8],
    ) -> io::Result<usize> {
        self.send(
            &header(EdpKind::EchoRequest, dst.into(), NODE_PORT, sequence),
            body,
        )
    }

    /// Sends an information request to a node, or to all nodes of the segment. [`NodeInfo::parse`](crate::NodeInfo::parse)
    /// decodes the reply.
    pub fn send_info_request(&self, dst: impl Into<NodeAddr>, sequence: u16) -> io::Result<usize> {
        self.send(
            &header(EdpKind::InfoRequest, dst.into(), NODE_PORT, sequence),
            &[],
        )
    }

    fn send(&self, header: &DgramHeader, bytes: &[u8]) -> io::Result<usize> {
        let needed = record_len(bytes.len());
        self.socket.block(
            (Wake::Writable, "sending a datagram"),
            || self.try_send(header, bytes),
            || self.failure().is_some() || lock(&self.socket.tx).free() >= needed,
        )
    }

    fn try_send(&self, header: &DgramHeader, bytes: &[u8]) -> io::Result<usize> {
        if let Some(error) = self.failure() {
            return Err(error.into());
        }
        let control = usize::from(header.kind != EdpKind::Data);
        let mut tx = lock(&self.socket.tx);
        let room = tx.capacity().saturating_sub(HEADER_LEN);
        let max = self.max_payload().saturating_sub(control).min(room);
        if bytes.len() > max {
            let too_long = EspError::TooLong {
                len: bytes.len(),
                max,
                interface: self.socket.interface.clone(),
            };
            return Err(too_long.into());
        }
        if !tx.put_record(header, bytes) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        drop(tx);
        self.socket.ring();
        Ok(bytes.len())
    }

    /// Waits for the next datagram and copies it into the buffer. Returns the number of bytes
    /// copied and the datagram's source and kind.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, DatagramInfo)> {
        let attempt = || self.try_recv_from(buffer);
        self.socket.block(RECEIVING, attempt, || self.readable())
    }

    /// Waits for the next datagram for at most `timeout`, then fails with kind `TimedOut`. The
    /// socket's own time-out and mode do not apply.
    pub fn recv_from_timeout(
        &self,
        buffer: &mut [u8],
        timeout: Duration,
    ) -> io::Result<(usize, DatagramInfo)> {
        let deadline = Instant::now().checked_add(timeout);
        let attempt = || self.try_recv_from(buffer);
        self.socket
            .block_until(deadline, RECEIVING, attempt, || self.readable())
    }

    fn readable(&self) -> bool {
        self.failure().is_some() || lock(&self.socket.rx).available() > 0
    }

    /// Returns the next datagram without waiting, or `WouldBlock`.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, DatagramInfo)> {
        self.socket.check_fork()?;
        let failure = self.failure();
        if let Some(lease) = self.socket.lease() {
            lease.leases.engine.poll_with(Engine::poll_all_links);
        }
        if let Some((header, len)) = lock(&self.socket.rx).take_record(buffer) {
            let info = DatagramInfo {
                src: header.addr,
                src_port: header.port,
                kind: header.kind,
                sequence: header.sequence,
                received_nanos: header.timestamp_ns,
                len,
            };
            return Ok((len.min(buffer.len()), info));
        }
        Err(failure.map_or_else(|| io::ErrorKind::WouldBlock.into(), io::Error::from))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_recv(
        &self,
        cx: &Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, DatagramInfo)>> {
        let attempt = || self.try_recv_from(buffer);
        self.socket.poll(cx, Wake::Readable, attempt)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_send(
        &self,
        cx: &Context<'_>,
        (kind, dst, dst_port, sequence): (EdpKind, NodeAddr, u16, u16),
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let header = header(kind, dst, dst_port, sequence);
        let attempt = || self.try_send(&header, bytes);
        self.socket.poll(cx, Wake::Writable, attempt)
    }

    fn failure(&self) -> Option<EspError> {
        match self.socket.waiting.status.state() {
            StreamState::Closed(_) => {
                let why = "the daemon closed this datagram socket; see its log";
                Some(EspError::gone(self.socket.client.path(), why))
            }
            StreamState::Connecting | StreamState::Open => self.socket.check().err(),
        }
    }
}

fn header(kind: EdpKind, addr: NodeAddr, port: u16, sequence: u16) -> DgramHeader {
    DgramHeader {
        kind,
        addr,
        port,
        sequence,
        timestamp_ns: 0,
    }
}

impl Drop for EdpSocket {
    fn drop(&mut self) {
        match &self.socket.engine {
            SocketEngine::Embedded(lease) => lease.close_datagrams(),
            SocketEngine::Daemon(slot) => {
                let (session, slot) = (self.socket.client.session(), *slot);
                let close = vec![Request::CloseEdp { slot }];
                session.release(slot, &self.socket.waiting, close);
            }
        }
    }
}

impl fmt::Debug for EdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdpSocket")
            .field("interface", &self.socket.interface)
            .field("port", &self.socket.port)
            .finish_non_exhaustive()
    }
}
