//! Opening: losses, refusals, crossing SYNs (section 3).

use crate::common::*;
use esp_proto::wire::FrameType;
use esp_proto::*;
use std::collections::BTreeSet;

pub(super) fn drop_first(kind: FrameType, count: usize) -> Box<dyn FnMut(&OnWire) -> Wire> {
    let mut left = count;
    Box::new(move |frame| {
        if left > 0 && frame.kind() == kind {
            left -= 1;
            return Wire::Drop;
        }
        Wire::Pass
    })
}

#[test]
fn three_frames_open_a_connection() {
    let (pair, _, _) = Pair::connected();
    let kinds: Vec<FrameType> = pair.log.iter().map(OnWire::kind).collect();
    assert_eq!(
        kinds[..3],
        [FrameType::Syn, FrameType::SynAck, FrameType::Ack]
    );
    let (syn, syn_ack, ack) = (pair.log[0].esp(), pair.log[1].esp(), pair.log[2].esp());
    assert_eq!(syn_ack.ack, syn.seq.plus(1));
    assert_eq!((ack.seq, ack.ack), (syn.seq.plus(1), syn_ack.seq.plus(1)));
    let offer = wire::SetUp::parse(syn.payload).unwrap();
    let answer = wire::SetUp::parse(syn_ack.payload).unwrap();
    assert_eq!((offer.peer_nonce, answer.peer_nonce), (0, offer.nonce));
    assert_eq!(
        (offer.credit, answer.credit),
        ((ROOM / 1489) as u16, 0),
        "no credit before attach"
    );
}

#[test]
fn lost_set_up_frames_are_repeated() {
    for kind in [FrameType::Syn, FrameType::SynAck, FrameType::Ack] {
        let mut pair = Pair::new();
        pair.listen(1000, 4);
        pair.filter = drop_first(kind, 3);
        let a = pair.connect(5000, 1000);
        pair.run(Duration::from_secs(1));
        assert_eq!(pair.a.state(a), State::Established, "{kind:?}");
        assert_eq!(pair.b.state(pair.b.only()), State::Established, "{kind:?}");
        assert_eq!(pair.b.apps.len(), 1, "one connection for one nonce (W-26)");
    }
}

#[test]
fn repeated_syns_back_off_until_the_timeout() {
    let mut pair = Pair::new();
    pair.listen(1000, 4);
    pair.filter = Box::new(|_| Wire::Drop);
    let a = pair.connect(5000, 1000);
    pair.run(Duration::from_secs(6));
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::ConnectTimedOut));
    let times: Vec<_> = pair.log.iter().map(|f| f.at).collect();
    let gaps: Vec<_> = times.windows(2).map(|w| w[1] - w[0]).collect();
    for (gap, middle) in gaps.iter().zip([20, 40, 80, 160, 320, 500, 500, 500]) {
        let middle = Duration::from_millis(middle);
        assert!((middle * 3 / 4..=middle * 5 / 4).contains(gap), "{gap:?}");
    }
    assert!(gaps.len() >= 12);
    assert_eq!(pair.a.ep.connections().count(), 0);
}

#[test]
fn a_port_without_listener_refuses() {
    let mut pair = Pair::new();
    let a = pair.connect(5000, 1000);
    let took = pair.run_until(Duration::from_millis(10), |p| p.a.app(a).closed.is_some());
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Reset(ResetReason::Refused))
    );
    assert_eq!(took, pair.delay * 2);
    assert_eq!(pair.b.ep.counters().rx_drop_refused, 1);
    let offered = wire::SetUp::parse(pair.log[0].esp().payload).unwrap().nonce;
    assert_eq!(
        wire::Reset::parse(pair.log[1].esp().payload).unwrap().nonce,
        offered,
        "W-23"
    );
}

