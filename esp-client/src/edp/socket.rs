//! [`EdpSocket`]: a bound datagram port.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use esp_engine::shm::record::{DgramHeader, HEADER_LEN, MAX_DATAGRAM, record_len};
use esp_engine::shm::{Region, RxConsumer, Spin, Status, StreamState, TxProducer, Wake};
use esp_proto::{EdpKind, NodeAddr};

use crate::blocking::{Blocking, wait_until};
use crate::client::Client;
use crate::control::{Reply, Request};
use crate::error::EspError;
use crate::lease::{LeasedDatagrams, OpenedDatagrams};
use crate::options::{SocketOptions, socket_options};
use crate::region::{Waiting, default_spin, open_region};
use crate::session::Answer;
use crate::sync::lock;

/// Default size of each ring of a datagram socket, in bytes.
pub const DEFAULT_EDP_RING: u32 = 256 << 10;
/// Length of the header behind the EtherType in bytes; the MTU includes it (W-08).
const EDP_HEADER_LEN: usize = 11;
/// Port of a node's own services (W-70, W-71).
pub const NODE_PORT: u16 = 0;

/// Operation in time-out errors.
const RECEIVING: &str = "receiving a datagram";

/// Returns the present time of [`DatagramInfo::received_nanos`]: nanoseconds of CLOCK_MONOTONIC.
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
        let spin = self.options.spin.unwrap_or_else(default_spin);
        if client.session().is_local() {
            let SocketOptions {
                interface, rings, ..
            } = &self.options;
            let opened = client
                .leases()?
                .bind_datagrams(interface.as_deref(), port, *rings)?;
            return Ok(EdpSocket::leased(client, opened, spin));
        }
        let request = Request::BindEdp {
            interface: self.options.interface.clone(),
            port,
            rings: self.options.rings,
        };
        let answer = client.session().ask(&request)?;
        EdpSocket::from_answer(client, answer, spin)
    }
}

/// A bound datagram port of one interface.
pub struct EdpSocket {
    client: Client,
    owner: Owner,
    interface: String,
    addr: NodeAddr,
    max_payload: usize,
    port: u16,
    tx: Mutex<TxProducer>,
    rx: Mutex<RxConsumer>,
    waiting: Arc<Waiting>,
    spin: Spin,
    blocking: Blocking,
}

