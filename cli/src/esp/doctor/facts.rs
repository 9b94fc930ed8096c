//! Facts about the node and its peers, which are read before any check. Checks are functions of
//! these facts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use esp_client::control::InterfaceInfo;
use esp_client::{NodeAddr, NodeInfo};

/// All facts.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) daemon: Daemon,
    pub(super) links: Vec<Link>,
    pub(super) host: Host,
    pub(super) mpi: Mpi,
    /// `None` if no peer was probed.
    pub(super) network: Option<Network>,
}

/// The node's daemon.
#[derive(Clone, Debug)]
pub(super) struct Daemon {
    pub(super) socket: PathBuf,
    /// Its state, or the reason why the state could not be read; or the reason why no daemon
    /// answers.
    pub(super) reached: Result<Result<State, String>, Unreached>,
    /// The process that serves the socket, if it is visible.
    pub(super) process: Option<Process>,
    /// Other processes named esp-daemon in this network namespace.
    pub(super) others: Vec<u32>,
    /// Value of `ESP_PATH`.
    pub(super) path: String,
    pub(super) lease: Lease,
}

/// State of the daemon, with counters at two times.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) version: String,
    pub(super) uptime_s: f64,
    pub(super) interfaces: Vec<InterfaceInfo>,
    pub(super) counters: Counters,
    pub(super) later: Counters,
    /// Time between the two readings.
    pub(super) between: Duration,
}

/// Values of counters by interface (`""` for the daemon) and name.
pub(super) type Counters = BTreeMap<(String, String), u64>;

impl Daemon {
    /// Returns the state, if it could be read.
    pub(super) fn state(&self) -> Option<&State> {
        self.reached.as_ref().ok()?.as_ref().ok()
    }
}

impl State {
    /// Returns the latest value of a counter; 0 if this daemon does not have it.
    pub(super) fn counter(&self, interface: &str, name: &str) -> u64 {
        let key = (interface.to_owned(), name.to_owned());
        self.later.get(&key).copied().unwrap_or(0)
    }

    /// Returns the increase of a counter between the two readings.
    pub(super) fn rise(&self, interface: &str, name: &str) -> u64 {
        let key = (interface.to_owned(), name.to_owned());
        let of = |counters: &Counters| counters.get(&key).copied().unwrap_or(0);
        of(&self.later).saturating_sub(of(&self.counters))
    }
}

/// Reason why no daemon answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreached {
    /// There is no socket.
    NoSocket,
    /// The socket exists, but no process listens.
    Stale,
    /// This user may not use the socket.
    NoPermission,
    /// It does not accept a connection, or does not answer.
    Silent,
    /// It speaks another version of the control protocol.
    Version(String),
    /// Any other error.
    Other(String),
}

/// A daemon's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Effective capabilities, a bit for each.
    pub(super) capabilities: u64,
    /// Cores that it may use.
    pub(super) cores: BTreeSet<u32>,
}

/// Result of an attempt to get a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Lease {
    /// Not tried: there is no daemon, or no Ethernet interface is up.
    #[default]
    Unknown,
    /// The node's policy does not allow this user a lease.
    Forbidden,
    /// The policy allows a lease, but the daemon or this process could not set it up.
    Failed(String),
    /// A lease was granted.
    Granted,
}

/// An interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    pub(super) name: String,
    /// `None` if there is no interface of this name in this network namespace.
    pub(super) present: Option<Present>,
    /// Whether the daemon considers the link up; `None` if no daemon has reported it.
    pub(super) up_at_daemon: Option<bool>,
}

/// Properties of an interface that exists.
#[derive(Clone, Debug, Default)]
pub(super) struct Present {
    pub(super) enabled: bool,
    pub(super) carrier: bool,
    pub(super) mtu: u32,
    /// In Mbit/s.
    pub(super) speed: Option<u32>,
    pub(super) duplex: Option<String>,
    /// Cores near the device, if the machine has several NUMA nodes.
    pub(super) near_cores: Option<BTreeSet<u32>>,
    /// Size of the receive ring, in frames: current and maximum.
    pub(super) ring: Option<(u32, u32)>,
    /// Delay of receive interrupts in microseconds, and whether the device adapts it.
    pub(super) coalescing: Option<(u32, bool)>,
    /// The kernel's counters at two times.
    pub(super) device: Device,
    pub(super) device_later: Device,
}

/// Counters of a device, from `/proc/net/dev`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) rx_packets: u64,
    /// Damaged frames (CRC, length, alignment).
    pub(super) rx_errors: u64,
    /// Frames that did not fit into the receive ring.
    pub(super) rx_fifo: u64,
    pub(super) tx_errors: u64,
}

