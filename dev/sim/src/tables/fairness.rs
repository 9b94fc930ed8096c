//! Many to one: sharing of a switch port with a shallow queue.

use super::{PORT, ROOM, endless, parallel, sum};
use crate::link::LinkConfig;
use crate::net::{Direction, PortConfig};
use crate::plan::FlowPlan;
use crate::world::{NodeConfig, World};
use esp_proto::{Duration, EndpointConfig, Instant};
use std::fmt::Write as _;

/// Length of the switch port's queue in frames.
const QUEUE: usize = 64;
/// Time limit for opening all flows.
const SET_UP_LIMIT: Instant = Instant::from_nanos(5_000_000_000);
/// Runs of a row, each with its own seed.
const SEEDS: u64 = 3;

/// Flows from several nodes to one, through its switch port.
#[derive(Clone, Copy, Debug)]
pub struct Incast {
    /// Number of flows, each from a node of its own.
    pub flows: usize,
    /// MTU.
    pub mtu: u32,
    /// Rate of all links in Gbit/s.
    pub gbits: u64,
    /// Virtual time measured, which starts with the first byte of the last flow.
    pub time: Duration,
    /// Length of the queue at which the port starts to mark, with ECN; `None`: without ECN.
    pub mark: Option<usize>,
}

/// Shares of the flows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shared {
    /// Payload of all flows in Mbit/s.
    pub mbits: f64,
    /// Payload of all flows relative to the port's capacity.
    pub used: f64,
    /// Jain's index of the flows' rates: 1 is equal.
    pub jain: f64,
    /// Rates of the slowest and the fastest flow in Mbit/s.
    pub extremes: (f64, f64),
    /// Longest time without a byte for any flow.
    pub stall: Duration,
    /// Share of the offered frames that the port dropped.
    pub dropped: f64,
    /// Packets retransmitted.
    pub again: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Mean and maximum number of frames that a frame finds in the port's queue.
    pub queue: (f64, usize),
    /// Share of the offered frames that the port marked.
    pub marked: f64,
}

fn world(flows: usize, mtu: u32, gbits: u64, mark: Option<usize>, seed: u64) -> World {
    let mut world = World::new(seed);
    let link = LinkConfig {
        rate: gbits * 1_000_000_000,
        ..LinkConfig::default()
    };
    let down = LinkConfig {
        queue: QUEUE,
        mark,
        ..link.clone()
    };
    // Some jitter, as between the clocks of real machines: without it, each frame of one flow
    // arrives exactly when one leaves the full queue, and the other flows are locked out.
    let up = LinkConfig {
        jitter: Duration::from_micros(2),
        ..link
    };
    let endpoint = EndpointConfig {
        ecn: mark.is_some(),
        ..EndpointConfig::default()
    };
    let config = NodeConfig {
        endpoint,
        mtu,
        port: PortConfig { up, down },
        ..NodeConfig::default()
    };
    world.add_nodes(flows + 1, &config);
    world.listen(0, PORT, 64, b"");
    world
}

