//! The types that cross the border between an [`Endpoint`](crate::Endpoint) and its host.

use crate::addr::{MacAddr, Port};
use crate::congestion::Congestion;
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Names a connection of one endpoint for as long as the endpoint keeps it; never given out twice.
///
/// `slot` is small and dense, so a host may index a table of its own with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Index of the connection in the endpoint's table; reused after the connection is gone.
    pub slot: u32,
    /// Distinguishes the users of one slot.
    pub generation: u32,
}

/// A frame as it came from the wire, without its Ethernet addresses and VLAN tag.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// Source address.
    pub src: MacAddr,
    /// Destination address.
    pub dst: MacAddr,
    /// Everything from the EtherType on, padding included. Shorter than a header is counted as a runt.
    pub body: &'a [u8],
    /// True when the frame never was on the wire: it was sent by this endpoint to its own address.
    pub looped: bool,
}

/// Bytes of [`Head`]: room for the Ethernet and ESP headers, an inlined small block and padding.
pub const HEAD_LEN: usize = 256;
/// Bytes from the destination address to the first payload byte: 6 + 6 + 13.
pub const PREFIX_LEN: usize = 25;
/// The buffer in which [`Endpoint::poll_transmit`](crate::Endpoint::poll_transmit) builds a frame around its payload.
pub type Head = [u8; HEAD_LEN];

/// One frame to send: `head[..25]`, then the payload, then `head[25..25 + tail_len]`.
#[derive(Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where the frame goes; equal to the endpoint's own address for a local peer (feed it back as `looped`).
    pub dst: MacAddr,
    /// EtherType class of the frame, so that the host can pick its socket.
    pub proto: Proto,
    /// What stands between prefix and tail.
    pub payload: Payload,
    /// Bytes of set-up block, extension block and padding behind the payload, in the head from offset 25.
    pub tail_len: usize,
}

/// Which of the two protocols a frame belongs to.
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
    /// Nothing, or all of it is in the tail.
    None,
    /// Bytes of the program's send buffer. They must stay unchanged until acknowledged, i.e. until
    /// [`Progress::acked`] has passed them.
    Stream {
        /// Whose send buffer.
        conn: ConnId,
        /// Offset of the first byte in the stream.
        offset: u64,
        /// Number of bytes, 1..=65535.
        len: u16,
    },
    /// `len` filler bytes, content without meaning (path probes). At most the interface's MTU − 11.
    Filler {
        /// Number of bytes.
        len: u16,
    },
    /// Bytes the endpoint made itself (answers to EDP requests; never on a hot path).
    Owned(Box<[u8]>),
}

/// Receives what frames carry. Implemented by the host; called from inside `handle_frame`.
pub trait Sink {
    /// The next bytes of a connection's stream, in order, each byte once. `offset` is the stream offset of the first.
    /// There is room: the endpoint never delivers beyond the capacity given to `connect` / `attach` plus what was
    /// reported by `consumed`.
    fn deliver(&mut self, conn: ConnId, offset: u64, bytes: &[u8]);

    /// A datagram for a bound EDP port.
    fn datagram(&mut self, datagram: Datagram<'_>);
}

/// A received EDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Sender.
    pub src: MacAddr,
    /// Sender's port.
    pub src_port: Port,
    /// The bound port it is for.
    pub dst_port: Port,
    /// The sender's running number.
    pub sequence: u16,
    /// Data, or a reply of the peer's node.
    pub kind: EdpKind,
    /// The bytes behind the control type byte, or all of them for data.
    pub bytes: &'a [u8],
}

/// What an EDP datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdpKind {
    /// Program data.
    Data,
    /// Control type 1.
    EchoRequest,
    /// Control type 2.
    EchoReply,
    /// Control type 3.
    InfoRequest,
    /// Control type 4.
    InfoReply,
    /// Control type 5; between engines, never a program's.
    PortQuery,
    /// Control type 6; between engines, never a program's.
    PortReply,
}

