//! Measurements in virtual time: goodput by loss and window, fairness of flows that share a port.
//!
//! The numbers are exact, so `esp-sim/tables/*.txt` holds them as text and a test compares. They speak of the
//! protocol's rules alone (windows, repair, congestion control); the machine's speed does not enter.

use crate::link::{LinkConfig, Loss};
use crate::net::{Direction, PortConfig};
use crate::plan::{End, FlowPlan};
use crate::world::{NodeConfig, World};
use esp_proto::{Duration, EndpointConfig, Instant};
use std::fmt::Write as _;
use std::sync::Mutex;

/// Port of listeners.
const PORT: u16 = 2000;
/// Room for the largest credit there is: 4096 packets of 8989 bytes.
const ROOM: u32 = 4096 * 9000;
/// More than any run sends.
const ENDLESS: u64 = 1 << 50;
/// Virtual time of one cell of the goodput table, set-up and slow start included.
const GOODPUT_TIME: Duration = Duration::from_millis(60);
/// Virtual time of a row of the fairness table.
const FAIRNESS_TIME: Duration = Duration::from_secs(1);

/// Runs `make` for all items on all cores and keeps their order.
fn parallel<T: Sync, R: Send>(items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(index) = Some(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                    .filter(|index| *index < items.len())
                {
                    *results[index].lock().expect("no panic with the lock") = Some(make(&items[index]));
                }
            });
        }
    });
    results.into_iter().filter_map(|cell| cell.into_inner().expect("no panic with the lock")).collect()
}

fn endless(from: usize, from_port: u16, to: usize) -> FlowPlan {
    let plan = FlowPlan::new(from, from_port, to, PORT).bulk(ENDLESS).may_fail();
    plan.active(|side| (side.tx_buffer, side.end) = (ROOM, End::Never)).passive(|side| {
        (side.rx_buffer, side.end) = (ROOM, End::Never);
    })
}

