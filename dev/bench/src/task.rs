//! Task of one of the two programs of a case, and its result.

use serde::{Deserialize, Serialize};

use crate::samples::Samples;

/// Protocol under test. Its name is the `path` of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// The kernel's TCP with TCP_NODELAY and segmentation offload, the default of the system.
    Tcp,
    /// TCP as above, encrypted by the kernel (AES-128-GCM).
    TcpTls,
    /// TCP without segmentation offload: one pass through the stack per frame.
    TcpNoOffload,
    /// A bare packet-socket loop without a protocol: the limit of user space on this link.
    Raw,
    /// ESP through the daemons of both nodes.
    Daemon,
    /// ESP by engines embedded in both programs, over leased ports.
    Lease,
    /// Messages of the point-to-point layer. It uses leases where it is allowed to.
    P2p,
    /// A bare loop over UDP sockets with segmentation offload: the limit of the second carrier.
    RawUdp,
    /// ESP in UDP by engines embedded in both programs, without a daemon.
    Udp,
    /// ESP in UDP through the daemons of both nodes.
    UdpDaemon,
    /// Messages of the point-to-point layer over ESP in UDP.
    P2pUdp,
}

/// Carrier of ESP's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// Raw Ethernet.
    Raw,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Returns true if the daemons forward the frames, so that their CPU time counts.
    pub fn by_daemons(self) -> bool {
        matches!(self, Protocol::Daemon | Protocol::P2p | Protocol::UdpDaemon)
    }

    /// Returns true if daemons must run.
    pub fn needs_daemons(self) -> bool {
        self.by_daemons() || self == Protocol::Lease
    }

    /// Returns true for a bare loop: no protocol, so no streams of programs.
    pub fn is_bare(self) -> bool {
        matches!(self, Protocol::Raw | Protocol::RawUdp)
    }

    /// Returns the bare loop to compare with.
    pub fn bare(self) -> Protocol {
        match self.carrier() {
            Some(Carrier::Udp) => Protocol::RawUdp,
            _ => Protocol::Raw,
        }
    }

    /// Returns the carrier; none for TCP.
    pub fn carrier(self) -> Option<Carrier> {
        match self {
            Protocol::Tcp | Protocol::TcpTls | Protocol::TcpNoOffload => None,
            Protocol::Raw | Protocol::Daemon | Protocol::Lease | Protocol::P2p => {
                Some(Carrier::Raw)
            }
            Protocol::RawUdp | Protocol::Udp | Protocol::UdpDaemon | Protocol::P2pUdp => {
                Some(Carrier::Udp)
            }
        }
    }

    /// Name in legends, with the privilege that its programs need.
    pub fn label(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP (any user)",
            Protocol::TcpTls => "TCP, TLS of the kernel (any user)",
            Protocol::TcpNoOffload => "TCP without offload",
            Protocol::Raw => "bare packet loop (CAP_NET_RAW)",
            Protocol::Daemon => "ESP, daemon (any user)",
            Protocol::Lease => "ESP, lease (lease.allow)",
            Protocol::P2p => "p2p over leases (lease.allow)",
            Protocol::RawUdp => "bare UDP loop (any user)",
            Protocol::Udp => "ESP in UDP (any user, no daemon)",
            Protocol::UdpDaemon => "ESP in UDP, daemon (any user)",
            Protocol::P2pUdp => "p2p over UDP (any user, no daemon)",
        }
    }

    /// Name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::TcpTls => "tcp-tls",
            Protocol::TcpNoOffload => "tcp-no-offload",
            Protocol::Raw => "raw",
            Protocol::Daemon => "daemon",
            Protocol::Lease => "lease",
            Protocol::P2p => "p2p",
            Protocol::RawUdp => "raw-udp",
            Protocol::Udp => "udp",
            Protocol::UdpDaemon => "udp-daemon",
            Protocol::P2pUdp => "p2p-udp",
        }
    }
}

/// Waiting of a worker for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Sleeps until bytes arrive.
    Block,
    /// Polls without sleeping.
    Poll,
}

impl Wait {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Block => "block",
            Wait::Poll => "poll",
        }
    }
}

/// Traffic between the two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The client sends `size` bytes and the server returns them, `count` times after a warm-up.
    PingPong {
        /// Bytes each way.
        size: usize,
        /// Round trips measured.
        count: u64,
    },
    /// The client calls `send` in bursts with a pause between; the server reads everything.
    Send {
        /// Bytes of each call.
        size: usize,
        /// Number of bursts.
        count: u64,
        /// Calls of a burst. A sample is the time of a burst divided by this.
        burst: u32,
        /// Microseconds between two bursts.
        pause_us: u64,
    },
    /// The client writes as fast as it can; the server reads everything.
    Stream {
        /// Milliseconds.
        millis: u64,
        /// Bytes of each write.
        size: usize,
    },
    /// The client opens connections that both workers keep open without using them.
    Hold {
        /// Number of connections.
        count: usize,
    },
}

/// Client or server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Accepts one connection and serves it.
    Server,
    /// Connects.
    Client,
}

/// Argument of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Side of the connection.
    pub role: Role,
    /// Protocol under test.
    pub path: Protocol,
    /// Waiting of the worker.
    pub wait: Wait,
    /// Traffic.
    pub work: Work,
    /// Number of the server's node.
    pub node: usize,
    /// Port of the server.
    pub port: u16,
    /// True if the worker shares its core with no daemon, so that it may spin.
    pub own_core: bool,
}

/// First line of a server.
pub const LISTENING: &str = "listening";
/// Line of a worker that holds all its connections. It and a raw server end when their standard
/// input is closed.
pub const HOLDING: &str = "holding";

/// Last line of a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskResult {
    /// Nanoseconds of round trips or of send calls.
    pub times: Samples,
    /// Bytes received.
    pub bytes: u64,
    /// Nanoseconds from the first to the last of them.
    pub nanos: u64,
    /// CPU time of the worker, in nanoseconds.
    pub cpu: u64,
}
