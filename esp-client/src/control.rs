//! The control messages between a program and its node's daemon.
//!
//! Over a Unix stream socket, both ways the same framing: a `u32` little-endian length (at most
//! [`MAX_MESSAGE`]; requests at most [`MAX_REQUEST`]), then that many bytes of JSON: an
//! [`Envelope`] around a [`Request`] or a [`Reply`]. Each request is answered by exactly one reply
//! with the same id, in any order; [`Request::Accept`] is answered when a connection has come.
//! Descriptors travel with the first byte of the reply that names them (SCM_RIGHTS), in the order
//! the reply's documentation gives.
//!
//! The lifetime of the socket is the lifetime of the program at the daemon: when it closes,
//! everything the program had is taken back.

use serde::{Deserialize, Serialize};

/// Version of these messages; another one is refused in [`Request::Hello`].
pub const VERSION: u16 = 3;
/// Longest JSON text of one message, in bytes. Longer ones end the connection.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Longest message a program may send; requests are short.
pub const MAX_REQUEST: usize = 16 << 10;

/// A numbered message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Chosen by the program, repeated in the reply.
    pub id: u64,
    /// The message.
    pub body: T,
}

/// Bytes of the two rings of a stream or datagram socket; powers of two, 4 KiB to 64 MiB. The
/// daemon may give less than asked and says so in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rings {
    /// From the program to the engine.
    pub tx: u32,
    /// From the engine to the program.
    pub rx: u32,
}

