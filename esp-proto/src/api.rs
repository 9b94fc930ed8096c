//! The types exchanged between an [`Endpoint`](crate::Endpoint) and its host.

use crate::addr::{NodeAddr, Port};
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Identifies a connection of one endpoint. An id is never reused.
///
/// `slot` is small and dense, so a host may index a table of its own with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Index of the connection in the endpoint's table; reused after the connection has ended.
    pub slot: u32,
    /// Distinguishes successive connections in the same slot.
    pub generation: u32,
}

/// A received frame without its Ethernet addresses and VLAN tag.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RxFrame<'a> {
    pub src: NodeAddr,
    pub dst: NodeAddr,
    /// The EtherType and all bytes after it, including padding. A body shorter than a header is
    /// counted as a runt.
    pub body: &'a [u8],
    /// True when the frame was never on the wire: this endpoint sent it to its own address.
    pub looped: bool,
    /// True when the packet arrived with the congestion mark CE of ECN (RFC 3168). Always false on
    /// raw Ethernet.
    pub ce: bool,
}

/// Length of [`Head`] in bytes: room for the Ethernet and ESP headers, an inlined small block and
/// padding.
pub const HEAD_LEN: usize = 256;
/// Bytes from the destination address to the first payload byte: 6 + 6 + 13.
pub const PREFIX_LEN: usize = 25;
/// The buffer in which [`Endpoint::poll_transmit`](crate::Endpoint::poll_transmit) builds a frame
/// around its payload.
pub type Head = [u8; HEAD_LEN];

/// One frame to send: `head[..25]`, then the payload, then `head[25..25 + tail_len]`.
#[derive(Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Destination; the endpoint's own address for a local peer (feed the frame back as `looped`).
    pub dst: NodeAddr,
    /// Protocol of the frame, by which the host selects its socket.
    pub proto: Proto,
    /// Payload between prefix and tail.
    pub payload: Payload,
    /// Number of bytes of set-up block, extension block and padding after the payload, which are at
    /// offset 25 of the head.
    pub tail_len: usize,
}

/// Protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proto {
    /// The stream protocol.
    Esp,
    /// The datagram protocol.
    Edp,
}

/// The payload of a frame to send.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload {
    /// No payload, or all of it is in the tail.
    None,
    /// Bytes of the program's send buffer. They must stay unchanged until they are acknowledged,
    /// that is, until [`Progress::acked`] has passed them.
    Stream {
        /// Connection whose send buffer holds the bytes.
        conn: ConnId,
        /// Offset of the first byte in the stream.
        offset: u64,
        /// Number of bytes, 1..=65535.
        len: u16,
    },
    /// `len` filler bytes without meaning (path probes). At most the interface's MTU − 11.
    Filler {
        /// Number of bytes.
        len: u16,
    },
    /// Bytes made by the endpoint (replies to EDP requests; never on a hot path).
    Owned(Box<[u8]>),
}

impl Payload {
    pub(crate) fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Stream { len, .. } | Payload::Filler { len } => usize::from(*len),
            Payload::Owned(bytes) => bytes.len(),
        }
    }
}

/// Receives the contents of frames. Implemented by the host and called from within `handle_frame`.
pub trait Sink {
    /// Delivers the next bytes of a connection's stream, in order, each byte once. `offset` is the
    /// stream offset of the first byte. There is room: the endpoint never delivers beyond the
    /// capacity given to `connect` or `attach` plus what was reported by `consumed`.
    fn deliver(&mut self, conn: ConnId, offset: u64, bytes: &[u8]);

    /// Delivers a datagram for a bound EDP port.
    fn datagram(&mut self, datagram: Datagram<'_>);
}

/// A received EDP datagram: data, or a reply of the peer's node.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Datagram<'a> {
    pub src: NodeAddr,
    pub src_port: Port,
    pub dst_port: Port,
    pub sequence: u16,
    pub kind: EdpKind,
    /// Bytes after the control type byte, or all of them for data.
    pub bytes: &'a [u8],
}

/// Type of an EDP datagram; the number of a control datagram is its control type byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EdpKind {
    /// Program data.
    Data = 0,
    /// Requests a reply with an equal body.
    EchoRequest = 1,
    /// Reply to an echo request.
    EchoReply = 2,
    /// Requests the node's [`InfoReply`](crate::wire::InfoReply).
    InfoRequest = 3,
    /// Reply to an info request.
    InfoReply = 4,
    /// Used between engines, never by programs.
    PortQuery = 5,
    /// Used between engines, never by programs.
    PortReply = 6,
}

