//! The messages of each workload.

use crate::rounds::Pattern;

/// Groups of one receiver and `fan` senders each, which are neighbours: receivers are on different
/// leaf switches.
#[derive(Debug)]
pub(super) struct Incast {
    pub(super) groups: u32,
    pub(super) fan: u32,
    pub(super) bytes: u64,
}

impl Pattern for Incast {
    fn rounds(&self) -> u32 {
        1
    }

    fn sends(&self, node: u32, _: u32, send: &mut dyn FnMut(u32, u64)) {
        let size = self.fan + 1;
        if node < self.groups * size && !node.is_multiple_of(size) {
            send(node / size * size, self.bytes);
        }
    }

    fn expects(&self, node: u32, _: u32) -> u32 {
        let size = self.fan + 1;
        let receives = node < self.groups * size && node.is_multiple_of(size);
        if receives { self.fan } else { 0 }
    }
}

/// Every node sends to `partners` others at once, first to the next ones: no two nodes begin with
/// one receiver.
#[derive(Debug)]
pub(super) struct AllToAll {
    pub(super) nodes: u32,
    pub(super) partners: u32,
    pub(super) bytes: u64,
}

impl Pattern for AllToAll {
    fn rounds(&self) -> u32 {
        1
    }

    fn sends(&self, node: u32, _: u32, send: &mut dyn FnMut(u32, u64)) {
        // Evenly over all nodes, so that most messages pass the spine switches.
        let step = (self.nodes - 1) / self.partners;
        for partner in 0..self.partners {
            send((node + 1 + partner * step) % self.nodes, self.bytes);
        }
    }

    fn expects(&self, _: u32, _: u32) -> u32 {
        self.partners
    }
}

/// A torus of three dimensions: every node exchanges with its six neighbours in each round.
#[derive(Debug)]
pub(super) struct Halo {
    sides: [u32; 3],
    rounds: u32,
    bytes: u64,
}

impl Halo {
    /// Creates the torus of at most `nodes` nodes that is closest to a cube.
    pub(super) fn new(nodes: u32, rounds: u32, bytes: u64) -> Halo {
        let mut best = [1, 1, nodes];
        let worth = |[a, b, c]: [u32; 3]| (a * b * c / 16, std::cmp::Reverse(c - a));
        for a in (1..=nodes).take_while(|a| a * a * a <= nodes) {
            for b in (a..=nodes / a).take_while(|b| a * b * b <= nodes) {
                let sides = [a, b, nodes / (a * b)];
                if worth(sides) > worth(best) {
                    best = sides;
                }
            }
        }
        Halo {
            sides: best,
            rounds,
            bytes,
        }
    }

    /// Returns the sides of the torus.
    pub(super) fn sides(&self) -> [u32; 3] {
        self.sides
    }

    /// Calls `each` with the neighbours of a node, which may contain one twice or the node itself
    /// where a side is short.
    fn neighbours(&self, node: u32, mut each: impl FnMut(u32)) {
        let [a, b, c] = self.sides;
        if node >= a * b * c {
            return;
        }
        let (x, y, z) = (node % a, node / a % b, node / (a * b));
        let at = |x: u32, y: u32, z: u32| x + a * (y + b * z);
        for other in [
            at((x + 1) % a, y, z),
            at((x + a - 1) % a, y, z),
            at(x, (y + 1) % b, z),
            at(x, (y + b - 1) % b, z),
            at(x, y, (z + 1) % c),
            at(x, y, (z + c - 1) % c),
        ] {
            if other != node {
                each(other);
            }
        }
    }
}

impl Pattern for Halo {
    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn sends(&self, node: u32, _: u32, send: &mut dyn FnMut(u32, u64)) {
        self.neighbours(node, |other| send(other, self.bytes));
    }

    fn expects(&self, node: u32, _: u32) -> u32 {
        let mut count = 0;
        self.neighbours(node, |_| count += 1);
        count
    }
}

/// Start of a job: every rank sends a short message to its neighbours of a torus, and to the
/// partners of a recursive doubling.
#[derive(Debug)]
pub(super) struct JobStart {
    pub(super) halo: Halo,
    pub(super) doubling: Doubling,
    pub(super) bytes: u64,
}

impl Pattern for JobStart {
    fn rounds(&self) -> u32 {
        1
    }

    fn sends(&self, node: u32, _: u32, send: &mut dyn FnMut(u32, u64)) {
        self.halo.neighbours(node, |other| send(other, self.bytes));
        for round in 0..self.doubling.rounds() {
            self.doubling
                .sends(node, round, &mut |other, _| send(other, self.bytes));
        }
    }

