//! Behaviour of whole worlds, one module for each topic. Every test is a deterministic run of one
//! seed on virtual time; `ESP_SIM_TRACE=1` prints the frames.

mod ecn;
mod forged;
mod protected;
mod rails;
mod restart;
mod trouble;

use esp_proto::{Duration, EndpointConfig};
use esp_sim::{NodeConfig, World};

/// Port of listeners.
pub const PORT: u16 = 2000;

/// Creates a world of `nodes` with this configuration, each listening.
pub fn world(seed: u64, nodes: usize, config: &NodeConfig) -> World {
    let mut world = World::new(seed);
    world.add_nodes(nodes, config);
    for node in 0..nodes {
        world.listen(node, PORT, 64, b"");
    }
    world
}

/// Returns the configuration of a node with changed parameters.
pub fn node(change: impl FnOnce(&mut EndpointConfig)) -> NodeConfig {
    let mut config = NodeConfig::default();
    change(&mut config.endpoint);
    config
}

/// Returns a duration in milliseconds.
pub fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns a duration in microseconds.
pub fn us(count: u64) -> Duration {
    Duration::from_micros(count)
}
