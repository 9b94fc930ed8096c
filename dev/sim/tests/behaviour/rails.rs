//! Stations with two interfaces: no byte is lost and no connection fails while one path remains
//! (W-100 to W-108).

use crate::{PORT, ms, us, world};
use esp_proto::{CloseReason, Duration};
use esp_sim::link::{LinkConfig, Loss};
use esp_sim::net::{Direction, PortConfig};
use esp_sim::plan::{FlowPlan, Side, Write};
use esp_sim::{Action, NodeConfig, World};

/// The interfaces of the two stations.
const A: [usize; 2] = [0, 1];
const B: [usize; 2] = [2, 3];
const LONG: Duration = Duration::from_secs(120);
const MB: u64 = 1 << 20;

fn stations(seed: u64, change: impl FnOnce(&mut NodeConfig)) -> World {
    let mut config = NodeConfig::default();
    change(&mut config);
    let mut world = world(seed, 4, &config);
    world.join(&A);
    world.join(&B);
    world
}

/// Returns a flow in which both sides write.
fn both_ways(port: u16, bytes: u64) -> FlowPlan {
    FlowPlan::new(0, port, 2, PORT)
        .bulk(bytes)
        .passive(|side| side.write = Write::Bulk(bytes))
}

fn moves(world: &World) -> u64 {
    (0..4).map(|node| world.moves(node)).sum()
}

#[test]
fn one_cable_is_cut_during_transfers() {
    for (seed, cut) in [(1, 0), (2, 2), (3, 0), (4, 2)] {
        let mut world = stations(seed, |_| ());
        for port in 0..5 {
            world.flow_plan(both_ways(5000 + port, 8 * MB));
        }
        world.partition(cut, ms(5), LONG);
        world.run_to_end(LONG);
        assert_eq!(moves(&world), 10, "cut {cut}");
    }
}

#[test]
fn one_direction_of_a_cable_is_cut() {
    for (seed, node, direction) in [
        (1, 0, Direction::Up),
        (2, 0, Direction::Down),
        (3, 2, Direction::Up),
        (4, 2, Direction::Down),
    ] {
        let mut world = stations(seed, |_| ());
        world.flow_plan(both_ways(5000, 16 * MB));
        world.cut(node, direction, ms(3), LONG);
        world.run_to_end(LONG);
        assert_eq!(moves(&world), 2, "{node} {direction:?}");
    }
}

#[test]
fn both_are_cut_and_one_comes_back() {
    let mut world = stations(5, |_| ());
    world.flow_plan(both_ways(5000, 16 * MB));
    world.partition(0, ms(3), LONG);
    world.partition(1, ms(3), Duration::from_secs(4));
    world.run_to_end(LONG);
    assert_eq!(moves(&world), 2);
}

#[test]
fn both_are_cut_for_good() {
    let mut world = stations(6, |_| ());
    let flow = world.flow_plan(both_ways(5000, 64 * MB).may_fail());
    world.partition(0, ms(3), LONG);
    world.partition(1, ms(3), LONG);
    world.run_to_end(LONG);
    for side in [Side::Active, Side::Passive] {
        assert_eq!(
            world.flow(flow).side(side).closed,
            Some(CloseReason::TimedOut)
        );
    }
}

#[test]
fn cables_that_flap() {
    for seed in 10..13 {
        let mut world = stations(seed, |_| ());
        for port in 0..3 {
            world.flow_plan(both_ways(5000 + port, 32 * MB));
        }
        for round in 0..12 {
            let node = [0, 1, 2, 3, 1, 0][(round + seed as usize) % 6];
            world.partition(node, ms(4 + 70 * round as u64), ms(60));
        }
        world.run_to_end(LONG);
        assert!(moves(&world) >= 6, "seed {seed}: {}", moves(&world));
    }
}

#[test]
fn both_stations_leave_at_the_same_moment() {
    for (seed, late) in [0, 1, 2, 3, 5, 8, 13, 21, 34].into_iter().enumerate() {
        let mut world = stations(seed as u64, |_| ());
        for port in 0..4 {
            world.flow_plan(both_ways(5000 + port, 16 * MB));
        }
        world.script_in(ms(4), Action::Abandon(0));
        world.script_in(ms(4) + us(late), Action::Abandon(2));
        world.run_to_end(LONG);
        assert!(moves(&world) >= 8, "late {late} µs");
    }
}

#[test]
fn moves_over_a_wire_that_loses_duplicates_and_reorders() {
    for seed in 20..26 {
        let mut world = stations(seed, |config| {
            let link = LinkConfig {
                loss: Loss::Random(20_000),
                duplicate: 20_000,
                reorder: 20_000,
                ..LinkConfig::default()
            };
            config.port = PortConfig::symmetric(link);
            config.host.any_order = true;
        });
        for port in 0..3 {
            world.flow_plan(both_ways(5000 + port, 4 * MB));
        }
        for round in 0..6 {
            world.partition(round % 2, ms(5 + 200 * round as u64), ms(150));
        }
        world.run_to_end(LONG);
        assert!(moves(&world) >= 2, "seed {seed}");
    }
}

#[test]
fn the_end_of_connections_in_the_middle_of_a_cut() {
    for seed in 30..42 {
        let mut world = stations(seed, |_| ());
        for port in 0..6 {
            let bytes = MB / 4 * u64::from(port);
            world.flow_plan(both_ways(5000 + port, bytes).at(us(100 * u64::from(port))));
        }
        world.partition(if seed % 2 == 0 { 0 } else { 2 }, us(700 + 37 * seed), LONG);
        world.run_to_end(LONG);
    }
}

#[test]
fn an_interface_of_another_mtu() {
    let mut world = World::new(50);
    for mtu in [9000, 1500, 9000, 4000] {
        let node = world.add_node(NodeConfig {
            mtu,
            ..NodeConfig::default()
        });
        world.listen(node, PORT, 64, b"");
    }
    world.join(&A);
    world.join(&B);
    for port in 0..3 {
        world.flow_plan(both_ways(5000 + port, 64 * MB));
    }
    world.partition(0, ms(8), ms(60));
    world.partition(1, ms(40), LONG);
    world.run_to_end(LONG);
    assert!(moves(&world) >= 12, "{}", moves(&world));
}

/// W-117: marks count on both paths.
#[test]
fn congestion_marks_survive_a_move() {
    let mut world = stations(17, |config| {
        config.endpoint.ecn = true;
        config.port.down.rate = 1_000_000_000;
        config.port.down.mark = Some(5);
    });
    world.flow_plan(FlowPlan::new(0, 5000, 2, PORT).bulk(32 * MB));
    world.partition(0, ms(50), LONG);
    world.run_to_end(LONG);
    assert_eq!(moves(&world), 2);
    let sender = |node: usize| *world.endpoint(node).counters();
    let (before, after) = (sender(0), sender(1));
    for counters in [before, after] {
        assert!(counters.rx_ecn_reported > 100, "{counters:?}");
        assert!(counters.ecn_reductions > 10, "{counters:?}");
    }
    // At most the first report is ignored, which counts packets marked on the old path.
    assert!(after.rx_ecn_ignored <= 1, "{after:?}");
}
