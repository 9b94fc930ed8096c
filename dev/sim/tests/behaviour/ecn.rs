//! Congestion marks between nodes of every kind (W-110 to W-117).

use crate::{PORT, ms};
use esp_sim::plan::{FlowPlan, Write};
use esp_sim::{NodeConfig, World};

/// Returns a world with two flows from nodes 1 and 2 to node 0, whose port marks at 10 frames or
/// more and holds 64.
fn incast(offers: [bool; 3]) -> World {
    let mut world = World::new(9);
    for ecn in offers {
        let mut config = NodeConfig::default();
        config.endpoint.ecn = ecn;
        config.port.down.rate = 1_000_000_000;
        (config.port.down.queue, config.port.down.mark) = (64, Some(10));
        let node = world.add_node(config);
        world.listen(node, PORT, 16, b"");
    }
    for from in [1, 2] {
        let plan = FlowPlan::new(from, 40_000, 0, PORT).bulk(20 << 20);
        world.flow_plan(plan.passive(|side| side.write = Write::Bulk(1 << 20)));
    }
    world.run_to_end(ms(5000));
    world
}

#[test]
fn marks_replace_losses() {
    let world = incast([true; 3]);
    for node in [1, 2] {
        let counters = world.endpoint(node).counters();
        assert!(counters.rx_ecn_reported > 100, "{counters:?}");
        assert!(counters.ecn_reductions > 10, "{counters:?}");
        assert!(counters.losses_detected < 20, "{counters:?}");
        assert_eq!(counters.rx_ecn_ignored, 0);
    }
}

#[test]
fn peers_that_do_not_agree_are_controlled_by_losses() {
    for offers in [
        [false, true, true],
        [true, false, false],
        [false, false, false],
    ] {
        let world = incast(offers);
        for node in [0, 1, 2] {
            let counters = world.endpoint(node).counters();
            assert_eq!((counters.rx_ecn_marks, counters.rx_ecn_reported), (0, 0));
        }
        let lost = |node| world.endpoint(node).counters().losses_detected;
        assert!(lost(1) > 0 && lost(2) > 0);
    }
}

#[test]
fn a_peer_with_marks_shares_a_port_with_one_without() {
    let world = incast([true, true, false]);
    let counters = |node| world.endpoint(node).counters();
    assert!(counters(1).rx_ecn_reported > 100, "{:?}", counters(1));
    assert_eq!(counters(2).rx_ecn_reported, 0);
}
