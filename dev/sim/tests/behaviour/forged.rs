//! Frames of a blind attacker: a station that knows addresses and ports, but neither sequence
//! numbers nor nonces.

use crate::{PORT, us, world};
use esp_proto::Instant;
use esp_proto::secure::{FLAG_SEC, Suite};
use esp_sim::NodeConfig;
use esp_sim::check::frame::{ACK, EXT, FIN, Forge, PRB, RST, SYN};
use esp_sim::net::mac_of;
use esp_sim::plan::{FlowPlan, Write};
use esp_sim::rng::Rng;
use esp_sim::secure::Protection;
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

/// Returns a frame of any kind in the name of node `from`, with any sequences, nonces and contents.
fn blind(rng: &mut Rng, from: usize) -> Vec<u8> {
    let (port, to_port) = if from == 0 {
        (40_000, PORT)
    } else {
        (PORT, 40_000)
    };
    let kinds = [
        ACK,
        ACK | EXT,
        ACK | FIN,
        ACK | PRB,
        RST,
        SYN,
        SYN | ACK,
        SYN | PRB,
        FLAG_SEC,
    ];
    let flags = *rng.pick(&kinds);
    let mut frame = Forge::new(mac_of(from), port, mac_of(1 - from), to_port, flags);
    (frame.seq, frame.ack) = (rng.next_u64() as u16, rng.next_u64() as u16);
    frame.packet_type = *rng.pick(&[0x88b5, 0x88b5, 0x88b6]);
    let step = rng.range(1, 5) as u8;
    let any: Vec<u8> = (0..rng.below(100)).map(|_| rng.next_u64() as u8).collect();
    match flags {
        flags if flags == SYN || flags == SYN | ACK => {
            frame = frame.with_set_up(rng.next_u64(), rng.next_u64(), 100);
        }
        RST => frame = frame.with_reset(4, rng.next_u64() * rng.below(2)),
        _ => frame.payload = any,
    }
    if flags == SYN | PRB {
        frame.payload.resize(34, 0);
        frame.payload[0] = step;
    }
    if flags & EXT != 0 {
        frame.tail = vec![4, 1, rng.next_u64() as u8, 0];
    }
    frame.bytes()
}

/// Both directions of a transfer go on while each side receives half a million frames.
#[test]
fn a_million_blind_frames_change_no_protected_connection() {
    const FRAMES: u64 = 1_000_000;
    let config = NodeConfig {
        protection: Some(Protection {
            suite: Suite::INTEGRITY,
            require: true,
        }),
        ..NodeConfig::default()
    };
    let mut world = world(13, 2, &config);
    let bytes = FRAMES / 4;
    let plan = FlowPlan::new(0, 40_000, 1, PORT);
    let trickle = Write::Trickle {
        bytes,
        chunk: 250,
        every: us(1000),
    };
    let plan = plan.active(|side| side.write = trickle);
    let flow = world.flow_plan(plan.passive(|side| side.write = trickle));
    let mut rng = Rng::new(13);
    world.run_for(us(1000));
    for _ in 0..FRAMES / 1000 {
        for number in 0..1000 {
            let frame = blind(&mut rng, number % 2);
            world.script_in(us(number as u64), Action::Inject(1 - number % 2, frame));
        }
        world.run_for(us(1000));
    }
    world.run_to_end(us(20_000_000));
    let flow = world.flow(flow);
    assert_eq!(
        (flow.passive.delivered, flow.active.delivered),
        (bytes, bytes)
    );
    assert_eq!(world.endpoint(0).counters().connections_opened, 1);
    assert_eq!(
        world.refused(),
        FRAMES,
        "each is dropped before the endpoint"
    );
}
