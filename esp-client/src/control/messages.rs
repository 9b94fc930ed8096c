//! Requests of programs, and the replies of the daemon.

use std::time::Duration;

use esp_proto::{EndpointConfig, NodeAddr};
use serde::{Deserialize, Serialize};

use super::status::Status;

/// Version of these messages; [`Request::Hello`] with another one is refused.
pub const VERSION: u16 = 6;
/// Maximum length of a message's JSON text, in bytes. A longer one ends the connection.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Maximum length of a request's JSON text, in bytes.
pub const MAX_REQUEST: usize = 16 << 10;

/// A numbered message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Number chosen by the program, repeated in the reply.
    pub id: u64,
    /// The message.
    pub body: T,
}

/// Sizes of the two rings of a stream or datagram socket, in bytes: powers of two, 4 KiB to 64 MiB.
/// The reply has the sizes granted, which may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rings {
    /// From the program to the engine.
    pub tx: u32,
    /// From the engine to the program.
    pub rx: u32,
}

/// Request of a program.
///
/// Common fields: `interface` is a name; `None` means the only interface, else the first that is
/// up. Port 0 means any free port of at least 32768; ports below 1024 are for the superuser only.
/// `key` is a job key of at most 32 bytes; empty for none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // fields: see above
pub enum Request {
    /// Introduces the program; the first message. Reply: [`Reply::Hello`].
    Hello {
        /// [`VERSION`] of the program's library.
        version: u16,
        /// Name of the program, for `espstat`; cut at 64 bytes.
        program: String,
        /// Engine of the last daemon that served the program ([`Reply::Hello`]); the engine with
        /// this number serves the program's ports again. `None`: the daemon chooses one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<u8>,
    },
    /// Listens on a port. Reply: [`Reply::Listening`].
    Listen {
        /// Interface name; `None`: all interfaces.
        interface: Option<String>,
        port: u16,
        /// Maximum number of connections that wait, 1..=1024.
        backlog: u16,
        key: Vec<u8>,
    },
    /// Closes a listener. Reply: [`Reply::Done`]. Its pending [`Request::Accept`]s are answered
    /// with an error.
    CloseListener {
        /// From [`Reply::Listening`].
        listener: u64,
    },
    /// Accepts the next connection. Reply, once there is one: [`Reply::Stream`].
    Accept {
        /// From [`Reply::Listening`].
        listener: u64,
        rings: Rings,
    },
    /// Withdraws an [`Request::Accept`]. Reply: [`Reply::Done`]; the accept itself is answered,
    /// too: with an error, or with a connection that arrived before.
    CancelAccept {
        /// Envelope id of the accept.
        accept: u64,
    },
    /// Opens a stream. Reply, at once: [`Reply::Stream`]; the status word of the stream's region
    /// then shows the progress of the connection.
    Connect {
        interface: Option<String>,
        local_port: u16,
        #[serde(with = "super::address")]
        peer: NodeAddr,
        peer_port: u16,
        key: Vec<u8>,
        rings: Rings,
    },
    /// Brings a stream of an earlier daemon, which resumes its connection. Descriptor: its region.
    /// Sent before any other request for a slot. Reply: [`Reply::Done`]; the status word of the
    /// region then shows the progress.
    ResumeStream {
        /// The slot of the stream, which it keeps.
        slot: u16,
        /// Sizes of its rings.
        rings: Rings,
    },
    /// Closes a stream and releases its slot; written data is still delivered. Reply:
    /// [`Reply::Done`].
    ///
    /// The last request about a slot, sent exactly once for every stream, including aborted and
    /// ended ones. The daemon reuses the slot only afterwards, so that this request cannot close
    /// another stream.
    Close {
        /// From [`Reply::Stream`].
        slot: u16,
    },
    /// Resets a stream. Reply: [`Reply::Done`]. [`Request::Close`] follows later.
    Abort {
        /// From [`Reply::Stream`].
        slot: u16,
    },
    /// Binds a datagram port. Reply: [`Reply::Edp`].
    BindEdp {
        interface: Option<String>,
        port: u16,
        rings: Rings,
    },
    /// Brings a datagram socket of an earlier daemon, and binds its port again. Descriptor: its
    /// region. Reply: [`Reply::Done`].
    ResumeEdp {
        interface: String,
        port: u16,
        /// The slot of the socket, which it keeps.
        slot: u16,
        /// Sizes of its rings.
        rings: Rings,
    },
    /// Closes a datagram socket and releases its slot. Reply: [`Reply::Done`].
    CloseEdp {
        /// From [`Reply::Edp`].
        slot: u16,
    },
    /// Leases packet sockets for stream ports of one interface, for an embedded engine. Reply:
    /// [`Reply::Lease`], or the error `Permission` if the node's policy forbids it.
    Lease {
        interface: Option<String>,
        /// Leases the port of this listener of the program; `None`: free ports.
        listener: Option<u64>,
        /// Without a listener: number of consecutive ports, 1..=64.
        count: u16,
    },
    /// Renews a lease that an earlier daemon granted: the same ports under the same policy and
    /// limits. Reply: [`Reply::Lease`], whose sockets replace the old ones. A
    /// [`Request::LeaseConnection`] for each connection follows.
    Adopt {
        interface: String,
        /// First port.
        port: u16,
        /// Number of consecutive ports, 1..=64.
        count: u16,
    },
    /// Leases the ports of a lease on another interface, too, so that its connections can move
    /// there when the first interface fails. Reply: [`Reply::Lease`] without a receive ring, or the
    /// error `InUse` if one of the ports is in use there. Ended by [`Request::EndLease`].
    Standby {
        /// From [`Reply::Lease`]; not itself a standby.
        lease: u64,
        interface: String,
    },
    /// Ends a lease whose sockets the program has closed. Reply: [`Reply::Done`].
    EndLease {
        /// From [`Reply::Lease`].
        lease: u64,
    },
    /// Reports a connection over a lease, or its end. `espstat` shows reported connections, and the
    /// daemon resets them when the program dies. Reply: [`Reply::Done`].
    LeaseConnection {
        /// From [`Reply::Lease`].
        lease: u64,
        /// One of the lease's ports.
        local_port: u16,
        #[serde(with = "super::address")]
        peer: NodeAddr,
        peer_port: u16,
        /// Nonce that authenticates a reset to the peer; `None`: the connection has ended.
        nonce: Option<u64>,
    },
    /// Requests the node's state. Reply: [`Reply::Status`].
    Status,
}

