//! Two layers on a wire that a third station reads and writes.

mod bounds;
mod checksum;
mod sessions;

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::packet::{DATA_AT, SETUP_PACKET};
use super::toy::Toy;
use super::*;
use crate::time::Instant;
use crate::wire::HEADER_LEN;
use crate::{MacAddr, NodeAddr};

const A: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 1]));
const B: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 2]));
const C: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 3]));

/// A packet, with its destination or source.
type Sent = (NodeAddr, Vec<u8>);

/// A node of the test, and all that it has sent.
struct Node {
    layer: Layer<Toy>,
    sent: Vec<Sent>,
}

/// The suites of keys, and that of checksums.
const SUITES: [Suite; 5] = [
    Suite::INTEGRITY,
    Suite::ENCRYPT,
    Suite::CHACHA,
    Suite::ENCRYPT.union(Suite::CHACHA),
    Suite::CHECKSUM,
];

fn config(keys: &[u8], require: bool) -> SecureConfig {
    SecureConfig {
        keys: keys.iter().map(|&byte| Key::new([byte; 32])).collect(),
        require,
        suite: Suite::ENCRYPT,
        edp_ethertype: 0x88b6,
    }
}

fn node(own: NodeAddr, config: SecureConfig, seed: u8) -> Node {
    let layer = Layer::new(config, Toy, own, [seed; 32]);
    let sent = Vec::new();
    Node { layer, sent }
}

fn pair(suite: Suite) -> (Node, Node) {
    let config = match suite {
        Suite::CHECKSUM => SecureConfig::checksum(true, 0x88b6),
        suite => SecureConfig {
            suite,
            ..config(&[7], true)
        },
    };
    (node(A, config.clone(), 1), node(B, config, 2))
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(1_000_000_000 + millis * 1_000_000)
}

/// A plain packet of this content.
fn plain(text: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x88, 0xb5, 0, 1, 0, 2, 0, 3, 0, 4, 0, text.len() as u8, 2];
    packet.extend_from_slice(text);
    packet
}

impl Node {
    /// Sends a packet as an engine does.
    fn send(&mut self, now: Instant, dst: NodeAddr, text: &[u8]) {
        let packet = plain(text);
        if !self.layer.protects(now, dst) {
            self.sent.push((dst, packet));
            return;
        }
        let mut room = packet;
        room.splice(HEADER_LEN..HEADER_LEN, [0; DATA_AT - HEADER_LEN]);
        let sealed = self.layer.seal(now, dst, room);
        self.flush();
        self.sent.extend(sealed.map(|sealed| (dst, sealed)));
    }

    fn flush(&mut self) {
        while let Some(packet) = self.layer.poll_transmit() {
            self.sent.push(packet);
        }
    }

    /// Receives bytes from `src`; returns the packet that reaches the endpoint.
    fn receive(&mut self, now: Instant, src: NodeAddr, body: &[u8]) -> Option<Vec<u8>> {
        let is_group = body.get(13..17) == Some(&[0, 0, 0, 1]);
        let dst = if is_group {
            NodeAddr::BROADCAST
        } else {
            self.layer.own
        };
        self.receive_at(now, src, dst, body)
    }

    fn receive_at(
        &mut self,
        now: Instant,
        src: NodeAddr,
        dst: NodeAddr,
        body: &[u8],
    ) -> Option<Vec<u8>> {
        let packet = match self.layer.open(now, src, dst, body) {
            Opened::Packet(packet) | Opened::Broadcast(packet) => Some(packet.to_vec()),
            Opened::Nothing => None,
        };
        self.flush();
        packet
    }
}

