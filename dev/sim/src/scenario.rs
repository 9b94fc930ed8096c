//! Generates a world from a seed: nodes, links, programs and faults.

mod changes;
mod outage;

use crate::carrier::Carrier;
use crate::link::{LinkConfig, PRESETS, Preset};
use crate::net::{Direction, PortConfig, mac_of};
use crate::plan::{End, FlowPlan, Pause, Side, SidePlan, Write};
use crate::rng::{Rng, mix};
use crate::world::{Action, HostModel, NodeConfig, World};
use esp_proto::{
    Duration, EdpKind, EndpointConfig, Instant, MacAddr, ResetReason, min_listener_capacity,
};

/// Virtual time within which a scenario must end.
const LIMIT: Duration = Duration::from_secs(120);
/// Port of every listener.
const PORT: u16 = 2000;
/// First port of the connecting sides.
const FIRST_PORT: u16 = 40_000;

/// A node of a scenario.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Name of the preset of its links.
    pub links: &'static str,
    /// True if its cable silently drops frames shorter than its MTU.
    pub black_hole: bool,
    /// Configuration of the node.
    pub config: NodeConfig,
}

/// A partition of a cable.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The node.
    pub node: usize,
    /// The direction; `None` for both.
    pub direction: Option<Direction>,
    /// Start.
    pub from: Duration,
    /// Duration.
    pub lasts: Duration,
}

/// A generated world.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its seed.
    pub seed: u64,
    /// Carrier of all packets.
    pub carrier: Carrier,
    /// Frames are altered on the way.
    pub hostile: bool,
    /// Nodes.
    pub nodes: Vec<NodePlan>,
    /// Connections.
    pub flows: Vec<FlowPlan>,
    /// Partitions.
    pub cuts: Vec<Cut>,
    /// Faults and datagrams.
    pub actions: Vec<(Duration, Action)>,
    /// Nodes that are the interfaces of one station.
    pub stations: Vec<Vec<usize>>,
    /// Parts per million of the frames on which a station that forges acts.
    pub forger: u32,
    /// Number of frames among the actions that are forged.
    pub forgeries: u32,
}