/// W-20, and W-21: the answer has the key of the SYN.
#[test]
fn job_keys_separate_jobs() {
    let cases: [(&[u8], &[u8], bool); 5] = [
        (b"", b"", true),
        (b"job", b"job", true),
        (b"job", b"joc", false),
        (b"job", b"", false),
        (b"", b"job", false),
    ];
    for (listen, connect, works) in cases {
        let mut pair = Pair::new();
        pair.b
            .ep
            .listen(
                1000,
                ListenOptions {
                    backlog: 4,
                    key: listen.to_vec(),
                    ..ListenOptions::default()
                },
            )
            .unwrap();
        let a = pair.connect_with(
            5000,
            1000,
            ConnOptions {
                buffers: Buffers { rx: ROOM, tx: ROOM },
                key: connect.to_vec(),
            },
        );
        pair.run(Duration::from_millis(5));
        if works {
            assert_eq!(pair.a.state(a), State::Established);
            let answer = wire::SetUp::parse(pair.log[1].esp().payload).unwrap();
            assert_eq!(answer.key, connect, "W-21");
        } else {
            assert_eq!(
                pair.a.app(a).closed,
                Some(CloseReason::Reset(ResetReason::BadKey))
            );
            assert_eq!(pair.b.ep.counters().rx_drop_key, 1);
        }
    }
}

/// W-17: of a SYN and of a SYN+ACK, whatever follows the version.
#[test]
fn another_version_is_refused_and_ours_reported() {
    let whole = Forge::syn(77, Seq(9)).payload;
    for rest in [&whole[1..], &[], &[0xff; 9]] {
        for (flags, seq) in [
            (wire::FLAG_SYN, Seq(10)),
            (wire::FLAG_SYN | wire::FLAG_ACK, Seq(500)),
        ] {
            let mut pair = Pair::new();
            pair.listen(1000, 4);
            let other = Forge::ack(Seq(9), Seq(500)).flags(flags);
            let payload = [&[3], rest].concat();
            pair.inject(MAC_A, MAC_B, other.payload(&payload).build());
            let answer = pair.log[0].esp();
            assert_eq!((answer.kind, answer.seq), (FrameType::Rst, seq));
            let reset = wire::Reset::parse(answer.payload).unwrap();
            assert_eq!(
                reset,
                wire::Reset {
                    reason: ResetReason::Version(1),
                    nonce: 0
                }
            );
            assert_eq!(pair.b.ep.counters().rx_drop_version, 1);
            assert_eq!(pair.b.ep.connections().count(), 0);
        }
    }
}

/// W-16: nonces and initial sequences differ between connections and between nodes, and do not
/// follow from the one before.
#[test]
fn nonces_and_initial_sequences_do_not_follow_from_earlier_ones() {
    let opened = |seed| {
        let mut pair = Pair::new();
        pair.a = Node::new(MAC_A, 1500, seed, EndpointConfig::default());
        pair.b = Node::new(MAC_B, 1500, seed + 100, EndpointConfig::default());
        pair.listen(1000, 300);
        for n in 0..200 {
            pair.connect(5000 + n, 1000);
        }
        pair.run(Duration::from_millis(1));
        let numbers = |kind| {
            let frames = pair.log.iter().filter(move |f| f.kind() == kind);
            let of = |f: &OnWire| {
                let block = wire::SetUp::parse(f.esp().payload).unwrap();
                (block.nonce, f.esp().seq.0)
            };
            frames.map(of).collect::<Vec<_>>()
        };
        [numbers(FrameType::Syn), numbers(FrameType::SynAck)]
    };
    for (one, two) in opened(1).into_iter().zip(opened(2)) {
        assert!(one.len() >= 200 && two.len() >= 200);
        let all: Vec<_> = one.iter().chain(&two).collect();
        let nonces: BTreeSet<u64> = all.iter().map(|(nonce, _)| *nonce).collect();
        assert_eq!(nonces.len(), all.len());
        let high: BTreeSet<u8> = all.iter().map(|(nonce, _)| (nonce >> 56) as u8).collect();
        let low: BTreeSet<u8> = all.iter().map(|(nonce, _)| *nonce as u8).collect();
        assert!(high.len() > 150 && low.len() > 150, "{high:?} {low:?}");
        let steps: BTreeSet<u16> = (all.windows(2))
            .map(|w| w[1].1.wrapping_sub(w[0].1))
            .collect();
        assert!(steps.len() > 350, "{steps:?}");
    }
}

