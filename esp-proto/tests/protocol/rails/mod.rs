//! Two nodes with several interfaces: connections continue on another one when theirs fails (W-100
//! to W-108).

use crate::common::*;
use esp_proto::wire::{
    FEATURE_COOKIES, FEATURE_MOVES, FEATURE_RESUME, FrameType, Move, SetUp, Step,
};
use esp_proto::*;

mod asking;
mod fabric;
mod forged;

use fabric::*;

#[test]
fn set_up_names_the_other_interfaces_and_only_between_such_nodes() {
    let fabric = Fabric::connected();
    let set_up = |kind| {
        let frame = fabric.log.iter().find(|f| f.kind() == kind).unwrap();
        let block = SetUp::parse(frame.esp().payload).unwrap();
        (block.features, block.rails.to_vec())
    };
    assert_eq!(
        set_up(FrameType::Syn),
        (
            FEATURE_MOVES | FEATURE_RESUME | FEATURE_COOKIES,
            mac(0xa, 1).0.to_vec()
        )
    );
    assert_eq!(
        set_up(FrameType::SynAck),
        (FEATURE_MOVES | FEATURE_RESUME, mac(0xb, 1).0.to_vec())
    );

    let fabric = Fabric::connected_with([&[1500], &[1500, 1500]]);
    for frame in &fabric.log {
        if matches!(frame.kind(), FrameType::Syn | FrameType::SynAck) {
            let block = SetUp::parse(frame.esp().payload).unwrap();
            let features = block.features & !FEATURE_COOKIES;
            assert_eq!(
                (features, block.rails.len(), frame.esp().payload.len()),
                (FEATURE_RESUME, 0, 28),
                "no byte more than before"
            );
        }
    }
}

#[test]
fn only_addresses_of_interfaces_are_announced() {
    let mut fabric = Fabric::with([&[1500], &[1500]]);
    let ep = &mut fabric.sides[A].ends[0].ep;
    let group = MacAddr([3, 0, 0, 0, 1, 0xa]);
    let others = [MacAddr::BROADCAST, group, mac(0xa, 0), MacAddr([0; 6])];
    ep.set_rails(&[&others[..], &[mac(0xa, 1)]].concat());
    let options = ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: vec![],
    };
    ep.connect(fabric.now, 5000, mac(0xb, 0).into(), 1000, options)
        .unwrap();
    fabric.flush();
    let block = SetUp::parse(fabric.log[0].esp().payload).unwrap();
    assert_eq!(block.rails, mac(0xa, 1).0);
}

#[test]
fn accepted_moves_are_counted_and_answers_repeat_nothing() {
    let mut fabric = Fabric::connected();
    fabric.write_both(10_000);
    let now = fabric.now;
    fabric.sides[B].shutdown(now);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, false);
    fabric.run(Duration::from_millis(5));
    let moves = fabric.moves();
    let of_a = moves.iter().filter(|(src, ..)| src.0[5] == 0xa);
    assert_eq!(fabric.sides[B].sum(|c| c.rx_moves), of_a.count() as u64);
    assert_eq!(fabric.sides[A].sum(|c| c.rx_moves), 2, "ANSWER and DONE");
    let ask = moves.iter().find(|m| m.2.step == Step::Ask).unwrap().2;
    assert_eq!((ask.received, ask.finished), (10_000, true));
    let answer = moves.iter().find(|m| m.2.step == Step::Answer).unwrap().2;
    assert_eq!((answer.received, answer.finished), (0, false));
    fabric.end_well();
}

#[test]
fn an_endpoint_has_the_address_that_it_was_given() {
    let (mut pair, a, _) = Pair::connected();
    let next = MacAddr([2, 0, 0, 0, 9, 9]);
    pair.a.ep.set_addr(next);
    assert_eq!(pair.a.ep.addr(), next);
    pair.a.write(pair.now, a, 1);
    let mut head: Head = [0; HEAD_LEN];
    assert!(pair.a.ep.poll_transmit(pair.now, &mut head).is_some());
    assert_eq!(head[6..12], next.0);
}

