//! Measurements in virtual time: goodput by loss and window, fairness of flows that share a port,
//! and the effect of congestion marks.
//!
//! The numbers are exact, so `dev/sim/tables/*.txt` stores them as text and a test compares it.
//! They depend only on the protocol (windows, repair, congestion control), not on the machine.

mod ecn;
mod fairness;
mod goodput;

pub use ecn::ecn;
pub use fairness::{Burst, Incast, Shared, fairness};
pub use goodput::{Cell, Goodput, LOSSES, goodput};

use crate::plan::{End, FlowPlan};
use crate::world::World;
use esp_proto::Counters;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Port of listeners.
const PORT: u16 = 2000;
/// Room for the largest possible credit: 4096 packets of 8989 bytes.
const ROOM: u32 = 4096 * 9000;
/// More bytes than any run sends.
const ENDLESS: u64 = 1 << 50;

/// Runs `make` for all items on all cores and keeps their order.
fn parallel<T: Sync, R: Send>(items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((index, item)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|i| items.get(i).map(|item| (i, item)))
                {
                    let result = make(item);
                    results
                        .lock()
                        .expect("no panic with the lock")
                        .push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no panic with the lock");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns a flow that sends during the whole run.
fn endless(from: usize, to: usize) -> FlowPlan {
    let plan = FlowPlan::new(from, 40_000, to, PORT)
        .bulk(ENDLESS)
        .may_fail();
    plan.active(|side| (side.tx_buffer, side.end) = (ROOM, End::Never))
        .passive(|side| {
            (side.rx_buffer, side.end) = (ROOM, End::Never);
        })
}

/// Returns the sum of a counter over several nodes.
fn sum(world: &World, nodes: std::ops::RangeInclusive<usize>, which: fn(&Counters) -> u64) -> u64 {
    nodes
        .map(|node| which(world.endpoint(node).counters()))
        .sum()
}