    fn expects(&self, node: u32, _: u32) -> u32 {
        let doubling = (0..self.doubling.rounds()).map(|round| self.doubling.expects(node, round));
        self.halo.expects(node, 0) + doubling.sum::<u32>()
    }
}

/// Allreduce in a ring: in each step a node sends one part of the vector to the next one.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) nodes: u32,
    pub(super) steps: u32,
    pub(super) bytes: u64,
}

impl Pattern for Ring {
    fn rounds(&self) -> u32 {
        self.steps
    }

    fn sends(&self, node: u32, _: u32, send: &mut dyn FnMut(u32, u64)) {
        send((node + 1) % self.nodes, self.bytes);
    }

    fn expects(&self, _: u32, _: u32) -> u32 {
        1
    }
}

/// Allreduce by recursive doubling: in step `k` the nodes whose numbers differ in bit `k` exchange
/// the whole vector. Nodes beyond the largest power of two take no part.
#[derive(Debug)]
pub(super) struct Doubling {
    pub(super) nodes: u32,
    pub(super) bytes: u64,
}

impl Pattern for Doubling {
    fn rounds(&self) -> u32 {
        self.nodes.ilog2()
    }

    fn sends(&self, node: u32, round: u32, send: &mut dyn FnMut(u32, u64)) {
        if node >> self.rounds() == 0 {
            send(node ^ 1 << round, self.bytes);
        }
    }

    fn expects(&self, node: u32, _: u32) -> u32 {
        u32::from(node >> self.rounds() == 0)
    }
}

/// Parameter servers: every worker sends to its server, which answers all when it has heard all.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) nodes: u32,
    pub(super) servers: u32,
    pub(super) iterations: u32,
    pub(super) bytes: u64,
}

impl Servers {
    fn workers(&self, server: u32) -> impl Iterator<Item = u32> {
        (server..self.nodes).step_by(self.servers as usize).skip(1)
    }
}

impl Pattern for Servers {
    fn rounds(&self) -> u32 {
        2 * self.iterations
    }

    fn sends(&self, node: u32, round: u32, send: &mut dyn FnMut(u32, u64)) {
        match (node < self.servers, round % 2) {
            (false, 0) => send(node % self.servers, self.bytes),
            (true, 1) => self
                .workers(node)
                .for_each(|worker| send(worker, self.bytes)),
            _ => {}
        }
    }

    fn expects(&self, node: u32, round: u32) -> u32 {
        match (node < self.servers, round % 2) {
            (true, 0) => self.workers(node).count() as u32,
            (false, 1) => 1,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Checks that the messages sent in a round are those expected.
    fn balanced(pattern: &dyn Pattern, nodes: u32) {
        for round in 0..pattern.rounds() {
            let mut sent = BTreeMap::<u32, u32>::new();
            for node in 0..nodes {
                pattern.sends(node, round, &mut |to, bytes| {
                    assert!(to < nodes && to != node && bytes > 0, "{node} to {to}");
                    *sent.entry(to).or_default() += 1;
                });
            }
            for node in 0..nodes {
                let expected = pattern.expects(node, round);
                let received = sent.get(&node).copied().unwrap_or(0);
                assert_eq!(expected, received, "round {round}, node {node}");
            }
        }
    }

    #[test]
    fn nodes_expect_what_others_send() {
        for nodes in [2, 7, 12, 100, 1000] {
            let bytes = 64;
            let halo = || Halo::new(nodes, 2, bytes);
            let doubling = || Doubling { nodes, bytes };
            balanced(&halo(), nodes);
            balanced(&doubling(), nodes);
            balanced(
                &JobStart {
                    halo: halo(),
                    doubling: doubling(),
                    bytes,
                },
                nodes,
            );
            balanced(
                &Ring {
                    nodes,
                    steps: 3,
                    bytes,
                },
                nodes,
            );
            for partners in [1, (nodes - 1).min(5), nodes - 1] {
                balanced(
                    &AllToAll {
                        nodes,
                        partners,
                        bytes,
                    },
                    nodes,
                );
            }
            balanced(
                &Servers {
                    nodes,
                    servers: nodes.div_ceil(100),
                    iterations: 2,
                    bytes,
                },
                nodes,
            );
        }
        let incast = Incast {
            groups: 3,
            fan: 10,
            bytes: 1,
        };
        balanced(&incast, 40);
    }

    #[test]
    fn tori_are_cubic() {
        assert_eq!(Halo::new(1000, 1, 1).sides(), [10, 10, 10]);
        let [a, b, c] = Halo::new(10_000, 1, 1).sides();
        assert!(a * b * c > 9_900 && c <= 25, "{a} {b} {c}");
    }
}
