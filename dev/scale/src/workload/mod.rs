//! Workloads: their messages, and the faults of the network during the run.

mod patterns;

use esp_sim::rng::Rng;

use crate::fabric::Topology;
use crate::rounds::{Fault, Pattern};
use patterns::{AllToAll, Doubling, Halo, Incast, JobStart, Ring, Servers};

/// Partners of a node in an exchange of all with all, if there are more nodes than
/// [`ALL_TO_ALL_NODES`]: a connection for each pair would take more memory than there is.
const PARTNERS: u32 = 64;
/// Partners for long messages.
const FEW_PARTNERS: u32 = 16;
/// Maximum number of nodes of which each sends to all others.
const ALL_TO_ALL_NODES: u32 = 1000;
/// Maximum number of steps of a ring that are simulated: all are alike.
const RING_STEPS: u32 = 200;
/// Bytes of the vector that an allreduce adds up.
const VECTOR: u64 = 4 << 20;
/// Rounds of a halo exchange.
const HALO_ROUNDS: u32 = 10;
const KIB: u64 = 1024;

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Workload {
    Incast,
    AllToAll,
    Halo,
    JobStart,
    AllReduce,
    Server,
    Background,
    DeadSpine,
    Flap,
    Straggler,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 10] = [
        Workload::Incast,
        Workload::AllToAll,
        Workload::Halo,
        Workload::JobStart,
        Workload::AllReduce,
        Workload::Server,
        Workload::Background,
        Workload::DeadSpine,
        Workload::Flap,
        Workload::Straggler,
    ];

    /// Returns the name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Incast => "incast",
            Workload::AllToAll => "alltoall",
            Workload::Halo => "halo",
            Workload::JobStart => "jobstart",
            Workload::AllReduce => "allreduce",
            Workload::Server => "server",
            Workload::Background => "background",
            Workload::DeadSpine => "deadspine",
            Workload::Flap => "flap",
            Workload::Straggler => "straggler",
        }
    }

    /// Returns the workload of a name.
    pub fn named(name: &str) -> Option<Workload> {
        Workload::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Describes the messages in a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Workload::Incast => {
                "groups of 100 nodes, and of 1000, send 64 KiB to one node of the group at one \
                 instant"
            }
            Workload::AllToAll => {
                "every node sends 64 B and 4 KiB to every other, to 64 others beyond 1000 nodes; and \
                 64 KiB to 16 others"
            }
            Workload::Halo => "ten rounds of an exchange of 16 KiB with six neighbours of a torus",
            Workload::JobStart => {
                "every node connects at one instant to its neighbours of a torus and to the \
                 partners of a recursive doubling, and sends 64 B to each"
            }
            Workload::AllReduce => {
                "4 MiB are added up in a ring, of which 200 steps are simulated; 1 KiB and 64 KiB \
                 by recursive doubling"
            }
            Workload::Server => {
                "five times every worker sends 64 KiB to one of nodes / 100 servers, which answers \
                 with 64 KiB when it has heard all"
            }
            Workload::Background => {
                "the halo exchange, while one node in four sends messages of 1 MiB to a random other one \
                 for 5 ms"
            }
            Workload::DeadSpine => {
                "the halo exchange; after 50 µs a spine switch fails, and 1 ms later its links are \
                 no longer used"
            }
            Workload::Flap => {
                "the halo exchange; one link between switches fails for 200 µs every millisecond, \
                 five times, and is used all the time"
            }
            Workload::Straggler => {
                "the halo exchange; one node in a hundred processes what it receives 100 µs later"
            }
        }
    }

    /// Returns the cases for a network.
    pub fn cases(self, topology: &Topology, seed: u64) -> Vec<Case> {
        let nodes = topology.nodes;
        let halo = || Halo::new(nodes, HALO_ROUNDS, 16 * KIB);
        let halo_case = || Case::new(halo_label(&halo()), halo());
        match self {
            Workload::Incast => [100, 1000]
                .into_iter()
                .filter_map(|fan| incast(nodes, fan))
                .collect(),
            Workload::AllToAll => [(64, "64 B"), (4 * KIB, "4 KiB"), (64 * KIB, "64 KiB")]
                .into_iter()
                .map(|(bytes, size)| all_to_all(nodes, bytes, size))
                .collect(),
            Workload::Halo => vec![halo_case()],
            Workload::JobStart => vec![job_start(nodes)],
            Workload::AllReduce => all_reduce(nodes),
            Workload::Server => vec![server(nodes)],
            Workload::Background => vec![background(halo_case(), nodes, seed)],
            Workload::DeadSpine => vec![dead_spine(halo_case(), topology)],
            Workload::Flap => vec![flap(halo_case())],
            Workload::Straggler => vec![straggler(halo_case(), nodes)],
        }
    }
}

