//! Forged, repeated, late and malformed MOVE frames.

use super::*;

/// W-102, W-104, and W-106 for impossible positions.
#[test]
fn forged_moves_are_counted_and_change_nothing() {
    let mut fabric = Fabric::connected();
    fabric.write_both(10_000);
    fabric.run(Duration::from_millis(5));
    let good = block(&fabric);
    let (peer, here) = (mac(0xa, 1), mac(0xb, 1));
    let ports = (5000, 1000);
    let outsider = MacAddr([2, 9, 9, 9, 9, 9]);
    let cases: &[(&str, MacAddr, (Port, Port), Move)] = &[
        (
            "rx_drop_move_unknown",
            peer,
            ports,
            Move {
                nonce: good.nonce ^ 1,
                ..good
            },
        ),
        (
            "rx_drop_move_unknown",
            peer,
            ports,
            Move {
                sender_nonce: good.sender_nonce ^ 1,
                ..good
            },
        ),
        ("rx_drop_move_unknown", peer, (5001, 1000), good),
        ("rx_drop_move_unknown", peer, (5000, 1001), good),
        ("rx_drop_move_address", outsider, ports, good),
        (
            "rx_drop_move_stale",
            peer,
            ports,
            Move {
                step: Step::Answer,
                ..good
            },
        ),
        (
            "rx_drop_move_stale",
            peer,
            ports,
            Move {
                step: Step::Done,
                ..good
            },
        ),
        (
            "rx_drop_move_stale",
            peer,
            ports,
            Move {
                step: Step::Gone,
                ..good
            },
        ),
        (
            "rx_drop_move_position",
            peer,
            ports,
            Move {
                step: Step::Go,
                received: 9_999,
                ..good
            },
        ),
        (
            "rx_drop_move_position",
            peer,
            ports,
            Move {
                step: Step::Go,
                received: 10_001,
                ..good
            },
        ),
        (
            "rx_drop_move_position",
            peer,
            ports,
            Move {
                step: Step::Go,
                received: 10_000,
                finished: true,
                ..good
            },
        ),
        (
            "rx_drop_move_position",
            peer,
            ports,
            Move {
                step: Step::Go,
                received: u64::MAX,
                ..good
            },
        ),
        ("rx_moves", peer, ports, good),
    ];
    for (counter, src, ports, block) in cases {
        assert_eq!(
            fabric.forge(*src, here, *ports, &bytes(*block)),
            [*counter],
            "{block:?}"
        );
    }
    assert_eq!(
        fabric.forge(peer, here, ports, &bytes(good)[..33]),
        ["rx_drop_move_block"]
    );
    assert_eq!(fabric.sides[B].moves, []);
    // An answered ASK changed nothing, either.
    fabric.write_both(50_000);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    assert_eq!(fabric.moved(), [0, 0]);
    fabric.end_well();
}

#[test]
fn a_node_with_one_interface_drops_moves_silently() {
    let mut fabric = Fabric::connected_with([&[1500, 1500], &[1500]]);
    let good = block(&fabric);
    let frames = fabric.log.len();
    let counted = fabric.forge(mac(0xa, 1), mac(0xb, 0), (5000, 1000), &bytes(good));
    assert_eq!(counted, ["rx_drop_move_address"]);
    fabric.flush();
    assert_eq!(fabric.log.len(), frames);
}

#[test]
fn replies_for_unknown_connections_are_rate_limited() {
    let mut fabric = Fabric::connected();
    let unknown = Move {
        nonce: 5,
        ..block(&fabric)
    };
    for _ in 0..2000 {
        fabric.forge(mac(0xa, 1), mac(0xb, 1), (5000, 1000), &bytes(unknown));
    }
    let before = fabric.log.len();
    fabric.flush();
    let answers = fabric.log.len() - before;
    assert!((1..=300).contains(&answers), "{answers}");
    assert_eq!(
        fabric.sides[B].ends[1].ep.counters().tx_reset_limited,
        2000 - answers as u64
    );
}