/// Notification for the host; drained with `poll_event` after every input.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    /// A connection opened by `connect` is established.
    Connected(ConnId),
    /// A listener's connection is established and waits for `attach`; its peer may not send until
    /// then.
    Incoming {
        conn: ConnId,
        /// The listener's port.
        port: Port,
        peer: NodeAddr,
        peer_port: Port,
    },
    /// The peer's FIN was received in order: no byte follows the last delivered one.
    PeerFinished(ConnId),
    /// The connection has ended: the id is no longer valid and its storage may be freed. This is
    /// the last event of a connection. The connection's final [`Progress`], if it made any, has
    /// been reported before.
    Closed { conn: ConnId, reason: CloseReason },
}

/// Reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both sides finished and all data was acknowledged.
    Finished,
    /// The peer sent RST.
    Reset(ResetReason),
    /// This side ended the connection with `abort`, or with `Protocol` because the peer violated
    /// the protocol.
    Aborted(ResetReason),
    /// The peer did not answer within the peer timeout.
    TimedOut,
    /// No peer answered the SYN within the connect timeout.
    ConnectTimedOut,
}

/// The reason byte of a reset block (section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetReason {
    /// 1: no listener on that port.
    Refused,
    /// 2: the peer speaks another set-up version, given here.
    Version(u8),
    /// 3: the job keys differ.
    BadKey,
    /// 4: the program closed the connection deliberately.
    Aborted,
    /// 5: the program ended without closing.
    ProgramDied,
    /// 6: a limit was reached.
    Resources,
    /// 7: the peer violated the protocol.
    Protocol,
    /// 8: the peer was silent for too long.
    TimedOut,
    /// 9: the peer has no such connection (its node was restarted, for example).
    Unknown,
    /// 10: the service is shutting down.
    Shutdown,
    /// Any other code.
    Other(u8),
}

/// Progress of a connection; reported by `poll_progress` once for each connection that made some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The connection.
    pub conn: ConnId,
    /// Epoch of the connection's last move or resumption; the host's image of the connection
    /// ([`Endpoint::image`](crate::Endpoint::image)) must be of this epoch before the next frame
    /// is sent. 0 if it has made none.
    pub epoch: u32,
    /// All bytes below this stream offset are acknowledged: their storage may be reused.
    pub acked: u64,
    /// All bytes below this stream offset have been passed to `Sink::deliver`.
    pub delivered: u64,
}

/// Sizes of the host's buffers for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes of the receive buffer: at least 64, and at least 4 × the maximum payload for full
    /// speed. A buffer smaller than the interface's maximum payload makes the peer send smaller
    /// packets.
    pub rx: u32,
    /// Bytes of the send buffer. A program that fills it waits for acknowledgements, so it sets how
    /// often the endpoint requests them (W-34).
    pub tx: u32,
}

/// Options of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnOptions {
    /// Sizes of the host's buffers.
    pub buffers: Buffers,
    /// Job key, at most 32 bytes; empty for none.
    pub key: Vec<u8>,
}

/// Options of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenOptions {
    /// Limit of established connections that wait for `attach`, and separately of half-open
    /// connections.
    pub backlog: u16,
    /// Job key, at most 32 bytes; empty for none.
    pub key: Vec<u8>,
    /// [Owner](crate::Endpoint::set_owner) of the listener, and of its connections until another is
    /// set. Connections that wait for `attach`, half-open ones included, take at most a quarter of
    /// the table for one owner, and half of it for all; half of that is kept for peers that have
    /// proven their address by a cookie. The default 0 is not limited.
    pub owner: u32,
}

/// Reason why `connect` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConnectError {
    #[error("a connection between these two ports exists already")]
    InUse,
    /// The peer is a group address, or of a different kind than the endpoint's own address, the
    /// port is 0, or both address and port are the endpoint's own.
    #[error("that address or port cannot be connected to")]
    BadAddress,
    #[error("the receive buffer is smaller than 64 bytes")]
    BadCapacity,
    #[error("the job key is longer than 32 bytes")]
    BadKey,
    #[error("the limit of connections is reached")]
    TooMany,
}

/// Reason why `listen` or `edp_bind` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ListenError {
    #[error("the port is in use")]
    InUse,
    #[error("port 0 cannot be used")]
    BadPort,
    #[error("the job key is longer than 32 bytes")]
    BadKey,
}

