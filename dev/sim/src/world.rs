//! The world: endpoints, their programs, the network between them, and virtual time.
//!
//! Everything is a function of the seed and of the calls made here, so a run can be repeated
//! exactly. Invariants are checked continuously; the first violation panics with the time and the
//! state of all connections.

use crate::carrier::Carrier;
use crate::check::{Checker, Ledger};
use crate::drive::new_layer;
use crate::forger::Forger;
use crate::host::{Conn, Received, Streams};
use crate::link::Frame;
use crate::net::{Net, PortConfig, mac_of};
use crate::plan::{FlowPlan, Side, SidePlan};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::secure::{Protection, Weak};
use esp_proto::secure::{Layer, OVERHEAD};
use esp_proto::{
    CloseReason, ConnId, Duration, Endpoint, EndpointConfig, Event, Instant, ListenOptions,
    MacAddr, NodeAddr, Port, ResetReason,
};
use std::collections::{BTreeMap, VecDeque};

/// Behaviour of a node's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostModel {
    /// Maximum time from a frame's arrival to its handling (interrupt, scheduler); drawn anew each
    /// time.
    pub wake: Duration,
    /// Time to handle one frame.
    pub per_frame: Duration,
    /// Frames handled in one batch.
    pub batch: usize,
    /// Frames that may wait for handling; one more is dropped.
    pub ring: usize,
    /// Maximum delay of timers.
    pub timer_slack: Duration,
    /// Outputs are polled in varying order; otherwise progress, events, frames.
    pub any_order: bool,
}

impl Default for HostModel {
    fn default() -> Self {
        HostModel {
            wake: Duration::from_micros(2),
            per_frame: Duration::from_nanos(300),
            batch: 64,
            ring: 4096,
            timer_slack: Duration::ZERO,
            any_order: false,
        }
    }
}

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Parameters of its endpoint.
    pub endpoint: EndpointConfig,
    /// Bytes after the EtherType.
    pub mtu: u32,
    /// Its cable.
    pub port: PortConfig,
    /// Its host.
    pub host: HostModel,
    /// Protection of its packets.
    pub protection: Option<Protection>,
}

impl NodeConfig {
    /// Returns the MTU of the endpoint for an MTU of the interface.
    pub(crate) fn frame_mtu(&self, addr: NodeAddr, mtu: u32) -> u32 {
        addr.frame_mtu(mtu) - u32::from(self.endpoint_config().overhead)
    }

    /// Returns the parameters of the endpoint.
    pub(crate) fn endpoint_config(&self) -> EndpointConfig {
        let overhead = self.protection.map_or(0, |_| OVERHEAD as u16);
        EndpointConfig {
            overhead,
            ..self.endpoint.clone()
        }
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            // Short, so that scenarios with dead nodes end soon.
            endpoint: EndpointConfig {
                peer_timeout: Duration::from_secs(10),
                ..EndpointConfig::default()
            },
            mtu: 1500,
            port: PortConfig::default(),
            host: HostModel::default(),
            protection: None,
        }
    }
}

/// A planned action.
#[derive(Clone, Debug)]
pub enum Action {
    /// Starts the flow with this number.
    Open(usize),
    /// One program aborts its connection.
    Abort(usize, Side, ResetReason),
    /// The node loses all memory: a new endpoint replaces its own. Its listeners are opened again.
    Restart(usize),
    /// The node's service ends, and the next one adopts its connections after this time.
    Lose(usize, esp_proto::Duration),
    /// The node's service adopts the connections of an earlier one.
    Adopt(usize),
    /// A forged frame arrives at the node.
    Inject(usize, Vec<u8>),
    /// The node closes the listener of a port.
    Unlisten(usize, Port),
    /// The node's interface changes its MTU.
    SetMtu(usize, u32),
    /// The node's interface fails, and the node is notified.
    Abandon(usize),
    /// The node's service shuts down gracefully.
    ShutdownAll(usize),
    /// Sends a datagram: from node, port; to address, port; kind; number of bytes.
    Datagram(usize, Port, MacAddr, Port, esp_proto::EdpKind, usize),
}

/// Entry of the event queue.
#[derive(Debug)]
pub(crate) enum Todo {
    AtSwitch {
        from: usize,
        frame: Frame,
    },
    Arrive {
        node: usize,
        frame: Frame,
        looped: bool,
    },
    Wake(usize),
    Timer(usize),
    Room(usize),
    Act(usize, ConnId),
    Attach(usize, ConnId),
    Script(Action),
    Watch,
}