/// The machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Host {
    /// Limit on locked memory of this process, in bytes; `None` if unlimited.
    pub(super) memlock: Option<u64>,
    /// RDMA devices.
    pub(super) rdma: Vec<String>,
    /// `kernel.yama.ptrace_scope`, if the kernel has it.
    pub(super) ptrace_scope: Option<u32>,
    /// Effective capabilities of this process.
    pub(super) capabilities: u64,
    /// Error of a cross-memory copy within this process, which only a sandbox refuses.
    pub(super) cross_memory: Option<String>,
    /// Number of usable cores by frequency governor and driver.
    pub(super) governors: BTreeMap<(String, String), usize>,
    /// Cores that this process may use.
    pub(super) cores: BTreeSet<u32>,
    /// CPU time that the control group may use, in cores.
    pub(super) quota: Option<f64>,
    /// Load average of the last minute.
    pub(super) load: f64,
    pub(super) clock: Option<String>,
    /// `net.core.rmem_max` and `wmem_max`.
    pub(super) rmem_max: Option<u64>,
    pub(super) wmem_max: Option<u64>,
}

/// Open MPI on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mpi {
    /// The installed Open MPI, according to its `ompi_info`.
    pub(super) open_mpi: Option<OpenMpi>,
    /// Files of the component in the folders that Open MPI searches.
    pub(super) components: Vec<PathBuf>,
}

/// An installed Open MPI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenMpi {
    pub(super) version: String,
    /// It can load components.
    pub(super) dlopen: bool,
    /// Open MPI release that the ESP component is for; `None` if Open MPI does not find the
    /// component.
    pub(super) component: Option<String>,
}

/// The other nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    /// Answers to a broadcast, one for each interface, address and incarnation.
    pub(super) heard: Vec<Node>,
    /// Answers of this node itself.
    pub(super) own: Vec<Node>,
    /// This node's daemon serves UDP, so those of the peers should, too.
    pub(super) serves_udp: bool,
    /// All nodes that answer were requested.
    pub(super) all: bool,
    /// Number of nodes that answered but were not probed, because there were too many.
    pub(super) left_out: usize,
    /// Number of nodes that were not probed because of a signal.
    pub(super) interrupted: usize,
    pub(super) peers: Vec<Peer>,
}

/// A node that answered on one of this node's interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) interface: String,
    pub(super) addr: NodeAddr,
    /// Its answer, with a printable name.
    pub(super) info: NodeInfo,
}

/// A peer that was probed.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// Its name as typed or announced.
    pub(super) name: String,
    /// Reason why the name has no address.
    pub(super) unknown: Option<String>,
    /// A known name that resembles it.
    pub(super) meant: Option<String>,
    /// Its Ethernet address.
    pub(super) mac: Option<NodeAddr>,
    /// Paths to it: over each of this node's Ethernet interfaces, and in UDP.
    pub(super) routes: Vec<Route>,
    /// Whether ESP frames were answered; `None` if not tried.
    pub(super) esp: Option<bool>,
}

/// A path to a peer.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// This node's interface.
    pub(super) interface: String,
    pub(super) addr: NodeAddr,
    /// Number of echo requests sent and answered.
    pub(super) sent: usize,
    pub(super) received: usize,
    /// Median round-trip time, in microseconds.
    pub(super) rtt_us: Option<f64>,
    /// Maximum payload that passes, in bytes.
    pub(super) payload: Option<usize>,
    /// Maximum payloads of both ends.
    pub(super) own_payload: usize,
    pub(super) peer_payload: Option<usize>,
    /// Error of the measurement, other than a missing answer.
    pub(super) failure: Option<String>,
}

impl Route {
    /// Creates a path that was not tried.
    pub(super) fn untried(addr: NodeAddr) -> Route {
        Route {
            interface: String::new(),
            addr,
            sent: 0,
            received: 0,
            rtt_us: None,
            payload: None,
            own_payload: 0,
            peer_payload: None,
            failure: None,
        }
    }

    pub(super) fn answers(&self) -> bool {
        self.received > 0
    }
}

impl Peer {
    /// Returns the paths over raw Ethernet.
    pub(super) fn raw(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(|route| !route.addr.is_udp())
    }

    /// Returns the path in UDP.
    pub(super) fn udp(&self) -> Option<&Route> {
        self.routes.iter().find(|route| route.addr.is_udp())
    }

    /// Returns the path over raw Ethernet that streams take, which is the fastest.
    pub(super) fn fastest(&self) -> Option<&Route> {
        let rtt = |route: &Route| route.rtt_us.unwrap_or(f64::INFINITY);
        let answers = self.raw().filter(|route| route.answers());
        answers.min_by(|a, b| rtt(a).total_cmp(&rtt(b)))
    }
}

impl Default for Daemon {
    fn default() -> Daemon {
        Daemon {
            socket: PathBuf::new(),
            reached: Err(Unreached::NoSocket),
            process: None,
            others: Vec::new(),
            path: String::new(),
            lease: Lease::Unknown,
        }
    }
}