#[test]
fn an_endpoint_tells_its_host_of_moves_to_serve() {
    let mut fabric = Fabric::connected();
    let has_moves = |fabric: &Fabric| fabric.sides[A].ends[0].ep.has_moves();
    assert!(!has_moves(&fabric));
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, false);
    assert!(has_moves(&fabric));
    fabric.flush();
    assert!(!has_moves(&fabric));
}

#[test]
fn a_dead_path_under_load_is_left_and_nothing_is_lost() {
    let mut fabric = Fabric::connected();
    fabric.write_both(3_000_000);
    fabric.run(Duration::from_micros(700));
    assert!(!fabric.settled(), "data is in transit");
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    let took = fabric.run_until(Duration::from_secs(2), Fabric::settled);
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (1, 1));
    assert_eq!(fabric.moved(), [1, 1]);
    assert_eq!(
        (fabric.sides[A].info().moves, fabric.sides[A].info().peer),
        (1, mac(0xb, 1).into())
    );
    let dead = [mac(0xa, 0), mac(0xb, 0)];
    let mut moves = (fabric.log.iter()).filter(|frame| frame.kind() == FrameType::Move);
    assert!(moves.all(|frame| !dead.contains(&frame.src) || !dead.contains(&frame.dst)));
    for (side, station) in [(A, 0xa), (B, 0xb)] {
        let moves = fabric.moves().into_iter();
        let sent = moves.filter(|(src, ..)| src.0[5] == station).count();
        assert_eq!(fabric.sides[side].sum(|c| c.tx_moves), sent as u64);
    }
    fabric.end_well();
}

#[test]
fn only_one_end_has_lost_its_interface() {
    let mut fabric = Fabric::connected();
    fabric.write_both(3_000_000);
    fabric.run(Duration::from_micros(300));
    assert!(!fabric.settled(), "data is in transit");
    fabric.cut(&[mac(0xb, 0)]);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    assert_eq!(fabric.sides[B].only().0, 1);
    fabric.end_well();
}

#[test]
fn a_link_that_goes_down_is_left_at_once_even_by_idle_connections() {
    let mut fabric = Fabric::connected();
    fabric.cut(&[mac(0xa, 0)]);
    fabric.sides[A].up[0] = false;
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, false);
    let took = fabric.run_until(Duration::from_secs(1), |f| f.moved() == [1, 1]);
    assert!(took < Duration::from_millis(1), "{took:?}");
    fabric.write_both(100_000);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    fabric.end_well();
}

#[test]
fn an_idle_connection_detects_a_dead_path_by_its_keep_alive() {
    let mut fabric = Fabric::connected();
    fabric.cut(&[mac(0xa, 0)]);
    fabric.run_until(Duration::from_secs(9), |f| f.moved() == [1, 1]);
    fabric.write_both(1000);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    fabric.end_well();
}

#[test]
fn when_every_path_is_dead_the_connection_times_out() {
    let mut fabric = Fabric::connected();
    fabric.write_both(100_000);
    fabric.lost = Box::new(|_, _| true);
    fabric.run(Duration::from_secs(30));
    for side in &fabric.sides {
        assert_eq!(side.app().closed, Some(CloseReason::TimedOut));
    }
    assert_eq!(fabric.moved(), [0, 0]);
}

#[test]
fn both_links_die_and_one_comes_back() {
    let mut fabric = Fabric::connected();
    fabric.write_both(3_000_000);
    fabric.run(Duration::from_micros(300));
    assert!(!fabric.settled(), "data is in transit");
    fabric.lost = Box::new(|_, _| true);
    fabric.run(Duration::from_secs(3));
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    fabric.run_until(Duration::from_secs(3), Fabric::settled);
    assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (1, 1));
    fabric.end_well();
}

