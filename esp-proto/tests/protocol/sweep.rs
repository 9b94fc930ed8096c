//! Malformed input: every frame of a session truncated at each length and with each byte changed.

use crate::common::*;
use esp_proto::*;

/// Returns one frame of every kind, as sent in a session with a gap, a probe, a FIN and a reset.
fn session() -> Vec<OnWire> {
    let mut pair = Pair::with(3000, EndpointConfig::default());
    pair.b
        .ep
        .listen(
            1000,
            ListenOptions {
                backlog: 4,
                key: b"key".to_vec(),
                ..ListenOptions::default()
            },
        )
        .unwrap();
    let mut n = 0;
    pair.filter = Box::new(move |_| {
        n += 1;
        if n == 9 { Wire::Drop } else { Wire::Pass }
    });
    let a = pair.connect_with(
        5000,
        1000,
        ConnOptions {
            buffers: Buffers { rx: ROOM, tx: ROOM },
            key: b"key".to_vec(),
        },
    );
    pair.run(Duration::from_millis(5));
    let b = pair.b.only();
    pair.a.write(pair.now, a, 20_000);
    pair.b.write(pair.now, b, 30);
    pair.run(Duration::from_millis(5));
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(5));
    pair.b.ep.abort(pair.now, b, ResetReason::Aborted);
    pair.run(Duration::from_millis(5));
    let mut seen = std::collections::BTreeMap::new();
    for frame in pair.log {
        let header = frame.header();
        seen.entry((frame.src, header.flags, header.len.min(40)))
            .or_insert(frame);
    }
    seen.into_values().collect()
}

/// Returns endpoints in each state that a frame may find: empty, listening, half open, opening,
/// established, finished.
fn targets() -> Vec<Pair> {
    let mut all = vec![Pair::new()];
    let mut pair = Pair::new();
    pair.listen(1000, 2);
    all.push(pair);
    let mut pair = Pair::new();
    pair.listen(1000, 2);
    pair.filter = Box::new(|f| {
        if f.src == MAC_B {
            Wire::Drop
        } else {
            Wire::Pass
        }
    });
    pair.connect(5000, 1000);
    pair.run(Duration::from_micros(50));
    all.push(pair);
    let (pair, _, _) = Pair::connected();
    all.push(pair);
    let (mut pair, a, b) = Pair::connected();
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(1));
    all.push(pair);
    let (mut pair, a2, b2) = Pair::connected();
    pair.b.ep.shutdown(pair.now, b2);
    pair.a.ep.shutdown(pair.now, a2);
    pair.run(Duration::from_millis(1));
    all.push(pair);
    let _ = a;
    for pair in &mut all {
        pair.filter = Box::new(|_| Wire::Drop);
        pair.keep_log = false;
    }
    all
}

/// Feeds the bytes to both nodes of every target and checks the counters.
fn feed(targets: &mut [Pair], body: &[u8]) {
    for pair in targets {
        for (src, dst) in [(MAC_A, MAC_B), (MAC_B, MAC_A)] {
            let frame = OnWire {
                at: pair.now,
                src,
                dst,
                body: body.to_vec(),
                looped: false,
                ce: false,
            };
            let node = if dst == MAC_A {
                &mut pair.a
            } else {
                &mut pair.b
            };
            // Changed payload of an accepted frame is new data to the program, so the rig must not
            // compare it.
            let mut sink = Nothing;
            let raw = RxFrame {
                src: frame.src.into(),
                dst: dst.into(),
                body: &frame.body,
                looped: false,
                ce: false,
            };
            node.ep.handle_frame(pair.now, raw, &mut sink);
            while node.ep.poll_progress().is_some() {}
            while node.ep.poll_event().is_some() {}
            let mut head: Head = [0; HEAD_LEN];
            let mut sent = 0;
            while node.ep.poll_transmit(pair.now, &mut head).is_some() {
                sent += 1;
            }
            assert!(sent <= 8, "bounded answers: {sent}");
            assert!(node.ep.connections().count() <= 4);
        }
    }
}

struct Nothing;
impl Sink for Nothing {
    fn deliver(&mut self, _: ConnId, _: u64, _: &[u8]) {}
    fn datagram(&mut self, _: Datagram<'_>) {}
}

/// W-02, W-03.
#[test]
fn truncated_frames_are_counted_and_have_no_effect() {
    let frames = session();
    assert!(frames.len() >= 10, "{}", frames.len());
    for frame in &frames {
        let mut targets = targets();
        for len in 0..frame.body.len() {
            feed(&mut targets, &frame.body[..len]);
        }
        // All of them count a runt.
        for pair in &targets {
            assert_eq!(pair.a.ep.counters().rx_drop_runt, 13);
            assert_eq!(pair.b.ep.counters().rx_drop_runt, 13);
        }
    }
}

#[test]
fn a_frame_cut_inside_its_payload_is_always_dropped_for_its_length() {
    for frame in session() {
        let used = 13 + usize::from(frame.header().len);
        for len in 13..used {
            let mut pair = Pair::new();
            pair.b.receive(
                pair.now,
                &OnWire {
                    body: frame.body[..len].to_vec(),
                    dst: MAC_B,
                    src: MAC_A,
                    ..frame.clone()
                },
            );
            assert_eq!(pair.b.ep.counters().rx_drop_length, 1);
        }
    }
}

#[test]
fn changed_bytes_are_counted_and_have_no_effect() {
    for frame in session() {
        let mut targets = targets();
        let limit = frame.body.len().min(160);
        for at in 0..limit {
            for change in [0x01, 0x10, 0x80, 0xff] {
                let mut body = frame.body.clone();
                body[at] ^= change;
                feed(&mut targets, &body);
            }
        }
    }
}

#[test]
fn garbage_is_dropped() {
    let mut targets = targets();
    let mut state = 0x1234_5678_9abc_def0u64;
    for round in 0..20_000usize {
        let mut body = vec![];
        for _ in 0..round % 90 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            body.push((state >> 56) as u8);
        }
        // Half of the random inputs have a plausible start.
        if round % 2 == 0 && body.len() > 13 {
            body[..6].copy_from_slice(&[0x88, 0xb5, 0x03, 0xe8, 0x13, 0x88]);
            body[10] = 0;
        }
        feed(&mut targets, &body);
    }
}

/// W-10.
#[test]
fn every_drop_is_counted_under_one_reason() {
    // Frames that can only be dropped: the drop counters add up to the number of frames.
    let mut pair = Pair::new();
    let mut total = 0;
    let base = Forge::ack(Seq(1), Seq(2)).build();
    for at in 0..13 {
        for value in 0..=255u8 {
            let mut body = base.clone();
            body[at] = value;
            let frame = OnWire {
                at: pair.now,
                src: MAC_A,
                dst: MAC_B,
                body,
                looped: false,
                ce: false,
            };
            pair.b.receive(pair.now, &frame);
            total += 1;
        }
    }
    let counters = pair.b.ep.counters();
    assert_eq!((counters.rx_frames, counters.rx_dropped()), (total, total));
}
