//! A station that sees all frames, between nodes that protect theirs (W-140 to W-148) and between
//! nodes that do not.

use crate::{PORT, ms};
use esp_proto::secure::Suite;
use esp_sim::plan::{FlowPlan, Write};
use esp_sim::secure::Protection;
use esp_sim::{NodeConfig, World};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs transfers in both directions between three nodes, with a station that acts on each tenth
/// frame.
fn transfers(seed: u64, protection: Option<Protection>) -> World {
    let mut world = World::new(seed);
    for _ in 0..3 {
        let node = world.add_node(NodeConfig {
            protection,
            ..NodeConfig::default()
        });
        world.listen(node, PORT, 16, b"");
    }
    world.add_forger(100_000);
    if protection.is_none() {
        world.forging();
    }
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let plan = FlowPlan::new(from, 40_000, to, PORT).bulk(1 << 20);
        world.flow_plan(plan.passive(|side| side.write = Write::Bulk(1 << 20)));
    }
    world.run_to_end(ms(60_000));
    world
}

#[test]
fn forgeries_do_not_harm_nodes_that_require_protection() {
    let suites = [
        Suite::INTEGRITY,
        Suite::ENCRYPT,
        Suite::CHACHA,
        Suite::CHECKSUM,
    ];
    for (seed, suite) in (1..).zip(suites) {
        let require = true;
        let world = transfers(seed, Some(Protection { suite, require }));
        assert!(world.opened() > 2000, "{suite:?}: {}", world.opened());
        assert!(world.forged() > 300, "{suite:?}: {}", world.forged());
        // Some forgeries are of a form that goes nowhere, such as one back to its port.
        let refused = world.refused();
        assert!(refused > world.forged() / 2, "{suite:?}: {refused}");
    }
}

/// Without protection the same forgeries are detected by the checks.
#[test]
fn the_same_forgeries_break_transfers_without_protection() {
    let broken = (1..=10).filter(|seed| {
        let run = AssertUnwindSafe(|| transfers(*seed, None));
        catch_unwind(run).is_err()
    });
    assert!(broken.count() >= 8);
}