#[test]
fn a_version_refusal_reaches_the_caller() {
    let mut pair = Pair::new();
    pair.filter = Box::new(|_| Wire::Drop);
    let a = pair.connect(5000, 1000);
    pair.flush();
    let seq = pair.log[0].esp().seq;
    let wrong = Forge::ack(seq.plus(2), Seq(0))
        .ports(5000, 1000)
        .reset(ResetReason::Version(7), 0);
    pair.inject(MAC_B, MAC_A, wrong.build());
    assert_eq!(
        pair.a.state(a),
        State::SynSent,
        "W-58: only the exact sequence"
    );
    let right = Forge::ack(seq.plus(1), Seq(0))
        .ports(5000, 1000)
        .reset(ResetReason::Version(7), 0);
    pair.inject(MAC_B, MAC_A, right.build());
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Reset(ResetReason::Version(7)))
    );
}

#[test]
fn crossing_syns_open_one_connection() {
    for lost in [None, Some(FrameType::Syn), Some(FrameType::SynAck)] {
        let mut pair = Pair::new();
        if let Some(kind) = lost {
            pair.filter = drop_first(kind, 1);
        }
        let a = pair.connect(5000, 1000);
        let options = ConnOptions {
            buffers: Buffers { rx: ROOM, tx: ROOM },
            key: vec![],
        };
        let b = pair
            .b
            .ep
            .connect(pair.now, 1000, MAC_A.into(), 5000, options)
            .unwrap();
        pair.b.apps.insert(
            b,
            App {
                room: ROOM,
                ..App::default()
            },
        );
        pair.run(Duration::from_millis(200));
        assert_eq!(
            (pair.a.state(a), pair.b.state(b)),
            (State::Established, State::Established),
            "{lost:?}"
        );
        assert_eq!((pair.a.events.len(), pair.b.events.len()), (1, 1));
        pair.a.write(pair.now, a, 5000);
        pair.b.write(pair.now, b, 6000);
        pair.run(Duration::from_millis(20));
        assert_eq!(
            (pair.a.app(a).received, pair.b.app(b).received),
            (6000, 5000)
        );
    }
}

/// W-29: a frame that does not acknowledge our SYN+ACK may be of an earlier incarnation, whose
/// sender is informed. One that acknowledges it with a sequence beyond the credit is forged.
#[test]
fn a_half_open_connection_resets_a_sender_that_does_not_acknowledge_it() {
    let mut pair = Pair::new();
    pair.listen(1000, 8);
    pair.inject(MAC_A, MAC_B, Forge::syn(7, Seq(100)).build());
    let expected = pair.log[0].esp().seq.plus(1);
    for (seq, ack, resets) in [(101, expected.plus(1), 1), (102, expected, 0)] {
        let from = pair.log.len();
        pair.inject(MAC_A, MAC_B, Forge::ack(Seq(seq), ack).build());
        assert_eq!(pair.kinds(MAC_B, from, FrameType::Rst), resets);
        assert_eq!(pair.b.ep.connections().count(), 1, "it changes nothing");
    }
    assert_eq!(pair.b.ep.counters().rx_drop_ack_forged, 2);
}

