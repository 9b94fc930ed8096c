//! Resumption by a peer whose SYN+ACK was never acknowledged (W-139).

use super::*;

/// Connects; A loses its state before its acknowledgement of B's SYN has left.
fn opened_by_one_side(backlog: u16) -> (Pair, ConnId) {
    let mut pair = Pair::new();
    pair.listen(1000, backlog);
    let a = pair.connect(5000, 1000);
    pair.filter = Box::new(|frame| match frame.kind() {
        FrameType::Ack | FrameType::Probe => Wire::Drop,
        _ => Wire::Pass,
    });
    pair.run_until(SETTLED, |pair| pair.a.ep.image(a).is_some());
    let a = restart(&mut pair.a, pair.now, 10);
    pair.filter = Box::new(|_| Wire::Pass);
    (pair, a)
}

#[test]
fn a_loss_before_the_peer_is_established_is_repaired() {
    let (mut pair, a) = opened_by_one_side(8);
    assert!(pair.b.apps.is_empty(), "still half open");
    pair.a.write(pair.now, a, 100_000);
    pair.run(SETTLED);
    let b = pair.b.only();
    pair.b.write(pair.now, b, 100_000);
    finish(&mut pair, a, b);
}

#[test]
fn a_resumed_peer_waits_for_the_program_that_accepts() {
    let (mut pair, a) = opened_by_one_side(8);
    let room = pair.b.attach.take().expect("attaches");
    pair.run(Duration::from_secs(1));
    let b = pair.b.only();
    assert_eq!(pair.b.state(b), State::Established);
    assert_eq!(
        pair.b.ep.counters().connections_resumed,
        0,
        "no receive room"
    );
    pair.a.write(pair.now, a, 100_000);
    pair.b.apps.get_mut(&b).expect("the connection").room = room;
    assert!(
        pair.b
            .ep
            .attach(pair.now, b, Buffers { rx: room, tx: room })
    );
    pair.b.write(pair.now, b, 100_000);
    finish(&mut pair, a, b);
}

#[test]
fn a_resumed_peer_waits_for_room_in_the_accept_queue() {
    let (mut pair, a) = opened_by_one_side(1);
    let room = pair.b.attach.take().expect("attaches");
    pair.connect(5001, 1000);
    pair.run(Duration::from_millis(50));
    let first = pair.b.only();
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.b.apps.len(), 1, "the queue is full");
    assert!(pair.b.ep.counters().rx_drop_backlog > 0);
    pair.b.attach = Some(room);
    pair.b.apps.get_mut(&first).expect("the connection").room = room;
    assert!(
        pair.b
            .ep
            .attach(pair.now, first, Buffers { rx: room, tx: room })
    );
    pair.run(SETTLED);
    let b = pair.b.apps.keys().copied().find(|conn| *conn != first);
    let b = b.expect("accepted");
    pair.a.write(pair.now, a, 100_000);
    pair.b.write(pair.now, b, 100_000);
    finish(&mut pair, a, b);
}

#[test]
fn a_half_open_connection_takes_no_other_move_as_an_acknowledgement() {
    let mut pair = Pair::new();
    pair.listen(1000, 8);
    pair.filter = Box::new(|frame| match frame.kind() {
        FrameType::Ack | FrameType::Probe => Wire::Drop,
        _ => Wire::Pass,
    });
    pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    let go = resumed_go(&mut pair);
    let with = |change: fn(&mut Move)| {
        let mut block = go;
        change(&mut block);
        block
    };
    let lies = [
        (MAC_A, with(|m| m.nonce = 5)),
        (MAC_A, with(|m| m.sender_nonce = 5)),
        (MAC_A, with(|m| m.received = 1)),
        (MAC_A, with(|m| m.finished = true)),
        (MAC_A, with(|m| m.resumed = false)),
        (MAC_A, with(|m| m.step = Step::Ask)),
        (MAC_A, with(|m| m.step = Step::Answer)),
        (MAC_A, with(|m| m.step = Step::Done)),
        (MAC_A, with(|m| m.step = Step::Gone)),
        (MacAddr([2, 9, 9, 9, 9, 9]), go),
    ];
    for (src, block) in lies {
        pair.inject(src, MAC_B, move_frame(block));
        assert!(pair.b.apps.is_empty(), "{block:?}");
        assert_eq!(pair.b.ep.counters().rx_moves, 0, "{block:?}");
    }
    pair.inject(MAC_A, MAC_B, move_frame(go));
    let b = pair.b.only();
    assert_eq!(pair.b.state(b), State::Established);
}
