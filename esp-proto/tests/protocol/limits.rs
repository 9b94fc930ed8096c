//! Bounds: SYN floods, accept queues, connection limits, reset rates (W-24, W-50).

use crate::common::*;
use esp_proto::wire::{FrameType, Retry, SetUp};
use esp_proto::*;

#[test]
fn a_syn_flood_stays_within_the_backlog_and_lets_others_in() {
    let mut pair = Pair::new();
    pair.listen(1000, 16);
    for n in 0..10_000u16 {
        let syn = Forge::syn(u64::from(n) + 1, Seq(n)).ports(1000, 10_000 + n);
        pair.inject(MacAddr([2, 0, 0, 0, 9, 9]), MAC_B, syn.build());
        pair.now = pair.now + Duration::from_millis(4);
        assert!(pair.b.ep.connections().count() <= 16);
    }
    assert_eq!(pair.b.ep.counters().half_open_evicted, 10_000 - 16);
    assert_eq!(pair.b.ep.counters().rx_drop_backlog, 0);
    let a = pair.connect(5000, 1000);
    pair.run_until(Duration::from_millis(1), |p| {
        p.a.state(a) == State::Established
    });
    pair.run(Duration::from_secs(6));
    assert_eq!(pair.b.ep.connections().count(), 1, "forged ones expire");
    assert_eq!(pair.b.ep.listeners().next().unwrap().1.half_open, 0);
}

/// Injects a SYN of each of these stations to port 1000 of B: ten in a millisecond, so that those
/// evicted are too young (W-150).
fn flood(pair: &mut Pair, numbers: core::ops::Range<u32>, features: u32) {
    for n in numbers {
        let [_, b, c, d] = n.to_be_bytes();
        let block = wire::SetUp {
            features,
            ..set_up(u64::from(n) + 1, 0)
        };
        let syn = Forge::syn(1, Seq(7)).set_up(wire::FLAG_SYN, &block);
        let from = MacAddr([2, 0, 9, b, c, d]);
        pair.inject(from, MAC_B, syn.ports(1000, 10_000).build());
        pair.run(Duration::from_micros(100));
    }
}

#[test]
fn a_fast_syn_flood_lets_others_in_by_cookies() {
    for features in [0, wire::FEATURE_COOKIES] {
        let mut pair = Pair::new();
        pair.listen(1000, 16);
        flood(&mut pair, 0..500, features);
        let conns: Vec<_> = (0..8).map(|n| pair.connect(5000 + n, 1000)).collect();
        flood(&mut pair, 500..600, features);
        for conn in conns {
            assert_eq!(pair.a.state(conn), State::Established, "{features}");
        }
        let (a, b) = (pair.a.ep.counters(), pair.b.ep.counters());
        assert!(a.rx_cookies >= 7, "{features}: {a:?}");
        assert_eq!(b.tx_cookies > 100, features != 0, "{b:?}");
        assert!(pair.b.ep.connections().count() <= 16 + 8);
    }
}