/// Carries packets in both directions until none is left. Returns what reached the endpoints, and
/// all that was on the wire.
fn run(now: Instant, a: &mut Node, b: &mut Node) -> (Vec<Vec<u8>>, Vec<Sent>) {
    let (mut got, mut wire) = (Vec::new(), Vec::new());
    loop {
        let packets: Vec<_> = (a.sent.drain(..).map(|(dst, body)| (A, dst, body)))
            .chain(b.sent.drain(..).map(|(dst, body)| (B, dst, body)))
            .collect();
        if packets.is_empty() {
            return (got, wire);
        }
        for (src, dst, body) in packets {
            wire.push((src, body.clone()));
            let to = if dst == A { &mut *a } else { &mut *b };
            got.extend(to.receive(now, src, &body));
        }
    }
}

fn counted(node: &Node, name: &str) -> u64 {
    let counters = node.layer.counters();
    counters.iter().find(|c| c.0 == name).unwrap().2
}

#[test]
fn a_packet_waits_for_the_session_and_arrives_unchanged() {
    for suite in SUITES {
        let (mut a, mut b) = pair(suite);
        a.send(at(0), B, b"first");
        assert_eq!(a.sent.len(), 1, "HELLO alone");
        assert_eq!(a.sent[0].1.len(), SETUP_PACKET);
        let (got, wire) = run(at(0), &mut a, &mut b);
        assert_eq!(got, [plain(b"first")]);
        let text = &wire.last().unwrap().1;
        assert_eq!(text.len(), plain(b"first").len() + OVERHEAD);
        let readable = text.windows(5).any(|part| part == b"first");
        assert_eq!(readable, !suite.contains(Suite::ENCRYPT));
        b.send(at(1), A, b"answer");
        assert_eq!(run(at(1), &mut a, &mut b).0, [plain(b"answer")]);
        assert_eq!(counted(&a, "auth_sessions"), 1);
        assert_eq!(
            a.layer.counters().dropped() + b.layer.counters().dropped(),
            0
        );
    }
}

/// W-144; W-146: a broadcast is accepted only if it was sent to all.
#[test]
fn another_destination_does_not_use_up_a_packet() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    a.send(at(0), B, b"x");
    run(at(0), &mut a, &mut b);
    a.send(at(1), B, b"y");
    let (_, packet) = a.sent.pop().unwrap();
    for dst in [NodeAddr::BROADCAST, C] {
        assert_eq!(b.receive_at(at(1), A, dst, &packet), None);
    }
    assert_eq!(counted(&b, "auth_drop_malformed"), 2);
    a.send(at(1), NodeAddr::BROADCAST, b"all");
    let (_, all) = a.sent.pop().unwrap();
    let group = NodeAddr::Mac(MacAddr([0xfb, 0xff, 0xff, 0xff, 0xff, 0xff]));
    for dst in [B, group] {
        assert_eq!(b.receive_at(at(1), A, dst, &all), None, "{dst}");
    }
    assert!(b.receive(at(1), A, &all).is_some());
    assert_eq!(b.receive(at(1), A, &packet), Some(plain(b"y")));
}

#[test]
fn both_sides_may_begin_at_once() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    a.send(at(0), B, b"to b");
    b.send(at(0), A, b"to a");
    let (mut got, _) = run(at(0), &mut a, &mut b);
    got.sort();
    assert_eq!(got, [plain(b"to a"), plain(b"to b")]);
    for round in 1..20 {
        a.send(at(round), B, b"x");
        b.send(at(round), A, b"y");
        assert_eq!(run(at(round), &mut a, &mut b).0.len(), 2);
    }
    assert_eq!(
        a.layer.counters().dropped() + b.layer.counters().dropped(),
        0
    );
}

