//! Partitions, reconfiguration and shutdown during a transfer.

use crate::{PORT, ms, node, world};
use esp_proto::{CloseReason, Instant, ResetReason};
use esp_sim::plan::{End, FlowPlan};
use esp_sim::{Action, NodeConfig, World};

/// Returns a world of two nodes with a transfer that needs more than a second and may fail.
fn long_transfer(seed: u64, config: &NodeConfig) -> (World, usize) {
    let mut world = world(seed, 2, config);
    let flow = world.flow_plan(FlowPlan::new(0, 40_000, 1, PORT).bulk(1 << 30).may_fail());
    world.run_for(ms(20));
    (world, flow)
}

#[test]
fn a_transfer_continues_after_a_partition() {
    let mut world = world(20, 2, &NodeConfig::default());
    let flow = world.flow_plan(FlowPlan::new(0, 40_000, 1, PORT).bulk(10 << 20));
    world.partition(1, ms(5), ms(2000));
    world.run_to_end(ms(10_000));
    assert_eq!(world.flow(flow).passive.delivered, 10 << 20);
    assert!(world.flow(flow).passive.longest_gap >= ms(2000));
}

#[test]
fn both_ends_of_a_permanent_partition_time_out() {
    let config = node(|endpoint| endpoint.peer_timeout = ms(500));
    let (mut world, flow) = long_transfer(21, &config);
    world.partition(1, ms(0), ms(60_000));
    world.run_for(ms(5000));
    let flow = world.flow(flow);
    assert_eq!(flow.active.closed, Some(CloseReason::TimedOut));
    assert_eq!(flow.passive.closed, Some(CloseReason::TimedOut));
}

#[test]
fn a_lowered_mtu_resets_connections_with_larger_packets() {
    let (mut world, flow) = long_transfer(22, &NodeConfig::default());
    world.script_in(ms(0), Action::SetMtu(0, 600));
    world.run_for(ms(10));
    let closed = (
        world.flow(flow).active.closed,
        world.flow(flow).passive.closed,
    );
    let reason = ResetReason::Resources;
    assert_eq!(closed.0, Some(CloseReason::Aborted(reason)));
    assert_eq!(closed.1, Some(CloseReason::Reset(reason)));
    let again = world.flow_plan(FlowPlan::new(0, 40_001, 1, PORT).bulk(100_000).at(ms(0)));
    world.run_to_end(ms(5000));
    assert_eq!(world.flow(again).passive.delivered, 100_000);
}

#[test]
fn shutdown_resets_every_peer_at_once() {
    let (mut world, flow) = long_transfer(23, &NodeConfig::default());
    world.script_in(ms(0), Action::ShutdownAll(1));
    world.run_for(ms(5));
    let closed = world.flow(flow).active.closed;
    assert_eq!(closed, Some(CloseReason::Reset(ResetReason::Shutdown)));
}

#[test]
fn closing_a_listener_keeps_its_connections() {
    let mut world = world(24, 2, &NodeConfig::default());
    let kept = world.flow_plan(FlowPlan::new(0, 40_000, 1, PORT).bulk(10 << 20));
    world.script(Instant::ZERO + ms(5), Action::Unlisten(1, PORT));
    let refused = world.flow_plan(
        FlowPlan::new(0, 40_001, 1, PORT)
            .active(|side| side.end = End::Never)
            .at(ms(10))
            .may_fail(),
    );
    world.run_to_end(ms(10_000));
    assert_eq!(world.flow(kept).passive.delivered, 10 << 20);
    let closed = world.flow(refused).active.closed;
    assert_eq!(closed, Some(CloseReason::Reset(ResetReason::Refused)));
}