#[test]
fn links_that_flap_in_turn() {
    let mut fabric = Fabric::connected();
    fabric.lost = Box::new(|now, frame| {
        let dead = now.as_nanos() / 150_000_000 % 2;
        u64::from(frame.src.0[4]) == dead || u64::from(frame.dst.0[4]) == dead
    });
    for _ in 0..40 {
        fabric.write_both(200_000);
        fabric.run(Duration::from_millis(60));
    }
    fabric.run_until(Duration::from_secs(5), Fabric::settled);
    assert!(fabric.moved()[0] >= 4, "{:?}", fabric.moved());
    fabric.heal();
    fabric.end_well();
}

/// W-104: the parity of an epoch follows from the nonces, and each ask has a higher one.
#[test]
fn each_side_has_epochs_of_its_own() {
    let mut fabric = Fabric::connected_with([&[1500; 3], &[1500; 3]]);
    for side in [A, B, B, A] {
        let now = fabric.now;
        let (rail, _) = fabric.sides[side].only();
        fabric.sides[side].ends[rail].ep.abandon(now, false);
        fabric.run(Duration::from_millis(50));
    }
    let moves = fabric.moves();
    let of = |step| moves.iter().map(|m| m.2).filter(move |m| m.step == step);
    let gone: Vec<_> = of(Step::Go).map(|m| m.epoch).collect();
    assert!(gone.len() >= 4 && gone.is_sorted(), "{gone:?}");
    for block in of(Step::Ask).chain(of(Step::Go)) {
        let larger = block.sender_nonce > block.nonce;
        assert_eq!(block.epoch % 2 == 1, larger, "{block:?}");
    }
    fabric.end_well();
}

#[test]
fn both_ends_leave_at_the_same_moment() {
    for late in [0, 10, 20, 30, 45, 60, 90] {
        let mut fabric = Fabric::connected_with([&[1500; 3], &[1500; 3]]);
        fabric.write_both(3_000_000);
        fabric.run(Duration::from_micros(200));
        let now = fabric.now;
        fabric.sides[A].ends[0].ep.abandon(now, false);
        fabric.run(Duration::from_micros(late));
        let now = fabric.now;
        let (rail, _) = fabric.sides[B].only();
        fabric.sides[B].ends[rail].ep.abandon(now, false);
        fabric.run_until(Duration::from_secs(2), Fabric::settled);
        fabric.run(Duration::from_millis(100));
        let (here, there) = (fabric.sides[A].only().0, fabric.sides[B].only().0);
        assert_eq!(fabric.sides[A].info().peer, mac(0xb, there), "late {late}");
        assert_eq!(fabric.sides[B].info().peer, mac(0xa, here), "late {late}");
        fabric.end_well();
    }
}

/// Each MOVE frame is lost in one of the runs, and is then repeated (W-105).
#[test]
fn each_lost_move_frame_is_repeated() {
    for victim in 0..8 {
        let mut fabric = Fabric::connected();
        fabric.write_both(3_000_000);
        fabric.run(Duration::from_micros(200));
        assert!(!fabric.settled(), "data is in transit");
        let mut seen = 0;
        fabric.lost = Box::new(move |_, frame| {
            let dead = frame.src.0[4] == 0 || frame.dst.0[4] == 0;
            if !dead && frame.kind() == FrameType::Move {
                seen += 1;
                return seen - 1 == victim;
            }
            dead
        });
        fabric.run_until(Duration::from_secs(3), Fabric::settled);
        assert_eq!(
            fabric.sides[A]
                .info()
                .moves
                .min(fabric.sides[B].info().moves),
            1,
            "victim {victim}"
        );
        fabric.end_well();
    }
}