/// W-104.
#[test]
fn a_move_seen_twice_is_stale() {
    let mut fabric = Fabric::connected();
    fabric.write_both(3_000_000);
    fabric.run(Duration::from_micros(100));
    assert!(!fabric.settled(), "data is in transit");
    fabric.cut(&[mac(0xa, 0)]);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    fabric.heal();
    let home = fabric.sides[B].only();
    let past: Vec<_> = fabric
        .log
        .iter()
        .filter(|f| f.kind() == FrameType::Move)
        .cloned()
        .collect();
    assert!(past.len() >= 4, "{:?}", fabric.moves());
    for frame in past {
        fabric.arrive(&frame);
    }
    fabric.run(Duration::from_millis(1));
    assert_eq!(fabric.sides[B].only(), home);
    fabric.write_both(100_000);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    assert_eq!(fabric.moved(), [1, 1]);
    fabric.end_well();
}

/// W-104, W-105.
#[test]
fn only_the_last_go_is_answered_again_and_on_its_path() {
    let mut fabric = Fabric::connected();
    for _ in 0..2 {
        let (now, (rail, _)) = (fabric.now, fabric.sides[A].only());
        fabric.sides[A].ends[rail].ep.abandon(now, false);
        fabric.run(Duration::from_millis(50));
    }
    assert_eq!(fabric.moved(), [2, 2]);
    let moves = fabric.moves();
    let (src, dst, go) = *(moves.iter()).rfind(|m| m.2.step == Step::Go).unwrap();
    let ports = (5000, 1000);
    assert_eq!(fabric.forge(src, dst, ports, &bytes(go)), ["rx_moves"]);
    let other = match src {
        src if src == mac(0xa, 0) => mac(0xa, 1),
        _ => mac(0xa, 0),
    };
    let older = Move {
        epoch: go.epoch - 1,
        ..go
    };
    for (src, block) in [(other, go), (src, older)] {
        let counted = fabric.forge(src, dst, ports, &bytes(block));
        assert_eq!(counted, ["rx_drop_move_stale"], "{block:?}");
    }
    fabric.end_well();
}

/// W-133.
#[test]
fn a_peer_without_resumption_moves_and_is_not_resumed() {
    let mut fabric = Fabric::connected();
    let peer = [mac(0xc, 0), mac(0xc, 1)];
    let block = SetUp {
        features: FEATURE_MOVES,
        rails: &peer[1].0,
        ..set_up(7, 0)
    };
    let syn = Forge::ack(Seq(100), Seq(0)).set_up(wire::FLAG_SYN, &block);
    let frame = |fabric: &Fabric, forge: &Forge| OnWire {
        at: fabric.now,
        src: peer[0],
        dst: mac(0xb, 0),
        body: forge.build(),
        looped: false,
        ce: false,
    };
    fabric.arrive(&frame(&fabric, &syn));
    fabric.flush();
    let answer = fabric.log.last().expect("SYN+ACK");
    let nonce = SetUp::parse(answer.esp().payload).unwrap().nonce;
    let ack = Forge::ack(Seq(101), answer.esp().seq.plus(1));
    fabric.arrive(&frame(&fabric, &ack));
    fabric.flush();
    let go = Move {
        step: Step::Go,
        nonce,
        sender_nonce: 7,
        ..self::block(&fabric)
    };
    let resumed = Move {
        resumed: true,
        ..go
    };
    for (block, counter) in [(resumed, "rx_drop_move_stale"), (go, "rx_moves")] {
        let counted = fabric.forge(peer[1], mac(0xb, 1), (5000, 1000), &bytes(block));
        assert_eq!(counted, [counter], "{block:?}");
    }
    assert_eq!(fabric.moved(), [0, 1]);
}

/// Late frames of the old path neither reach the program nor end the connection.
#[test]
fn late_frames_of_the_old_path_are_dropped() {
    let mut fabric = Fabric::connected();
    fabric.write_both(3_000_000);
    fabric.run(Duration::from_micros(100));
    let old: Vec<_> = fabric
        .log
        .iter()
        .filter(|f| f.kind() == FrameType::Data)
        .cloned()
        .collect();
    fabric.cut(&[mac(0xa, 0)]);
    fabric.run_until(Duration::from_secs(2), |f| f.moved() == [1, 1]);
    fabric.heal();
    let before =
        fabric.sides[A].sum(|c| c.rx_drop_moved) + fabric.sides[B].sum(|c| c.rx_drop_moved);
    for frame in &old {
        fabric.arrive(frame);
    }
    let after = fabric.sides[A].sum(|c| c.rx_drop_moved) + fabric.sides[B].sum(|c| c.rx_drop_moved);
    assert!(after > before);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    fabric.end_well();
}
