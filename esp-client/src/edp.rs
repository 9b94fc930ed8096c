//! [`EdpSocket`]: unreliable datagrams, and requests to the echo and information service of nodes
//! (section 9 of the wire format).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use esp_engine::shm::record::{DgramHeader, DgramKind, MAX_DATAGRAM};
use esp_engine::shm::{RxConsumer, Spin, Status, StreamState, TxProducer, Wake};
use esp_proto::{EdpKind, MacAddr};

use crate::call::Answer;
use crate::client::Client;
use crate::control::{Reply, Request, Rings};
use crate::core::{Timeout, Waiting, default_spin, open_region};
use crate::error::EspError;
use crate::session::lock;

/// Default size of each ring of a datagram socket, in bytes.
pub const DEFAULT_EDP_RING: u32 = 256 << 10;
/// Header bytes behind the EtherType; the MTU includes them (W-08).
const HEADER_BEHIND_TYPE: usize = 11;
/// Port of the node itself (W-70, W-71).
pub const NODE_PORT: u16 = 0;

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
    pub src: MacAddr,
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

/// Reply of a node to an information request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Version of its set-up protocol.
    pub version: u8,
    /// Maximum payload it can receive, in bytes.
    pub max_payload: u16,
    /// Bits of optional features.
    pub features: u32,
    /// Random number that changes at each start of its daemon.
    pub incarnation: u64,
    /// Name of the node; may be empty.
    pub name: String,
}

impl NodeInfo {
    /// Parses the body of an `InfoReply`; `None` if it is malformed.
    pub fn parse(body: &[u8]) -> Option<NodeInfo> {
        let (&[version, p0, p1, f0, f1, f2, f3, ref rest @ ..], tail) =
            body.split_first_chunk::<15>()?;
        let (&length, name) = tail.split_first()?;
        let name = name
            .get(..usize::from(length))
            .filter(|name| name.len() <= 64)?;
        Some(NodeInfo {
            version,
            max_payload: u16::from_be_bytes([p0, p1]),
            features: u32::from_be_bytes([f0, f1, f2, f3]),
            incarnation: u64::from_be_bytes(*rest),
            name: std::str::from_utf8(name).ok()?.to_owned(),
        })
    }
}

/// Options of a new datagram socket; created by [`EdpSocket::builder`].
#[derive(Clone, Debug)]
pub struct EdpBuilder {
    interface: Option<String>,
    rings: Rings,
    spin: Option<Spin>,
}

impl EdpBuilder {
    /// Sets the interface. Default: the first that is up, else the first.
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Sets the sizes of the send and receive rings in bytes: powers of two, 4 KiB to 64 MiB.
    /// Default [`DEFAULT_EDP_RING`] each.
    #[must_use]
    pub fn rings(mut self, tx: u32, rx: u32) -> Self {
        self.rings = Rings { tx, rx };
        self
    }

    /// Sets how long blocking calls spin before they sleep.
    #[must_use]
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Binds this port (0: any free one) through the shared client.
    pub fn bind(&self, port: u16) -> io::Result<EdpSocket> {
        Ok(self.bind_at(&Client::shared()?, port)?)
    }

    /// Binds this port (0: any free one) through this client.
    pub fn bind_at(&self, client: &Client, port: u16) -> Result<EdpSocket, EspError> {
        let request = Request::BindEdp {
            interface: self.interface.clone(),
            port,
            rings: self.rings,
        };
        let answer = client.session().ask(&request)?;
        EdpSocket::from_answer(client, answer, self.spin.unwrap_or_else(default_spin))
    }
}

/// A bound datagram port of one interface.
pub struct EdpSocket {
    client: Client,
    slot: u16,
    interface: String,
    mac: MacAddr,
    max_payload: usize,
    port: u16,
    tx: Mutex<TxProducer>,
    rx: Mutex<RxConsumer>,
    waiting: Arc<Waiting>,
    spin: Spin,
    nonblocking: AtomicBool,
    read_timeout: Timeout,
    write_timeout: Timeout,
}

impl EdpSocket {
    /// Binds this port (0: any free one) through the shared client.
    pub fn bind(port: u16) -> io::Result<EdpSocket> {
        Self::builder().bind(port)
    }

    /// Returns a builder to set interface, ring sizes and spinning.
    pub fn builder() -> EdpBuilder {
        EdpBuilder {
            interface: None,
            rings: Rings {
                tx: DEFAULT_EDP_RING,
                rx: DEFAULT_EDP_RING,
            },
            spin: None,
        }
    }

