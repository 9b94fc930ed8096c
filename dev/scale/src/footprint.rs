//! Memory of a node and of a peer, measured.

use crate::esp::{Config, Esp};
use crate::fabric::Topology;
use crate::process::resident;
use crate::world::World;

/// Nodes of the measurement.
const NODES: u32 = 1000;
/// Peers of each of them.
const PEERS: u32 = 64;

/// Resident bytes of ESP, including those of the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Footprint {
    /// Bytes of a node without connections.
    pub node: u64,
    /// Bytes of each end of an idle connection.
    pub peer: u64,
}

/// Measures both, by the growth of this process: no other thread must allocate in the meantime.
/// `None` where the system does not report its memory.
///
/// # Errors
/// A connection was not opened.
pub fn measure(mtu: u32) -> Result<Option<Footprint>, String> {
    let Some(before) = resident() else {
        return Ok(None);
    };
    let mut world = World::<Esp>::new(Topology::of(NODES), &Config::new(true, true, mtu), 1);
    let empty = resident().unwrap_or(before);
    let neighbours = |node| (1..=PEERS / 2).map(move |step| (node, (node + step) % NODES));
    world.set_up((0..NODES).flat_map(neighbours))?;
    let full = resident().unwrap_or(empty);
    let ends = u64::from(NODES) * u64::from(PEERS);
    Ok(Some(Footprint {
        node: empty.saturating_sub(before) / u64::from(NODES),
        peer: full.saturating_sub(empty) / ends,
    }))
}
