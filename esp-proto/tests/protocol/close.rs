//! Closing: half-close, crossing FINs, resets (section 8).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;

#[test]
fn half_close_leaves_the_other_direction_open() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.write(pair.now, a, 1000);
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.a.state(a), State::FinWait2);
    assert_eq!(pair.b.state(b), State::CloseWait);
    assert!(pair.b.app(b).finished);
    pair.b.write(pair.now, b, 200_000);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.a.app(a).received, 200_000);
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.b.app(b).closed, Some(CloseReason::Finished));
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::Finished));
    assert_eq!(pair.a.state(a), State::TimeWait);
    // Calls of the host have no effect any more.
    pair.a.ep.abort(pair.now, a, ResetReason::Aborted);
    pair.flush();
    assert_eq!(pair.a.state(a), State::TimeWait);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.a.ep.info(a), None);
    assert_eq!(pair.a.ep.poll_timeout(), None);
    assert_eq!(pair.kinds(MAC_A, 0, FrameType::Rst), 0);
}

#[test]
fn crossing_fins_end_both_sides() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.ep.shutdown(pair.now, a);
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_micros(30));
    assert_eq!(
        (pair.a.state(a), pair.b.state(b)),
        (State::Closing, State::Closing)
    );
    pair.run(Duration::from_millis(1));
    assert_eq!(
        (pair.a.state(a), pair.b.state(b)),
        (State::TimeWait, State::TimeWait)
    );
    pair.run(Duration::from_millis(150));
    assert_eq!(
        pair.a.ep.connections().count() + pair.b.ep.connections().count(),
        0
    );
}

#[test]
fn lost_fins_and_their_acknowledgements_are_repaired() {
    for lost in 0..6 {
        let (mut pair, a, b) = Pair::connected();
        let mut n = 0;
        pair.filter = Box::new(move |_| {
            n += 1;
            if n == lost + 1 {
                Wire::Drop
            } else {
                Wire::Pass
            }
        });
        pair.a.ep.shutdown(pair.now, a);
        pair.run(Duration::from_millis(10));
        pair.b.ep.shutdown(pair.now, b);
        pair.run(Duration::from_millis(300));
        assert_eq!(
            pair.a.app(a).closed,
            Some(CloseReason::Finished),
            "frame {lost} lost"
        );
        assert_eq!(
            pair.b.app(b).closed,
            Some(CloseReason::Finished),
            "frame {lost} lost"
        );
        assert_eq!(
            pair.a.ep.connections().count() + pair.b.ep.connections().count(),
            0
        );
    }
}

#[test]
fn a_repeated_fin_is_answered_in_time_wait_and_not_for_ever() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(1));
    pair.filter = Box::new(|f| {
        if f.src == MAC_A {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(30));
    assert_eq!(pair.a.state(a), State::TimeWait);
    assert_eq!(pair.b.state(b), State::LastAck);
    assert!(pair.a.ep.counters().rx_drop_duplicate > 0);
    // The waiting side has left TIME-WAIT; its RST does not fail a finished connection.
    pair.b.ep.handle_timeout(pair.now);
    pair.run(Duration::from_secs(2));
    pair.filter = Box::new(|_| Wire::Pass);
    pair.run(Duration::from_secs(2));
    assert_eq!(pair.b.app(b).closed, Some(CloseReason::Finished));
}

/// W-55: the peer has not received the acknowledgement of its FIN, so TIME-WAIT begins again. Other
/// frames leave it as it is.
#[test]
fn a_repeated_fin_restarts_time_wait() {
    for (flags, state) in [
        (wire::FLAG_FIN, State::TimeWait),
        (wire::FLAG_PRB, State::Closed),
        (0, State::Closed),
    ] {
        let (mut pair, a, b) = Pair::connected();
        pair.a.ep.shutdown(pair.now, a);
        pair.run(Duration::from_millis(1));
        pair.b.ep.shutdown(pair.now, b);
        pair.run(Duration::from_millis(1));
        let n = pair.numbers();
        pair.run(Duration::from_millis(60));
        let seq = match flags {
            wire::FLAG_FIN => n.b_next.plus(u16::MAX),
            _ => n.b_next,
        };
        // The connection of B has ended: its RST would end the wait.
        pair.filter = Box::new(|_| Wire::Drop);
        let frame = Forge::ack(seq, n.a_next).ports(5000, 1000);
        let frame = frame.flags(wire::FLAG_ACK | flags);
        pair.inject(MAC_B, MAC_A, frame.build());
        pair.run(Duration::from_millis(60));
        assert_eq!(pair.a.state(a), state, "flags {flags}");
        pair.run(Duration::from_millis(60));
        assert_eq!(pair.a.state(a), State::Closed);
    }
}

#[test]
fn fin_waits_for_all_data() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.consume = false;
    pair.a.write(pair.now, a, 400_000);
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(100));
    assert_eq!(
        pair.a.state(a),
        State::Established,
        "no FIN before the data"
    );
    assert!(!pair.b.app(b).finished);
    pair.b.consume = true;
    let received = pair.b.app(b).received;
    pair.b.apps.get_mut(&b).unwrap().consumed = received;
    pair.b.ep.consumed(pair.now, b, received);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.b.app(b).received, 400_000);
    assert!(pair.b.app(b).finished);
}

