//! Nodes that lose their memory, and programs that die.

use crate::{PORT, ms, us, world};
use esp_proto::{CloseReason, Instant, ResetReason};
use esp_sim::plan::{End, FlowPlan, Side};
use esp_sim::{Action, NodeConfig};

#[test]
fn a_restarted_peer_ends_the_connection_within_a_second() {
    let mut world = world(1, 2, &NodeConfig::default());
    let sending = world.flow_plan(FlowPlan::new(0, 40_000, 1, PORT).bulk(1 << 30).may_fail());
    let idle = world.flow_plan(
        FlowPlan::new(0, 40_001, 1, PORT)
            .active(|side| side.end = End::Never)
            .passive(|side| side.end = End::Never)
            .may_fail(),
    );
    world.script(Instant::ZERO + ms(20), Action::Restart(1));
    world.run_for(ms(1020));
    let closed = world.flow(sending).active.closed;
    assert_eq!(closed, Some(CloseReason::Reset(ResetReason::Unknown)));
    assert!(
        world
            .flow(sending)
            .active
            .closed_at
            .expect("closed")
            .since(Instant::ZERO)
            < ms(21),
        "sent data detects it at once"
    );
    assert_eq!(
        world.flow(idle).active.closed,
        None,
        "an idle connection detects it after the keep-alive time"
    );
    world.run_for(ms(1500));
    assert_eq!(
        world.flow(idle).active.closed,
        Some(CloseReason::Reset(ResetReason::Unknown))
    );
}

#[test]
fn after_a_restart_the_same_ports_connect_again() {
    let mut world = world(2, 2, &NodeConfig::default());
    world.flow_plan(
        FlowPlan::new(0, 40_000, 1, PORT)
            .active(|side| side.end = End::Never)
            .may_fail(),
    );
    world.script(Instant::ZERO + ms(10), Action::Restart(0));
    let again = world.flow_plan(FlowPlan::new(0, 40_000, 1, PORT).bulk(100_000).at(ms(10)));
    world.run_to_end(ms(5000));
    assert_eq!(world.flow(again).passive.delivered, 100_000);
    let opened = world
        .flow(again)
        .active
        .opened_at
        .expect("opened")
        .since(Instant::ZERO);
    assert!(opened < ms(10 + 30), "at most one SYN interval: {opened:?}");
}

/// The listener answers a SYN, restarts, and receives the SYN a second time: the connecting side
/// belongs to the old incarnation while a half-open one takes its place.
#[test]
fn a_half_open_incarnation_does_not_hide_the_end_of_the_old_one() {
    let mut world = world(3, 2, &NodeConfig::default());
    world.record();
    let flow = world.flow_plan(FlowPlan::new(0, 40_000, 1, PORT).bulk(1000).may_fail());
    world.run_for(us(10));
    let syn = world.recorded()[0].2.clone();
    world.run_for(us(25));
    assert!(
        world.recorded().iter().any(|(_, node, _)| *node == 1),
        "the SYN+ACK is in transit"
    );
    world.script_in(us(0), Action::Restart(1));
    world.script_in(us(1), Action::Inject(1, syn));
    world.run_for(ms(100));
    assert_eq!(
        world.flow(flow).active.closed,
        Some(CloseReason::Reset(ResetReason::Unknown))
    );
}

#[test]
fn the_peer_of_a_killed_program_learns_the_reason_at_once() {
    let mut world = world(4, 2, &NodeConfig::default());
    let flow = world.flow_plan(FlowPlan::new(0, 40_000, 1, PORT).bulk(1 << 30).may_fail());
    world.script(
        Instant::ZERO + ms(5),
        Action::Abort(flow, Side::Passive, ResetReason::ProgramDied),
    );
    world.run_to_end(ms(6000));
    let side = &world.flow(flow).active;
    assert_eq!(
        side.closed,
        Some(CloseReason::Reset(ResetReason::ProgramDied))
    );
    assert!(side.closed_at.expect("closed").since(Instant::ZERO) < ms(6));
}
