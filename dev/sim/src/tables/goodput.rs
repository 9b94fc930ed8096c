//! Goodput by loss and window, and goodput of hosts that wake slowly.

use super::{PORT, endless, parallel};
use crate::link::{LinkConfig, Loss};
use crate::net::{Direction, PortConfig};
use crate::world::{HostModel, NodeConfig, World};
use esp_proto::{Duration, EndpointConfig, Instant};
use std::fmt::Write as _;

/// Virtual time of one cell, including set-up and slow start.
const TIME: Duration = Duration::from_millis(60);

/// The kinds of loss in the table.
pub const LOSSES: [(&str, Loss); 8] = [
    ("none", Loss::None),
    ("0.1 %", Loss::Random(1_000)),
    ("1 %", Loss::Random(10_000)),
    ("3 %", Loss::Random(30_000)),
    ("10 %", Loss::Random(100_000)),
    (
        "0.1 % x4",
        Loss::Bursty {
            enter: 250,
            leave: 250_000,
        },
    ),
    (
        "1 % x4",
        Loss::Bursty {
            enter: 2_525,
            leave: 250_000,
        },
    ),
    (
        "3 % x8",
        Loss::Bursty {
            enter: 3_866,
            leave: 125_000,
        },
    ),
];

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// MTU.
    pub mtu: u32,
    /// Name and kind of loss, in both directions.
    pub loss: (&'static str, Loss),
    /// Maximum number of outstanding packets.
    pub window: u16,
    /// A host that takes up to this long to wake and a microsecond for each frame, on a link of 40
    /// Gbit/s.
    pub slow: Option<Duration>,
}

/// Goodput and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Goodput {
    /// Payload in Mbit/s.
    pub mbits: f64,
    /// Packets sent, retransmissions excluded.
    pub sent: u64,
    /// Packets retransmitted.
    pub again: u64,
    /// Frames of the sender lost.
    pub lost: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail-loss probes.
    pub probes: u64,
}

impl Cell {
    /// Measures the cell.
    pub fn measure(&self) -> Goodput {
        let mut world = World::new(u64::from(self.mtu) ^ u64::from(self.window));
        let mut up = LinkConfig {
            loss: self.loss.1,
            ..LinkConfig::default()
        };
        let mut host = HostModel::default();
        if let Some(wake) = self.slow {
            (up.rate, up.delay) = (40_000_000_000, Duration::from_micros(2));
            (host.wake, host.per_frame) = (wake, Duration::from_micros(1));
        }
        let down = LinkConfig {
            loss: Loss::None,
            ..up.clone()
        };
        let config = NodeConfig {
            endpoint: EndpointConfig {
                max_window: self.window,
                ..EndpointConfig::default()
            },
            mtu: self.mtu,
            port: PortConfig { up, down },
            host,
            protection: None,
        };
        world.add_nodes(2, &config);
        world.listen(1, PORT, 1, b"");
        let flow = world.flow_plan(endless(0, 1));
        world.run_until(Instant::ZERO + TIME);
        let counters = world.endpoint(0).counters();
        Goodput {
            mbits: world.flow(flow).passive.delivered as f64 * 8.0 / TIME.as_secs_f64() / 1e6,
            sent: counters.tx_data,
            again: counters.tx_retransmits,
            lost: world.net().stats(0, Direction::Up).lost,
            timeouts: counters.retransmit_timeouts,
            probes: counters.tail_probes,
        }
    }

    /// Returns true for the cell to compare with, which differs in loss only.
    fn same_but_loss(&self, other: &Cell) -> bool {
        (self.mtu, self.window, self.slow) == (other.mtu, other.window, other.slow)
    }
}

const HEAD: &str = "\
Goodput by loss and window. One flow of 60 ms over 10 Gbit/s, round trip 50 us, both directions lossy; \"x4\": in bursts of
four on average. Window: the most packets outstanding. Share: of the same window without loss. Repaired: packets sent
again for each one lost. Computed in virtual time: exact, and equal on every machine.
";
const SLOW_HEAD: &str = "
Goodput between hosts that need 1 us for a frame and up to the given time to wake, over 40 Gbit/s: here round trips are made by
the hosts, and the link is as full as the hosts can make it.
";

fn lines(out: &mut String, cells: &[Cell]) {
    let results = parallel(cells, Cell::measure);
    let _ = writeln!(
        out,
        "\n{:>5} {:>7} {:>9} {:>7} {:>9} {:>7} {:>8} {:>7} {:>7} {:>8} {:>5} {:>6}",
        "MTU",
        "wake us",
        "loss",
        "window",
        "Mbit/s",
        "share",
        "packets",
        "lost",
        "again",
        "repaired",
        "RTOs",
        "probes"
    );
    for (cell, result) in cells.iter().zip(&results) {
        // The first cell of its kind is the one without loss.
        let whole = cells
            .iter()
            .zip(&results)
            .find(|(other, _)| cell.same_but_loss(other))
            .map_or(1.0, |w| w.1.mbits);
        let repaired = match result.lost {
            0 => "-".into(),
            lost => format!("{:.2}", result.again as f64 / lost as f64),
        };
        let _ = writeln!(
            out,
            "{:>5} {:>7} {:>9} {:>7} {:>9.0} {:>7.2} {:>8} {:>7} {:>7} {:>8} {:>5} {:>6}",
            cell.mtu,
            cell.slow.map_or(2, |wake| wake.as_micros()),
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
}

/// Returns the table.
pub fn goodput() -> String {
    let mut cells = Vec::new();
    for mtu in [1500, 9000] {
        for loss in LOSSES {
            cells.extend([16, 64, 256, 1024].map(|window| Cell {
                mtu,
                loss,
                window,
                slow: None,
            }));
        }
    }
    let mut out = String::from(HEAD);
    lines(&mut out, &cells);
    out.push_str(SLOW_HEAD);
    let mut cells = Vec::new();
    for wake in [5, 50, 200] {
        let slow = Some(Duration::from_micros(wake));
        cells.extend(LOSSES[..4].iter().map(|loss| Cell {
            mtu: 1500,
            loss: *loss,
            window: 1024,
            slow,
        }));
    }
    lines(&mut out, &cells);
    out
}
