//! The network: a leaf-spine fabric of output-queued switches with shared buffers.
//!
//! ```text
//!   spine 0        spine 1   …            every leaf has one link to every spine
//!     │  ╲   ╱  ╲   ╱  │
//!   leaf 0        leaf 1     …            shared buffer, marks, drops
//!    ││││          ││││
//!    nodes         nodes
//! ```
//!
//! A port sends in order at a constant rate, so the time at which it will be idle determines its
//! queue: nothing is stored for a waiting frame, and it has one event for each hop. The room of a
//! frame in the shared buffer is freed when the frame reaches its next stop, one propagation delay
//! after it has left.

use crate::packet::{Head, Stop};
use crate::stats::Sizes;

/// Picoseconds of a nanosecond; ports count picoseconds, because a byte takes 80 of them at 100
/// Gbit/s.
pub const PS: u64 = 1000;

/// Shape and rates of the network.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Topology {
    /// Number of nodes.
    pub nodes: u32,
    /// Nodes of a leaf switch.
    pub per_leaf: u32,
    /// Number of spine switches.
    pub spines: u32,
    /// Rate of a node's link in Gbit/s.
    pub host_gbits: u32,
    /// Rate of a link between switches in Gbit/s.
    pub fabric_gbits: u32,
    /// Delay of each cable and the switch at its end, in nanoseconds.
    pub delay: u64,
    /// Shared buffer of a switch in bytes.
    pub buffer: u64,
    /// Length of the queue in KiB at which a port of 25 Gbit/s starts to mark frames; that of
    /// faster ports is proportionally greater.
    pub mark_kib: u32,
    /// Choice among equal paths.
    pub paths: Paths,
}

/// Choice among the spine switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Paths {
    /// By the hash of addresses and ports (ECMP).
    Ecmp,
    /// All frames through one spine switch, as with a spanning tree.
    Single,
}

impl Topology {
    /// Returns the default network of `nodes` nodes: leaf switches of 40 nodes at 25 Gbit/s, and
    /// as many links of 100 Gbit/s to spine switches as carry all of them.
    pub fn of(nodes: u32) -> Topology {
        let mut topology = Topology {
            nodes,
            per_leaf: 40,
            spines: 1,
            host_gbits: 25,
            fabric_gbits: 100,
            delay: 500,
            buffer: 12 << 20,
            mark_kib: 100,
            paths: Paths::Ecmp,
        };
        topology.spines = topology.full_spines();
        topology
    }

    /// Returns the number of spine switches that carry all traffic of a leaf's nodes.
    pub fn full_spines(&self) -> u32 {
        (self.per_leaf.min(self.nodes) * self.host_gbits).div_ceil(self.fabric_gbits)
    }

    /// Returns the number of leaf switches.
    pub fn leaves(&self) -> u32 {
        self.nodes.div_ceil(self.per_leaf)
    }

    /// Returns the leaf switch of a node.
    pub fn leaf(&self, node: u32) -> u32 {
        node / self.per_leaf
    }

    /// Returns the number of spine switches in use.
    pub fn used_spines(&self) -> u32 {
        match self.paths {
            Paths::Ecmp => self.spines,
            Paths::Single => 1,
        }
    }

    /// Returns the picoseconds that a byte takes on a node's link.
    pub fn host_ps(&self) -> u64 {
        8 * PS / u64::from(self.host_gbits)
    }

    /// Returns the picoseconds that a byte takes on a link between switches.
    pub fn fabric_ps(&self) -> u64 {
        8 * PS / u64::from(self.fabric_gbits)
    }
}

/// Frames that the fabric dropped and marked, and lengths of its queues.
#[derive(Clone, Debug, Default)]
pub struct FabricCounts {
    /// Dropped because the port had no more room in the shared buffer.
    pub dropped: u64,
    /// Lost on a link or in a switch that was down.
    pub lost: u64,
    /// Marked.
    pub marked: u64,
    /// Bytes before each frame in the queue of its port.
    pub queues: Sizes,
}

/// Ports of one rate.
#[derive(Debug)]
struct Ports {
    /// Picosecond at which each port has sent all it was given.
    free: Vec<u64>,
    /// Picoseconds of a byte.
    ps: u64,
    /// Length of the queue in bytes at which the port starts to mark frames.
    mark: u64,
}

/// The port has no room in the shared buffer: the frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full;

impl Ports {
    fn new(count: u32, ps: u64, topology: &Topology) -> Ports {
        // In proportion to the rate, so that the delay of a marked queue is that of 25 Gbit/s.
        let mark = u64::from(topology.mark_kib) * 1024 * 320 / ps;
        Ports {
            free: vec![0; count as usize],
            ps,
            mark,
        }
    }

