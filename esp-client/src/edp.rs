//! Datagrams: unreliable, and the node's echo and information service (section 9 of the wire
//! format).

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

/// Bytes of each ring of a datagram socket that does not ask for others.
pub const DEFAULT_EDP_RING: u32 = 256 << 10;
/// Header bytes behind the EtherType: what the MTU holds besides payload (W-08).
const HEADER_BEHIND_TYPE: usize = 11;
/// The node itself (W-70, W-71).
pub const NODE_PORT: u16 = 0;

/// Now, in nanoseconds of CLOCK_MONOTONIC: the clock of [`DatagramInfo::received_nanos`].
pub fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(part(now.tv_nsec))
}

/// What is known of a received datagram besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramInfo {
    /// Sender.
    pub src: MacAddr,
    /// Sender's port; 0: its node.
    pub src_port: u16,
    /// Data, or the node's answer to a request.
    pub kind: EdpKind,
    /// The sender's number; an answer repeats the request's.
    pub sequence: u16,
    /// When the engine received it, see [`monotonic_nanos`].
    pub received_nanos: u64,
    /// Its full length; what did not fit into the buffer is lost.
    pub len: usize,
}

/// A node's answer to an information request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Set-up version it speaks.
    pub version: u8,
    /// Largest payload it can receive, in bytes.
    pub max_payload: u16,
    /// Optional abilities.
    pub features: u32,
    /// Another number after each start of its daemon.
    pub incarnation: u64,
    /// Its name; may be empty.
    pub name: String,
}

impl NodeInfo {
    /// Reads the body of an `InfoReply`; `None` if it is none.
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

/// How to bind a datagram socket; made by [`EdpSocket::builder`].
#[derive(Clone, Debug)]
pub struct EdpBuilder {
    interface: Option<String>,
    rings: Rings,
    spin: Option<Spin>,
}

impl EdpBuilder {
    /// Selects the interface. Default: the only one, else the first that is up.
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Bytes of the send and receive rings: powers of two, 4 KiB to 64 MiB. Default
    /// [`DEFAULT_EDP_RING`] each.
    #[must_use]
    pub fn rings(mut self, tx: u32, rx: u32) -> Self {
        self.rings = Rings { tx, rx };
        self
    }

    /// How long blocking calls stay awake before they sleep.
    #[must_use]
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Binds this port (0: any free one) through the shared client.
    pub fn bind(&self, port: u16) -> io::Result<EdpSocket> {
        Ok(self.bind_at(&Client::shared()?, port)?)
    }

    /// The same through this client.
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

    /// To choose interface and ring sizes.
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

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The interface's address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// The connection to the daemon this socket belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Most bytes of one datagram. The body of a request (echo, information) is one byte shorter.
    pub fn max_payload(&self) -> usize {
        self.max_payload
    }

    /// Bytes of the send and receive rings, as the daemon gave them.
    pub fn ring_sizes(&self) -> (usize, usize) {
        (lock(&self.tx).capacity(), lock(&self.rx).capacity())
    }

    /// Sets non-blocking mode, in which sending and receiving return `WouldBlock` instead of
    /// waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the longest wait for a datagram, after which receiving fails with `TimedOut`. `None` is
    /// unlimited; zero is refused.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.read_timeout.set(timeout)
    }

    /// Sets the longest wait for room in the send ring, as [`EdpSocket::set_read_timeout`] does for

    /// datagrams.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.write_timeout.set(timeout)
    }

    /// Sends data to a port of a node. Waits for room in the ring, not for the wire; whether it
    /// arrives, nobody says.
    pub fn send_to(&self, bytes: &[u8], dst: MacAddr, dst_port: u16) -> io::Result<usize> {
        self.send(&header(EdpKind::Data, dst, dst_port, 0), bytes)
    }

    /// Requests an echo of `body` from a node, or with the broadcast address from all of the
    /// segment.
    pub fn send_echo(&self, dst: MacAddr, sequence: u16, body: &[u8]) -> io::Result<usize> {
        self.send(
            &header(EdpKind::EchoRequest, dst, NODE_PORT, sequence),
            body,
        )
    }

    /// Asks a node (or all of the segment) who it is; the answer's bytes are for
    /// [`NodeInfo::parse`].
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

    /// Receives the next datagram. Returns the number of bytes copied into the buffer, and its
    /// description.
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

    /// The same, waiting this long at most (kind `TimedOut`), whatever the socket's time-out and
    /// mode are.
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

    /// The next datagram if one is there, without waiting and without a system call.
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
        // The engine refuses all three: replies and queries are the node's.
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