/// State of a node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    /// Protects its packets.
    pub(crate) layer: Option<Layer<Weak>>,
    /// Packets that its earlier layers have dropped.
    pub(crate) refused: u64,
    pub(crate) config: NodeConfig,
    pub(crate) mac: MacAddr,
    /// Its address for endpoints.
    pub(crate) addr: NodeAddr,
    pub(crate) rng: Rng,
    pub(crate) incarnation: u64,
    pub(crate) conns: BTreeMap<u32, Conn>,
    /// Connections that wait for the next service.
    pub(crate) lost: Vec<crate::lose::Lost>,
    pub(crate) listeners: BTreeMap<Port, ListenOptions>,
    pub(crate) ring: VecDeque<(Frame, bool)>,
    pub(crate) wake_at: Option<Instant>,
    /// Time until which the host is busy with the last batch.
    pub(crate) busy_until: Instant,
    pub(crate) timer_at: Option<Instant>,
    pub(crate) waits_for_room: bool,
    pub(crate) ring_dropped: u64,
    pub(crate) datagrams: Vec<Received>,
    pub(crate) events: Vec<(Instant, Event)>,
    /// Connections whose programs have to run.
    pub(crate) dirty: VecDeque<ConnId>,
    /// Timer calls at one instant.
    pub(crate) spins: (Instant, u32),
    /// The station to which this interface belongs.
    pub(crate) station: Option<usize>,
}

impl Node {
    /// Returns the earliest deadline of the endpoint and of its protection.
    pub(crate) fn poll_timeout(&mut self) -> Option<Instant> {
        let layer = self.layer.as_ref().and_then(Layer::poll_timeout);
        let endpoint = self.endpoint.poll_timeout();
        endpoint.into_iter().chain(layer).min()
    }

    pub(crate) fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(&id.slot).filter(|conn| conn.id == id)
    }
}

/// Progress of one side of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideStatus {
    /// Connection of this side.
    pub conn: Option<ConnId>,
    /// Node to which this side has moved.
    pub moved_to: Option<usize>,
    /// The connection was established.
    pub opened: bool,
    /// Time of establishment.
    pub opened_at: Option<Instant>,
    /// Reason of the end.
    pub closed: Option<CloseReason>,
    /// Time of the end.
    pub closed_at: Option<Instant>,
    /// Bytes delivered to its program.
    pub delivered: u64,
    /// Bytes acknowledged.
    pub acked: u64,
    /// Time of the last delivery.
    pub delivered_at: Option<Instant>,
    /// Longest time between two deliveries.
    pub longest_gap: Duration,
    /// End of that gap.
    pub longest_gap_at: Option<Instant>,
}

/// A flow and its progress.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Plan of the flow.
    pub plan: FlowPlan,
    /// It was started.
    pub started: bool,
    /// The connecting side.
    pub active: SideStatus,
    /// The listening side.
    pub passive: SideStatus,
}

impl Flow {
    /// Returns one side.
    pub fn side(&self, side: Side) -> &SideStatus {
        match side {
            Side::Active => &self.active,
            Side::Passive => &self.passive,
        }
    }

    pub(crate) fn side_mut(&mut self, side: Side) -> &mut SideStatus {
        match side {
            Side::Active => &mut self.active,
            Side::Passive => &mut self.passive,
        }
    }

    pub(crate) fn side_plan(&self, side: Side) -> &SidePlan {
        match side {
            Side::Active => &self.plan.active,
            Side::Passive => &self.plan.passive,
        }
    }

    pub(crate) fn node(&self, side: Side) -> usize {
        self.side(side).moved_to.unwrap_or(match side {
            Side::Active => self.plan.from,
            Side::Passive => self.plan.to,
        })
    }

    /// Returns true when the flow has ended.
    pub fn is_over(&self) -> bool {
        let done = |side: &SideStatus| side.conn.is_none() || side.closed.is_some();
        self.started && self.active.closed.is_some() && done(&self.active) && done(&self.passive)
    }
}

