//! A node of a scenario loses power, and boots again after some time.

use super::{Cut, Scenario};
use crate::rng::Rng;
use crate::world::Action;
use esp_proto::Duration;

/// Peer timeout of all nodes in such a scenario: some outages last longer.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of an outage in microseconds.
const MAX_OUTAGE: u64 = 40_000_000;

impl Scenario {
    /// Cuts the power of a node in one of twenty scenarios. Its flows may fail; its peers must
    /// notice (W-46), or learn after the boot that their connections are unknown (W-50).
    pub(super) fn add_outage(&mut self, rng: &mut Rng) {
        if self.hostile || !rng.chance(50_000) {
            return;
        }
        let number = self.nodes.len() as u64;
        let node = self.owner(rng.below(number) as usize);
        let at = Duration::from_micros(rng.magnitude(1, 50_000));
        let lasts = Duration::from_micros(rng.magnitude(1000, MAX_OUTAGE));
        self.excuse(node);
        for plan in &mut self.nodes {
            plan.config.endpoint.peer_timeout = PEER_TIMEOUT;
        }
        self.actions.push((at, Action::Restart(node)));
        let station = self.stations.iter().find(|s| s.contains(&node));
        for &member in station.unwrap_or(&vec![node]) {
            self.cuts.push(Cut {
                node: member,
                direction: None,
                from: at,
                lasts,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_nodes_lose_power_for_longer_than_the_peer_timeout() {
        let all: Vec<Scenario> = (0..600).map(Scenario::new).collect();
        let lasts_longer = |s: &&Scenario| {
            let limit = s.nodes[0].config.endpoint.peer_timeout;
            s.cuts.iter().any(|cut| cut.lasts > limit + limit / 2)
        };
        assert!(all.iter().filter(lasts_longer).count() > 2);
        let restarts = |s: &&Scenario| {
            let is_restart = |(_, action): &(_, Action)| matches!(action, Action::Restart(_));
            !s.cuts.is_empty() && s.actions.iter().any(is_restart)
        };
        assert!(all.iter().filter(restarts).count() > 20);
    }
}