#[test]
fn abort_reaches_the_peer_with_its_reason() {
    for reason in [
        ResetReason::Aborted,
        ResetReason::ProgramDied,
        ResetReason::Resources,
        ResetReason::Other(200),
    ] {
        let (mut pair, a, b) = Pair::connected();
        pair.a.write(pair.now, a, 5000);
        pair.a.ep.abort(pair.now, a, reason);
        pair.run(Duration::from_millis(1));
        assert_eq!(pair.a.app(a).closed, Some(CloseReason::Aborted(reason)));
        assert_eq!(pair.b.app(b).closed, Some(CloseReason::Reset(reason)));
        assert_eq!(
            pair.a.ep.connections().count() + pair.b.ep.connections().count(),
            0
        );
    }
}

#[test]
fn abort_while_connecting_is_silent() {
    let mut pair = Pair::new();
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.flush();
    pair.a.ep.abort(pair.now, a, ResetReason::Aborted);
    pair.flush();
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Aborted(ResetReason::Aborted))
    );
    assert_eq!(pair.log.len(), 1);
    pair.run(Duration::from_millis(1));
    // The SYN+ACK finds no connection, and the RST in reply removes the one on B.
    assert_eq!(pair.b.ep.connections().count(), 0);
    assert!(pair.b.events.is_empty());
}

/// W-56.
#[test]
fn data_after_a_fin_is_a_violation() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(1));
    let n = pair.numbers();
    let from = pair.log.len();
    pair.inject(
        MAC_A,
        MAC_B,
        Forge::ack(n.a_next, n.b_next).payload(b"x").build(),
    );
    assert_eq!(
        pair.b.app(b).closed,
        Some(CloseReason::Aborted(ResetReason::Protocol))
    );
    assert_eq!(pair.b.ep.counters().rx_drop_violation, 1);
    let reset = pair
        .sent(MAC_B, from)
        .find(|f| f.kind() == FrameType::Rst)
        .unwrap();
    assert_eq!(
        wire::Reset::parse(reset.esp().payload).unwrap().nonce,
        n.a_nonce,
        "W-57"
    );
    pair.run(Duration::from_millis(1));
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Reset(ResetReason::Protocol))
    );
}

/// W-60.
#[test]
fn an_unknown_reason_ends_a_connection_as_a_number() {
    for code in [0, 12, 99, 255] {
        let (mut pair, _, b) = Pair::connected();
        let n = pair.numbers();
        let forged = Forge::ack(n.a_next, Seq(0)).reset(ResetReason::Other(code), n.b_nonce);
        pair.inject(MAC_A, MAC_B, forged.build());
        let end = CloseReason::Reset(ResetReason::Other(code));
        assert_eq!(pair.b.app(b).closed, Some(end));
    }
}

/// W-58: a peer that is gone has received everything if only its last acknowledgement is missing.
#[test]
fn a_reset_of_an_unknown_connection_finishes_it_if_all_was_acknowledged() {
    for written in [0, 1] {
        let (mut pair, a, b) = Pair::connected();
        pair.a.ep.shutdown(pair.now, a);
        pair.run(Duration::from_millis(1));
        let n = pair.numbers();
        pair.filter = Box::new(|_| Wire::Drop);
        pair.b.write(pair.now, b, written);
        pair.b.ep.shutdown(pair.now, b);
        pair.run(Duration::from_millis(1));
        assert_eq!(pair.b.state(b), State::LastAck);
        let reset = Forge::ack(n.a_next, Seq(0)).reset(ResetReason::Unknown, n.b_nonce);
        pair.inject(MAC_A, MAC_B, reset.build());
        let end = match written {
            0 => CloseReason::Finished,
            _ => CloseReason::Reset(ResetReason::Unknown),
        };
        assert_eq!(pair.b.app(b).closed, Some(end));
    }
}