    fn from_answer(client: &Client, answer: Answer, spin: Spin) -> Result<EdpSocket, EspError> {
        let Answer {
            reply:
                Reply::Edp {
                    slot,
                    rings,
                    interface,
                    port,
                },
            descriptors,
        } = answer
        else {
            client.session().dispose(&answer);
            return Err(client.session().unexpected("a datagram socket"));
        };
        let region = open_region(&descriptors, rings)
            .inspect_err(|_| client.session().post(&Request::CloseEdp { slot }))?;
        let waiting = Arc::new(Waiting::new(Arc::clone(&region)));
        client.session().register(slot, &waiting);
        let link = client.interface(Some(&interface));
        let mtu = link.map_or(MAX_DATAGRAM, |link| {
            usize::try_from(link.mtu).unwrap_or(MAX_DATAGRAM)
        });
        Ok(EdpSocket {
            client: client.clone(),
            slot,
            mac: link.map(|link| MacAddr(link.mac)).unwrap_or_default(),
            max_payload: mtu.saturating_sub(HEADER_BEHIND_TYPE).min(MAX_DATAGRAM),
            interface,
            port,
            tx: Mutex::new(TxProducer::new(Arc::clone(&region))),
            rx: Mutex::new(RxConsumer::new(region)),
            waiting,
            spin,
            nonblocking: AtomicBool::new(false),
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
        })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the interface's MAC address.
    pub fn mac(&self) -> MacAddr {
        self.mac
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
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the maximum wait for a datagram; then the error is of kind `TimedOut`. `None`: no
    /// limit.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.read_timeout.set(timeout)
    }

    /// Sets the maximum wait for room in the send ring; then the error is of kind `TimedOut`.
    /// `None`: no limit.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.write_timeout.set(timeout)
    }

    /// Sends a datagram to a port of a node. Waits only for room in the send ring; delivery is
    /// neither guaranteed nor reported.
    pub fn send_to(&self, bytes: &[u8], dst: MacAddr, dst_port: u16) -> io::Result<usize> {
        self.send(&header(EdpKind::Data, dst, dst_port, 0), bytes)
    }

    /// Sends an echo request to a node, or with the broadcast address to all nodes of the segment.
    pub fn send_echo(&self, dst: MacAddr, sequence: u16, body: &[u8]) -> io::Result<usize> {
        self.send(
            &header(EdpKind::EchoRequest, dst, NODE_PORT, sequence),
            body,
        )
    }

    /// Sends an information request to a node, or to all nodes of the segment. [`NodeInfo::parse`]
    /// decodes the reply.
    pub fn send_info_request(&self, dst: MacAddr, sequence: u16) -> io::Result<usize> {
        self.send(&header(EdpKind::InfoRequest, dst, NODE_PORT, sequence), &[])
    }