impl Scenario {
    /// Generates the scenario of a seed. Equal seeds give equal scenarios.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let hostile = rng.chance(100_000);
        let count = rng.range(2, 4) as usize;
        let mut nodes: Vec<NodePlan> = (0..count).map(|_| node(&mut rng, hostile)).collect();
        // Separate draws, which leave the rest of the scenario unchanged.
        let mut separate = Rng::new(mix(seed));
        for node in &mut nodes {
            // Over raw Ethernet, too: the endpoint need not know why the host offers it (W-117).
            choose_ecn(&mut separate, &mut node.config);
        }
        let carrier = *separate.pick(&[Carrier::Raw, Carrier::Udp4, Carrier::Udp6, Carrier::Raw]);
        for node in &mut nodes {
            node.config.mtu = node.config.mtu.max(carrier.min_mtu());
        }
        let mut flows = flows(&mut rng, &nodes, hostile);
        for flow in &mut flows {
            // Over UDP a SYN alone repeats a SYN+ACK (W-123): with the worst links on both sides
            // the time may pass without one that arrives.
            let worst = [flow.from, flow.to].map(|node| nodes[node].links == "terrible");
            flow.may_fail |= carrier.is_udp() && worst == [true; 2];
        }
        let mut scenario = Scenario {
            seed,
            carrier,
            hostile,
            nodes,
            flows,
            cuts: Vec::new(),
            actions: Vec::new(),
            stations: Vec::new(),
            forger: 0,
            forgeries: 0,
        };
        scenario.add_faults(&mut rng);
        scenario.add_datagrams(&mut rng);
        scenario.add_losses(&mut Rng::new(mix(mix(seed))));
        scenario.add_changes(&mut Rng::new(mix(mix(mix(seed)))));
        scenario.choose_readers(&mut Rng::new(mix(mix(mix(mix(seed))))));
        scenario.add_outage(&mut Rng::new(mix(!seed)));
        scenario
    }

    /// Runs the scenario. Panics on a violation.
    pub fn run(&self) -> World {
        let mut world = World::new(self.seed);
        world.set_carrier(self.carrier);
        if self.hostile {
            world.hostile();
        }
        if self.nodes.iter().any(|n| n.config.protection.is_some()) {
            world.patience = changes::PATIENCE;
        }
        for (number, node) in self.nodes.iter().enumerate() {
            world.add_node(node.config.clone());
            world.listen(number, PORT, 16, b"");
            world.edp_bind(number, PORT);
        }
        for station in &self.stations {
            world.join(station);
        }
        if self.forger > 0 {
            world.add_forger(self.forger);
        }
        for cut in &self.cuts {
            match cut.direction {
                Some(direction) => world.cut(cut.node, direction, cut.from, cut.lasts),
                None => world.partition(cut.node, cut.from, cut.lasts),
            }
        }
        for (at, action) in &self.actions {
            world.script(Instant::ZERO + *at, action.clone());
        }
        for flow in &self.flows {
            world.flow_plan(flow.clone());
        }
        world.run_to_end(LIMIT);
        world
    }

    /// Makes half of the programs report late what they read, and some of the connecting ones read
    /// through a buffer of a few packets, or of less than two.
    fn choose_readers(&mut self, rng: &mut Rng) {
        for flow in &mut self.flows {
            flow.active.reports_late = rng.chance(500_000);
            flow.passive.reports_late = rng.chance(500_000);
            let small = rng.magnitude(64, 1 << 14) as u32;
            if rng.chance(250_000) {
                let bytes = u32::try_from(flow.passive.write.total()).unwrap_or(u32::MAX);
                flow.active.rx_buffer = small.max(bytes / 100);
            }
        }
    }

    fn add_faults(&mut self, rng: &mut Rng) {
        let nodes = self.nodes.len() as u64;
        if rng.chance(300_000) {
            let direction = *rng.pick(&[None, None, Some(Direction::Up), Some(Direction::Down)]);
            let from = Duration::from_micros(rng.magnitude(1, 100_000));
            let lasts = Duration::from_micros(rng.magnitude(10, 2_000_000));
            self.cuts.push(Cut {
                node: rng.below(nodes) as usize,
                direction,
                from,
                lasts,
            });
        }
        let at = Duration::from_micros(rng.magnitude(1, 50_000));
        if rng.chance(100_000) {
            let node = rng.below(nodes) as usize;
            for flow in self
                .flows
                .iter_mut()
                .filter(|flow| flow.from == node || flow.to == node)
            {
                flow.may_fail = true;
            }
            self.actions.push((at, Action::Restart(node)));
        } else if rng.chance(200_000) && !self.flows.is_empty() {
            let flow = rng.below(self.flows.len() as u64) as usize;
            let side = *rng.pick(&[Side::Active, Side::Passive]);
            let reason = *rng.pick(&[
                ResetReason::Aborted,
                ResetReason::ProgramDied,
                ResetReason::Other(77),
            ]);
            self.flows[flow].may_fail = true;
            self.actions.push((at, Action::Abort(flow, side, reason)));
        }
    }

    /// Ends services at random times: up to four times, possibly those of several nodes at once.
    fn add_losses(&mut self, rng: &mut Rng) {
        // Where frames are altered, MOVE frames are, too.
        if self.hostile || !rng.chance(300_000) {
            return;
        }
        for _ in 0..rng.range(1, 4) {
            let node = rng.below(self.nodes.len() as u64) as usize;
            let at = Duration::from_micros(rng.magnitude(1, 300_000));
            let down = Duration::from_micros(rng.magnitude(1, 1_000_000));
            self.actions.push((at, Action::Lose(node, down)));
        }
    }

    fn add_datagrams(&mut self, rng: &mut Rng) {
        for _ in 0..rng.below(6) {
            let (from, to) = (
                rng.below(self.nodes.len() as u64) as usize,
                rng.below(self.nodes.len() as u64) as usize,
            );
            if from == to {
                continue;
            }
            let at = Duration::from_micros(rng.magnitude(1, 20_000));
            // A datagram that is too long with the headers of UDP is shortened when it is sent.
            let most = self.nodes[from].config.mtu.min(self.nodes[to].config.mtu) - 12;
            let bytes = rng.below(u64::from(most)) as usize;
            let kind = *rng.pick(&[EdpKind::EchoRequest, EdpKind::InfoRequest, EdpKind::Data]);
            let port = if kind == EdpKind::Data { PORT } else { 0 };
            let bytes = if kind == EdpKind::InfoRequest {
                0
            } else {
                bytes
            };
            let to_all = rng.chance(300_000) && port == 0 && !self.carrier.is_udp();
            let (to, bytes) = if to_all {
                (MacAddr::BROADCAST, bytes.min(64)) // W-78
            } else {
                (mac_of(to), bytes)
            };
            self.actions
                .push((at, Action::Datagram(from, PORT, to, port, kind, bytes)));
        }
    }
}