/// W-144; W-143: the HELLO of a session that is or was in use is dropped.
#[test]
fn nothing_recorded_is_accepted_again() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    let mut recorded = Vec::new();
    for round in 0..3 {
        a.send(at(round), B, b"data");
        b.send(at(round), A, b"data");
        recorded.extend(run(at(round), &mut a, &mut b).1);
    }
    let replay = |now, node: &mut Node| {
        for (src, body) in &recorded {
            for src in [*src, A, B, C] {
                assert_eq!(node.receive(now, src, body), None);
            }
        }
        node.sent.clear();
    };
    replay(at(10), &mut a);
    replay(at(10), &mut b);
    // Nor by a node that has restarted and knows nothing.
    b = node(B, config(&[7], true), 3);
    replay(at(20), &mut b);
    a.send(at(2000), B, b"again");
    a.send(at(3001), B, b"again");
    assert_eq!(run(at(3001), &mut a, &mut b).0, Vec::<Vec<u8>>::new());
    a.send(at(3002), B, b"alive");
    assert_eq!(
        run(at(3002), &mut a, &mut b).0,
        [plain(b"alive")],
        "a new session (W-145)"
    );
    replay(at(3010), &mut a);
    replay(at(3010), &mut b);
    b.send(at(3020), A, b"goes on");
    assert_eq!(run(at(3020), &mut a, &mut b).0, [plain(b"goes on")]);
}

/// W-143: no answer to an unknown key.
#[test]
fn another_key_opens_nothing() {
    let (mut a, _) = pair(Suite::ENCRYPT);
    let mut b = node(B, config(&[8], true), 2);
    for round in 0..10 {
        a.send(at(round * 30), B, b"secret");
        assert_eq!(run(at(round * 30), &mut a, &mut b).0, Vec::<Vec<u8>>::new());
    }
    assert_eq!(counted(&b, "auth_drop_key"), 10);
    assert_eq!(counted(&b, "auth_setups_sent"), 0, "no answer");
}

#[test]
fn keys_are_replaced_without_a_break() {
    // Old everywhere; the new one second; the new one first; the new one alone. The nodes follow
    // one after the other.
    let steps: [(&[u8], &[u8]); 6] = [
        (&[1, 2], &[1]),
        (&[1, 2], &[1, 2]),
        (&[2, 1], &[1, 2]),
        (&[2, 1], &[2, 1]),
        (&[2], &[2, 1]),
        (&[2], &[2]),
    ];
    let mut a = node(A, config(&[1], true), 1);
    let mut b = node(B, config(&[1], true), 2);
    let keys = |bytes: &[u8]| bytes.iter().map(|&byte| Key::new([byte; 32])).collect();
    for (step, (of_a, of_b)) in steps.into_iter().enumerate() {
        a.layer.set_keys(keys(of_a));
        b.layer.set_keys(keys(of_b));
        let mut got = Vec::new();
        // A session may have ended on one side only; the other notices it.
        for millis in [0, 30, 1100, 1200, 1300] {
            let now = at(step as u64 * 10_000 + millis);
            a.send(now, B, b"a");
            b.send(now, A, b"b");
            got = run(now, &mut a, &mut b).0;
        }
        assert_eq!(got, [plain(b"a"), plain(b"b")], "step {step}");
    }
    a.layer.set_keys(Vec::new());
    a.send(at(90_000), B, b"no key");
    assert_eq!(run(at(90_000), &mut a, &mut b).1, []);
}

#[test]
fn keys_change_with_the_epoch() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    a.send(at(0), B, b"x");
    run(at(0), &mut a, &mut b);
    for epoch in 1..4u64 {
        let session = a.layer.peer(at(0), B).current.as_mut().unwrap();
        session.skip_to((epoch << 23) - 2);
        for _ in 0..4 {
            a.send(at(1), B, b"y");
        }
        // In another order: the old epoch's packets are late.
        a.sent.swap(1, 2);
        assert_eq!(run(at(1), &mut a, &mut b).0.len(), 4, "epoch {epoch}");
    }
    let session = a.layer.peer(at(0), B).current.as_mut().unwrap();
    session.skip_to(u64::MAX);
    a.send(at(2), B, b"z");
    assert_eq!(
        (a.sent.len(), counted(&a, "auth_unsent")),
        (0, 1),
        "no wrap"
    );
}

