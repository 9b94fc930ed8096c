//! Parts of a scenario other than its links, programs and losses of memory: protection of packets
//! and a station that forges them, several interfaces, changes of interfaces and listeners,
//! shutdown.

use super::{Cut, NodePlan, PORT, Scenario};
use crate::check::frame::{ACK, Forge, PRB, RST, SYN};
use crate::link::{Corruption, PRESETS};
use crate::net::{PortConfig, mac_of};
use crate::rng::Rng;
use crate::secure::Protection;
use crate::world::Action;
use esp_proto::secure::Suite;
use esp_proto::{Duration, MacAddr};

/// Address of no node.
const NO_NODE: MacAddr = MacAddr([2, 0, 0, 0, 0xff, 0xff]);
/// Time to connect where packets are protected. A peer that has lost its sessions is noticed after
/// a second, and each second HELLO and ACCEPT may be lost (W-145).
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Reason of forged resets: aborted.
const ABORTED: u8 = 4;

impl Scenario {
    /// Adds all of it. Adds nothing where frames are altered on the way without protection.
    pub(super) fn add_changes(&mut self, rng: &mut Rng) {
        if self.hostile {
            return;
        }
        self.add_protection(rng);
        if rng.chance(200_000) && !self.carrier.is_udp() {
            self.add_rails(rng); // W-125
        }
        if rng.chance(150_000) && !self.some_lose_memory() {
            self.add_mtu(rng);
        }
        let node = rng.below(self.nodes.len() as u64) as usize;
        let at = Duration::from_micros(rng.magnitude(1, 50_000));
        match rng.below(12) {
            0 => self.actions.push((at, Action::Unlisten(node, PORT))),
            1 => {
                self.excuse(node);
                self.actions.push((at, Action::ShutdownAll(node)));
            }
            _ => {}
        }
        let is_plain = self.nodes.iter().all(|n| n.config.protection.is_none());
        if is_plain && rng.chance(200_000) {
            self.add_forgeries(rng);
        }
    }

    fn some_lose_memory(&self) -> bool {
        let lose = |(_, action): &(Duration, Action)| {
            matches!(action, Action::Restart(_) | Action::Lose(..))
        };
        self.actions.iter().any(lose)
    }

    /// Returns the node whose flows use this interface.
    pub(super) fn owner(&self, node: usize) -> usize {
        let station = self.stations.iter().find(|s| s.contains(&node));
        station.map_or(node, |station| station[0])
    }

    /// Allows all flows of a node to fail.
    pub(super) fn excuse(&mut self, node: usize) {
        let owner = self.owner(node);
        for flow in &mut self.flows {
            flow.may_fail |= [flow.from, flow.to].contains(&owner);
        }
    }

    /// Makes all nodes require protection, against a station that forges or against damage, or
    /// makes some nodes use it with each other.
    fn add_protection(&mut self, rng: &mut Rng) {
        let ciphers = [
            Suite::INTEGRITY,
            Suite::ENCRYPT,
            Suite::CHACHA,
            Suite::ENCRYPT.union(Suite::CHACHA),
        ];
        let kind = rng.below(10);
        for NodePlan { config, .. } in &mut self.nodes {
            let cipher = *rng.pick(&ciphers);
            let (suite, require) = match kind {
                0 => (Suite::CHECKSUM, true),
                1 | 2 => (cipher, true),
                3 if rng.chance(700_000) => (cipher, false),
                _ => continue,
            };
            config.protection = Some(Protection { suite, require });
            config.endpoint.connect_timeout = PATIENCE;
            if require {
                // Corruption that the check sequence does not detect.
                config.port.up.corruption = Corruption::Delivered;
                config.port.down.corruption = Corruption::Delivered;
            }
        }
        if kind < 3 {
            self.forger = *rng.pick(&[0, 5_000, 50_000, 200_000]);
        }
    }

    /// Gives each node a second interface, with its own links and MTU, and makes interfaces fail.
    fn add_rails(&mut self, rng: &mut Rng) {
        let count = self.nodes.len();
        for node in 0..count {
            let mut plan = self.nodes[node].clone();
            let (links, make) = *rng.pick(PRESETS);
            let corruption = plan.config.port.up.corruption;
            let link = crate::link::LinkConfig {
                corruption,
                ..make()
            };
            (plan.links, plan.black_hole) = (links, false);
            plan.config.port = PortConfig::symmetric(link);
            plan.config.mtu = *rng.pick(&[plan.config.mtu, 1500, 9000, 576]);
            self.stations.push(vec![node, count + node]);
            self.nodes.push(plan);
        }
        for _ in 0..rng.range(1, 4) {
            let node = rng.below(2 * count as u64) as usize;
            let at = Duration::from_micros(rng.magnitude(1, 50_000));
            if rng.chance(250_000) {
                self.actions.push((at, Action::Abandon(node)));
                continue;
            }
            // A connect must get through in the rest of its time.
            let lasts = rng.magnitude(1000, 3_000_000).min(2_000_000);
            self.cuts.push(Cut {
                node,
                direction: None,
                from: at,
                lasts: Duration::from_micros(lasts),
            });
        }
    }