/// Data waits for the set-up, including one that crossing SYNs began (W-28).
#[test]
fn data_waits_until_the_set_up_is_complete() {
    for crossing in [false, true] {
        let mut pair = Pair::new();
        let a = pair.connect(5000, 1000);
        if crossing {
            let options = ConnOptions {
                buffers: Buffers { rx: ROOM, tx: ROOM },
                key: vec![],
            };
            let b = (pair.b.ep)
                .connect(pair.now, 1000, MAC_A.into(), 5000, options)
                .unwrap();
            pair.b.apps.insert(b, App::default());
        }
        let lost = if crossing {
            FrameType::SynAck
        } else {
            FrameType::Syn
        };
        pair.filter = Box::new(move |f| {
            if f.kind() == lost {
                Wire::Drop
            } else {
                Wire::Pass
            }
        });
        pair.a.write(pair.now, a, 5000);
        pair.run(Duration::from_secs(4));
        let is_set_up = |f: &OnWire| matches!(f.kind(), FrameType::Syn | FrameType::SynAck);
        assert!(pair.log.iter().all(is_set_up), "crossing: {crossing}");
    }
}

#[test]
fn crossing_syns_with_different_keys_are_refused() {
    let mut pair = Pair::new();
    let a = pair.connect_with(
        5000,
        1000,
        ConnOptions {
            buffers: Buffers { rx: ROOM, tx: ROOM },
            key: b"x".to_vec(),
        },
    );
    let options = ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: b"y".to_vec(),
    };
    let b = pair
        .b
        .ep
        .connect(pair.now, 1000, MAC_A.into(), 5000, options)
        .unwrap();
    pair.b.apps.insert(
        b,
        App {
            room: ROOM,
            ..App::default()
        },
    );
    pair.run(Duration::from_millis(5));
    assert_eq!(
        pair.a.app(a).closed,
        Some(CloseReason::Reset(ResetReason::BadKey))
    );
    assert_eq!(
        pair.b.app(b).closed,
        Some(CloseReason::Reset(ResetReason::BadKey))
    );
    for node in [&pair.a, &pair.b] {
        assert_eq!(node.ep.counters().rx_drop_key, 1);
    }
}

/// W-26, W-28: each attempt of a restarted peer is answered by its own nonce, and a listener's
/// connection is then another one.
#[test]
fn the_last_attempt_of_a_restarted_peer_counts() {
    for crossing in [false, true] {
        let mut pair = Pair::new();
        pair.filter = Box::new(|_| Wire::Drop);
        if crossing {
            let options = ConnOptions {
                buffers: Buffers { rx: ROOM, tx: ROOM },
                key: vec![],
            };
            (pair.b.ep)
                .connect(pair.now, 1000, MAC_A.into(), 5000, options)
                .unwrap();
            pair.flush();
        } else {
            pair.listen(1000, 8);
        }
        let mut answers = vec![];
        for nonce in [7, 8] {
            pair.inject(MAC_A, MAC_B, Forge::syn(nonce, Seq(100)).build());
            let answer = pair.log.last().expect("an answer");
            assert_eq!(answer.kind(), FrameType::SynAck);
            let block = wire::SetUp::parse(answer.esp().payload).unwrap();
            assert_eq!(block.peer_nonce, nonce, "crossing: {crossing}");
            answers.push(block.nonce);
        }
        assert_eq!(answers[0] == answers[1], crossing);
        assert_eq!(pair.b.ep.connections().count(), 1);
    }
}

/// W-26, W-55.
#[test]
fn a_late_copy_of_a_syn_opens_nothing_in_time_wait() {
    let (mut pair, a, b) = Pair::connected();
    pair.b.ep.shutdown(pair.now, b);
    pair.run(Duration::from_millis(1));
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.b.state(b), State::TimeWait);
    let (syn, from) = (pair.log[0].clone(), pair.log.len());
    assert_eq!(syn.kind(), FrameType::Syn);
    pair.inject(MAC_A, MAC_B, syn.body);
    assert_eq!(pair.kinds(MAC_B, from, FrameType::SynAck), 0);
    assert_eq!(pair.b.state(b), State::TimeWait);
}