/// What a program asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first message. Answer: [`Reply::Hello`].
    Hello {
        /// [`VERSION`] of the program's library.
        version: u16,
        /// Name of the program, for `espstat`; cut at 64 bytes.
        program: String,
    },
    /// Listen. Answer: [`Reply::Listening`].
    Listen {
        /// Interface name; `None`: all.
        interface: Option<String>,
        /// 0: any free port from 32768 on. Below 1024: superuser only.
        port: u16,
        /// Connections that may wait, 1..=1024.
        backlog: u16,
        /// Job key, at most 32 bytes; empty for none.
        key: Vec<u8>,
    },
    /// Stop listening. Answer: [`Reply::Done`]. Pending [`Request::Accept`]s of it are answered
    /// with an error.
    CloseListener {
        /// From [`Reply::Listening`].
        listener: u64,
    },
    /// Take the next connection. Answer, when there is one: [`Reply::Stream`].
    Accept {
        /// From [`Reply::Listening`].
        listener: u64,
        /// Wanted ring sizes.
        rings: Rings,
    },
    /// Withdraw an [`Request::Accept`]. Answer: [`Reply::Done`]; the accept itself is answered too
    /// (with an error, or with a connection if that was faster).
    CancelAccept {
        /// Id of the envelope of the accept.
        accept: u64,
    },
    /// Open a stream. Answer at once: [`Reply::Stream`]; how it went on is in the region's status
    /// word.
    Connect {
        /// Interface name; `None`: the only one, else the first that is up.
        interface: Option<String>,
        /// 0: any free port from 32768 on.
        local_port: u16,
        /// Peer address.
        peer: [u8; 6],
        /// Peer port.
        peer_port: u16,
        /// Job key, at most 32 bytes; empty for none.
        key: Vec<u8>,
        /// Wanted ring sizes.
        rings: Rings,
    },
    /// The program is done with a stream (its written data is still delivered). Answer:
    /// [`Reply::Done`].
    ///
    /// The last request about a slot, sent once for every stream, also for one that was aborted or
    /// has ended by itself: until then the slot is the program's and must not be given to another
    /// stream, or this would close the wrong one.
    Close {
        /// From [`Reply::Stream`].
        slot: u16,
    },
    /// Reset a stream. Answer: [`Reply::Done`]. [`Request::Close`] follows when the program lets go
    /// of it.
    Abort {
        /// From [`Reply::Stream`].
        slot: u16,
    },
    /// Bind a datagram port. Answer: [`Reply::Edp`].
    BindEdp {
        /// Interface name; `None`: the only one, else the first that is up.
        interface: Option<String>,
        /// 0: any free port from 32768 on. Below 1024: superuser only.
        port: u16,
        /// Wanted ring sizes.
        rings: Rings,
    },
    /// Close a datagram socket. Answer: [`Reply::Done`]. As with [`Request::Close`], the slot is
    /// the program's until this.
    CloseEdp {
        /// From [`Reply::Edp`].
        slot: u16,
    },
    /// Packet sockets of the program's own for stream ports of one interface, to run the engine
    /// itself. Answer: [`Reply::Lease`], or `Permission` when the node's policy is against it.
    Lease {
        /// Interface name; `None`: the only one, else the first that is up.
        interface: Option<String>,
        /// The port of this listener of the program; `None`: free ports from 32768 on.
        listener: Option<u64>,
        /// Without a listener: that many ports in a row, 1..=64.
        count: u16,
    },
    /// A lease that the daemon before this one gave: the same ports again, under the same policy
    /// and limits. Answer: [`Reply::Lease`], whose sockets take the place of the old ones.
    /// [`Request::LeaseConnection`] follows for each connection.
    Adopt {
        /// Interface name.
        interface: String,
        /// First port.
        port: u16,
        /// Ports in a row, 1..=64.
        count: u16,
    },
    /// The ports of a lease on another interface, too: its connections may go over there when the
    /// first one fails. Answer: [`Reply::Lease`], without a receive ring; or `InUse` when a port of
    /// it has a user there. It ends by [`Request::EndLease`], as any.
    Standby {
        /// From [`Reply::Lease`]; not itself the answer to a [`Request::Standby`].
        lease: u64,
        /// Interface name.
        interface: String,
    },
    /// The program uses a lease no more and has closed its sockets. Answer: [`Reply::Done`].
    EndLease {
        /// From [`Reply::Lease`].
        lease: u64,
    },
    /// A connection over a lease has come or gone: shown by `espstat`, and reset by the daemon when
    /// the program dies. Answer: [`Reply::Done`].
    LeaseConnection {
        /// From [`Reply::Lease`].
        lease: u64,
        /// Own port, one of the lease's.
        local_port: u16,
        /// Peer address.
        peer: [u8; 6],
        /// Peer port.
        peer_port: u16,
        /// By which the peer takes a reset; `None`: the connection is over.
        nonce: Option<u64>,
    },
    /// What `espstat` shows. Answer: [`Reply::Status`].
    Status,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Reply {
    /// Welcome. Descriptors: engine page (read-only memfd), client page (memfd), doorbell eventfd,
    /// and a stream socket that becomes readable when the engine has news for a slot that asked to
    /// be told so.
    Hello {
        /// [`VERSION`] of the daemon.
        version: u16,
        /// Text like `0.1.0`.
        daemon: String,
        /// Number of this program at the daemon.
        client: u64,
        /// Random number of the daemon's life.
        incarnation: u64,
        /// The links.
        interfaces: Vec<InterfaceInfo>,
        /// Whether the node's policy lets this program have leases ([`Request::Lease`]).
        #[serde(default)]
        leases: bool,
        /// Whether the daemon knows [`Request::Standby`].
        #[serde(default)]
        standbys: bool,
    },
    /// Listening.
    Listening {
        /// Names the listener in further requests.
        listener: u64,
        /// The port.
        port: u16,
    },
    /// A stream. Descriptor: its region (memfd).
    Stream {
        /// Doorbell bit, and its name in further requests.
        slot: u16,
        /// Ring sizes given.
        rings: Rings,
        /// Interface it runs over.
        interface: String,
        /// Own port.
        local_port: u16,
        /// Peer address.
        peer: [u8; 6],
        /// Peer port.
        peer_port: u16,
    },
    /// A datagram socket. Descriptor: its region (memfd).
    Edp {
        /// Doorbell bit, and its name in further requests.
        slot: u16,
        /// Ring sizes given.
        rings: Rings,
        /// Interface it is bound on.
        interface: String,
        /// The port.
        port: u16,
    },
    /// A lease. Descriptors: packet socket of the stream protocol, packet socket of the datagram
    /// protocol (for answers to liveness queries); both filtered and locked to the ports. Then a
    /// spare for each, bound to nothing, which is to be bound and used instead when the daemon is
    /// gone: without it the first ones may get no frames.
    Lease {
        /// Names it in further requests.
        lease: u64,
        /// Interface.
        interface: InterfaceInfo,
        /// First port.
        port: u16,
        /// Ports in a row.
        count: u16,
        /// Constants of the protocol on this node.
        protocol: LeaseProtocol,
        /// The receive ring of the stream protocol's socket (no slots: none), which is to be
        /// mapped: frames that do not come in there are lost, short ones at least. The spare has
        /// none until its holder gives it one.
        ring: LeaseRing,
    },
    /// Done.
    Done,
    /// The node's state.
    Status(Box<Status>),
    /// Refused.
    Error(ErrorReply),
}

/// Size of a receive ring, in bytes and slots as [`esp_engine::RingShape`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LeaseRing {
    pub slot_len: u32,
    pub slots: u32,
}

/// Constants of the protocol; times in µs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are those of esp_proto::EndpointConfig, which documents them
pub struct LeaseProtocol {
    pub esp_ethertype: u16,
    pub edp_ethertype: u16,
    pub max_connections: u32,
    pub max_window: u16,
    pub max_ack_delay_us: u64,
    pub min_rto_us: u64,
    pub max_rto_us: u64,
    pub connect_timeout_us: u64,
    pub peer_timeout_us: u64,
    pub keepalive_us: u64,
    pub time_wait_us: u64,
}