/// W-106: the answer to GO never arrives, and then that path fails as well: received bytes must not
/// be counted twice.
#[test]
fn a_move_that_never_completed_is_followed_by_another() {
    let mut fabric = Fabric::connected_with([&[1500; 3], &[1500; 3]]);
    fabric.write_both(900_000);
    fabric.run(Duration::from_micros(400));
    let start = fabric.now;
    fabric.lost = Box::new(move |now, frame| {
        let rail = |r: u8| frame.src.0[4] == r || frame.dst.0[4] == r;
        let done = frame.kind() == FrameType::Move
            && Move::parse(frame.esp().payload).unwrap().step == Step::Done;
        let dead = now.since(start) > Duration::from_millis(400);
        // Rail 2 works only later, and rail 1 loses every DONE before it fails.
        rail(0) || (rail(1) && (done || dead)) || (rail(2) && !dead)
    });
    fabric.run_until(Duration::from_secs(5), Fabric::settled);
    assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (2, 2));
    fabric.heal();
    fabric.end_well();
}

#[test]
fn a_smaller_mtu_cuts_again_and_a_larger_one_returns() {
    let mut fabric = Fabric::connected_with([&[9000, 1500], &[9000, 1500]]);
    fabric.run(Duration::from_millis(5));
    assert_eq!(fabric.sides[A].info().payload, 8989, "verified");
    fabric.write_both(2_000_000);
    fabric.run(Duration::from_micros(300));
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    assert_eq!(fabric.sides[A].info().payload_agreed, 1489);
    assert_eq!(fabric.sides[B].info().payload, 1489);
    fabric.write_both(1_000_000);
    fabric.run(Duration::from_micros(300));
    fabric.cut(&[mac(0xa, 1), mac(0xb, 1)]);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    fabric.run(Duration::from_millis(50));
    assert_eq!(
        (
            fabric.sides[A].info().payload,
            fabric.sides[B].info().payload_agreed
        ),
        (8989, 8989)
    );
    fabric.end_well();
}

#[test]
fn the_end_of_a_connection_moves_too() {
    for when in [0, 10, 30, 50, 70, 90, 200] {
        let mut fabric = Fabric::connected();
        fabric.write_both(20_000);
        for side in [A, B] {
            let now = fabric.now;
            fabric.sides[side].shutdown(now);
        }
        fabric.run(Duration::from_micros(when));
        fabric.cut(&[mac(0xa, 0)]);
        fabric.run_until(Duration::from_secs(12), |f| {
            f.sides.iter().all(|side| side.app().closed.is_some())
        });
        for side in &fabric.sides {
            assert_eq!(
                side.app().closed,
                Some(CloseReason::Finished),
                "cut after {when} µs"
            );
            assert_eq!(side.app().received, 20_000);
        }
    }
}

#[test]
fn a_reader_that_pauses_keeps_its_room_across_a_move() {
    let mut fabric = Fabric::connected();
    for node in &mut fabric.sides[B].ends {
        node.consume = false;
    }
    fabric.sides[A].write(fabric.now, 2 * u64::from(ROOM));
    fabric.run(Duration::from_millis(2));
    fabric.cut(&[mac(0xa, 0)]);
    // The rig checks that delivery never exceeds the room.
    fabric.run(Duration::from_secs(4));
    assert!(fabric.sides[B].app().received > u64::from(ROOM) - 1500);
    for node in &mut fabric.sides[B].ends {
        node.consume = true;
    }
    let (rail, conn) = fabric.sides[B].only();
    let received = fabric.sides[B].app().received;
    let now = fabric.now;
    fabric.sides[B].ends[rail]
        .apps
        .get_mut(&conn)
        .unwrap()
        .consumed = received;
    fabric.sides[B].ends[rail].ep.consumed(now, conn, received);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    assert!(fabric.moved()[0] >= 1);
    fabric.end_well();
}

