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
