//! Bounds of memory, of answers, and of the time that packets wait.

use super::*;

/// W-143: a wrong tag has no answer, answers have a rate, and a side that only answered does not
/// use the session.
#[test]
fn answers_to_hello_are_few() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    a.send(at(0), B, b"x");
    let (_, hello) = a.sent.pop().unwrap();
    for byte in 0..hello.len() {
        let mut wrong = hello.clone();
        wrong[byte] ^= 1;
        b.receive(at(0), A, &wrong);
        assert_eq!(b.sent, [], "byte {byte}");
    }
    b.receive(at(0), A, &hello);
    let (_, accept) = b.sent.pop().unwrap();
    b.receive(at(0), A, &hello);
    assert_eq!(b.sent.pop(), Some((A, accept)), "the same answer");
    b.send(at(0), A, b"y");
    assert_eq!(b.sent.len(), 1);
    assert_eq!(b.sent[0].1.len(), SETUP_PACKET, "its own HELLO");
    b.sent.clear();
    for _ in 0..10_000 {
        b.receive(at(0), A, &hello);
    }
    assert_eq!(b.sent.len(), 4096 - 2, "of the burst");
    assert!(counted(&b, "auth_drop_setup_rate") > 5000);
}

/// W-143.
#[test]
fn waiting_packets_are_bounded() {
    let (mut a, _) = pair(Suite::ENCRYPT);
    for peer in 0..100u8 {
        for _ in 0..100 {
            a.send(at(0), MacAddr([2, 9, 0, 0, 0, peer]).into(), b"x");
        }
    }
    assert_eq!(counted(&a, "auth_unsent"), 10_000 - 1024);
    assert_eq!(a.sent.len(), 100, "one HELLO each");
}

/// W-143: packets to nodes that do not answer leave the room to those of others, and are not sent
/// when they are of no use any more.
#[test]
fn packets_do_not_wait_for_ever() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    for peer in 0..100u8 {
        for _ in 0..100 {
            a.send(at(0), MacAddr([2, 9, 0, 0, 0, peer]).into(), b"x");
        }
    }
    a.send(at(0), B, b"too many");
    let mut now = 0;
    while let Some(due) = a.layer.poll_timeout() {
        assert!(due > at(now) && now < 10_000, "{now} ms");
        now += 1;
        a.layer.handle_timeout(at(now));
    }
    assert_eq!(counted(&a, "auth_unsent"), 10_001);
    while a.layer.poll_transmit().is_some() {}
    a.sent.clear();
    a.send(at(now), B, b"data");
    let (got, _) = run(at(now), &mut a, &mut b);
    assert_eq!(got, [plain(b"data")]);
}

#[test]
fn strangers_leave_no_state() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    a.send(at(0), B, b"data");
    let (_, recorded) = run(at(0), &mut a, &mut b);
    for peer in 0..=255u8 {
        let src = MacAddr([2, 9, 0, 0, 0, peer]).into();
        for (_, body) in &recorded {
            assert_eq!(b.receive(at(1), src, body), None);
        }
        assert_eq!(b.receive(at(1), src, &plain(b"plain")), None);
    }
    assert_eq!((b.layer.peers.len(), b.sent.len()), (1, 0));
    assert!(!b.layer.wants_transmit());
}

/// Limits the memory that repeated and forged packets use.
#[test]
fn proposed_sessions_and_recent_broadcasts_are_bounded() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    for seed in 0..20 {
        let mut again = node(A, config(&[7], true), seed);
        again.send(at(0), B, b"x");
        let (_, hello) = again.sent.pop().unwrap();
        b.receive(at(0), A, &hello);
    }
    assert_eq!(b.layer.peer(at(0), A).proposed.len(), 4);
    for n in 0..200 {
        a.send(at(n), NodeAddr::BROADCAST, b"x");
    }
    assert_eq!(a.layer.recent.len(), 64);
    assert_eq!(counted(&a, "auth_sealed"), 200);
}