/// W-21, W-29.
#[test]
fn a_syn_ack_with_another_number_or_key_opens_nothing() {
    let mut pair = Pair::new();
    let options = ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: b"ours".to_vec(),
    };
    let a = pair.connect_with(5000, 1000, options);
    pair.filter = Box::new(|_| Wire::Drop);
    pair.flush();
    let syn = pair.log[0].clone();
    let nonce = wire::SetUp::parse(syn.esp().payload).unwrap().nonce;
    let iss = syn.esp().seq;
    for (ack, key, counted, resets) in [
        (iss.plus(2), &b"ours"[..], (1, 0), 1),
        (iss.plus(1), b"theirs", (1, 1), 0),
    ] {
        let from = pair.log.len();
        let block = wire::SetUp {
            key,
            ..set_up(7, nonce)
        };
        let forge = Forge::ack(Seq(50), ack).ports(5000, 1000);
        let forge = forge.set_up(wire::FLAG_SYN | wire::FLAG_ACK, &block);
        pair.inject(MAC_B, MAC_A, forge.build());
        let counters = pair.a.ep.counters();
        let counters = (counters.rx_drop_ack_forged, counters.rx_drop_key);
        assert_eq!(counters, counted);
        assert_eq!(pair.kinds(MAC_A, from, FrameType::Rst), resets);
        assert_eq!(pair.a.state(a), State::SynSent);
    }
}

#[test]
fn data_written_before_the_answer_goes_after_it() {
    let mut pair = Pair::new();
    pair.listen(1000, 4);
    let a = pair.connect(5000, 1000);
    pair.a.write(pair.now, a, 10);
    pair.a.ep.shutdown(pair.now, a);
    pair.run(Duration::from_millis(20));
    let b = pair.b.only();
    assert_eq!((pair.b.app(b).received, pair.b.app(b).finished), (10, true));
}

#[test]
fn invalid_arguments_are_refused() {
    let mut pair = Pair::new();
    let options = |key: usize, rx| ConnOptions {
        buffers: Buffers { rx, tx: ROOM },
        key: vec![1; key],
    };
    let mut connect =
        |port, mac, peer_port, options| pair.a.ep.connect(pair.now, port, mac, peer_port, options);
    assert_eq!(
        connect(0, MAC_B.into(), 1, options(0, ROOM)),
        Err(ConnectError::BadAddress)
    );
    assert_eq!(
        connect(1, MAC_B.into(), 0, options(0, ROOM)),
        Err(ConnectError::BadAddress)
    );
    assert_eq!(
        connect(1, MacAddr::BROADCAST.into(), 1, options(0, ROOM)),
        Err(ConnectError::BadAddress)
    );
    assert_eq!(
        connect(7, MAC_A.into(), 7, options(0, ROOM)),
        Err(ConnectError::BadAddress)
    );
    assert_eq!(
        connect(1, MAC_B.into(), 1, options(33, ROOM)),
        Err(ConnectError::BadKey)
    );
    assert_eq!(
        connect(1, MAC_B.into(), 1, options(0, 63)),
        Err(ConnectError::BadCapacity)
    );
    assert!(connect(1, MAC_B.into(), 1, options(32, ROOM)).is_ok());
    assert_eq!(
        connect(1, MAC_B.into(), 1, options(0, ROOM)),
        Err(ConnectError::InUse)
    );
    let ep = &mut pair.b.ep;
    assert_eq!(
        ep.listen(
            0,
            ListenOptions {
                backlog: 1,
                ..ListenOptions::default()
            }
        ),
        Err(ListenError::BadPort)
    );
    assert_eq!(
        ep.listen(
            1,
            ListenOptions {
                backlog: 1,
                key: vec![0; 33],
                ..ListenOptions::default()
            }
        ),
        Err(ListenError::BadKey)
    );
    assert_eq!(
        ep.listen(
            1,
            ListenOptions {
                backlog: 1,
                key: vec![0; 32],
                ..ListenOptions::default()
            }
        ),
        Ok(())
    );
    assert_eq!(
        ep.listen(
            1,
            ListenOptions {
                backlog: 1,
                ..ListenOptions::default()
            }
        ),
        Err(ListenError::InUse)
    );
}