/// What the host must know about; drained with `poll_event` after every input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection made by `connect` is established.
    Connected(ConnId),
    /// A listener's connection is established and waits for `attach`; its peer may send nothing until then.
    Incoming {
        /// The new connection.
        conn: ConnId,
        /// The listener's port.
        port: Port,
        /// Peer address.
        peer: MacAddr,
        /// Peer port.
        peer_port: Port,
    },
    /// The peer's FIN is in order: no byte behind the last delivered one will come.
    PeerFinished(ConnId),
    /// The connection is over, the id is dead, its storage may be freed. The last event of a connection.
    /// The final [`Progress`] of the connection, if it ever moved, has been reported before.
    Closed {
        /// Which.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both sides finished and everything was acknowledged.
    Finished,
    /// The peer sent RST.
    Reset(ResetReason),
    /// This side ended it with `abort` (or found the peer breaking a rule: `Protocol`).
    Aborted(ResetReason),
    /// The peer did not answer within the peer time-out.
    TimedOut,
    /// Nobody answered the SYN within the connect time-out.
    ConnectTimedOut,
}

/// The reason byte of a reset block (section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetReason {
    /// 1: nobody listens there.
    Refused,
    /// 2: the peer speaks another set-up version, given here.
    Version(u8),
    /// 3: job key differs.
    BadKey,
    /// 4: closed on purpose.
    Aborted,
    /// 5: the program ended without closing.
    ProgramDied,
    /// 6: a limit was reached.
    Resources,
    /// 7: a rule was broken.
    Protocol,
    /// 8: silence.
    TimedOut,
    /// 9: no such connection there (the peer's node was restarted, for example).
    Unknown,
    /// 10: the service is being stopped.
    Shutdown,
    /// Any other.
    Other(u8),
}

/// How far a connection has come; reported once for each connection that moved, by `poll_progress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which connection.
    pub conn: ConnId,
    /// All bytes below this stream offset are acknowledged: their storage is free.
    pub acked: u64,
    /// All bytes below this stream offset have been given to `Sink::deliver`.
    pub delivered: u64,
}

/// How far the sending of a connection's stream has come, in bytes since its start: `acked` ≤ `left` ≤ `written`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Written by the program.
    pub written: u64,
    /// Given out to be sent. While some that were found lost wait to be sent again, only those that are acknowledged.
    pub left: u64,
    /// Acknowledged.
    pub acked: u64,
}

/// Options of a connection or listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnOptions {
    /// Bytes of the host's receive buffer for this connection; at least 64, and at least 4 × the largest payload for
    /// good speed. A buffer smaller than the interface's largest payload makes the peer send smaller packets.
    pub rx_capacity: u32,
    /// Job key, at most 32 bytes; empty for none.
    pub key: Vec<u8>,
}

/// Options of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that may be established and wait for `attach`, and that may be half open, each.
    pub backlog: u16,
    /// Job key, at most 32 bytes; empty for none.
    pub key: Vec<u8>,
}

/// Why `connect` did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Same local port, peer and peer port are in use.
    #[error("a connection between these two ports exists already")]
    InUse,
    /// Group address, port 0, or the own port on the own address.
    #[error("that address or port cannot be connected to")]
    BadAddress,
    /// `rx_capacity` below 64 bytes.
    #[error("the receive buffer is smaller than 64 bytes")]
    BadCapacity,
    /// Key longer than 32 bytes.
    #[error("the job key is longer than 32 bytes")]
    BadKey,
    /// The endpoint's connection limit is reached.
    #[error("the limit of connections is reached")]
    TooMany,
}

/// Why `listen` or `edp_bind` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Somebody listens there already.
    #[error("the port is in use")]
    InUse,
    /// Port 0.
    #[error("port 0 cannot be used")]
    BadPort,
    /// Key longer than 32 bytes.
    #[error("the job key is longer than 32 bytes")]
    BadKey,
}

