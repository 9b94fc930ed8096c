//! Sessions and peers: how long they last, and what is counted.

use super::*;

#[test]
fn without_a_key_nothing_is_sent() {
    let mut a = node(A, config(&[], true), 1);
    a.send(at(0), NodeAddr::BROADCAST, b"x");
    assert_eq!((a.sent.len(), counted(&a, "auth_unsent")), (0, 1));
}

#[test]
fn a_log_does_not_show_keys() {
    assert_eq!(alloc::format!("{:?}", Key::new([7; 32])), "Key(..)");
}

#[test]
fn what_no_session_protects_is_counted() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    a.send(at(0), B, b"x");
    assert_eq!(counted(&a, "auth_setups_sent"), 1);
    run(at(0), &mut a, &mut b);
    a.send(at(1), B, b"y");
    let (_, packet) = a.sent.pop().unwrap();
    let cut = &packet[..DATA_AT - 1];
    assert_eq!(b.receive(at(1), A, cut), None);
    assert_eq!(counted(&b, "auth_drop_malformed"), 1);
    assert_eq!(b.receive(at(1), A, &packet), Some(plain(b"y")));
    assert_eq!(b.receive(at(1), A, &packet), None);
    let mut damaged = packet.clone();
    *damaged.last_mut().unwrap() ^= 1;
    a.send(at(1), B, b"z");
    damaged[..DATA_AT].copy_from_slice(&a.sent.pop().unwrap().1[..DATA_AT]);
    assert_eq!(b.receive(at(1), A, &damaged), None);
    assert_eq!(counted(&a, "auth_sealed"), 3);
    let names = ["auth_sessions", "auth_drop_replay", "auth_drop_forged"];
    assert_eq!(names.map(|name| counted(&b, name)), [1; 3]);
    // A node that knows nothing of the sender, and one that has another session.
    let (_, mut next) = pair(Suite::ENCRYPT);
    assert_eq!(next.receive(at(1), A, &packet), None);
    assert_eq!(counted(&next, "auth_drop_session"), 1);
    next.layer.peer(at(1), A);
    assert_eq!(next.receive(at(1), A, &packet), None);
    assert_eq!(counted(&next, "auth_drop_session"), 2);
}

/// W-145: a session that is answered is kept.
#[test]
fn peers_that_answer_need_no_other_session() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    for tenth in 0..200 {
        let now = at(100 * tenth);
        a.send(now, B, b"x");
        b.send(now, A, b"y");
        assert_eq!(run(now, &mut a, &mut b).0.len(), 2);
    }
    let sessions = [&a, &b].map(|node| counted(node, "auth_sessions"));
    assert!(sessions.iter().all(|count| *count <= 2), "{sessions:?}");
}

#[test]
fn set_up_packets_without_effect_are_counted() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    a.send(at(0), B, b"x");
    let (_, wire) = run(at(0), &mut a, &mut b);
    let [(A, hello), (B, accept), ..] = &wire[..] else {
        panic!("{wire:?}");
    };
    let mut forged = hello.clone();
    *forged.last_mut().unwrap() ^= 1;
    for packet in [&forged, hello] {
        assert_eq!(b.receive(at(1), A, packet), None);
    }
    assert_eq!(a.receive(at(1), B, accept), None);
    assert_eq!((a.sent.len(), b.sent.len()), (0, 0));
    let of_b = ["auth_drop_setup_forged", "auth_drop_setup_stale"];
    assert_eq!(of_b.map(|name| counted(&b, name)), [1, 1]);
    assert_eq!(counted(&a, "auth_drop_setup_stale"), 1);
}

#[test]
fn peers_are_bounded_and_those_that_are_known_displace_none() {
    let (mut a, _) = pair(Suite::ENCRYPT);
    let peer = |number: u16| {
        let [high, low] = number.to_be_bytes();
        NodeAddr::Mac(MacAddr([2, 9, 9, 9, high, low]))
    };
    for number in 0..16384 {
        a.layer.peer(at(u64::from(number)), peer(number));
    }
    assert_eq!(a.layer.peers.len(), 16384);
    a.layer.peer(at(20_000), peer(16383));
    assert_eq!(a.layer.peers.len(), 16384);
    a.layer.peer(at(20_000), peer(16384));
    assert_eq!(a.layer.peers.len(), 16384);
    assert!(!a.layer.peers.contains_key(&peer(0)), "silent for longest");
    let text = alloc::format!("{:?}", a.layer);
    assert!(text.contains("keys: 1, peers: 16384"), "{text}");
}

#[test]
fn the_host_learns_of_packets_to_send() {
    let (mut a, _) = pair(Suite::ENCRYPT);
    assert!(!a.layer.wants_transmit());
    assert!(a.layer.seal(at(0), B, plain(b"x")).is_none());
    assert!(a.layer.wants_transmit());
    a.flush();
    assert!(!a.layer.wants_transmit());
}

/// Sends a packet to B; returns true if a session with it protects the packet.
fn has_session(a: &mut Node, now: Instant) -> bool {
    a.send(now, B, b"x");
    let lengths: Vec<_> = a.sent.drain(..).map(|(_, body)| body.len()).collect();
    assert_eq!(lengths.len(), 1);
    lengths[0] != SETUP_PACKET
}

#[test]
fn sessions_end_with_their_keys_and_their_address() {
    let established = || {
        let (mut a, mut b) = pair(Suite::ENCRYPT);
        a.send(at(0), B, b"x");
        run(at(0), &mut a, &mut b);
        a
    };
    let mut a = established();
    a.layer.set_keys(vec![Key::new([7; 32])]);
    assert!(has_session(&mut a, at(1)));
    a.layer.set_keys(vec![Key::new([8; 32])]);
    assert!(!has_session(&mut a, at(2)));
    let mut a = established();
    a.layer.set_addr(C);
    assert!(!has_session(&mut a, at(1)));
}

/// While keys are replaced, the peer may not know the first one yet.
#[test]
fn keys_are_tried_in_turn() {
    let mut a = node(A, config(&[7, 8, 9], true), 1);
    a.send(at(0), B, b"x");
    let mut now = 0;
    while a.sent.len() < 4 {
        now += 1;
        a.layer.handle_timeout(at(now));
        a.flush();
    }
    let known: Vec<_> = a.layer.keys.iter().map(|key| key.id).collect();
    let tried = a.sent.iter().map(|(_, body)| match packet::parse(body) {
        packet::Form::SetUp(fields, ..) => fields.key,
        _ => panic!("no HELLO"),
    });
    let tried: Vec<_> = tried.collect();
    assert_eq!(tried, [known[0], known[1], known[2], known[0]]);
}