/// One run.
pub struct Case {
    /// Sizes and counts.
    pub label: String,
    /// Messages.
    pub pattern: Box<dyn Pattern>,
    /// The connections are opened before the start.
    pub set_up: bool,
    /// Faults of the network during the run.
    pub faults: Vec<Fault>,
    /// Messages that are sent again and again during the run.
    pub background: Vec<(u32, u32, u64)>,
    /// Slow nodes, with the nanoseconds by which each is.
    pub slow: Vec<(u32, u64)>,
}

impl Case {
    fn new(label: String, pattern: impl Pattern + 'static) -> Case {
        Case {
            label,
            pattern: Box::new(pattern),
            set_up: true,
            faults: Vec::new(),
            background: Vec::new(),
            slow: Vec::new(),
        }
    }

    /// Returns the pairs of nodes that exchange messages, each as often as they do.
    pub fn pairs(&self, nodes: u32) -> Vec<(u32, u32)> {
        let mut pairs = Vec::new();
        // Rounds after the first use further connections only where a pattern has few of them.
        for node in 0..nodes {
            for round in 0..self.pattern.rounds().min(32) {
                self.pattern
                    .sends(node, round, &mut |to, _| pairs.push((node, to)));
            }
        }
        pairs.extend(self.background.iter().map(|(from, to, _)| (*from, *to)));
        pairs
    }
}

fn incast(nodes: u32, fan: u32) -> Option<Case> {
    let groups = nodes / (fan + 1);
    let (label, bytes) = (format!("{fan}:1, 64 KiB, {groups} at once"), 64 * KIB);
    let incast = Incast { groups, fan, bytes };
    (groups > 0).then(|| Case::new(label, incast))
}

fn all_to_all(nodes: u32, bytes: u64, size: &str) -> Case {
    let most = match bytes {
        0..=4096 if nodes <= ALL_TO_ALL_NODES => nodes,
        0..=4096 => PARTNERS,
        _ => FEW_PARTNERS,
    };
    let partners = (nodes - 1).min(most);
    let label = format!("{size} to {partners} others");
    Case::new(
        label,
        AllToAll {
            nodes,
            partners,
            bytes,
        },
    )
}

fn halo_label(halo: &Halo) -> String {
    let [a, b, c] = halo.sides();
    format!("{a}×{b}×{c}, 16 KiB, {HALO_ROUNDS} rounds")
}

fn job_start(nodes: u32) -> Case {
    let bytes = 64;
    let halo = Halo::new(nodes, 1, bytes);
    let doubling = Doubling { nodes, bytes };
    let start = JobStart {
        halo,
        doubling,
        bytes,
    };
    let label = format!("64 B to {} others", start.expects(0, 0));
    Case {
        set_up: false,
        ..Case::new(label, start)
    }
}

fn all_reduce(nodes: u32) -> Vec<Case> {
    let bytes = VECTOR.div_ceil(u64::from(nodes));
    let steps = (2 * (nodes - 1)).min(RING_STEPS);
    let ring = Ring {
        nodes,
        steps,
        bytes,
    };
    let label = format!("ring, {steps} steps of {bytes} B");
    let mut cases = vec![Case::new(label, ring)];
    for (bytes, size) in [(KIB, "1 KiB"), (64 * KIB, "64 KiB")] {
        let doubling = Doubling { nodes, bytes };
        let label = format!("doubling, {} steps of {size}", doubling.rounds());
        cases.push(Case::new(label, doubling));
    }
    cases
}

fn server(nodes: u32) -> Case {
    let servers = nodes.div_ceil(100);
    let label = format!("{servers} servers, 64 KiB, 5 times");
    Case::new(
        label,
        Servers {
            nodes,
            servers,
            iterations: 5,
            bytes: 64 * KIB,
        },
    )
}

fn background(mut case: Case, nodes: u32, seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    for node in (0..nodes).step_by(4) {
        let other = (u64::from(node) + 1 + rng.below(u64::from(nodes) - 1)) % u64::from(nodes);
        case.background.push((node, other as u32, 1 << 20));
    }
    case
}

fn dead_spine(mut case: Case, topology: &Topology) -> Case {
    for (after, routed) in [(50_000, true), (1_050_000, false)] {
        case.faults.extend((0..topology.leaves()).map(|leaf| Fault {
            after,
            leaf,
            spine: 0,
            alive: false,
            routed,
        }));
    }
    case
}

fn flap(mut case: Case) -> Case {
    for turn in 0..5 {
        for (after, alive) in [(50_000, false), (250_000, true)] {
            case.faults.push(Fault {
                after: turn * 1_000_000 + after,
                leaf: 0,
                spine: 0,
                alive,
                routed: true,
            });
        }
    }
    case
}

fn straggler(mut case: Case, nodes: u32) -> Case {
    let slow = (0..nodes).step_by(100).map(|node| (node, 100_000));
    case.slow = slow.collect();
    case
}