/// Constants of an endpoint. `Default` is right for a switched LAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// EtherType of ESP. Default 0x88B5.
    pub esp_ethertype: u16,
    /// EtherType of EDP. Default 0x88B6.
    pub edp_ethertype: u16,
    /// Connections at a time, half-open ones included. Default 65536.
    pub max_connections: usize,
    /// Most packets of a connection outstanding (W-31), at most 4096. Default 1024.
    pub max_window: u16,
    /// How long an acknowledgement may wait for company (W-34). Default 200 µs.
    pub max_ack_delay: Duration,
    /// Floor of the retransmission time-out (W-47). Default 2 ms.
    pub min_rto: Duration,
    /// Ceiling of the retransmission time-out (W-47). Default 200 ms.
    pub max_rto: Duration,
    /// SYN repetition ends after this. Default 5 s.
    pub connect_timeout: Duration,
    /// A peer silent for this long while it owes an answer is dead (W-46). Default 10 s.
    pub peer_timeout: Duration,
    /// Idle time before a probe (W-52). Default 2 s.
    pub keepalive: Duration,
    /// TIME-WAIT (W-55). Default 100 ms.
    pub time_wait: Duration,
    /// Congestion controller of new connections. Default AIMD (`docs/congestion.md`).
    pub congestion: Congestion,
    /// Name told in INFO_REPLY, cut at 64 bytes. Default empty.
    pub node_name: alloc::string::String,
}

/// The receive room that every listener's connection at this MTU can be attached with, in bytes: 4 × MTU.
///
/// A listener's connection agrees on the largest payload before its buffer is known;
/// [`Endpoint::attach`](crate::Endpoint::attach) refuses a buffer that holds fewer than four of these payloads.
pub const fn least_listener_capacity(mtu: u32) -> u32 {
    mtu.saturating_mul(4)
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
            peer_timeout: Duration::from_secs(10),
            keepalive: Duration::from_secs(2),
            time_wait: Duration::from_millis(100),
            congestion: Congestion::default(),
            node_name: alloc::string::String::new(),
        }
    }
}

/// The state of a connection (section 11 of the specification, `docs/state-machine.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Our SYN is out.
    SynSent,
    /// Both SYNs are out, ours is not acknowledged.
    SynReceived,
    /// Data flows.
    Established,
    /// Our FIN is out, not acknowledged; the peer still sends.
    FinWait1,
    /// Our FIN is acknowledged; the peer still sends.
    FinWait2,
    /// The peer finished; we still send.
    CloseWait,
    /// Both FINs crossed; ours is not acknowledged.
    Closing,
    /// The peer finished first; our FIN is not acknowledged.
    LastAck,
    /// Over; repeated FINs are still answered.
    TimeWait,
    /// Over.
    Closed,
}

/// A connection as `espstat` shows it. Counts are since it opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// State.
    pub state: State,
    /// Own port.
    pub local_port: Port,
    /// Peer address.
    pub peer: MacAddr,
    /// Peer port.
    pub peer_port: Port,
    /// Smoothed round trip, if measured.
    pub srtt: Option<Duration>,
    /// Round-trip variation.
    pub rttvar: Duration,
    /// Smallest round trip seen.
    pub min_rtt: Option<Duration>,
    /// Present retransmission time-out.
    pub rto: Duration,
    /// Congestion window in packets.
    pub cwnd: u32,
    /// Packets outstanding.
    pub in_flight: u32,
    /// Packets the peer's credit still allows.
    pub credit: u32,
    /// Packets the peer may still send us.
    pub rx_credit: u32,
    /// Payload size used now.
    pub payload: u16,
    /// Payload size agreed at set-up.
    pub payload_agreed: u16,
    /// Stream bytes written by the program and not yet acknowledged.
    pub send_queue: u64,
    /// Stream bytes delivered and not yet consumed by the program.
    pub recv_queue: u64,
    /// Data packets sent, retransmissions excluded.
    pub packets_sent: u64,
    /// Data packets received in order.
    pub packets_received: u64,
    /// Stream bytes sent and acknowledged.
    pub bytes_acked: u64,
    /// Stream bytes received in order.
    pub bytes_received: u64,
    /// Data packets sent again.
    pub retransmits: u64,
    /// Expiries of the retransmission time-out.
    pub timeouts: u64,
    /// Tail-loss probes.
    pub tail_probes: u64,
    /// Data packets that arrived twice.
    pub duplicates: u64,
    /// Data packets that arrived ahead of a gap.
    pub out_of_order: u64,
    /// Times it went on over other interfaces.
    pub moves: u64,
}