fn node(rng: &mut Rng, hostile: bool) -> NodePlan {
    let (mut links, make): Preset = *rng.pick(PRESETS);
    let mut link = make();
    if hostile {
        (links, link) = ("hostile", LinkConfig::hostile());
    }
    let mtu = *rng.pick(&[1500, 1500, 1500, 9000, 9000, 576, 128, 4000]);
    let black_hole = mtu > 1500 && rng.chance(200_000);
    if black_hole {
        link.mtu = 1500;
    }
    let endpoint = EndpointConfig {
        max_window: *rng.pick(&[1, 2, 4, 16, 64, 256, 1024, 1024, 4096]),
        max_ack_delay: *rng.pick(&[
            Duration::from_micros(200),
            Duration::from_micros(50),
            Duration::from_millis(1),
        ]),
        ..EndpointConfig::default()
    };
    let host = HostModel {
        wake: Duration::from_micros(*rng.pick(&[0, 2, 2, 20, 300])),
        per_frame: Duration::from_nanos(*rng.pick(&[100, 300, 1000])),
        batch: *rng.pick(&[1, 8, 64, 64]),
        ring: *rng.pick(&[32, 256, 4096]),
        timer_slack: Duration::from_micros(*rng.pick(&[0, 0, 50, 1000])),
        any_order: rng.chance(500_000),
    };
    NodePlan {
        links,
        black_hole,
        config: NodeConfig {
            endpoint,
            mtu,
            port: PortConfig::symmetric(link),
            host,
            protection: None,
        },
    }
}

/// Decides whether a node offers ECN, and at which length of the queue its switch port marks.
fn choose_ecn(rng: &mut Rng, config: &mut NodeConfig) {
    config.endpoint.ecn = rng.chance(700_000);
    config.port.down.mark = *rng.pick(&[None, Some(0), Some(1), Some(5), Some(20)]);
}

fn flows(rng: &mut Rng, nodes: &[NodePlan], hostile: bool) -> Vec<FlowPlan> {
    let count = rng.magnitude(1, 12);
    let budget = 600_000 / count;
    (0..count)
        .map(|number| {
            let from = rng.below(nodes.len() as u64) as usize;
            let mut to = rng.below(nodes.len() as u64) as usize;
            if to == from && !rng.chance(100_000) {
                to = (from + 1) % nodes.len();
            }
            let mut plan = FlowPlan::new(from, FIRST_PORT + number as u16, to, PORT);
            plan.start = Duration::from_micros(rng.magnitude(0, 20_000));
            plan.may_fail = hostile;
            plan.crossing = rng.chance(80_000);
            if plan.crossing {
                plan.to_port = FIRST_PORT + 100 + number as u16;
                // A SYN may meet a peer that has not called connect yet, unless both calls are at
                // one instant; on one node they are not.
                plan.may_fail |= from == to;
            }
            (plan.active, plan.passive) =
                programs(rng, budget, nodes[from].config.mtu, nodes[to].config.mtu);
            if hostile {
                // An altered length loses a byte, after which both programs would wait for ever.
                plan.active.end = End::Abort(
                    Duration::from_micros(rng.magnitude(100, 500_000)),
                    ResetReason::Aborted,
                );
            }
            plan
        })
        .collect()
}