/// W-147.
#[test]
fn protection_is_used_with_those_that_have_it() {
    let mut a = node(A, config(&[7], false), 1);
    let mut b = node(B, config(&[7], false), 2);
    let mut none = node(C, config(&[], false), 3);
    a.send(at(0), C, b"plain");
    assert_eq!(a.sent[0], (C, plain(b"plain")));
    a.flush();
    for (_, body) in core::mem::take(&mut a.sent) {
        none.receive(at(0), A, &body);
    }
    assert_eq!(none.sent, []);
    a.send(at(1), B, b"plain");
    a.flush();
    run(at(1), &mut a, &mut b);
    a.send(at(2), B, b"sealed");
    assert_ne!(a.sent[0].1, plain(b"sealed"));
    assert_eq!(run(at(2), &mut a, &mut b).0, [plain(b"sealed")]);
    assert_eq!(
        b.receive(at(3), A, &plain(b"forged")),
        None,
        "A has a session"
    );
    assert_eq!(counted(&b, "auth_drop_plain"), 1);
    assert!(b.receive(at(3), C, &plain(b"plain")).is_some());
    assert!(
        b.receive(at(20_000), A, &plain(b"plain")).is_some(),
        "after silence"
    );
}

/// W-146.
#[test]
fn broadcasts_are_opened_once_and_of_the_current_run_only() {
    let all = NodeAddr::BROADCAST;
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    let broadcast = |a: &mut Node, now| {
        a.send(now, all, b"who is there");
        a.sent.pop().unwrap().1
    };
    let text = plain(b"who is there");
    let old = broadcast(&mut a, at(0));
    let first = broadcast(&mut a, at(1500));
    assert_eq!(b.receive(at(1500), A, &first), None, "not known yet");
    assert_eq!(counted(&b, "auth_group_waits"), 1);
    assert_eq!(run(at(1500), &mut a, &mut b).0, [&text[..]]);
    assert_eq!(b.receive(at(1501), A, &first), None, "once");
    assert_eq!(
        b.receive(at(1501), A, &old),
        None,
        "sent before the session"
    );
    let second = broadcast(&mut a, at(1502));
    assert_eq!(b.receive(at(1502), C, &second), None, "another source");
    assert_eq!(b.receive(at(1502), A, &second), Some(text.clone()));
    assert_eq!(b.receive(at(1502), A, &second), None);
    let counts = ["auth_opened", "auth_drop_replay"].map(|name| counted(&b, name));
    assert_eq!(counts, [2, 3]);
    let mut damaged = broadcast(&mut a, at(1503));
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(b.receive(at(1503), A, &damaged), None);
    assert_eq!(counted(&b, "auth_drop_forged"), 2, "and of another source");
    let mut other = node(C, config(&[8], true), 5);
    assert_eq!(other.receive(at(1503), A, &second), None);
    assert_eq!(counted(&other, "auth_drop_key"), 1);
    // Both have restarted: the recordings of the earlier run wait for a session, and are of no use.
    a = node(A, config(&[7], true), 9);
    b = node(B, config(&[7], true), 10);
    for recorded in [&old, &first, &second] {
        assert_eq!(b.receive(at(1600), A, recorded), None);
    }
    assert_eq!(run(at(1600), &mut a, &mut b).0, Vec::<Vec<u8>>::new());
    let third = broadcast(&mut a, at(1700));
    assert_eq!(b.receive(at(1700), A, &third), Some(text));
    assert_eq!(b.receive(at(1700), A, &second), None);
}

/// W-147: if protection is required, plain packets are neither sent nor accepted.
#[test]
fn a_node_that_requires_protection_neither_sends_nor_accepts_plain_packets() {
    for suite in SUITES {
        let (mut a, mut b) = pair(suite);
        for dst in [B, C, NodeAddr::BROADCAST] {
            a.send(at(0), dst, b"plain");
        }
        run(at(0), &mut a, &mut b);
        a.send(at(1), B, b"plain");
        for (_, body) in &a.sent {
            assert_eq!(body[12] & 0x80, 0x80, "{body:?}");
        }
        for src in [A, C] {
            for now in [2, 20_000] {
                assert_eq!(b.receive(at(now), src, &plain(b"plain")), None);
            }
        }
        assert_eq!(counted(&b, "auth_drop_plain"), 4);
    }
}