/// The simulated world.
#[derive(Debug)]
pub struct World {
    pub(crate) now: Instant,
    pub(crate) rng: Rng,
    pub(crate) carrier: Carrier,
    pub(crate) queue: Queue<Todo>,
    pub(crate) net: Net,
    pub(crate) nodes: Vec<Node>,
    /// Stations as lists of their interfaces.
    pub(crate) stations: Vec<Vec<usize>>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) streams: Streams,
    pub(crate) checker: Checker,
    /// Protected packets.
    pub(crate) ledger: Ledger,
    pub(crate) forger: Option<Forger>,
    /// Contents are checked, except where frames are altered on the way.
    pub(crate) check_content: bool,
    /// Time without progress and without an obstacle after which a connection counts as stuck.
    pub(crate) patience: Duration,
    /// End of the last planned obstacle.
    pub(crate) obstacle_until: Instant,
    pub(crate) scripts_left: usize,
    pub(crate) trace: bool,
    pub(crate) recorded: Option<Vec<(Instant, usize, Vec<u8>)>>,
    pub(crate) arrivals: Vec<(Instant, Frame)>,
}

impl World {
    /// Creates an empty world. `ESP_SIM_TRACE=1` in the environment makes it print every frame.
    pub fn new(seed: u64) -> Self {
        let mut queue = Queue::default();
        queue.push(Instant::ZERO, Todo::Watch);
        World {
            now: Instant::ZERO,
            rng: Rng::new(seed),
            carrier: Carrier::default(),
            queue,
            net: Net::default(),
            nodes: Vec::new(),
            stations: Vec::new(),
            flows: Vec::new(),
            streams: Streams::default(),
            checker: Checker::default(),
            ledger: Ledger::default(),
            forger: None,
            check_content: true,
            patience: Duration::from_secs(5),
            obstacle_until: Instant::ZERO,
            scripts_left: 0,
            trace: std::env::var_os("ESP_SIM_TRACE").is_some_and(|value| value == "1"),
            recorded: None,
            arrivals: Vec::new(),
        }
    }

    /// Sets the carrier of all packets, before nodes are added.
    pub fn set_carrier(&mut self, carrier: Carrier) {
        self.carrier = carrier;
    }

    /// Adds a node and returns its number.
    pub fn add_node(&mut self, config: NodeConfig) -> usize {
        let mut rng = self.rng.fork(self.nodes.len() as u64);
        let node = self.net.add(config.port.clone(), &mut rng);
        let mac = mac_of(node);
        let addr = self.carrier.node_addr(mac);
        let mtu = config.frame_mtu(addr, config.mtu);
        self.checker.add(&config.endpoint, mtu, self.carrier);
        let endpoint = Endpoint::new(config.endpoint_config(), addr, mtu, rng.seed32(), 1);
        let layer = new_layer(&config, addr, &mut rng);
        self.nodes.push(Node {
            endpoint,
            layer,
            refused: 0,
            config,
            mac,
            addr,
            rng,
            incarnation: 1,
            conns: BTreeMap::new(),
            lost: Vec::new(),
            listeners: BTreeMap::new(),
            ring: VecDeque::new(),
            wake_at: None,
            busy_until: Instant::ZERO,
            timer_at: None,
            waits_for_room: false,
            ring_dropped: 0,
            datagrams: Vec::new(),
            events: Vec::new(),
            dirty: VecDeque::new(),
            spins: (Instant::ZERO, 0),
            station: None,
        });
        node
    }

    /// Adds `count` equal nodes.
    pub fn add_nodes(&mut self, count: usize, config: &NodeConfig) {
        for _ in 0..count {
            self.add_node(config.clone());
        }
    }

    /// Allows altered frames: contents and rules that span frames are not checked.
    pub fn hostile(&mut self) {
        self.check_content = false;
        self.checker.frames_only();
    }

    /// Allows frames forged by a station that sees others: rules that span frames are not checked,
    /// contents are.
    pub fn forging(&mut self) {
        self.checker.frames_only();
    }