fn programs(rng: &mut Rng, budget: u64, from_mtu: u32, to_mtu: u32) -> (SidePlan, SidePlan) {
    let mut active = side(rng, from_mtu);
    let mut passive = side(rng, to_mtu);
    // Small payloads need more frames for a given number of bytes.
    let budget = budget.min(500 * u64::from(from_mtu.min(to_mtu))).max(1);
    if rng.chance(250_000) {
        let size = rng.magnitude(1, 20_000.min(budget));
        let rounds = rng.magnitude(1, 60).min(budget / size) as u32;
        let size = size as u32;
        active.write = Write::Ask { size, rounds };
        passive.write = Write::Answer { size, rounds };
        // A message must fit the buffers: the writer of an answer waits for the whole question.
        for side in [&mut active, &mut passive] {
            side.pause = None;
        }
    } else {
        active.write = write(rng, budget);
        passive.write = write(rng, budget / 2);
    }
    for side in [&mut active, &mut passive] {
        // One buffer is sent each round trip: limit it to a few hundred of them.
        let bytes = u32::try_from(side.write.total()).unwrap_or(u32::MAX);
        side.tx_buffer = side.tx_buffer.max(bytes / 300);
    }
    match rng.below(4) {
        0 => active.end = End::AfterPeer,
        1 => passive.end = End::AfterPeer,
        _ => {}
    }
    passive.attach_after = Duration::from_micros(*rng.pick(&[0, 0, 0, 10, 1000, 100_000]));
    (active, passive)
}

fn side(rng: &mut Rng, mtu: u32) -> SidePlan {
    let least = min_listener_capacity(mtu);
    let pause = rng.chance(150_000).then(|| Pause {
        after: rng.magnitude(0, 100_000),
        lasts: Duration::from_micros(rng.magnitude(10, 3_000_000)),
    });
    SidePlan {
        tx_buffer: *rng.pick(&[1, 1000, 1 << 16, 1 << 20]),
        rx_buffer: (*rng.pick(&[1 << 12, 1 << 14, 1 << 16, 1 << 20])).max(least),
        pause,
        ..SidePlan::default()
    }
}

fn write(rng: &mut Rng, budget: u64) -> Write {
    let bytes = rng.magnitude(0, budget);
    if rng.chance(200_000) {
        let chunk = rng.magnitude(1, 5000).max(bytes / 100) as u32;
        return Write::Trickle {
            bytes,
            chunk,
            every: Duration::from_micros(rng.magnitude(1, 5000)),
        };
    }
    Write::Bulk(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_scenario_and_the_same_run() {
        for seed in [1, 2, 3] {
            let (a, b) = (Scenario::new(seed), Scenario::new(seed));
            assert_eq!(format!("{a:?}"), format!("{b:?}"));
            let (a, b) = (a.run(), b.run());
            assert_eq!((a.now(), a.checked()), (b.now(), b.checked()));
            assert_eq!(a.endpoint(0).counters(), b.endpoint(0).counters());
        }
    }

    #[test]
    fn seeds_give_many_kinds_of_scenario() {
        let all: Vec<Scenario> = (0..300).map(Scenario::new).collect();
        let some = |what: &dyn Fn(&Scenario) -> bool| all.iter().filter(|s| what(s)).count();
        assert!(some(&|s| s.hostile) > 5);
        for carrier in [Carrier::Raw, Carrier::Udp4, Carrier::Udp6] {
            assert!(some(&|s| s.carrier == carrier) > 50);
        }
        let offers = |node: &NodePlan| node.config.endpoint.ecn;
        assert!(some(&|s| s.nodes.iter().all(offers)) > 30);
        assert!(some(&|s| !s.nodes.iter().any(offers)) > 5);
        let marks = |node: &NodePlan| node.config.port.down.mark.is_some();
        assert!(some(&|s| s.nodes.iter().all(offers) && s.nodes.iter().all(marks)) > 10);
        assert!(some(&|s| !s.cuts.is_empty()) > 30);
        assert!(some(&|s| s.flows.iter().any(|f| f.crossing)) > 30);
        assert!(some(&|s| s.flows.iter().any(|f| f.from == f.to)) > 5);
        assert!(some(&|s| s.nodes.iter().any(|n| n.black_hole)) > 5);
        assert!(
            some(&|s| s
                .actions
                .iter()
                .any(|(_, a)| matches!(a, Action::Restart(_))))
                > 5
        );
        let losses = |(_, action): &(Duration, Action)| matches!(action, Action::Lose(..));
        assert!(some(&|s| s.actions.iter().any(losses)) > 50);
        assert!(some(&|s| s.flows.iter().any(|f| f.active.reports_late)) > 100);
        assert!(some(&|s| s.flows.iter().any(|f| f.active.rx_buffer < 1 << 12)) > 20);
    }
}