/// Forged SYNs to one listener use up the share of its owner; another listener of that owner still
/// accepts peers that return its cookie (W-24, W-150).
#[test]
fn a_flood_of_one_listener_leaves_room_for_another_of_its_owner() {
    let config = EndpointConfig {
        max_connections: 64,
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new();
    pair.b = Node::new(MAC_B, 1500, 2, config);
    for port in [1000, 1001] {
        let options = ListenOptions {
            backlog: 100,
            owner: 1,
            ..ListenOptions::default()
        };
        pair.b.ep.listen(port, options).unwrap();
    }
    flood(&mut pair, 0..500, 0);
    assert!(
        pair.b.ep.counters().rx_drop_backlog > 0,
        "the share is used up"
    );
    let conns: Vec<_> = (0..4).map(|n| pair.connect(5000 + n, 1001)).collect();
    flood(&mut pair, 500..1500, 0);
    for conn in conns {
        assert_eq!(pair.a.state(conn), State::Established);
    }
    assert!(pair.b.ep.connections().count() <= 16);
}

/// A peer answers every SYN by a cookie.
#[test]
fn cookies_do_not_make_syns_more_frequent() {
    let syns = |retries: bool| {
        let mut pair = Pair::new();
        let options = ConnOptions {
            buffers: Buffers { rx: ROOM, tx: ROOM },
            key: vec![],
        };
        let peer = MacAddr([2, 0, 0, 0, 0, 0xc]);
        let a = (pair.a.ep)
            .connect(pair.now, 5000, peer.into(), 1000, options)
            .unwrap();
        let mut answered = 0;
        for _ in 0..1000 {
            pair.run(Duration::from_millis(1));
            let syn = pair.sent(MAC_A, answered).next().map(|frame| {
                let esp = frame.esp();
                (SetUp::parse(esp.payload).unwrap().nonce, esp.seq)
            });
            let Some((nonce, seq)) = syn else { continue };
            answered = pair.log.len();
            let reset = Retry {
                nonce: if retries { nonce } else { nonce ^ 1 },
                cookie: 7 + answered as u64,
            };
            let mut block = [0; wire::RETRY_LEN];
            reset.emit(&mut block);
            let flags = wire::FLAG_RST | wire::FLAG_ACK;
            let retry = Forge::ack(seq.plus(1), seq.plus(1)).flags(flags);
            let retry = retry.ports(5000, 1000).payload(&block);
            pair.inject(peer, MAC_A, retry.build());
        }
        assert_eq!(pair.a.ep.info(a).unwrap().state, State::SynSent);
        let counters = pair.a.ep.counters();
        assert_eq!(counters.rx_cookies > 0, retries, "{counters:?}");
        assert_eq!(counters.rx_drop_reset_forged > 0, !retries, "{counters:?}");
        counters.tx_syns
    };
    let (with, without) = (syns(true), syns(false));
    assert!(with <= without + 1, "{with} and {without}");
}

#[test]
fn connections_of_one_burst_do_not_evict_each_other() {
    let mut pair = Pair::new();
    pair.listen(1000, 16);
    let conns: Vec<_> = (0..200).map(|n| pair.connect(5000 + n, 1000)).collect();
    pair.run(Duration::from_secs(2));
    assert!(conns.iter().all(|c| pair.a.state(*c) == State::Established));
    assert_eq!(pair.b.ep.counters().half_open_evicted, 0);
    assert!(pair.b.ep.counters().rx_drop_backlog > 0);
}

/// W-24: its peer takes it for established, so nothing but its SYN+ACK asks again.
#[test]
fn a_completion_is_dropped_while_the_accept_queue_is_full() {
    let mut pair = Pair::new();
    let room = pair.b.attach.take();
    pair.listen(1000, 1);
    let completes = |frame: &OnWire| {
        let kinds = [FrameType::Ack, FrameType::Probe];
        frame.src == MAC_A && kinds.contains(&frame.kind())
    };
    pair.filter = Box::new(move |frame| match completes(frame) {
        true => Wire::Drop,
        false => Wire::Pass,
    });
    pair.connect(5000, 1000);
    pair.run(Duration::from_millis(5));
    // The second one has a place by its cookie.
    pair.connect(5001, 1000);
    pair.run(Duration::from_millis(500));
    let states = |pair: &Pair| {
        let all = pair.b.ep.connections();
        let mut states: Vec<_> = all.map(|(_, info)| info.state).collect();
        states.sort_by_key(|state| *state == State::Established);
        states
    };
    assert_eq!(states(&pair), [State::SynReceived; 2]);
    let before = pair.b.ep.counters().rx_drop_backlog;
    pair.filter = Box::new(|_| Wire::Pass);
    pair.run(Duration::from_secs(1));
    assert_eq!(states(&pair), [State::SynReceived, State::Established]);
    assert!(pair.b.ep.counters().rx_drop_backlog > before);
    pair.b.attach = room;
    let first = pair.b.only();
    let buffers = Buffers { rx: ROOM, tx: ROOM };
    assert!(pair.b.ep.attach(pair.now, first, buffers));
    pair.run(Duration::from_secs(1));
    assert_eq!(states(&pair), [State::Established; 2]);
}

/// W-24: connections that have become established do not hide those that have not.
#[test]
fn the_oldest_half_open_connection_is_evicted_behind_many_established_ones() {
    let mut pair = Pair::new();
    pair.listen(1000, 4);
    let forger = |number| MacAddr([2, 7, 0, 0, 0, number]);
    let syn = |pair: &mut Pair, number: u8| {
        let syn = Forge::syn(u64::from(number) + 7, Seq(100)).build();
        pair.inject(forger(number), MAC_B, syn);
    };
    syn(&mut pair, 0);
    for port in 5000..5040 {
        pair.connect(port, 1000);
        pair.run(Duration::from_millis(1));
    }
    (1..4).for_each(|number| syn(&mut pair, number));
    pair.run(Duration::from_secs(1));
    syn(&mut pair, 4);
    assert_eq!(pair.b.ep.counters().half_open_evicted, 1);
    let half_open = pair.b.ep.connections().filter_map(|(_, info)| {
        let half_open = info.state == State::SynReceived;
        half_open.then_some(info.peer)
    });
    let left: Vec<NodeAddr> = (1..5).map(|number| forger(number).into()).collect();
    let mut half_open: Vec<NodeAddr> = half_open.collect();
    half_open.sort();
    assert_eq!(half_open, left);
}

/// Returns a pair whose B has room for 16 connections, and ports of these owners that accept none.
fn small_table(ports: &[(Port, u32)]) -> Pair {
    let config = EndpointConfig {
        max_connections: 16,
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new();
    pair.b = Node::new(MAC_B, 1500, 2, config);
    pair.b.attach = None;
    for &(port, owner) in ports {
        let options = ListenOptions {
            backlog: 100,
            owner,
            ..ListenOptions::default()
        };
        pair.b.ep.listen(port, options).unwrap();
    }
    pair
}

/// W-24.
#[test]
fn connections_that_end_before_they_are_accepted_leave_their_place() {
    let mut pair = small_table(&[(1000, 1)]);
    for round in 0..3 {
        let ports = 5000 + 10 * round..5010 + 10 * round;
        let conns: Vec<_> = ports.map(|port| pair.connect(port, 1000)).collect();
        pair.run(Duration::from_millis(100));
        assert_eq!(pair.b.ep.connections().count(), 4, "round {round}");
        for conn in conns {
            pair.a.ep.abort(pair.now, conn, ResetReason::Aborted);
        }
        pair.run(Duration::from_secs(60));
        assert_eq!(pair.b.ep.connections().count(), 0, "round {round}");
    }
}

/// W-24: an owner with long backlogs and slow programs leaves the table to others.
#[test]
fn connections_not_accepted_are_bounded_for_each_owner() {
    let mut pair = small_table(&[(1000, 1), (1001, 1), (1002, 2)]);
    let mut clients = 5000..;
    let mut connect = |pair: &mut Pair, port, count| {
        for client in clients.by_ref().take(count) {
            pair.connect(client, port);
        }
        pair.run(Duration::from_millis(100));
        pair.b.ep.connections().count()
    };
    assert_eq!(connect(&mut pair, 1000, 10), 4);
    assert_eq!(connect(&mut pair, 1001, 10), 4, "another port");
    assert!(pair.b.ep.counters().rx_drop_backlog > 0);
    assert_eq!(connect(&mut pair, 1002, 3), 7, "another owner");
    let buffers = Buffers { rx: ROOM, tx: ROOM };
    let waiting = pair.b.ep.connections().map(|(conn, _)| conn);
    for conn in waiting.collect::<Vec<_>>() {
        pair.b.ep.set_owner(conn, 3);
        assert!(pair.b.ep.attach(pair.now, conn, buffers));
    }
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.b.ep.connections().count(), 7 + 4, "those accepted");
    pair.b.ep.unlisten(pair.now, 1000);
    pair.b.ep.unlisten(pair.now, 1001);
    pair.run(Duration::from_millis(100));
    assert_eq!(connect(&mut pair, 1002, 10), 7 + 4, "those that ended");
}

#[test]
fn a_full_accept_queue_makes_the_next_ones_wait() {
    let mut pair = Pair::new();
    pair.b.attach = None;
    pair.listen(1000, 2);
    let conns: Vec<_> = (0..4).map(|n| pair.connect(5000 + n, 1000)).collect();
    pair.run(Duration::from_millis(1));
    let info = pair.b.ep.listeners().next().unwrap().1;
    assert_eq!((info.waiting, info.backlog), (2, 2));
    assert!(pair.b.ep.counters().rx_drop_backlog > 0);
    // Two are accepted; the others succeed with their repeated SYNs.
    pair.b.attach = Some(ROOM);
    let waiting: Vec<_> = pair.b.apps.keys().copied().collect();
    for conn in waiting {
        pair.b.apps.get_mut(&conn).unwrap().room = ROOM;
        assert!(
            pair.b
                .ep
                .attach(pair.now, conn, Buffers { rx: ROOM, tx: ROOM })
        );
        assert!(
            !pair
                .b
                .ep
                .attach(pair.now, conn, Buffers { rx: ROOM, tx: ROOM }),
            "once"
        );
    }
    pair.run(Duration::from_secs(1));
    assert!(conns.iter().all(|c| pair.a.state(*c) == State::Established));
    assert_eq!(pair.b.apps.len(), 4);
    assert_eq!(pair.b.ep.listeners().next().unwrap().1.waiting, 0);
}

/// The peer of such a connection believes that it is connected.
#[test]
fn an_acknowledged_half_open_connection_is_not_evicted() {
    for room in [true, false] {
        let mut pair = Pair::new();
        pair.b.attach = None;
        pair.listen(1000, 2);
        pair.connect(5000, 1000);
        pair.run(Duration::from_millis(1));
        // The acknowledgement of the third finds the accept queue full.
        let conns = [5001, 5002].map(|port| pair.connect(port, 1000));
        pair.run(Duration::from_millis(2));
        assert!(conns.iter().all(|c| pair.a.state(*c) == State::Established));
        let info = pair.b.ep.listeners().next().unwrap().1;
        assert_eq!((info.waiting, info.half_open), (2, 1));
        if room {
            let waiting = *pair.b.apps.keys().next().unwrap();
            pair.b.apps.get_mut(&waiting).unwrap().room = ROOM;
            assert!(
                pair.b
                    .ep
                    .attach(pair.now, waiting, Buffers { rx: ROOM, tx: ROOM })
            );
        }
        for n in 0..20 {
            let syn = Forge::syn(u64::from(n) + 1, Seq(n))
                .ports(1000, 10_000 + n)
                .build();
            let frame = OnWire {
                at: pair.now,
                src: MacAddr([2, 0, 0, 0, 9, 9]),
                dst: MAC_B,
                body: syn,
                looped: false,
                ce: false,
            };
            pair.b.receive(pair.now, &frame);
            pair.now = pair.now + Duration::from_millis(51);
        }
        assert_eq!(
            pair.b.ep.counters().half_open_evicted,
            if room { 19 } else { 0 }
        );
        pair.run(Duration::from_secs(6));
        let closed = conns.map(|c| pair.a.app(c).closed);
        if room {
            assert_eq!(closed, [None, None]);
        } else {
            // There was no room within the connect timeout, so the peer is reset.
            let end = Some(CloseReason::Reset(ResetReason::Resources));
            assert!(
                closed.contains(&end) && closed.contains(&None),
                "{closed:?}"
            );
        }
    }
}

#[test]
fn unlisten_resets_connections_not_yet_attached() {
    let mut pair = Pair::new();
    pair.listen(1000, 4);
    let taken = pair.connect(5000, 1000);
    pair.run(Duration::from_millis(1));
    pair.b.attach = None;
    let waiting = pair.connect(5001, 1000);
    pair.run(Duration::from_millis(1));
    pair.b.ep.unlisten(pair.now, 1000);
    pair.run(Duration::from_millis(1));
    assert_eq!(pair.a.state(taken), State::Established);
    assert_eq!(
        pair.a.app(waiting).closed,
        Some(CloseReason::Reset(ResetReason::Refused))
    );
    assert_eq!(pair.b.ep.listeners().count(), 0);
}

#[test]
fn the_connection_limit_holds_on_both_sides() {
    let config = EndpointConfig {
        max_connections: 3,
        ..EndpointConfig::default()
    };
    let mut pair = Pair::with(1500, config);
    pair.listen(1000, 100);
    for n in 0..3 {
        pair.connect(5000 + n, 1000);
    }
    let options = ConnOptions {
        buffers: Buffers { rx: ROOM, tx: ROOM },
        key: vec![],
    };
    assert_eq!(
        pair.a
            .ep
            .connect(pair.now, 6000, MAC_B.into(), 1000, options),
        Err(ConnectError::TooMany)
    );
    pair.run(Duration::from_millis(1));
    pair.inject(
        MacAddr([2, 0, 0, 0, 0, 0xc]),
        MAC_B,
        Forge::syn(5, Seq(5)).build(),
    );
    assert_eq!(pair.b.ep.counters().rx_drop_limit, 1);
    assert_eq!(pair.b.ep.connections().count(), 3);
}

#[test]
fn resets_for_unknown_connections_are_rate_limited() {
    let mut pair = Pair::new();
    for n in 0..5000u16 {
        let outsider = Forge::ack(Seq(1), Seq(n)).ports(1, 2).payload(b"x");
        let frame = OnWire {
            at: pair.now,
            src: MAC_A,
            dst: MAC_B,
            body: outsider.build(),
            looped: false,
            ce: false,
        };
        pair.b.receive(pair.now, &frame);
    }
    pair.flush();
    let sent = pair.kinds(MAC_B, 0, FrameType::Rst);
    assert_eq!(sent, 256);
    let counters = pair.b.ep.counters();
    assert_eq!(
        (counters.rx_drop_no_connection, counters.tx_reset_limited),
        (5000, 5000 - 256)
    );
    let reset = pair.log[7].esp();
    assert_eq!(
        reset.seq,
        Seq(7),
        "sequence = the frame's ack sequence (W-50)"
    );
}

#[test]
fn challenges_are_limited_in_rate() {
    let (mut pair, _, _) = Pair::connected();
    for n in 0..1000 {
        let syn = Forge::syn(n + 10, Seq(7)).build();
        let frame = OnWire {
            at: pair.now,
            src: MAC_A,
            dst: MAC_B,
            body: syn,
            looped: false,
            ce: false,
        };
        pair.b.receive(pair.now, &frame);
        pair.b.drain(pair.now);
        while pair.b.transmit(pair.now).is_some() {}
    }
    assert_eq!(pair.b.ep.counters().rx_challenges, 64);
    assert_eq!(pair.b.ep.counters().tx_challenge_limited, 1000 - 64);
}

#[test]
fn a_reset_is_never_answered() {
    let mut pair = Pair::new();
    pair.inject(
        MAC_A,
        MAC_B,
        Forge::ack(Seq(1), Seq(2))
            .reset(ResetReason::Aborted, 7)
            .build(),
    );
    assert!(pair.log.is_empty());
    assert_eq!(pair.b.ep.counters().rx_drop_no_connection, 1);
}

#[test]
fn connections_take_turns() {
    let mut pair = Pair::new();
    pair.listen(1000, 8);
    let conns: Vec<_> = (0..3).map(|n| pair.connect(5000 + n, 1000)).collect();
    pair.run(Duration::from_millis(5));
    for conn in &conns {
        pair.a.write(pair.now, *conn, 1_000_000); // opens the congestion window
        pair.run(Duration::from_millis(50));
    }
    let from = pair.log.len();
    for conn in &conns {
        pair.a.write(pair.now, *conn, 200_000);
    }
    pair.flush();
    let ports: Vec<_> = pair
        .sent(MAC_A, from)
        .map(|f| f.header().src_port)
        .collect();
    let turns: Vec<_> = ports.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
    assert_eq!(turns[..6], [32; 6]);
    assert_eq!(ports.len(), 3 * 200_000usize.div_ceil(1489));
}

#[test]
fn a_connection_that_ends_before_its_event_has_no_progress() {
    let mut pair = Pair::new();
    pair.listen(1000, 4);
    pair.inject(MAC_A, MAC_B, Forge::syn(3, Seq(50)).build());
    let syn_ack = pair.log[0].esp().seq;
    // Completed and reset within one batch, before the host polls.
    for body in [
        Forge::ack(Seq(51), syn_ack.plus(1)).build(),
        Forge::ack(Seq(51), Seq(0))
            .reset(ResetReason::Aborted, 0)
            .build(),
    ] {
        let frame = OnWire {
            at: pair.now,
            src: MAC_A,
            dst: MAC_B,
            body,
            looped: false,
            ce: false,
        };
        pair.b.receive(pair.now, &frame);
    }
    assert_eq!(pair.b.ep.poll_progress(), None);
    assert!(matches!(
        pair.b.ep.poll_event(),
        Some(Event::Incoming { .. })
    ));
    assert!(matches!(pair.b.ep.poll_event(), Some(Event::Closed { .. })));
}