    /// Makes an interface carry smaller frames for a time.
    fn add_mtu(&mut self, rng: &mut Rng) {
        let node = rng.below(self.nodes.len() as u64) as usize;
        let mtu = self.nodes[node].config.mtu;
        let smaller: Vec<u32> = [128, 576, 1500, 4000]
            .into_iter()
            .filter(|smaller| (self.carrier.min_mtu()..mtu).contains(smaller))
            .collect();
        if smaller.is_empty() {
            return;
        }
        let at = Duration::from_micros(rng.magnitude(1, 50_000));
        let until = at + Duration::from_micros(rng.magnitude(100, 500_000));
        self.excuse(node);
        self.actions
            .push((at, Action::SetMtu(node, *rng.pick(&smaller))));
        self.actions.push((until, Action::SetMtu(node, mtu)));
    }

    /// Adds frames of a station that knows addresses and ports, but neither sequences nor nonces.
    fn add_forgeries(&mut self, rng: &mut Rng) {
        for _ in 0..rng.magnitude(1, 50) {
            let at = Duration::from_micros(rng.magnitude(1, 50_000));
            let flow = &self.flows[rng.below(self.flows.len() as u64) as usize];
            let (src, dst) = (mac_of(flow.from), mac_of(flow.to));
            let forged = |src, port, flags| Forge::new(src, port, dst, flow.to_port, flags);
            let frame = match rng.below(4) {
                0 => forged(src, flow.from_port, RST).with_reset(ABORTED, rng.next_u64()),
                1 => forged(src, flow.from_port, SYN | ACK).with_set_up(
                    rng.next_u64(),
                    rng.next_u64(),
                    100,
                ),
                2 => {
                    let port = rng.range(1, 65_535) as u16;
                    forged(NO_NODE, port, SYN).with_set_up(rng.next_u64(), 0, 100)
                }
                _ => {
                    let mut frame = forged(src, flow.from_port, SYN | PRB);
                    let step = rng.range(1, 5) as u8;
                    frame.payload = vec![step, 0, 5, 0xd1, 0, 0, 1, 0];
                    let numbers = [rng.next_u64(), rng.next_u64(), rng.below(1 << 20)];
                    frame.payload.extend(numbers.map(u64::to_be_bytes).concat());
                    frame.payload.extend([0, 100]);
                    frame
                }
            };
            self.actions
                .push((at, Action::Inject(flow.to, frame.bytes())));
            self.forgeries += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_give_many_kinds_of_change() {
        let all: Vec<Scenario> = (0..300).map(Scenario::new).collect();
        let some = |what: &dyn Fn(&Scenario) -> bool| all.iter().filter(|s| what(s)).count();
        let action = |what: &dyn Fn(&Action) -> bool| {
            some(&|s| s.actions.iter().any(|(_, action)| what(action)))
        };
        let suite = |wanted: Suite, require: bool| {
            let wanted = Some(Protection {
                suite: wanted,
                require,
            });
            some(&|s| s.nodes.iter().any(|n| n.config.protection == wanted))
        };
        for wanted in [Suite::INTEGRITY, Suite::ENCRYPT, Suite::CHACHA] {
            assert!(suite(wanted, true) > 20 && suite(wanted, false) > 5);
        }
        assert!(suite(Suite::CHECKSUM, true) > 15);
        let unprotected = |s: &Scenario| s.nodes.iter().all(|n| n.config.protection.is_none());
        assert!(some(&unprotected) > 120);
        assert!(some(&|s| s.forger > 0) > 40);
        assert!(some(&|s| s.forgeries > 0) > 15);
        assert!(some(&|s| !s.stations.is_empty()) > 15);
        assert!(action(&|a| matches!(a, Action::Abandon(_))) > 8);
        assert!(action(&|a| matches!(a, Action::SetMtu(..))) > 10);
        assert!(action(&|a| matches!(a, Action::Unlisten(..))) > 10);
        assert!(action(&|a| matches!(a, Action::ShutdownAll(_))) > 10);
    }
}
