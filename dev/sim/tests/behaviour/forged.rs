//! Frames of a blind attacker: a station that knows addresses and ports, but neither sequence
//! numbers nor nonces.

use crate::{PORT, us, world};
use esp_proto::Instant;
use esp_sim::NodeConfig;
use esp_sim::check::frame::{ACK, Forge, RST, SYN};
use esp_sim::net::mac_of;
use esp_sim::plan::FlowPlan;
use esp_sim::{Action, World};

/// Runs a transfer from node 0 to node 1 during which node 1 receives forged frames in node 0's
/// name.
fn transfer_with(seed: u64, forge: impl Fn(u64, Forge) -> Forge, flags: u8) -> World {
    let mut world = world(seed, 2, &NodeConfig::default());
    let flow = world.flow_plan(FlowPlan::new(0, 40_000, 1, PORT).bulk(4 << 20));
    for number in 0..100 {
        let frame = Forge::new(mac_of(0), 40_000, mac_of(1), PORT, flags);
        let frame = forge(number + 1, frame).bytes();
        let at = Instant::ZERO + us(500 + 20 * number);
        world.script(at, Action::Inject(1, frame));
    }
    world.run_to_end(us(20_000_000));
    assert_eq!(world.flow(flow).passive.delivered, 4 << 20);
    world
}

#[test]
fn forged_resets_do_not_end_a_transfer() {
    let world = transfer_with(10, |number, frame| frame.with_reset(4, number), RST);
    let counters = world.endpoint(1).counters();
    assert_eq!(counters.rx_drop_reset_forged, 100);
}

#[test]
fn forged_syns_do_not_replace_a_connection() {
    let world = transfer_with(11, |number, frame| frame.with_set_up(number, 0, 100), SYN);
    let counters = world.endpoint(1).counters();
    assert_eq!(counters.rx_drop_stale_setup, 100);
    assert_eq!(counters.connections_opened, 1);
}

#[test]
fn forged_syn_acks_do_not_affect_a_transfer() {
    let world = transfer_with(
        12,
        |number, frame| frame.with_set_up(number, number, 100),
        SYN | ACK,
    );
    assert_eq!(world.endpoint(1).counters().connections_opened, 1);
}