/// The engine of a datagram socket.
enum Owner {
    /// The daemon's, with the slot there.
    Daemon(u16),
    /// The embedded one.
    Embedded(LeasedDatagrams),
}

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

    fn from_answer(client: &Client, answer: Answer, spin: Spin) -> Result<EdpSocket, EspError> {
        let session = client.session();
        let Reply::Edp {
            slot,
            rings,
            interface,
            port,
        } = answer.reply
        else {
            session.give_back(&answer);
            return Err(session.unexpected("a datagram socket"));
        };
        let region = open_region(&answer.descriptors, rings)
            .inspect_err(|_| session.post(&Request::CloseEdp { slot }))?;
        let local = (interface, port);
        let socket = Self::new(client, Owner::Daemon(slot), region, local, spin);
        session.register(slot, &socket.waiting);
        Ok(socket)
    }

    /// Returns a datagram socket of the embedded engine.
    fn leased(client: &Client, opened: OpenedDatagrams, spin: Spin) -> EdpSocket {
        let OpenedDatagrams {
            socket,
            region,
            interface,
            port,
        } = opened;
        let owner = Owner::Embedded(socket);
        Self::new(client, owner, region, (interface, port), spin)
    }

    fn new(
        client: &Client,
        owner: Owner,
        region: Arc<Region>,
        (interface, port): (String, u16),
        spin: Spin,
    ) -> EdpSocket {
        let link = client.interface(Some(&interface));
        let mtu = link.map_or(MAX_DATAGRAM, |link| {
            usize::try_from(link.mtu).unwrap_or(MAX_DATAGRAM)
        });
        EdpSocket {
            client: client.clone(),
            owner,
            addr: link.map(|link| link.addr).unwrap_or_default(),
            max_payload: mtu.saturating_sub(EDP_HEADER_LEN).min(MAX_DATAGRAM),
            interface,
            port,
            tx: Mutex::new(TxProducer::new(Arc::clone(&region))),
            rx: Mutex::new(RxConsumer::new(Arc::clone(&region))),
            waiting: Arc::new(Waiting::new(region)),
            spin,
            blocking: Blocking::default(),
        }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the interface's address.
    pub fn addr(&self) -> NodeAddr {
        self.addr
    }

    /// Returns the client this socket belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the maximum length of a datagram in bytes. The body of a request (echo, information)
    /// is limited to one byte less.
    pub fn max_payload(&self) -> usize {
        self.max_payload
    }

    /// Returns the sizes of the send and receive rings in bytes.
    pub fn ring_sizes(&self) -> (usize, usize) {
        (lock(&self.tx).capacity(), lock(&self.rx).capacity())
    }

    /// Makes sending and receiving return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.blocking.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Sets the maximum wait for a datagram; then the error is of kind `TimedOut`. `None`: no
    /// limit.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.blocking.read.set(timeout)
    }

    /// Sets the maximum wait for room in the send ring; then the error is of kind `TimedOut`.
    /// `None`: no limit.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.blocking.write.set(timeout)
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
        let room = || lock(&self.tx).free() >= record_len(bytes.len()) || self.failure().is_some();
        self.blocking.run(
            &self.blocking.write,
            "sending a datagram",
            || self.try_send(header, bytes),
            |until| self.wait(Wake::Writable, room, until),
        )
    }

    fn try_send(&self, header: &DgramHeader, bytes: &[u8]) -> io::Result<usize> {
        let control = usize::from(header.kind != EdpKind::Data);
        let mut max = self.max_payload.saturating_sub(control);
        if let Some(error) = self.failure() {
            return Err(error.into());
        }
        let mut tx = lock(&self.tx);
        max = max.min(tx.capacity().saturating_sub(HEADER_LEN));
        if bytes.len() > max {
            let (len, interface) = (bytes.len(), self.interface.clone());
            return Err(EspError::TooLong {
                len,
                max,
                interface,
            }
            .into());
        }
        if !tx.put_record(header, bytes) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        drop(tx);
        match &self.owner {
            Owner::Daemon(slot) => self.client.session().ring(*slot),
            Owner::Embedded(socket) => socket.ring(),
        }
        Ok(bytes.len())
    }

    /// Waits for the next datagram and copies it into the buffer. Returns the number of bytes
    /// copied and the datagram's source and kind.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, DatagramInfo)> {
        self.blocking.run(
            &self.blocking.read,
            RECEIVING,
            || self.try_recv_from(buffer),
            |until| self.wait_readable(until),
        )
    }

    /// Waits for the next datagram for at most `timeout`, then fails with kind `TimedOut`. The
    /// socket's own time-out and mode do not apply.
    pub fn recv_from_timeout(
        &self,
        buffer: &mut [u8],
        timeout: Duration,
    ) -> io::Result<(usize, DatagramInfo)> {
        let deadline = Instant::now().checked_add(timeout);
        let wait = |until| self.wait_readable(until);
        wait_until(deadline, RECEIVING, || self.try_recv_from(buffer), wait)
    }

    fn wait_readable(&self, deadline: Option<Instant>) -> bool {
        let ready = || lock(&self.rx).available() > 0 || self.failure().is_some();
        self.wait(Wake::Readable, ready, deadline)
    }

    fn wait(&self, what: Wake, ready: impl FnMut() -> bool, deadline: Option<Instant>) -> bool {
        match &self.owner {
            Owner::Daemon(_) => self.status().wait(what, self.spin, ready, deadline),
            Owner::Embedded(socket) => socket.wait(self.spin, ready, deadline),
        }
    }

    /// Returns the next datagram without waiting, or `WouldBlock`.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, DatagramInfo)> {
        let failure = self.failure();
        if let Owner::Embedded(socket) = &self.owner {
            socket.poll();
        }
        if let Some((header, len)) = lock(&self.rx).take_record(buffer) {
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
        self.waiting
            .poll(cx, Wake::Readable, || (), || self.try_recv_from(buffer))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_send(
        &self,
        cx: &Context<'_>,
        (kind, dst, dst_port, sequence): (EdpKind, NodeAddr, u16, u16),
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let header = header(kind, dst, dst_port, sequence);
        self.waiting
            .poll(cx, Wake::Writable, || (), || self.try_send(&header, bytes))
    }

    fn status(&self) -> &Status {
        &self.waiting.status
    }

    fn failure(&self) -> Option<EspError> {
        match self.status().state() {
            StreamState::Closed(_) => {
                let socket = self.client.path().to_owned();
                let why = "the daemon closed this datagram socket; see its log".to_owned();
                Some(EspError::DaemonGone { socket, why })
            }
            StreamState::Connecting | StreamState::Open => self.client.check().err(),
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
        // The embedded engine's is closed by its own drop.
        if let Owner::Daemon(slot) = self.owner {
            let session = self.client.session();
            if session.unregister(slot, &self.waiting) {
                session.post(&Request::CloseEdp { slot });
            }
        }
    }
}

impl fmt::Debug for EdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdpSocket")
            .field("interface", &self.interface)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