impl Incast {
    /// Runs the flows with one seed.
    pub fn measure(&self, seed: u64) -> Shared {
        let mut world = world(self.flows, self.mtu, self.gbits, self.mark, seed);
        for flow in 0..self.flows {
            // Not at one instant, because jobs start with some jitter.
            world.flow_plan(endless(flow + 1, 0).at(Duration::from_micros(137 * flow as u64)));
        }
        // Set-up frames may be lost in a full queue and are repeated after 20 ms or more, which is
        // not measured here.
        while world.flows().iter().any(|flow| flow.passive.delivered == 0)
            && world.now() < SET_UP_LIMIT
        {
            world.run_for(Duration::from_millis(1));
        }
        let before: Vec<u64> = world
            .flows()
            .iter()
            .map(|flow| flow.passive.delivered)
            .collect();
        world.run_for(self.time);
        let flows = world.flows().iter().map(|flow| &flow.passive);
        let rate = |bytes: u64| bytes as f64 * 8.0 / self.time.as_secs_f64() / 1e6;
        let rates: Vec<f64> = flows
            .clone()
            .zip(before)
            .map(|(side, before)| rate(side.delivered - before))
            .collect();
        let (total, squares): (f64, f64) = (
            rates.iter().sum(),
            rates.iter().map(|rate| rate * rate).sum(),
        );
        let stalls = flows.map(|side| {
            let last = side.delivered_at.unwrap_or(Instant::ZERO);
            side.longest_gap.max(world.now().since(last))
        });
        let port = world.net().stats(0, Direction::Down);
        let payload = f64::from(self.mtu - 11);
        Shared {
            mbits: total,
            used: total / (1000.0 * self.gbits as f64 * payload / (payload + 49.0)),
            jain: total * total / (self.flows as f64 * squares),
            extremes: (
                rates.iter().copied().fold(f64::INFINITY, f64::min),
                rates.iter().copied().fold(0.0, f64::max),
            ),
            stall: stalls.max().unwrap_or_default(),
            dropped: port.tail_dropped as f64 / port.offered.max(1) as f64,
            again: sum(&world, 1..=self.flows, |c| c.tx_retransmits),
            timeouts: sum(&world, 1..=self.flows, |c| c.retransmit_timeouts),
            queue: (port.mean_queue(), port.queue_max),
            marked: port.marked as f64 / port.offered.max(1) as f64,
        }
    }

    /// Runs the flows with several seeds: rates, counts and the mean queue are means; Jain's index,
    /// extremes, stall and the longest queue are the worst values.
    pub fn measure_all(&self) -> Shared {
        let mut all = Shared {
            jain: 1.0,
            extremes: (f64::INFINITY, 0.0),
            ..Shared::default()
        };
        for seed in 1..=SEEDS {
            let one = self.measure(seed);
            all.mbits += one.mbits / SEEDS as f64;
            all.used += one.used / SEEDS as f64;
            all.dropped += one.dropped / SEEDS as f64;
            all.jain = all.jain.min(one.jain);
            all.extremes = (
                all.extremes.0.min(one.extremes.0),
                all.extremes.1.max(one.extremes.1),
            );
            all.stall = all.stall.max(one.stall);
            all.again += one.again;
            all.timeouts += one.timeouts;
            all.queue.0 += one.queue.0 / SEEDS as f64;
            all.queue.1 = all.queue.1.max(one.queue.1);
            all.marked += one.marked / SEEDS as f64;
        }
        (all.again, all.timeouts) = (all.again / SEEDS, all.timeouts / SEEDS);
        all
    }

    fn line(&self) -> String {
        let shared = self.measure_all();
        format!(
            "{:>6} {:>5} {:>5} {:>8.0} {:>6.3} {:>6.3} {:>7.0} {:>7.0} {:>9.2} {:>8.2} {:>7} {:>5}\n",
            self.gbits,
            self.mtu,
            self.flows,
            shared.mbits,
            shared.used,
            shared.jain,
            shared.extremes.0,
            shared.extremes.1,
            shared.stall.as_secs_f64() * 1e3,
            shared.dropped * 100.0,
            shared.again,
            shared.timeouts
        )
    }
}

/// Simultaneous blocks: several nodes each send one block to one node at one instant, on a new
/// connection; 1 Gbit/s, MTU 1500.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// Number of senders.
    pub flows: usize,
    /// Bytes of a block.
    pub bytes: u64,
    /// Length of the queue at which the port starts to mark, with ECN; `None`: without ECN.
    pub mark: Option<usize>,
}

impl Burst {
    /// Returns the time that the port needs for all blocks.
    pub fn ideal(&self) -> Duration {
        let frames = self.bytes.div_ceil(1489) * self.flows as u64;
        Duration::from_nanos((self.bytes * self.flows as u64 + 49 * frames) * 8)
            + Duration::from_micros(100)
    }

