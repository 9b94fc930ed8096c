//! The state of a node, as `espstat` shows it.

use serde::{Deserialize, Serialize};

use super::messages::InterfaceInfo;

/// State of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon, such as `0.1.0`.
    pub daemon: String,
    /// Seconds since the daemon started.
    pub uptime_s: f64,
    /// Interfaces.
    pub interfaces: Vec<InterfaceInfo>,
    /// Connections of all programs.
    pub connections: Vec<ConnectionStatus>,
    /// Listeners of all programs.
    pub listeners: Vec<ListenerStatus>,
    /// Bound datagram ports.
    pub edp: Vec<EdpStatus>,
    /// Counters by interface (`""`: the whole engine), then name.
    pub counters: Vec<CounterStatus>,
}

/// A connection: the values of [`esp_proto::ConnInfo`] under the same names, with times in µs,
/// windows in packets and queues in bytes. `None`: the daemon does not have the value, for example
/// of a connection over a lease, whose program alone has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ConnectionStatus {
    pub interface: String,
    pub state: String,
    pub local_port: u16,
    pub peer: String,
    pub peer_port: u16,
    pub path: String,
    #[serde(flatten)]
    pub owner: Owner,
    pub srtt_us: Option<f64>,
    pub rttvar_us: Option<f64>,
    pub min_rtt_us: Option<f64>,
    pub rto_us: Option<f64>,
    pub cwnd: Option<u32>,
    pub in_flight: Option<u32>,
    pub credit: Option<u32>,
    pub rx_credit: Option<u32>,
    pub payload: Option<u16>,
    pub payload_agreed: Option<u16>,
    pub send_queue: Option<u64>,
    pub recv_queue: Option<u64>,
    pub packets_sent: Option<u64>,
    pub packets_received: Option<u64>,
    pub bytes_acked: Option<u64>,
    pub bytes_received: Option<u64>,
    pub retransmits: Option<u64>,
    pub timeouts: Option<u64>,
    pub tail_probes: Option<u64>,
    pub duplicates: Option<u64>,
    pub out_of_order: Option<u64>,
    pub moves: Option<u64>,
    /// Sizes of the rings that the program and the engine share, in bytes.
    pub send_ring: Option<u32>,
    pub recv_ring: Option<u32>,
}

/// The owner of a connection or port, if the viewer may see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Owner {
    pub uid: Option<u32>,
    pub pid: Option<u32>,
    pub program: Option<String>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ListenerStatus {
    pub interface: String,
    pub port: u16,
    pub waiting: u16,
    pub backlog: u16,
    #[serde(flatten)]
    pub owner: Owner,
}

/// A bound datagram port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct EdpStatus {
    pub interface: String,
    pub port: u16,
    /// As in [`ConnectionStatus`].
    pub send_ring: Option<u32>,
    pub recv_ring: Option<u32>,
    #[serde(flatten)]
    pub owner: Owner,
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CounterStatus {
    pub interface: String,
    pub name: String,
    pub help: String,
    pub value: u64,
}