    /// Keeps a copy of every frame sent from now on.
    pub fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// Returns the recorded frames: time, node, bytes.
    pub fn recorded(&self) -> &[(Instant, usize, Vec<u8>)] {
        self.recorded.as_deref().unwrap_or_default()
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns a node's endpoint, for its getters.
    pub fn endpoint(&self, node: usize) -> &Endpoint {
        &self.nodes[node].endpoint
    }

    /// Returns the network, for its counts.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Returns the network, for changes.
    pub fn net_mut(&mut self) -> &mut Net {
        &mut self.net
    }

    /// Returns the number of frames dropped by a node's host because it was too slow.
    pub fn ring_dropped(&self, node: usize) -> u64 {
        self.nodes[node].ring_dropped
    }

    /// Returns the datagrams received by a node.
    pub fn datagrams(&self, node: usize) -> &[Received] {
        &self.nodes[node].datagrams
    }

    /// Returns the events of a node so far.
    pub fn events(&self, node: usize) -> &[(Instant, Event)] {
        &self.nodes[node].events
    }

    /// Returns a flow.
    pub fn flow(&self, flow: usize) -> &Flow {
        &self.flows[flow]
    }

    /// Returns all flows.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns the number of frames checked.
    pub fn checked(&self) -> u64 {
        self.checker.checked()
    }

    /// Adds a flow and returns its number.
    pub fn flow_plan(&mut self, plan: FlowPlan) -> usize {
        let start = self.now + plan.start;
        self.flows.push(Flow {
            plan,
            started: false,
            active: SideStatus::default(),
            passive: SideStatus::default(),
        });
        let flow = self.flows.len() - 1;
        self.script(start, Action::Open(flow));
        flow
    }

    /// Schedules an action.
    pub fn script(&mut self, at: Instant, action: Action) {
        self.scripts_left += 1;
        self.queue.push(at, Todo::Script(action));
    }

    /// Schedules an action `after` from now.
    pub fn script_in(&mut self, after: Duration, action: Action) {
        self.script(self.now + after, action);
    }

    /// Opens a listener now.
    pub fn listen(&mut self, node: usize, port: Port, backlog: u16, key: &[u8]) {
        let options = ListenOptions {
            backlog,
            key: key.to_vec(),
            ..ListenOptions::default()
        };
        self.nodes[node].listeners.insert(port, options.clone());
        if let Err(error) = self.nodes[node].endpoint.listen(port, options) {
            self.fail(&format!("listen on {port}: {error}"));
        }
    }

    /// Binds a port for datagrams.
    pub fn edp_bind(&mut self, node: usize, port: Port) {
        if let Err(error) = self.nodes[node].endpoint.edp_bind(port) {
            self.fail(&format!("bind {port}: {error}"));
        }
    }

    /// Partitions a node from the network in both directions.
    pub fn partition(&mut self, node: usize, from: Duration, lasts: Duration) {
        for direction in [crate::net::Direction::Up, crate::net::Direction::Down] {
            self.cut(node, direction, from, lasts);
        }
    }

    /// Partitions one direction of a node's cable, `from` now.
    pub fn cut(
        &mut self,
        node: usize,
        direction: crate::net::Direction,
        from: Duration,
        lasts: Duration,
    ) {
        let (from, until) = (self.now + from, self.now + from + lasts);
        self.net.cut(node, direction, from, until);
        self.obstacle_until = self.obstacle_until.max(until);
    }

    /// Runs until virtual time `until`.
    pub fn run_until(&mut self, until: Instant) {
        while self.queue.next_at().is_some_and(|at| at <= until) {
            self.step();
        }
        self.now = self.now.max(until);
    }

    /// Runs for a time.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Runs until all flows have ended and all endpoints have forgotten them; panics if that takes
    /// longer than `limit` of virtual time. Asserts that every flow that may not fail has
    /// succeeded.
    pub fn run_to_end(&mut self, limit: Duration) {
        let deadline = self.now + limit;
        while !self.is_over() {
            match self.queue.next_at() {
                Some(at) if at <= deadline => self.step(),
                Some(_) => self.fail(&format!("not finished after {limit:?}")),
                None => {
                    self.fail("deadlock: no event is scheduled, but flows or connections remain")
                }
            }
        }
        self.check_outcomes();
    }

    fn is_over(&self) -> bool {
        self.scripts_left == 0
            && self.flows.iter().all(Flow::is_over)
            && self.nodes.iter().all(|node| {
                node.conns.is_empty()
                    && node.lost.is_empty()
                    && node.endpoint.connections().next().is_none()
            })
    }

    fn step(&mut self) {
        let Some((at, todo)) = self.queue.pop() else {
            return;
        };
        self.now = self.now.max(at);
        self.checker.at(self.now);
        self.perform(todo);
    }
}