    /// Runs the flows; returns when the first and the last block were complete.
    pub fn measure(&self, seed: u64) -> (Duration, Duration, World) {
        let mut world = world(self.flows, 1500, 1, self.mark, seed);
        for flow in 0..self.flows {
            let plan = FlowPlan::new(flow + 1, 40_000, 0, PORT).bulk(self.bytes);
            world.flow_plan(plan.passive(|side| side.rx_buffer = ROOM));
        }
        world.run_to_end(Duration::from_secs(20));
        let done = world
            .flows()
            .iter()
            .filter_map(|flow| flow.passive.delivered_at)
            .map(|at| at.since(Instant::ZERO));
        let (first, last) = (
            done.clone().min().unwrap_or_default(),
            done.max().unwrap_or_default(),
        );
        (first, last, world)
    }

    fn line(&self) -> String {
        let (first, last, world) = self.measure(1);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        format!(
            "{:>5} {:>7} {:>9.2} {:>9.2} {:>9.2} {:>6.2} {:>7} {:>7} {:>5}\n",
            self.flows,
            self.bytes / 1024,
            millis(self.ideal()),
            millis(first),
            millis(last),
            millis(last) / millis(self.ideal()),
            world.net().stats(0, Direction::Down).tail_dropped,
            sum(&world, 1..=self.flows, |c| c.tx_retransmits),
            sum(&world, 1..=self.flows, |c| c.retransmit_timeouts)
        )
    }
}

const HEAD: &str = "\
Flows from as many nodes to one, whose switch port has a queue of 64 frames; round trip 50 us. Mean of three seeds; Jain, slowest,
fastest and stall: the worst of them. Use: payload rate of all flows by what the port can carry. Jain: fairness index of the flows'
rates, 1 is equal. Stall: longest time without a byte for any flow. Drops: by the port, of the frames offered to it.
Measured for half a second (1 Gbit/s) or 50 ms (10 Gbit/s) after all flows have begun.

";
const BURST_HEAD: &str = "
Each of the nodes sends one block on a new connection at one instant (1 Gbit/s, MTU 1500). Ideal: the port's time for all.

";

/// Returns the table.
pub fn fairness() -> String {
    let row = |gbits, mtu, millis| {
        move |flows| Incast {
            flows,
            mtu,
            gbits,
            time: Duration::from_millis(millis),
            mark: None,
        }
    };
    let mut rows = [1, 2, 4, 8, 16, 32].map(row(1, 1500, 500)).to_vec();
    rows.extend([1, 2, 4, 8, 16, 32].map(row(1, 9000, 500)));
    rows.extend([2, 4, 8, 16].map(row(10, 1500, 50)));
    let mut out = String::from(HEAD);
    let _ = writeln!(
        out,
        "{:>6} {:>5} {:>5} {:>8} {:>6} {:>6} {:>7} {:>7} {:>9} {:>8} {:>7} {:>5}",
        "Gbit/s",
        "MTU",
        "flows",
        "Mbit/s",
        "use",
        "Jain",
        "slowest",
        "fastest",
        "stall ms",
        "drops %",
        "again",
        "RTOs"
    );
    out.extend(parallel(&rows, Incast::line));
    out.push_str(BURST_HEAD);
    let _ = writeln!(
        out,
        "{:>5} {:>7} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7} {:>5}",
        "flows", "KiB", "ideal ms", "first ms", "last ms", "ratio", "drops", "again", "RTOs"
    );
    let rows: Vec<Burst> = [64 << 10, 1 << 20]
        .into_iter()
        .flat_map(|bytes| {
            [2, 4, 8, 16, 32].map(|flows| Burst {
                flows,
                bytes,
                mark: None,
            })
        })
        .collect();
    out.extend(parallel(&rows, Burst::line));
    out
}