    fn send(&self, header: &DgramHeader, bytes: &[u8]) -> io::Result<usize> {
        match self.try_send(header, bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        if self.nonblocking.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let deadline = self.write_timeout.deadline();
        let need = esp_engine::shm::record::record_len(bytes.len());
        let room = || lock(&self.tx).free() >= need || self.failure().is_some();
        loop {
            if !self
                .status()
                .wait(Wake::Writable, self.spin, room, deadline)
            {
                return Err(EspError::CallTimedOut {
                    what: "sending a datagram",
                }
                .into());
            }
            match self.try_send(header, bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    fn try_send(&self, header: &DgramHeader, bytes: &[u8]) -> io::Result<usize> {
        let control = usize::from(header.kind != DgramKind::Data);
        let mut max = self.max_payload.saturating_sub(control);
        if let Some(error) = self.failure() {
            return Err(error.into());
        }
        let put = {
            let mut tx = lock(&self.tx);
            max = max.min(
                tx.capacity()
                    .saturating_sub(esp_engine::shm::record::HEADER_LEN),
            );
            if bytes.len() > max {
                let interface = self.interface.clone();
                return Err(EspError::TooLong {
                    len: bytes.len(),
                    max,
                    interface,
                }
                .into());
            }
            tx.put_record(header, bytes)
        };
        if !put {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.client.session().ring(self.slot);
        Ok(bytes.len())
    }

    /// Waits for the next datagram and copies it into the buffer. Returns the number of bytes
    /// copied and the datagram's source and kind.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, DatagramInfo)> {
        match self.try_recv_from(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        if self.nonblocking.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.recv_until(buffer, self.read_timeout.deadline())
    }

    /// Waits for the next datagram for at most `timeout`, then fails with kind `TimedOut`. The
    /// socket's own time-out and mode do not apply.
    pub fn recv_from_timeout(
        &self,
        buffer: &mut [u8],
        timeout: Duration,
    ) -> io::Result<(usize, DatagramInfo)> {
        self.recv_until(buffer, Instant::now().checked_add(timeout))
    }

    fn recv_until(
        &self,
        buffer: &mut [u8],
        deadline: Option<Instant>,
    ) -> io::Result<(usize, DatagramInfo)> {
        let there = || lock(&self.rx).available() > 0 || self.failure().is_some();
        loop {
            match self.try_recv_from(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if !self
                .status()
                .wait(Wake::Readable, self.spin, there, deadline)
            {
                return Err(EspError::CallTimedOut {
                    what: "receiving a datagram",
                }
                .into());
            }
        }
    }

    /// Returns the next datagram without waiting, or `WouldBlock`.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, DatagramInfo)> {
        let failure = self.failure();
        if let Some((header, len)) = lock(&self.rx).take_record(buffer) {
            let info = DatagramInfo {
                src: MacAddr(header.mac),
                src_port: header.port,
                kind: from_record(header.kind),
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
        if let ready @ Poll::Ready(_) = crate::core::as_poll(self.try_recv_from(buffer)) {
            return ready;
        }
        self.waiting.reader.register(cx);
        self.status().arm_fd(Wake::Readable);
        crate::core::as_poll(self.try_recv_from(buffer))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_send(
        &self,
        cx: &Context<'_>,
        (kind, dst, dst_port, sequence): (EdpKind, MacAddr, u16, u16),
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let header = header(kind, dst, dst_port, sequence);
        if let ready @ Poll::Ready(_) = crate::core::as_poll(self.try_send(&header, bytes)) {
            return ready;
        }
        self.waiting.writer.register(cx);
        self.status().arm_fd(Wake::Writable);
        crate::core::as_poll(self.try_send(&header, bytes))
    }

    fn status(&self) -> &Status {
        &self.waiting.status
    }

    fn failure(&self) -> Option<EspError> {
        match self.status().state() {
            StreamState::Closed(_) => {
                let socket = self.client.path().to_owned();
                let why = "it closed this datagram socket; its log says why".to_owned();
                Some(EspError::DaemonGone { socket, why })
            }
            StreamState::Connecting | StreamState::Open => self.client.check().err(),
        }
    }
}

fn header(kind: EdpKind, mac: MacAddr, port: u16, sequence: u16) -> DgramHeader {
    let kind = match kind {
        EdpKind::Data => DgramKind::Data,
        EdpKind::EchoRequest => DgramKind::EchoRequest,
        EdpKind::EchoReply => DgramKind::EchoReply,
        EdpKind::InfoRequest => DgramKind::InfoRequest,
        // The engine refuses all three: only nodes send replies and queries.
        EdpKind::InfoReply | EdpKind::PortQuery | EdpKind::PortReply => DgramKind::InfoReply,
    };
    DgramHeader {
        kind,
        mac: mac.octets(),
        port,
        sequence,
        timestamp_ns: 0,
    }
}

fn from_record(kind: DgramKind) -> EdpKind {
    match kind {
        DgramKind::Data => EdpKind::Data,
        DgramKind::EchoRequest => EdpKind::EchoRequest,
        DgramKind::EchoReply => EdpKind::EchoReply,
        DgramKind::InfoRequest => EdpKind::InfoRequest,
        DgramKind::InfoReply => EdpKind::InfoReply,
    }
}

impl Drop for EdpSocket {
    fn drop(&mut self) {
        let session = self.client.session();
        if session.unregister(self.slot, &self.waiting) {
            session.post(&Request::CloseEdp { slot: self.slot });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_information_is_parsed_or_refused() {
        let mut body = vec![1, 0x05, 0xd1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 5];
        body.extend(b"node1");
        let info = NodeInfo::parse(&body).unwrap();
        assert_eq!(
            (
                info.version,
                info.max_payload,
                info.features,
                info.incarnation
            ),
            (1, 1489, 2, 9)
        );
        assert_eq!(info.name, "node1");
        for cut in 0..body.len() {
            assert_eq!(NodeInfo::parse(&body[..cut]), None);
        }
        let mut long = body.clone();
        long[15] = 65;
        long.extend([b'x'; 80]);
        assert_eq!(NodeInfo::parse(&long), None);
        let mut not_text = body;
        not_text[16] = 0xff;
        assert_eq!(NodeInfo::parse(&not_text), None);
    }
}