#[test]
fn a_restarted_peer_resets_old_connections() {
    let mut fabric = Fabric::connected();
    fabric.sides[B] = Station::new(0xb, &[1500, 1500], &EndpointConfig::default());
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    fabric.sides[A].write(fabric.now, 1000);
    let took = fabric.run_until(Duration::from_secs(2), |f| {
        f.sides[A].app().closed.is_some()
    });
    assert_eq!(
        fabric.sides[A].app().closed,
        Some(CloseReason::Reset(ResetReason::Unknown)),
        "{took:?}"
    );
    assert_eq!(fabric.sides[B].sum(|c| c.rx_drop_move_unknown), 1);
}

#[test]
fn another_connection_of_the_same_ports_is_not_touched() {
    let mut fabric = Fabric::connected();
    let options = ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: vec![],
    };
    let node = &mut fabric.sides[A].ends[1];
    let other = node
        .ep
        .connect(fabric.now, 5000, mac(0xb, 1).into(), 1000, options)
        .unwrap();
    node.apps.insert(
        other,
        App {
            room: ROOM,
            ..App::default()
        },
    );
    fabric.run(Duration::from_millis(2));
    fabric.sides[A].ends[1].write(fabric.now, other, 50_000);
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    let (first, _) = (fabric.sides[A].ends[0].only(), ());
    fabric.sides[A].ends[0].write(fabric.now, first, 1000);
    fabric.run(Duration::from_secs(30));
    // The key is taken on the only path left: the first connection times out, the second is not
    // affected.
    assert_eq!(
        fabric.sides[A].ends[0].app(first).closed,
        Some(CloseReason::TimedOut)
    );
    assert_eq!(fabric.sides[A].ends[1].app(other).acked, 50_000);
    assert_eq!(fabric.sides[A].ends[1].app(other).closed, None);
    assert_eq!(fabric.moved(), [0, 0]);
}

#[test]
fn a_connection_does_not_move_to_a_held_port() {
    let mut fabric = Fabric::connected();
    assert!(fabric.sides[B].ends[1].ep.hold(1000));
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    fabric.sides[A].write(fabric.now, 1000);
    fabric.run(Duration::from_secs(30));
    assert_eq!(fabric.sides[A].app().closed, Some(CloseReason::TimedOut));
    assert_eq!(fabric.moved(), [0, 0]);
}

/// A node that has one interface left follows a peer whose interface fails, whichever end asks.
#[test]
fn a_node_left_with_one_interface_follows_its_peer() {
    for silent in [A, B] {
        let mut fabric = Fabric::connected();
        fabric.write_both(3_000_000);
        fabric.run(Duration::from_micros(700));
        fabric.sides[A].ends.pop();
        fabric.sides[A].ends[0].ep.set_rails(&[]);
        let from = [mac(0xa, 0), mac(0xb, 1)][silent];
        // The other end asks alone.
        fabric.lost = Box::new(move |_, frame| {
            let dead = frame.src == mac(0xb, 0) || frame.dst == mac(0xb, 0);
            let asks = |frame: &OnWire| {
                frame.kind() == FrameType::Move
                    && Move::parse(frame.esp().payload).is_ok_and(|block| block.step == Step::Ask)
            };
            dead || frame.src == from && asks(frame)
        });
        fabric.run_until(Duration::from_secs(5), Fabric::settled);
        assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (0, 1));
        fabric.end_well();
    }
}

#[test]
fn a_lost_interface_resets_connections_that_cannot_move() {
    let mut fabric = Fabric::connected_with([&[1500], &[1500, 1500]]);
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, true);
    fabric.run(Duration::from_millis(1));
    assert_eq!(
        fabric.sides[A].app().closed,
        Some(CloseReason::Aborted(ResetReason::Shutdown))
    );

    let mut fabric = Fabric::connected();
    fabric.lost = Box::new(|_, _| true);
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, true);
    fabric.run(Duration::from_secs(35));
    assert_eq!(
        fabric.sides[A].app().closed,
        Some(CloseReason::TimedOut),
        "no answer was sent"
    );
}