    /// Puts a frame into the queue of a port and returns the nanosecond at which its last bit has
    /// left.
    fn send(
        &mut self,
        port: u32,
        now: u64,
        packet: &mut Head,
        pool: (&mut u64, u64),
        counts: &mut FabricCounts,
    ) -> Result<u64, Full> {
        let free = &mut self.free[port as usize];
        let start = (*free).max(now * PS);
        let queued = (start - now * PS) / self.ps;
        let (used, buffer) = pool;
        let wire = u64::from(packet.wire);
        // Dynamic threshold with alpha 1: a queue may be as long as the free part of the buffer.
        if queued + wire > buffer.saturating_sub(*used) {
            counts.dropped += 1;
            return Err(Full);
        }
        if packet.ect && queued > self.mark {
            counts.marked += u64::from(!packet.ce);
            packet.ce = true;
        }
        counts.queues.add(queued);
        *used += wire;
        *free = start + wire * self.ps;
        Ok(free.div_ceil(PS))
    }
}

/// State of the network.
#[derive(Debug)]
pub struct Fabric {
    /// Shape and rates.
    pub topology: Topology,
    /// Counts since the last [`Fabric::reset_counts`].
    pub counts: FabricCounts,
    /// To the nodes.
    down: Ports,
    /// From leaves to spines: leaf × spines + spine.
    up: Ports,
    /// From spines to leaves: spine × leaves + leaf.
    across: Ports,
    leaf_used: Vec<u64>,
    spine_used: Vec<u64>,
    /// Links that carry frames: leaf × spines + spine.
    alive: Vec<bool>,
    /// Links that the routing uses.
    routed: Vec<bool>,
    all_routed: bool,
}

impl Fabric {
    /// Creates an idle network.
    pub fn new(topology: Topology) -> Fabric {
        let (leaves, spines) = (topology.leaves(), topology.spines);
        let (host, fabric) = (topology.host_ps(), topology.fabric_ps());
        let links = (leaves * spines) as usize;
        Fabric {
            counts: FabricCounts::default(),
            down: Ports::new(topology.nodes, host, &topology),
            up: Ports::new(leaves * spines, fabric, &topology),
            across: Ports::new(leaves * spines, fabric, &topology),
            leaf_used: vec![0; leaves as usize],
            spine_used: vec![0; spines as usize],
            alive: vec![true; links],
            routed: vec![true; links],
            all_routed: true,
            topology,
        }
    }

    /// Sets all counts to zero.
    pub fn reset_counts(&mut self) {
        self.counts = FabricCounts::default();
    }

    /// Changes a link: whether it carries frames, and whether the routing uses it.
    pub fn set_link(&mut self, leaf: u32, spine: u32, alive: bool, routed: bool) {
        let link = (leaf * self.topology.spines + spine) as usize;
        self.alive[link] = alive;
        self.routed[link] = routed;
        self.all_routed = self.routed.iter().all(|routed| *routed);
    }

    /// Forwards a packet from the stop at which it has arrived. Returns the nanosecond of its
    /// arrival at the next one, which is noted in the packet; `None` when it is lost.
    pub fn forward(&mut self, now: u64, packet: &mut Head) -> Option<u64> {
        let Topology {
            spines,
            delay,
            buffer,
            ..
        } = self.topology;
        let leaves = self.topology.leaves();
        let leaf = |node| self.topology.leaf(node);
        let (from, to) = (leaf(packet.src), leaf(packet.dst));
        let counts = &mut self.counts;
        let (sent, next) = match packet.stop {
            Stop::First if from == to => {
                let pool = (&mut self.leaf_used[to as usize], buffer);
                let sent = self.down.send(packet.dst, now, packet, pool, counts);
                (sent, Stop::Host)
            }
            Stop::First => {
                let spine = self.choose(from, to, packet.hash);
                let link = from * spines + spine;
                if !self.alive[link as usize] {
                    self.counts.lost += 1;
                    return None;
                }
                let pool = (&mut self.leaf_used[from as usize], buffer);
                let counts = &mut self.counts;
                let sent = self.up.send(link, now, packet, pool, counts);
                (sent, Stop::Spine(spine as u16))
            }
            Stop::Spine(spine) => {
                free(&mut self.leaf_used[from as usize], packet.wire);
                let spine = u32::from(spine);
                if !self.alive[(to * spines + spine) as usize]
                    || !self.alive[(from * spines + spine) as usize]
                {
                    counts.lost += 1;
                    return None;
                }
                let pool = (&mut self.spine_used[spine as usize], buffer);
                let port = spine * leaves + to;
                let sent = self.across.send(port, now, packet, pool, counts);
                (sent, Stop::Last(spine as u16))
            }
            Stop::Last(spine) => {
                free(&mut self.spine_used[usize::from(spine)], packet.wire);
                let pool = (&mut self.leaf_used[to as usize], buffer);
                let sent = self.down.send(packet.dst, now, packet, pool, counts);
                (sent, Stop::Host)
            }
            Stop::Host => return Some(now),
        };
        packet.stop = next;
        sent.ok().map(|at| at + delay)
    }

    /// Frees the room of a packet that has reached its receiver.
    pub fn arrived(&mut self, packet: &Head) {
        let leaf = self.topology.leaf(packet.dst);
        free(&mut self.leaf_used[leaf as usize], packet.wire);
    }

    /// Returns the bytes that are in the buffers of all switches.
    pub fn buffered(&self) -> u64 {
        self.leaf_used.iter().chain(&self.spine_used).sum()
    }