impl From<&esp_proto::EndpointConfig> for LeaseProtocol {
    fn from(config: &esp_proto::EndpointConfig) -> LeaseProtocol {
        let us = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        LeaseProtocol {
            esp_ethertype: config.esp_ethertype,
            edp_ethertype: config.edp_ethertype,
            max_connections: u32::try_from(config.max_connections).unwrap_or(u32::MAX),
            max_window: config.max_window,
            max_ack_delay_us: us(config.max_ack_delay),
            min_rto_us: us(config.min_rto),
            max_rto_us: us(config.max_rto),
            connect_timeout_us: us(config.connect_timeout),
            peer_timeout_us: us(config.peer_timeout),
            keepalive_us: us(config.keepalive),
            time_wait_us: us(config.time_wait),
        }
    }
}

impl LeaseProtocol {
    /// As the endpoint takes it.
    pub fn endpoint(&self) -> esp_proto::EndpointConfig {
        let time = std::time::Duration::from_micros;
        esp_proto::EndpointConfig {
            esp_ethertype: self.esp_ethertype,
            edp_ethertype: self.edp_ethertype,
            max_connections: self.max_connections as usize,
            max_window: self.max_window,
            max_ack_delay: time(self.max_ack_delay_us),
            min_rto: time(self.min_rto_us),
            max_rto: time(self.max_rto_us),
            connect_timeout: time(self.connect_timeout_us),
            peer_timeout: time(self.peer_timeout_us),
            keepalive: time(self.keepalive_us),
            time_wait: time(self.time_wait_us),
            ..esp_proto::EndpointConfig::default()
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// For programs.
    pub kind: ErrorKind,
    /// For people: what happened, where, what to do.
    pub message: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Message malformed, or not allowed at this point.
    BadRequest,
    /// Version not spoken.
    Version,
    /// The user may not do that.
    Permission,
    /// The port is taken, or the same connection exists.
    InUse,
    /// Address, port, key or size out of range.
    BadArgument,
    /// No such interface, listener or slot.
    NotFound,
    /// A limit of the user or the node is reached.
    Limit,
    /// The link is down.
    LinkDown,
    /// Withdrawn.
    Cancelled,
    /// The daemon is stopping, or failed inside.
    Unavailable,
}

/// A link of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceInfo {
    /// Name.
    pub name: String,
    /// Address.
    pub mac: [u8; 6],
    /// Bytes behind the EtherType.
    pub mtu: u32,
    /// Carrier and administratively up.
    pub up: bool,
}

/// The node's state, as `espstat` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Text like `0.1.0`.
    pub daemon: String,
    /// Seconds since the daemon started.
    pub uptime_s: f64,
    /// Links.
    pub interfaces: Vec<InterfaceInfo>,
    /// Connections of all programs.
    pub connections: Vec<ConnectionStatus>,
    /// Listeners of all programs.
    pub listeners: Vec<ListenerStatus>,
    /// Bound datagram ports.
    pub edp: Vec<EdpStatus>,
    /// Counters by interface (`""`: the engine as a whole), then name.
    pub counters: Vec<CounterStatus>,
}

/// One connection; times in µs, windows in packets, queues in bytes (0 for a connection over a
/// lease: its program knows).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are those of esp_proto::ConnInfo, which documents them
pub struct ConnectionStatus {
    pub interface: String,
    pub state: String,
    pub local_port: u16,
    pub peer: String,
    pub peer_port: u16,
    pub path: String,
    pub uid: Option<u32>,
    pub pid: Option<u32>,
    pub program: Option<String>,
    pub srtt_us: Option<f64>,
    pub rttvar_us: f64,
    pub min_rtt_us: Option<f64>,
    pub rto_us: f64,
    pub cwnd: u32,
    pub in_flight: u32,
    pub credit: u32,
    pub rx_credit: u32,
    pub payload: u16,
    pub payload_agreed: u16,
    pub send_queue: u64,
    pub recv_queue: u64,
    pub packets_sent: u64,
    pub packets_received: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub retransmits: u64,
    pub timeouts: u64,
    pub tail_probes: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
    /// Times it went on over other interfaces (0 from a daemon that does not know this).
    #[serde(default)]
    pub moves: u64,
}

/// One listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ListenerStatus {
    pub interface: String,
    pub port: u16,
    pub waiting: u16,
    pub backlog: u16,
    pub uid: Option<u32>,
    pub pid: Option<u32>,
    pub program: Option<String>,
}

/// One bound datagram port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct EdpStatus {
    pub interface: String,
    pub port: u16,
    pub uid: Option<u32>,
    pub pid: Option<u32>,
    pub program: Option<String>,
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CounterStatus {
    pub interface: String,
    pub name: String,
    pub help: String,
    pub value: u64,
}
