//! Lower bounds of completion times, from the topology alone: no transport can be faster.
//!
//! A bound counts the payload with the minimum overhead of Ethernet, each link's rate, and the
//! delays of cables; the load of a leaf switch is spread over its links to the spine switches
//! evenly. It contains neither acknowledgements nor headers above Ethernet, nor the time of a node.

use crate::fabric::{PS, Topology};
use crate::packet::ETHERNET;

/// Returns the bytes of link time of a message's frames without any header above Ethernet.
pub fn min_wire(bytes: u64, mtu: u32) -> u64 {
    let frames = bytes.div_ceil(u64::from(mtu));
    (bytes + frames * u64::from(ETHERNET)).max(84)
}

/// Load of all links, and earliest times of all nodes, while the messages of each round are added.
#[derive(Debug)]
pub struct Bound<'a> {
    topology: &'a Topology,
    mtu: u32,
    /// Earliest picosecond at which a node can begin the current round, and then the next.
    begin: Vec<u64>,
    /// Of the current round.
    earliest_source: Vec<u64>,
    latest_arrival: Vec<u64>,
    received: Vec<u64>,
    /// Bytes sent and received by nodes, and out of and into leaf switches, in all rounds.
    loads: [Vec<u64>; 4],
}

impl<'a> Bound<'a> {
    /// Creates the bound of no messages.
    pub fn new(topology: &'a Topology, mtu: u32) -> Bound<'a> {
        let zeros = |len| vec![0; len as usize];
        let (nodes, leaves) = (topology.nodes, topology.leaves());
        Bound {
            topology,
            mtu,
            begin: zeros(nodes),
            earliest_source: vec![u64::MAX; nodes as usize],
            latest_arrival: zeros(nodes),
            received: zeros(nodes),
            loads: [zeros(nodes), zeros(nodes), zeros(leaves), zeros(leaves)],
        }
    }

    /// Adds a message to the current round.
    pub fn message(&mut self, from: u32, to: u32, bytes: u64) {
        let wire = min_wire(bytes, self.mtu);
        let (a, b) = (from as usize, to as usize);
        let leaf = |node| self.topology.leaf(node) as usize;
        let (out, into) = (leaf(from), leaf(to));
        self.loads[0][a] += wire;
        self.loads[1][b] += wire;
        if out != into {
            self.loads[2][out] += wire;
            self.loads[3][into] += wire;
        }
        let trip = self.trip(from, to) + wire * self.topology.host_ps();
        self.latest_arrival[b] = self.latest_arrival[b].max(self.begin[a] + trip);
        self.earliest_source[b] = self.earliest_source[b].min(self.begin[a]);
        self.received[b] += wire;
    }

    /// Ends a round: no node begins the next one before it has received all messages of this one.
    pub fn end_round(&mut self) {
        for node in 0..self.begin.len() {
            if self.received[node] > 0 {
                let all = self.received[node] * self.topology.host_ps();
                let link = self.earliest_source[node] + all + 2 * self.topology.delay * PS;
                let begin = self.begin[node].max(link).max(self.latest_arrival[node]);
                self.begin[node] = begin;
            }
            self.received[node] = 0;
            self.latest_arrival[node] = 0;
            self.earliest_source[node] = u64::MAX;
        }
    }

    /// Returns the earliest nanosecond at which all messages can have arrived.
    pub fn nanos(&self) -> u64 {
        let topology = self.topology;
        let most = |load: &Vec<u64>| load.iter().max().copied().unwrap_or(0);
        let [sent, received, out, into] = &self.loads;
        let host = most(sent).max(most(received)) * topology.host_ps();
        let spines = u64::from(topology.used_spines());
        let fabric = most(out).max(most(into)) * topology.fabric_ps() / spines;
        let rounds = most(&self.begin);
        (host.max(fabric) + 2 * topology.delay * PS).max(rounds) / PS
    }

    /// Returns the picoseconds of cables and switches between two nodes.
    fn trip(&self, from: u32, to: u32) -> u64 {
        let hops = if self.topology.leaf(from) == self.topology.leaf(to) {
            2
        } else {
            4
        };
        hops * self.topology.delay * PS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        Topology::of(80)
    }

    #[test]
    fn incast_is_bound_by_the_receivers_port() {
        let topology = topology();
        let mut bound = Bound::new(&topology, 1500);
        for from in 1..=10 {
            bound.message(from, 0, 15_000);
        }
        bound.end_round();
        // 10 messages of 10 frames at 320 ps per byte, and two cables.
        assert_eq!(bound.nanos(), 10 * 10 * 1538 * 320 / 1000 + 1000);
    }

    #[test]
    fn a_single_path_is_bound_by_its_link() {
        let mut topology = topology();
        topology.paths = crate::fabric::Paths::Single;
        let mut bound = Bound::new(&topology, 1500);
        for node in 0..40 {
            bound.message(node, 40 + node, 1500);
        }
        bound.end_round();
        assert_eq!(bound.nanos(), 40 * 1538 * 80 / 1000 + 1000);
    }

    #[test]
    fn rounds_follow_each_other() {
        let topology = topology();
        let mut bound = Bound::new(&topology, 1500);
        for _ in 0..5 {
            bound.message(0, 1, 64);
            bound.message(1, 0, 64);
            bound.end_round();
        }
        // 102 bytes, and two cables of half a microsecond, five times.
        assert_eq!(bound.nanos(), 5 * (102 * 320 + 1_000_000) / 1000);
    }

    #[test]
    fn short_messages_take_a_least_frame() {
        assert_eq!([1, 1500, 1501].map(|n| min_wire(n, 1500)), [84, 1538, 1577]);
    }
}