/// Parameters of an endpoint. `Default` suits a switched LAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// EtherType of ESP. Default 0x88B5.
    pub esp_ethertype: u16,
    /// EtherType of EDP. Default 0x88B6.
    pub edp_ethertype: u16,
    /// Maximum number of connections, including half-open ones. Default 65536.
    pub max_connections: usize,
    /// Maximum number of outstanding packets of a connection (W-31), at most 4096. Default 1024.
    pub max_window: u16,
    /// Maximum delay of an acknowledgement that waits to be combined with others (W-34). Default
    /// 200 µs.
    pub max_ack_delay: Duration,
    /// Lower bound of the retransmission timeout (W-47). Default 2 ms.
    pub min_rto: Duration,
    /// Upper bound of the retransmission timeout (W-47). Default 200 ms.
    pub max_rto: Duration,
    /// Time after which SYN retransmission ends. Default 5 s.
    pub connect_timeout: Duration,
    /// Time after which a peer that owes an answer and stays silent is considered dead (W-46).
    /// Default 30 s.
    pub peer_timeout: Duration,
    /// Idle time before a probe (W-52). Default 2 s.
    pub keepalive: Duration,
    /// Duration of TIME-WAIT (W-55). Default 100 ms.
    pub time_wait: Duration,
    /// Offers explicit congestion notification to peers (W-110). Set it only for a carrier that
    /// sends its packets as ECT(0) (W-111) and reports the marks of received ones in
    /// [`RxFrame::ce`]. Default false.
    pub ecn: bool,
    /// Bytes that the host adds to each packet, such as [`secure::OVERHEAD`](crate::secure). They
    /// reduce the payload that needs no path verification (W-53); the MTU given to the endpoint
    /// must not contain them. Default 0.
    pub overhead: u16,
    /// Name sent in INFO_REPLY, truncated to 64 bytes. Default empty.
    pub node_name: alloc::string::String,
}

/// Returns the receive capacity that suffices for every connection of a listener at this MTU, in
/// bytes: 4 × MTU.
///
/// A listener's connection agrees on the maximum payload before its buffer is known;
/// [`Endpoint::attach`](crate::Endpoint::attach) refuses a buffer that holds fewer than four of
/// these payloads.
pub const fn min_listener_capacity(mtu: u32) -> u32 {
    mtu.saturating_mul(4)
}

impl EndpointConfig {
    pub(crate) fn ethertype(&self, proto: Proto) -> u16 {
        match proto {
            Proto::Esp => self.esp_ethertype,
            Proto::Edp => self.edp_ethertype,
        }
    }
}

impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig {
            esp_ethertype: 0x88B5,
            edp_ethertype: 0x88B6,
            max_connections: 65536,
            max_window: 1024,
            max_ack_delay: Duration::from_micros(200),
            min_rto: Duration::from_millis(2),
            max_rto: Duration::from_millis(200),
            connect_timeout: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(30),
            keepalive: Duration::from_secs(2),
            time_wait: Duration::from_millis(100),
            ecn: false,
            overhead: 0,
            node_name: alloc::string::String::new(),
        }
    }
}

/// State of a connection (section 11 of the specification, `docs/state-machine.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Our SYN is sent.
    SynSent,
    /// Both SYNs are sent; ours is not acknowledged.
    SynReceived,
    /// Both SYNs are acknowledged; data flows.
    Established,
    /// Our FIN is sent but not acknowledged; the peer still sends.
    FinWait1,
    /// Our FIN is acknowledged; the peer still sends.
    FinWait2,
    /// The peer has finished; we still send.
    CloseWait,
    /// Both FINs crossed; ours is not acknowledged.
    Closing,
    /// The peer finished first; our FIN is not acknowledged.
    LastAck,
    /// Both sides have finished; repeated FINs are still answered.
    TimeWait,
    /// The connection has ended.
    Closed,
}

/// Snapshot of a connection for display. Windows are in packets, queues in bytes; counts start when
/// the connection opens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ConnInfo {
    pub state: State,
    pub local_port: Port,
    pub peer: NodeAddr,
    pub peer_port: Port,
    /// Smoothed round-trip time, if measured.
    pub srtt: Option<Duration>,
    pub rttvar: Duration,
    pub min_rtt: Option<Duration>,
    /// Current retransmission timeout.
    pub rto: Duration,
    pub cwnd: u32,
    pub in_flight: u32,
    /// Packets the peer's credit still allows.
    pub credit: u32,
    /// Packets the peer may still send us.
    pub rx_credit: u32,
    /// Payload size in use.
    pub payload: u16,
    /// Payload size agreed on at set-up.
    pub payload_agreed: u16,
    /// Stream bytes that the program has written and that are not yet acknowledged.
    pub send_queue: u64,
    /// Stream bytes that were delivered and that the program has not yet consumed.
    pub recv_queue: u64,
    /// Data packets sent, retransmissions excluded.
    pub packets_sent: u64,
    /// Data packets received in order.
    pub packets_received: u64,
    pub bytes_acked: u64,
    /// Stream bytes received in order.
    pub bytes_received: u64,
    pub retransmits: u64,
    /// Expirations of the retransmission timeout.
    pub timeouts: u64,
    pub tail_probes: u64,
    pub duplicates: u64,
    /// Data packets that arrived after a gap.
    pub out_of_order: u64,
    /// Number of moves to another pair of interfaces.
    pub moves: u64,
}
