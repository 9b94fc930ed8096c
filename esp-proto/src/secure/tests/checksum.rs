//! Checksums in place of keys (W-148). The CRC itself is tested where it is implemented, in
//! `esp-engine`.

use super::*;

fn checked(own: NodeAddr, require: bool, seed: u8) -> Node {
    node(own, SecureConfig::checksum(require, 0x88b6), seed)
}

/// Sends a packet from each node to the other; returns the packets that have arrived.
fn both_ways(now: Instant, a: &mut Node, b: &mut Node) -> Vec<Vec<u8>> {
    a.send(now, B, b"to b");
    b.send(now, A, b"to a");
    a.flush();
    b.flush();
    run(now, a, b).0
}

#[test]
fn broadcasts_are_readable_and_opened_once() {
    let (mut a, mut b) = pair(Suite::CHECKSUM);
    let text = plain(b"who is there");
    a.send(at(0), NodeAddr::BROADCAST, b"who is there");
    let first = a.sent.pop().unwrap().1;
    assert!(first.windows(12).any(|part| part == b"who is there"));
    assert_eq!(b.receive(at(0), A, &first), None, "not known yet");
    assert_eq!(run(at(0), &mut a, &mut b).0, [&text[..]]);
    assert_eq!(b.receive(at(1), A, &first), None, "once");
    a.send(at(2), NodeAddr::BROADCAST, b"who is there");
    let second = a.sent.pop().unwrap().1;
    for bit in 0..second.len() * 8 {
        let mut damaged = second.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(b.receive(at(2), A, &damaged), None, "bit {bit}");
    }
    assert_eq!(b.receive(at(2), A, &second), Some(text));
}

#[test]
fn keys_and_checksums_have_no_session_with_each_other() {
    for require in [true, false] {
        let mut a = checked(A, require, 1);
        let mut b = node(B, config(&[7], require), 2);
        for round in 0..3 {
            let got = both_ways(at(round * 600), &mut a, &mut b);
            assert_eq!(got.len(), if require { 0 } else { 2 }, "in plain");
        }
        for node in [&a, &b] {
            assert_eq!(counted(node, "auth_sessions"), 0);
            assert!(counted(node, "auth_drop_key") >= 2);
        }
    }
}

#[test]
fn the_public_key_authenticates_nobody() {
    // The public key in place of a secret one, and a secret one for checksums: such a node has no
    // session with a correctly configured one.
    let public = SecureConfig {
        suite: Suite::ENCRYPT,
        ..SecureConfig::checksum(true, 0x88b6)
    };
    let secret = SecureConfig {
        suite: Suite::CHECKSUM,
        ..config(&[7], true)
    };
    for (wrong, right) in [
        (public, SecureConfig::checksum(true, 0x88b6)),
        (secret, config(&[7], true)),
    ] {
        let (mut a, mut b) = (node(A, wrong, 1), node(B, right, 2));
        for round in 0..3 {
            assert!(both_ways(at(round * 30), &mut a, &mut b).is_empty());
        }
        assert!(counted(&b, "auth_drop_key") >= 3);
        assert_eq!(counted(&b, "auth_sessions"), 0);
    }
}

#[test]
fn checksums_are_used_with_those_that_offer_them() {
    let mut a = checked(A, false, 1);
    let mut b = checked(B, false, 2);
    let mut none = node(C, config(&[], false), 3);
    a.send(at(0), C, b"plain");
    assert_eq!(a.sent[0], (C, plain(b"plain")));
    a.flush();
    for (_, body) in core::mem::take(&mut a.sent) {
        none.receive(at(0), A, &body);
    }
    assert_eq!(none.sent, [], "no answer to HELLO");
    both_ways(at(1), &mut a, &mut b);
    a.send(at(2), B, b"checked");
    assert_eq!(a.sent[0].1.len(), plain(b"checked").len() + OVERHEAD);
    assert_eq!(run(at(2), &mut a, &mut b).0, [plain(b"checked")]);
    assert_eq!(b.receive(at(3), A, &plain(b"without")), None);
}

#[test]
fn keys_of_a_reloaded_configuration_change_nothing() {
    let (mut a, mut b) = pair(Suite::CHECKSUM);
    both_ways(at(0), &mut a, &mut b);
    a.layer.set_keys(vec![Key::new([7; 32])]);
    b.layer.set_keys(Vec::new());
    assert_eq!(both_ways(at(1), &mut a, &mut b).len(), 2);
    assert_eq!(counted(&a, "auth_sessions"), counted(&b, "auth_sessions"));
}

#[test]
fn counters_have_names_that_do_not_promise_authentication() {
    let names = |suite| {
        let (mut a, mut b) = pair(suite);
        both_ways(at(0), &mut a, &mut b);
        let counters = a.layer.named_counters();
        counters.map(|(name, _, value)| (name, value)).collect()
    };
    let (keys, checksum): (Vec<_>, Vec<_>) = (names(Suite::ENCRYPT), names(Suite::CHECKSUM));
    assert!(keys.iter().all(|(name, _)| name.starts_with("auth_")));
    assert!(
        checksum
            .iter()
            .all(|(name, _)| name.starts_with("checksum_"))
    );
    assert_eq!(checksum.len(), keys.len());
    assert!(checksum.contains(&("checksum_received", 1)), "{checksum:?}");
    assert!(checksum.contains(&("checksum_drop_damaged", 0)));
}
