//! Many to one with and without congestion marks.

use super::fairness::{Burst, Incast};
use super::{parallel, sum};
use crate::net::Direction;
use esp_proto::Duration;
use std::fmt::Write as _;

/// Lengths of the queue at which the port starts to mark: none, and 20 frames.
const MARKS: [Option<usize>; 2] = [None, Some(20)];

const HEAD: &str = "\
Flows from as many nodes to one, as in fairness.txt, by ECN: \"20\" is the number of frames in the switch port's queue (of 64)
at which it starts to mark. Queue: frames that a frame finds there, on average and at most. Marks: of the frames offered to the
port. Measured for half a second (1 Gbit/s) or 50 ms (10 Gbit/s); drops, marks and queue include the set-up.

";
const BURST_HEAD: &str = "
Each of the nodes sends one block on a new connection at one instant (1 Gbit/s, MTU 1500). Ideal: the port's time for all.

";

fn name(mark: Option<usize>) -> String {
    mark.map_or_else(|| "off".into(), |frames| frames.to_string())
}

fn flows_line(row: &Incast) -> String {
    let shared = row.measure_all();
    format!(
        "{:>6} {:>5} {:>5} {:>4} {:>6.3} {:>6.3} {:>9.2} {:>7.1} {:>7} {:>8.2} {:>8.2} {:>7} {:>5}\n",
        row.gbits,
        row.mtu,
        row.flows,
        name(row.mark),
        shared.used,
        shared.jain,
        shared.stall.as_secs_f64() * 1e3,
        shared.queue.0,
        shared.queue.1,
        shared.marked * 100.0,
        shared.dropped * 100.0,
        shared.again,
        shared.timeouts
    )
}

fn burst_line(row: &Burst) -> String {
    let (first, last, world) = row.measure(1);
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let port = world.net().stats(0, Direction::Down);
    format!(
        "{:>5} {:>7} {:>4} {:>9.2} {:>9.2} {:>9.2} {:>6.2} {:>7.1} {:>7} {:>7} {:>7} {:>7} {:>5}\n",
        row.flows,
        row.bytes / 1024,
        name(row.mark),
        millis(row.ideal()),
        millis(first),
        millis(last),
        millis(last) / millis(row.ideal()),
        port.mean_queue(),
        port.queue_max,
        port.marked,
        port.tail_dropped,
        sum(&world, 1..=row.flows, |c| c.tx_retransmits),
        sum(&world, 1..=row.flows, |c| c.retransmit_timeouts)
    )
}

/// Returns the table.
pub fn ecn() -> String {
    let incast = |gbits, mtu, millis, flows: &[usize]| -> Vec<Incast> {
        let row = |flows| {
            MARKS.map(|mark| Incast {
                flows,
                mtu,
                gbits,
                time: Duration::from_millis(millis),
                mark,
            })
        };
        flows.iter().flat_map(|flows| row(*flows)).collect()
    };
    let mut rows = incast(1, 1500, 500, &[1, 2, 4, 8, 16, 32]);
    rows.extend(incast(1, 9000, 500, &[2, 8]));
    rows.extend(incast(10, 1500, 50, &[2, 4, 8, 16]));
    let mut out = String::from(HEAD);
    let _ = writeln!(
        out,
        "{:>6} {:>5} {:>5} {:>4} {:>6} {:>6} {:>9} {:>7} {:>7} {:>8} {:>8} {:>7} {:>5}",
        "Gbit/s",
        "MTU",
        "flows",
        "ECN",
        "use",
        "Jain",
        "stall ms",
        "queue",
        "most",
        "marks %",
        "drops %",
        "again",
        "RTOs"
    );
    out.extend(parallel(&rows, flows_line));
    out.push_str(BURST_HEAD);
    let _ = writeln!(
        out,
        "{:>5} {:>7} {:>4} {:>9} {:>9} {:>9} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>5}",
        "flows",
        "KiB",
        "ECN",
        "ideal ms",
        "first ms",
        "last ms",
        "ratio",
        "queue",
        "most",
        "marks",
        "drops",
        "again",
        "RTOs"
    );
    let mut rows = Vec::new();
    for bytes in [64 << 10, 1 << 20] {
        for flows in [4, 8, 16, 32] {
            rows.extend(MARKS.map(|mark| Burst { flows, bytes, mark }));
        }
    }
    out.extend(parallel(&rows, burst_line));
    out
}