/// Reply of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)] // other fields: as in the request
pub enum Reply {
    /// Welcomes the program. Descriptors: engine page (read-only memfd), client page (memfd),
    /// doorbell eventfd, and a stream socket that becomes readable when the engine has an event for
    /// an armed slot.
    Hello {
        /// [`VERSION`] of the daemon.
        version: u16,
        /// Version of its program, such as `0.1.0`.
        daemon: String,
        /// Id of this program at the daemon.
        client: u64,
        /// Random number that the daemon chose at its start.
        incarnation: u64,
        /// The daemon's engine that serves the program.
        #[serde(default)]
        engine: u8,
        interfaces: Vec<InterfaceInfo>,
        /// True if the node's policy allows this program leases ([`Request::Lease`]).
        #[serde(default)]
        leases: bool,
    },
    /// A listener.
    Listening {
        /// Id of the listener in later requests.
        listener: u64,
        port: u16,
    },
    /// A stream. Descriptor: its region (memfd).
    Stream {
        /// Doorbell bit, and id of the stream in later requests.
        slot: u16,
        rings: Rings,
        interface: String,
        local_port: u16,
        #[serde(with = "super::address")]
        peer: NodeAddr,
        peer_port: u16,
    },
    /// A datagram socket. Descriptor: its region (memfd).
    Edp {
        /// Doorbell bit, and id of the socket in later requests.
        slot: u16,
        rings: Rings,
        interface: String,
        port: u16,
    },
    /// A lease. Descriptors: packet sockets of the stream protocol and of the datagram protocol
    /// (for replies to liveness queries), both filtered and locked to the ports; then a spare of
    /// each, not bound. Once the daemon is gone the first two may receive no more frames, so the
    /// program binds the spares and uses them instead.
    Lease {
        /// Id of the lease in later requests.
        lease: u64,
        interface: InterfaceInfo,
        /// First port.
        port: u16,
        /// Number of consecutive ports.
        count: u16,
        protocol: LeaseProtocol,
        /// Receive ring of the stream protocol's socket; no slots: none. It must be mapped, because
        /// frames that do not fit are lost. The spare has none until the program creates it.
        ring: LeaseRing,
    },
    /// The request is done.
    Done,
    /// The node's state.
    Status(Box<Status>),
    /// The request is refused.
    Error(ErrorReply),
}

/// Shape of a receive ring; see [`esp_engine::RingShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LeaseRing {
    pub slot_len: u32,
    pub slots: u32,
}

/// Declares [`LeaseProtocol`] with its conversions: fields as they are, and times in µs.
macro_rules! lease_protocol {
    ($($field:ident: $type:ty),*; $($time:ident as $us:ident),*) => {
        /// Protocol constants of a node, with the names of [`EndpointConfig`]; times in µs.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub struct LeaseProtocol {
            $(pub $field: $type,)*
            $(pub $us: u64,)*
        }

        impl From<&EndpointConfig> for LeaseProtocol {
            fn from(config: &EndpointConfig) -> LeaseProtocol {
                LeaseProtocol {
                    $($field: config.$field,)*
                    $($us: u64::try_from(config.$time.as_micros()).unwrap_or(u64::MAX),)*
                }
            }
        }

        impl LeaseProtocol {
            /// Returns the configuration of an endpoint with these constants.
            pub fn endpoint(&self) -> EndpointConfig {
                EndpointConfig {
                    $($field: self.$field,)*
                    $($time: Duration::from_micros(self.$us),)*
                    ..EndpointConfig::default()
                }
            }
        }
    };
}

lease_protocol! {
    esp_ethertype: u16, edp_ethertype: u16, max_connections: usize, max_window: u16;
    max_ack_delay as max_ack_delay_us, min_rto as min_rto_us, max_rto as max_rto_us,
    connect_timeout as connect_timeout_us, peer_timeout as peer_timeout_us,
    keepalive as keepalive_us, time_wait as time_wait_us
}

/// Refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// Kind, for programs.
    pub kind: ErrorKind,
    /// Text for people: what happened, where, what to do.
    pub message: String,
}

/// Kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The message is malformed, or not allowed at this point.
    BadRequest,
    /// The version is not supported.
    Version,
    /// The user is not permitted to do this.
    Permission,
    /// The port is in use, or the same connection exists.
    InUse,
    /// An address, port, key or size is out of range.
    BadArgument,
    /// No such interface, listener or slot exists.
    NotFound,
    /// A limit of the user or the node is reached.
    Limit,
    /// The link is down.
    LinkDown,
    /// The request was withdrawn.
    Cancelled,
    /// The daemon is stopping, or failed internally.
    Unavailable,
}

/// An interface of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceInfo {
    /// Name.
    pub name: String,
    /// Address; its kind is the carrier.
    #[serde(with = "super::address")]
    pub addr: NodeAddr,
    /// Maximum number of bytes after the EtherType; for UDP, without those of its headers.
    pub mtu: u32,
    /// True if it has a carrier and is administratively up.
    pub up: bool,
}