/// One cell of the goodput table.
#[derive(Clone, Copy, Debug)]
struct Cell {
    mtu: u32,
    loss: (&'static str, Loss),
    window: u16,
}

const LOSSES: [(&str, Loss); 8] = [
    ("none", Loss::None),
    ("0.1 %", Loss::Random(1_000)),
    ("1 %", Loss::Random(10_000)),
    ("3 %", Loss::Random(30_000)),
    ("10 %", Loss::Random(100_000)),
    ("0.1 % x4", Loss::Bursty { enter: 250, leave: 250_000 }),
    ("1 % x4", Loss::Bursty { enter: 2_525, leave: 250_000 }),
    ("3 % x8", Loss::Bursty { enter: 3_866, leave: 125_000 }),
];

/// Goodput in Mbit/s and what it cost.
#[derive(Clone, Copy, Debug)]
struct Goodput {
    mbits: f64,
    sent: u64,
    again: u64,
    lost: u64,
    timeouts: u64,
    probes: u64,
}

fn measure(cell: &Cell) -> Goodput {
    let mut world = World::new(u64::from(cell.mtu) ^ u64::from(cell.window));
    let up = LinkConfig { loss: cell.loss.1, ..LinkConfig::default() };
    let config = NodeConfig {
        endpoint: EndpointConfig { max_window: cell.window, ..EndpointConfig::default() },
        mtu: cell.mtu,
        port: PortConfig { up, down: LinkConfig::default() },
        ..NodeConfig::default()
    };
    world.add_nodes(2, &config);
    world.listen(1, PORT, 1, b"");
    let flow = world.flow_plan(endless(0, 40_000, 1));
    world.run_until(Instant::ZERO + GOODPUT_TIME);
    let counters = world.endpoint(0).counters();
    Goodput {
        mbits: world.flow(flow).passive.delivered as f64 * 8.0 / GOODPUT_TIME.as_secs_f64() / 1e6,
        sent: counters.tx_data,
        again: counters.tx_retransmits,
        lost: world.net().stats(0, Direction::Up).lost,
        timeouts: counters.retransmit_timeouts,
        probes: counters.tail_probes,
    }
}

/// Goodput × loss × window.
pub fn goodput() -> String {
    let mut cells = Vec::new();
    for mtu in [1500, 9000] {
        for loss in LOSSES {
            cells.extend([16, 64, 256, 1024].map(|window| Cell { mtu, loss, window }));
        }
    }
    let results = parallel(&cells, measure);
    let mut out = String::from(
        "Goodput by loss and window. One flow of 60 ms over 10 Gbit/s, round trip 50 us, both directions lossy; \"x4\": in bursts of\n\
         four on average. Window: the most packets outstanding. Share: of the same window without loss. Repaired: packets sent\n\
         again for each one lost. Computed in virtual time: exact, the same on every machine.\n\n",
    );
    let _ = writeln!(
        out,
        "{:>5} {:>9} {:>7} {:>9} {:>7} {:>8} {:>7} {:>7} {:>8} {:>5} {:>6}",
        "MTU", "loss", "window", "Mbit/s", "share", "packets", "lost", "again", "repaired", "RTOs", "probes"
    );
    for (cell, result) in cells.iter().zip(&results) {
        let same = |other: &&(&Cell, &Goodput)| (other.0.mtu, other.0.window) == (cell.mtu, cell.window);
        let whole = cells.iter().zip(&results).find(|other| same(&other)).map_or(1.0, |other| other.1.mbits);
        let repaired = if result.lost == 0 {
            "-".into()
        } else {
            format!("{:.2}", result.again as f64 / result.lost as f64)
        };
        let _ = writeln!(
            out,
            "{:>5} {:>9} {:>7} {:>9.0} {:>7.2} {:>8} {:>7} {:>7} {:>8} {:>5} {:>6}",
            cell.mtu,
            cell.loss.0,
            cell.window,
            result.mbits,
            result.mbits / whole,
            result.sent,
            result.lost,
            result.again,
            repaired,
            result.timeouts,
            result.probes
        );
    }
    out
}

/// Flows from as many nodes to one, through its switch port.
fn incast_world(flows: usize, mtu: u32, seed: u64) -> World {
    let mut world = World::new(seed);
    let port = PortConfig::symmetric(LinkConfig { queue: 64, ..LinkConfig::gigabit() });
    let config = NodeConfig { mtu, port, ..NodeConfig::default() };
    world.add_nodes(flows + 1, &config);
    world.listen(0, PORT, 64, b"");
    world
}

fn fairness_row(&(flows, mtu): &(usize, u32)) -> String {
    let mut world = incast_world(flows, mtu, flows as u64);
    for flow in 0..flows {
        // Not at one instant: jobs start in some disorder.
        let start = Duration::from_micros(137 * flow as u64);
        world.flow_plan(endless(flow + 1, 40_000, 0).at(start));
    }
    world.run_until(Instant::ZERO + FAIRNESS_TIME);
    let rates: Vec<f64> = world
        .flows()
        .iter()
        .map(|flow| flow.passive.delivered as f64 * 8.0 / FAIRNESS_TIME.as_secs_f64() / 1e6)
        .collect();
    let (sum, squares): (f64, f64) = (rates.iter().sum(), rates.iter().map(|rate| rate * rate).sum());
    let stall = world.flows().iter().map(|flow| {
        let last = flow.passive.delivered_at.unwrap_or(Instant::ZERO);
        flow.passive.longest_gap.max(world.now().since(last))
    });
    let port = world.net().stats(0, Direction::Down);
    let count = |which: fn(&esp_proto::Counters) -> u64| -> u64 {
        (1..=flows).map(|node| which(world.endpoint(node).counters())).sum()
    };
    let payload = f64::from(mtu - 11);
    let most = 1000.0 * payload / (payload + 49.0);
    format!(
        "{flows:>5} {mtu:>5} {sum:>8.0} {:>6.3} {:>6.3} {:>7.0} {:>7.0} {:>9.2} {:>8.2} {:>7} {:>5}\n",
        sum / most,
        sum * sum / (flows as f64 * squares),
        rates.iter().copied().fold(f64::INFINITY, f64::min),
        rates.iter().copied().fold(0.0, f64::max),
        stall.max().unwrap_or_default().as_secs_f64() * 1e3,
        port.tail_dropped as f64 * 100.0 / port.offered.max(1) as f64,
        count(|c| c.tx_retransmits),
        count(|c| c.retransmit_timeouts)
    )
}

fn burst_row(&(flows, bytes): &(usize, u64)) -> String {
    let mut world = incast_world(flows, 1500, 1000 + flows as u64);
    for flow in 0..flows {
        let plan = FlowPlan::new(flow + 1, 40_000, 0, PORT).bulk(bytes);
        world.flow_plan(plan.passive(|side| side.rx_buffer = ROOM));
    }
    world.run_to_end(Duration::from_secs(20));
    let done: Vec<Duration> = world
        .flows()
        .iter()
        .filter_map(|flow| flow.passive.delivered_at)
        .map(|at| at.since(Instant::ZERO))
        .collect();
    let (first, last) =
        (done.iter().min().copied().unwrap_or_default(), done.iter().max().copied().unwrap_or_default());
    let frames = bytes.div_ceil(1489) * flows as u64;
    let ideal = Duration::from_nanos((bytes * flows as u64 + 49 * frames) * 8) + Duration::from_micros(100);
    let count = |which: fn(&esp_proto::Counters) -> u64| -> u64 {
        (1..=flows).map(|node| which(world.endpoint(node).counters())).sum()
    };
    format!(
        "{flows:>5} {:>7} {:>9.2} {:>9.2} {:>9.2} {:>6.2} {:>7} {:>7} {:>5}\n",
        bytes / 1024,
        ideal.as_secs_f64() * 1e3,
        first.as_secs_f64() * 1e3,
        last.as_secs_f64() * 1e3,
        last.as_secs_f64() / ideal.as_secs_f64(),
        world.net().stats(0, Direction::Down).tail_dropped,
        count(|c| c.tx_retransmits),
        count(|c| c.retransmit_timeouts)
    )
}

/// Fairness and incast.
pub fn fairness() -> String {
    let rows: Vec<(usize, u32)> =
        [1500, 9000].into_iter().flat_map(|mtu| [1, 2, 4, 8, 16, 32].map(|n| (n, mtu))).collect();
    let mut out = String::from(
        "Flows from as many nodes to one, whose switch port has 1 Gbit/s and a queue of 64 frames; round trip 50 us, 1 s.\n\
         Use: payload rate of all flows by what the port can carry. Jain: fairness index of the flows' rates, 1 is equal. Stall: longest\n\
         time without a byte for any flow. Drops: by the port, of the frames offered to it.\n\n",
    );
    let _ = writeln!(
        out,
        "{:>5} {:>5} {:>8} {:>6} {:>6} {:>7} {:>7} {:>9} {:>8} {:>7} {:>5}",
        "flows", "MTU", "Mbit/s", "use", "Jain", "slowest", "fastest", "stall ms", "drops %", "again", "RTOs"
    );
    out.extend(parallel(&rows, fairness_row));
    out.push_str(
        "\nThe same nodes, each sends one block on a new connection at the same instant (MTU 1500). Ideal: the port's time for all.\n\n",
    );
    let rows: Vec<(usize, u64)> =
        [64 << 10, 1 << 20].into_iter().flat_map(|bytes| [2, 4, 8, 16, 32].map(|n| (n, bytes))).collect();
    let _ = writeln!(
        out,
        "{:>5} {:>7} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7} {:>5}",
        "flows", "KiB", "ideal ms", "first ms", "last ms", "ratio", "drops", "again", "RTOs"
    );
    out.extend(parallel(&rows, burst_row));
    out
}
