//! Facts about the node and its peers, read before any check. Checks are functions of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use esp_client::control::InterfaceInfo;
use esp_client::{NodeAddr, NodeInfo};

/// Everything that is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) daemon: Daemon,
    pub(super) links: Vec<Link>,
    pub(super) host: Host,
    pub(super) mpi: Mpi,
    /// `None`: no peer was asked.
    pub(super) network: Option<Network>,
}

/// The node's daemon.
#[derive(Clone, Debug)]
pub(super) struct Daemon {
    pub(super) socket: PathBuf,
    /// Its state, or why that could not be read; or why no daemon answers.
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
    /// Time between the two.
    pub(super) between: Duration,
}

/// Values of counters by interface (`""`: the daemon) and name.
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

    /// Returns by how much a counter has risen while doctor looked.
    pub(super) fn rise(&self, interface: &str, name: &str) -> u64 {
        let key = (interface.to_owned(), name.to_owned());
        let of = |counters: &Counters| counters.get(&key).copied().unwrap_or(0);
        of(&self.later).saturating_sub(of(&self.counters))
    }
}

/// Why no daemon answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreached {
    /// There is no socket.
    NoSocket,
    /// The socket is there, and no process listens.
    Stale,
    /// This user may not use the socket.
    NoPermission,
    /// It accepts no connection, or does not answer.
    Silent,
    /// It speaks another version of the control protocol.
    Version(String),
    /// Anything else.
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

/// A lease, tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Lease {
    /// Not tried: there is no daemon, or no Ethernet interface is up.
    #[default]
    Unknown,
    /// The node's policy does not allow this user any.
    Forbidden,
    /// Policy allows it, but the daemon or this process could not do it.
    Failed(String),
    /// One was granted.
    Granted,
}

/// An interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    pub(super) name: String,
    /// `None`: there is none of this name in this network namespace.
    pub(super) present: Option<Present>,
    /// The daemon says that the link is up; `None`: no daemon has said so.
    pub(super) up_at_daemon: Option<bool>,
}

/// Properties of an interface that exists.
#[derive(Clone, Debug, Default)]
pub(super) struct Present {
    pub(super) enabled: bool,
    pub(super) carrier: bool,
    pub(super) mtu: u32,
    /// Mbit/s.
    pub(super) speed: Option<u32>,
    pub(super) duplex: Option<String>,
    /// Cores near the device, if the machine has several NUMA nodes.
    pub(super) near_cores: Option<BTreeSet<u32>>,
    /// Frames in the receive ring: present and possible.
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
    /// Limit of locked memory of this process in bytes; `None`: unlimited.
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
    /// State of the component by its `ompi_info`.
    pub(super) open_mpi: Option<OpenMpi>,
    /// Files of the component in the folders where Open MPI looks.
    pub(super) components: Vec<PathBuf>,
}

/// An installed Open MPI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenMpi {
    pub(super) version: String,
    /// It can load components.
    pub(super) dlopen: bool,
    /// Release that the component for ESP is for; `None`: Open MPI does not find it.
    pub(super) component: Option<String>,
}

/// The other nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    /// Answers to a broadcast, one for each interface, address and incarnation.
    pub(super) heard: Vec<Node>,
    /// Answers of this node itself.
    pub(super) own: Vec<Node>,
    /// This node's daemon serves UDP, so that of the peers should.
    pub(super) serves_udp: bool,
    /// All nodes that answer were asked for.
    pub(super) all: bool,
    /// Nodes that answered and were not asked, since there were too many.
    pub(super) left_out: usize,
    /// Nodes that were not asked, since a signal came.
    pub(super) interrupted: usize,
    pub(super) peers: Vec<Peer>,
}

/// A node that answered on one of our interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) interface: String,
    pub(super) addr: NodeAddr,
    /// Its name is made printable.
    pub(super) info: NodeInfo,
}

/// A peer that was asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// The name as typed or announced.
    pub(super) name: String,
    /// Why the name has no address.
    pub(super) unknown: Option<String>,
    /// A known name that resembles it.
    pub(super) meant: Option<String>,
    /// Its Ethernet address.
    pub(super) mac: Option<NodeAddr>,
    /// Ways to it: over each of our Ethernet interfaces, and in UDP.
    pub(super) routes: Vec<Route>,
    /// Whether ESP frames were answered; `None`: not tried.
    pub(super) esp: Option<bool>,
}

/// A way to a peer.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Our interface.
    pub(super) interface: String,
    pub(super) addr: NodeAddr,
    /// Echo requests sent and answered.
    pub(super) sent: usize,
    pub(super) received: usize,
    /// Median round trip in microseconds.
    pub(super) rtt_us: Option<f64>,
    /// Largest payload that passes in bytes.
    pub(super) payload: Option<usize>,
    /// Largest payloads of both ends.
    pub(super) own_payload: usize,
    pub(super) peer_payload: Option<usize>,
    /// Other error of the measurement.
    pub(super) failure: Option<String>,
}

impl Route {
    /// Creates a way that was not tried.
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
    /// Returns the ways over raw Ethernet.
    pub(super) fn raw(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(|route| !route.addr.is_udp())
    }

    /// Returns the way in UDP.
    pub(super) fn udp(&self) -> Option<&Route> {
        self.routes.iter().find(|route| route.addr.is_udp())
    }

    /// Returns the way over raw Ethernet that streams take: the fastest.
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
