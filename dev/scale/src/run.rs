//! One run of one workload over one transport, and its figures.

use std::time::Instant;

use crate::bound::Bound;
use crate::esp::{self, Esp};
use crate::fabric::Topology;
use crate::process::cpu_seconds;
use crate::rounds::Rounds;
use crate::stack::Stack;
use crate::tcp::{self, Control, Tcp};
use crate::workload::{Case, Workload};
use crate::world::World;

/// A transport to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// ESP in UDP, with congestion marks.
    EspUdp,
    /// ESP in UDP, over switches that do not mark.
    EspUdpUnmarked,
    /// ESP over raw Ethernet.
    EspRaw,
    /// A model of TCP.
    Tcp(Control),
}

impl Transport {
    /// All transports.
    pub const ALL: [Transport; 6] = [
        Transport::EspUdp,
        Transport::EspUdpUnmarked,
        Transport::EspRaw,
        Transport::Tcp(Control::Reno),
        Transport::Tcp(Control::Cubic),
        Transport::Tcp(Control::Dctcp),
    ];

    /// Returns the name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Transport::EspUdp => "esp-udp",
            Transport::EspUdpUnmarked => "esp-udp-noecn",
            Transport::EspRaw => "esp-raw",
            Transport::Tcp(Control::Reno) => "tcp-reno",
            Transport::Tcp(Control::Cubic) => "tcp-cubic",
            Transport::Tcp(Control::Dctcp) => "tcp-dctcp",
        }
    }

    /// Returns the transport of a name.
    pub fn named(name: &str) -> Option<Transport> {
        Transport::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Parameters of a simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The network. Its paths are replaced by those of the transport.
    pub topology: Topology,
    /// MTU of the nodes.
    pub mtu: u32,
    /// Determines everything that is random.
    pub seed: u64,
}

/// Figures of a run. Times are in microseconds of virtual time unless said otherwise.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[allow(missing_docs)]
pub struct Row {
    pub workload: &'static str,
    pub case: String,
    pub transport: &'static str,
    pub nodes: u32,
    pub seed: u64,
    /// Why the run did not end; its figures are those at that time.
    pub error: Option<String>,
    pub completion_us: f64,
    /// Lower bound of the completion, see [`crate::bound`].
    pub bound_us: f64,
    /// Completion over bound.
    pub ratio: f64,
    pub messages: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// Payload of all messages over the completion, in Gbit/s of all nodes together.
    pub goodput_gbits: f64,
    pub packets: u64,
    pub retransmits: u64,
    pub timeouts: u64,
    /// Frames dropped by full switch ports, and lost on dead links.
    pub dropped: u64,
    pub lost: u64,
    /// Frames dropped by nodes that did not process them in time.
    pub ring_dropped: u64,
    pub marked: u64,
    /// KiB before a frame in the queue of its port.
    pub queue_p99_kib: f64,
    pub queue_max_kib: f64,
    pub jain: f64,
    pub connections: usize,
    /// Connections that failed.
    pub failed: u64,
    /// Seconds that the simulation ran on a processor, or took where that is not known.
    pub seconds: f64,
    /// Millions of frames simulated in such a second, set-up included.
    pub mframes_per_s: f64,
}

/// Runs a case.
pub fn run(plan: &Plan, workload: Workload, case: &Case, transport: Transport) -> Row {
    let mut plan = plan.clone();
    let (udp, ecn) = match transport {
        Transport::EspUdp => (true, true),
        Transport::EspUdpUnmarked => (true, false),
        Transport::EspRaw => (false, false),
        Transport::Tcp(control) => {
            let config = tcp::Config::new(control, plan.mtu);
            return simulate::<Tcp>(&plan, workload, case, transport, &config);
        }
    };
    if transport == Transport::EspRaw {
        plan.topology.paths = crate::fabric::Paths::Single;
    }
    let config = esp::Config::new(udp, ecn, plan.mtu);
    simulate::<Esp>(&plan, workload, case, transport, &config)
}

/// Returns the lower bound of a case in nanoseconds.
pub fn bound(topology: &Topology, mtu: u32, case: &Case) -> u64 {
    let mut bound = Bound::new(topology, mtu);
    for round in 0..case.pattern.rounds() {
        for node in 0..topology.nodes {
            case.pattern
                .sends(node, round, &mut |to, bytes| bound.message(node, to, bytes));
        }
        bound.end_round();
    }
    bound.nanos()
}

fn simulate<S: Stack>(
    plan: &Plan,
    workload: Workload,
    case: &Case,
    transport: Transport,
    config: &S::Config,
) -> Row {
    let clock = Instant::now();
    let cpu = cpu_seconds();
    let nodes = plan.topology.nodes;
    let mut world = World::<S>::new(plan.topology.clone(), config, plan.seed);
    for (node, nanos) in &case.slow {
        world.slow_down(*node, *nanos);
    }
    let pattern = case.pattern.as_ref();
    let mut rounds = Rounds::new(pattern, nodes, &case.faults, &case.background);
    let mut ready = Ok(());
    if case.set_up {
        ready = world.set_up(case.pairs(nodes));
    }
    let error = ready.and_then(|()| world.run(&mut rounds)).err();
    let used = cpu_seconds().zip(cpu).map(|(now, then)| now - then);
    let seconds = used.unwrap_or_else(|| clock.elapsed().as_secs_f64());
    let (measured, counts) = (world.measured(), world.counts_of_run());
    let fabric = &world.fabric().counts;
    let bound = bound(&plan.topology, plan.mtu, case);
    let elapsed = rounds.elapsed();
    let micros = |nanos: u64| nanos as f64 / 1000.0;
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    Row {
        workload: workload.name(),
        case: case.label.clone(),
        transport: transport.name(),
        nodes,
        seed: plan.seed,
        error,
        completion_us: micros(elapsed),
        bound_us: micros(bound),
        ratio: elapsed as f64 / bound as f64,
        messages: rounds.times.count(),
        p50_us: micros(rounds.times.percentile(50.0)),
        p99_us: micros(rounds.times.percentile(99.0)),
        p999_us: micros(rounds.times.percentile(99.9)),
        goodput_gbits: 8.0 * rounds.bytes as f64 / elapsed.max(1) as f64,
        packets: counts.packets,
        retransmits: counts.retransmits,
        timeouts: counts.timeouts,
        dropped: fabric.dropped,
        lost: fabric.lost,
        ring_dropped: measured.ring_dropped,
        marked: fabric.marked,
        queue_p99_kib: kib(fabric.queues.per_mille(990)),
        queue_max_kib: kib(fabric.queues.max()),
        jain: rounds.jain(),
        connections: world.traffic().len(),
        failed: measured.failed,
        seconds,
        mframes_per_s: measured.frames as f64 / seconds / 1e6,
    }
}