/// W-57: with the nonce that the peer expects.
#[test]
fn the_peer_of_an_orphan_is_reset() {
    let mut pair = Pair::new();
    let reset = |pair: &mut Pair, port, peer: NodeAddr, peer_port| {
        let from = pair.log.len();
        let peer = (peer, peer_port);
        let reason = ResetReason::ProgramDied;
        pair.a.ep.reset_orphan(pair.now, port, peer, 77, reason);
        pair.flush();
        pair.log[from..].to_vec()
    };
    for (port, peer, peer_port) in [
        (0, MAC_B, 1000),
        (5000, MAC_B, 0),
        (5000, MacAddr::BROADCAST, 1000),
    ] {
        assert_eq!(reset(&mut pair, port, peer.into(), peer_port).len(), 0);
    }
    let sent = reset(&mut pair, 5000, MAC_B.into(), 1000);
    assert_eq!(sent.len(), 1);
    let header = sent[0].header();
    assert_eq!((header.dst_port, header.src_port), (1000, 5000));
    let block = wire::Reset::parse(sent[0].esp().payload).unwrap();
    assert_eq!((block.reason, block.nonce), (ResetReason::ProgramDied, 77));
}

#[test]
fn shutdown_resets_every_connection() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.ep.shutdown_all(pair.now);
    pair.run(Duration::from_millis(1));
    assert_eq!(
        pair.b.app(b).closed,
        Some(CloseReason::Aborted(ResetReason::Shutdown))
    );
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Reset(ResetReason::Shutdown))
    );
    let again = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    assert_eq!(
        pair.a.app(again).closed,
        Some(CloseReason::Reset(ResetReason::Refused))
    );
}

#[test]
fn a_smaller_mtu_resets_what_no_longer_fits() {
    let (mut pair, a, b) = Pair::connected_with(9000, EndpointConfig::default());
    let mut small = Pair::connected();
    pair.a.ep.set_mtu(pair.now, 1500);
    pair.run(Duration::from_millis(1));
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Aborted(ResetReason::Resources))
    );
    assert_eq!(
        pair.b.app(b).closed,
        Some(CloseReason::Reset(ResetReason::Resources))
    );
    small.0.a.ep.set_mtu(small.0.now, 9000);
    small.0.a.ep.set_mtu(small.0.now, 1500);
    small.0.run(Duration::from_millis(1));
    assert_eq!(small.0.a.state(small.1), State::Established);
}

#[test]
fn the_final_progress_comes_before_closed_in_any_order_of_draining() {
    let (mut pair, a, b) = Pair::connected();
    pair.a.write(pair.now, a, 100);
    pair.run(Duration::from_millis(1));
    pair.a.ep.abort(pair.now, a, ResetReason::Aborted);
    assert_eq!(pair.a.ep.poll_event(), None, "held back");
    assert_eq!(
        pair.a.ep.poll_timeout(),
        Some(pair.now),
        "and asks to be drained again"
    );
    assert_eq!(pair.a.ep.poll_progress().map(|p| p.conn), Some(a));
    assert!(matches!(pair.a.ep.poll_event(), Some(Event::Closed { conn, .. }) if conn == a));
    assert_eq!(pair.a.ep.poll_event(), None);
    let _ = b;
}

#[test]
fn calls_on_a_dead_connection_do_nothing() {
    let (mut pair, a, _) = Pair::connected();
    pair.a.ep.abort(pair.now, a, ResetReason::Aborted);
    pair.run(Duration::from_millis(1));
    let from = pair.log.len();
    pair.a.ep.written(pair.now, a, 10);
    pair.a.ep.consumed(pair.now, a, 10);
    pair.a.ep.shutdown(pair.now, a);
    pair.a.ep.abort(pair.now, a, ResetReason::Aborted);
    assert!(
        !pair
            .a
            .ep
            .attach(pair.now, a, Buffers { rx: ROOM, tx: ROOM })
    );
    pair.flush();
    assert_eq!(pair.log.len(), from);
    assert_eq!(
        pair.a
            .events
            .iter()
            .filter(|e| matches!(e, Event::Closed { .. }))
            .count(),
        1
    );
}