/// W-143: HELLO is repeated while a packet waits, though nothing else is sent.
#[test]
fn a_lost_hello_is_repeated() {
    let (mut a, mut b) = pair(Suite::ENCRYPT);
    a.send(at(0), B, b"data");
    a.sent.clear();
    let mut now = 0;
    while a.sent.is_empty() && now < 1000 {
        now += 1;
        a.layer.handle_timeout(at(now));
        a.sent.extend(a.layer.poll_transmit());
    }
    let (got, _) = run(at(now), &mut a, &mut b);
    assert_eq!(got, [plain(b"data")]);
}

#[test]
fn a_node_has_no_session_with_itself() {
    let (mut a, _) = pair(Suite::ENCRYPT);
    a.send(at(0), NodeAddr::BROADCAST, b"who is there");
    let broadcast = a.sent.pop().unwrap().1;
    assert_eq!(a.receive(at(1), A, &broadcast), None);
    assert_eq!((a.sent.len(), a.layer.peers.len()), (0, 0));
    assert_eq!(counted(&a, "auth_drop_malformed"), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A station that changes, cuts, repeats, reorders and redirects packets cannot make any packet
    /// arrive that was not sent, or make one arrive twice (W-144).
    #[test]
    fn a_station_in_the_middle_changes_nothing(
        acts in proptest::collection::vec((0u8..6, any::<u16>(), any::<u8>()), 1..60),
        suite in 0..SUITES.len(),
    ) {
        let (mut a, mut b) = pair(SUITES[suite]);
        let (mut wire, mut got) = (Vec::<(NodeAddr, NodeAddr, Vec<u8>)>::new(), Vec::new());
        let (mut sent, mut now) = (0u8, 0);
        for (act, which, byte) in acts {
            now += 5;
            if act == 0 || wire.is_empty() {
                a.send(at(now), B, &[sent]);
                sent += 1;
            }
            let whole = wire.get(usize::from(which) % wire.len().max(1)).cloned();
            let Some((mut src, mut dst, mut body)) = whole.or_else(|| {
                a.sent.first().map(|(dst, body)| (A, *dst, body.clone()))
            }) else { continue };
            match act {
                1 => { let at = usize::from(which >> 4) % body.len(); body[at] ^= byte; }
                2 => body.truncate(usize::from(byte)),
                3 => body.push(byte),
                4 => (src, dst) = (dst, src),
                5 => src = C,
                _ => {}
            }
            let to = if dst == B { &mut b } else { &mut a };
            got.extend(to.receive(at(now), src, &body));
            for (src, node) in [(A, &mut a), (B, &mut b)] {
                wire.extend(node.sent.drain(..).map(|(dst, body)| (src, dst, body)));
            }
        }
        let all: Vec<_> = (0..sent).map(|n| plain(&[n])).collect();
        for packet in &got {
            prop_assert!(all.contains(packet));
        }
        let distinct: alloc::collections::BTreeSet<_> = got.iter().collect();
        prop_assert_eq!(distinct.len(), got.len());
    }
}

#[test]
fn ids_of_sessions_have_the_highest_bit() {
    for seed in 0..32 {
        let mut a = node(A, config(&[7], true), seed);
        let mut b = node(B, config(&[7], true), seed + 100);
        a.send(at(0), B, b"x");
        run(at(0), &mut a, &mut b);
        let session = a.layer.peer(at(0), B).current.as_ref();
        assert!(session.unwrap().id >= 1 << 31, "seed {seed}");
    }
}