    /// Chooses the spine switch for a hash, among those that the routing uses at both ends.
    fn choose(&self, from: u32, to: u32, hash: u32) -> u32 {
        let spines = self.topology.used_spines();
        if self.all_routed {
            return scaled(hash, spines);
        }
        let link = |leaf, spine| self.routed[(leaf * self.topology.spines + spine) as usize];
        let usable = || (0..self.topology.spines).filter(|s| link(from, *s) && link(to, *s));
        let count = usable().count() as u32;
        let spines = if spines == 1 { 1 } else { count };
        usable().nth(scaled(hash, spines) as usize).unwrap_or(0)
    }
}

/// Returns a number below `count` that is proportional to the hash.
fn scaled(hash: u32, count: u32) -> u32 {
    ((u64::from(hash) * u64::from(count)) >> 32) as u32
}

fn free(used: &mut u64, wire: u32) {
    *used = used.saturating_sub(u64::from(wire));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two leaf switches of 40 nodes, ten spine switches.
    fn fabric(change: impl FnOnce(&mut Topology)) -> Fabric {
        let mut topology = Topology::of(80);
        change(&mut topology);
        Fabric::new(topology)
    }

    fn packet(src: u32, dst: u32, hash: u32) -> Head {
        Head {
            src,
            dst,
            wire: 1538,
            hash,
            ect: true,
            ce: false,
            stop: Stop::First,
        }
    }

    /// Passes a packet through the fabric; returns its stops and the time of arrival.
    fn travel(fabric: &mut Fabric, mut packet: Head) -> (Vec<Stop>, Option<u64>) {
        let (mut stops, mut now) = (Vec::new(), 0);
        while packet.stop != Stop::Host {
            match fabric.forward(now, &mut packet) {
                Some(at) => now = at,
                None => return (stops, None),
            }
            stops.push(packet.stop);
        }
        fabric.arrived(&packet);
        (stops, Some(now))
    }

    #[test]
    fn packets_take_the_time_of_their_links() {
        let mut fabric = fabric(|_| ());
        let (stops, at) = travel(&mut fabric, packet(0, 79, 0));
        assert_eq!(stops, [Stop::Spine(0), Stop::Last(0), Stop::Host]);
        // 80 ps a byte twice, 320 ps once, each rounded up, and three cables.
        assert_eq!(at, Some(124 + 124 + 493 + 3 * 500));
        let (stops, at) = travel(&mut fabric, packet(0, 1, 0));
        assert_eq!((stops, at), (vec![Stop::Host], Some(493 + 500)));
        assert_eq!(fabric.buffered(), 0);
    }

    #[test]
    fn hashes_are_spread_over_the_spines() {
        let fabric = fabric(|_| ());
        let mut used = [0_u32; 10];
        for hash in 0..1000 {
            used[fabric.choose(0, 1, hash * 4_294_967) as usize] += 1;
        }
        assert!(
            used.iter().all(|count| (99..=101).contains(count)),
            "{used:?}"
        );
        let single = super::tests::fabric(|topology| topology.paths = Paths::Single);
        assert!((0..1000).all(|hash| single.choose(0, 1, hash * 4_294_967) == 0));
    }

    #[test]
    fn a_dead_link_loses_packets_until_the_routing_avoids_it() {
        let mut fabric = fabric(|_| ());
        fabric.set_link(1, 0, false, true);
        assert_eq!(travel(&mut fabric, packet(0, 79, 0)).1, None);
        assert_eq!((fabric.counts.lost, fabric.buffered()), (1, 0));
        fabric.set_link(1, 0, false, false);
        let (stops, at) = travel(&mut fabric, packet(0, 79, 0));
        assert!(at.is_some() && stops[0] == Stop::Spine(1), "{stops:?}");
        fabric.set_link(1, 0, true, true);
        assert_eq!(travel(&mut fabric, packet(0, 79, 0)).0[0], Stop::Spine(0));
    }

    #[test]
    fn queues_share_the_buffer() {
        let mut fabric = fabric(|topology| topology.buffer = 100 * 1538);
        let mut fill = |dst| {
            let sent = (0..200).filter(|_| fabric.forward(0, &mut packet(0, dst, 0)).is_some());
            sent.count()
        };
        // With alpha 1 one queue has half of the buffer, a second one half of the rest.
        assert_eq!((fill(1), fill(2)), (50, 25));
        assert_eq!(fabric.counts.dropped, 325);
        assert_eq!(fabric.buffered(), 75 * 1538);
    }

    #[test]
    fn long_queues_mark_what_understands_marks() {
        let mut fabric = fabric(|topology| topology.mark_kib = 15);
        let mut marked = Vec::new();
        for number in 0..20 {
            let mut head = packet(0, 1, 0);
            head.ect = number != 15;
            fabric.forward(0, &mut head);
            marked.push(head.ce);
        }
        // 9 frames are less than 15 KiB, 10 are more.
        assert!(marked[..10].iter().all(|ce| !ce) && !marked[15]);
        assert_eq!((marked[10], fabric.counts.marked), (true, 9));
    }
}
