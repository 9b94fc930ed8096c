//! Datagrams (section 9).

use crate::common::*;
use esp_proto::*;

/// Builds a datagram of A as a frame: header by the endpoint, payload by the "host".
fn datagram(
    pair: &mut Pair,
    dst: MacAddr,
    ports: (Port, Port),
    kind: EdpKind,
    payload: &[u8],
) -> Option<OnWire> {
    let mut head: Head = [0x5a; HEAD_LEN];
    let t = pair.a.ep.edp_header(
        &mut head,
        ports.0,
        (dst.into(), ports.1),
        kind,
        77,
        payload.len(),
    )?;
    assert_eq!(
        (&t.payload, t.proto, t.dst),
        (&Payload::None, Proto::Edp, dst.into())
    );
    let n = kind.prefix_len();
    let mut bytes = head[..n].to_vec();
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(&head[n..n + t.tail_len]);
    assert!(bytes.len() >= 60);
    assert!(bytes[n + payload.len()..].iter().all(|b| *b == 0), "W-04");
    Some(OnWire {
        at: pair.now,
        src: MAC_A,
        dst,
        body: bytes[12..].to_vec(),
        looped: false,
        ce: false,
    })
}

fn send(pair: &mut Pair, dst: MacAddr, ports: (Port, Port), kind: EdpKind, payload: &[u8]) {
    let frame = datagram(pair, dst, ports, kind, payload).unwrap();
    pair.b.receive(pair.now, &frame);
    pair.run(Duration::from_millis(1));
}

/// W-70.
#[test]
fn echo_comes_back_with_number_and_bytes() {
    let mut pair = Pair::new();
    pair.a.ep.edp_bind(40_000).unwrap();
    for len in [0, 1, 34, 35, 1000, 1488] {
        let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
        send(&mut pair, MAC_B, (40_000, 0), EdpKind::EchoRequest, &body);
        let reply = pair.log.last().unwrap();
        assert_eq!(reply.header().seq.0, 77, "the request's number comes back");
        assert_eq!(
            pair.a.datagrams.pop(),
            Some((40_000, EdpKind::EchoReply, body))
        );
    }
    let counters = pair.b.ep.counters();
    assert_eq!((counters.rx_edp_requests, counters.tx_edp), (6, 6));
}

/// W-71.
#[test]
fn info_reply_describes_the_node() {
    let config = EndpointConfig {
        node_name: "ö".repeat(40),
        ..EndpointConfig::default()
    };
    let mut pair = Pair::with(9000, config);
    pair.a.ep.edp_bind(40_000).unwrap();
    send(
        &mut pair,
        MacAddr::BROADCAST,
        (40_000, 0),
        EdpKind::InfoRequest,
        &[],
    );
    assert_eq!(
        pair.log.last().unwrap().dst,
        MAC_A,
        "answers are unicast (W-72)"
    );
    assert_eq!(pair.log.last().unwrap().header().seq.0, 77);
    let (_, kind, body) = pair.a.datagrams.pop().unwrap();
    assert_eq!(kind, EdpKind::InfoReply);
    let info = wire::InfoReply::parse(&body).unwrap();
    assert_eq!(
        (
            info.version,
            info.max_payload,
            info.features,
            info.incarnation
        ),
        (1, 8989, 0, 1)
    );
    assert_eq!(info.name, "ö".repeat(32), "cut at 64 bytes");
}

#[test]
fn data_reaches_the_bound_port_only() {
    let mut pair = Pair::new();
    pair.b.ep.edp_bind(7).unwrap();
    assert_eq!(pair.b.ep.edp_bind(7), Err(ListenError::InUse));
    assert_eq!(pair.b.ep.edp_bind(0), Err(ListenError::BadPort));
    send(&mut pair, MAC_B, (8, 7), EdpKind::Data, b"hello");
    assert_eq!(
        pair.b.datagrams.pop(),
        Some((7, EdpKind::Data, b"hello".to_vec()))
    );
    assert_eq!(pair.b.ep.counters().rx_datagrams, 1);
    send(&mut pair, MAC_B, (8, 9), EdpKind::Data, b"hello");
    assert_eq!(pair.b.ep.counters().rx_drop_edp_port, 1);
    pair.b.ep.edp_unbind(7);
    send(&mut pair, MAC_B, (8, 7), EdpKind::Data, b"hello");
    assert_eq!(pair.b.ep.counters().rx_drop_edp_port, 2);
    assert!(pair.log.is_empty(), "no answers (W-74)");
}

/// W-76, W-77.
#[test]
fn queries_to_a_port_and_replies_without_a_connection_are_counted() {
    let mut pair = Pair::new();
    let control = |kind: EdpKind, body: &[u8]| {
        let header = wire::Header {
            packet_type: EndpointConfig::default().edp_ethertype,
            dst_port: 7,
            src_port: 8,
            seq: Seq(1),
            ack: Seq(0),
            len: 1 + body.len() as u16,
            flags: wire::FLAG_CTL,
        };
        let mut frame = [&header.emit()[..], &[kind as u8], body].concat();
        frame.resize(48, 0);
        frame
    };
    pair.inject(MAC_A, MAC_B, control(EdpKind::PortQuery, &[0, 7]));
    assert_eq!(pair.b.ep.counters().rx_drop_control, 1);
    pair.inject(MAC_A, MAC_B, control(EdpKind::PortReply, &[0, 7, 1]));
    assert_eq!(pair.b.ep.counters().rx_drop_edp_port, 1);
    assert!(pair.log.is_empty());
}

#[test]
fn only_requests_are_taken_from_broadcast() {
    let mut pair = Pair::new();
    pair.b.ep.edp_bind(7).unwrap();
    let mut frame = datagram(&mut pair, MAC_B, (8, 7), EdpKind::Data, b"x").unwrap();
    frame.dst = MacAddr::BROADCAST;
    pair.b.receive(pair.now, &frame);
    assert_eq!(pair.b.ep.counters().rx_drop_broadcast, 1);
    frame.dst = MacAddr([3, 0, 0, 0, 0, 0]);
    pair.b.receive(pair.now, &frame);
    assert_eq!(pair.b.ep.counters().rx_drop_destination, 1);
    assert!(pair.b.datagrams.is_empty());
}

/// W-75: such a request arrives only if the sender's interface has a larger MTU.
#[test]
fn an_answer_beyond_the_mtu_is_not_sent() {
    let mut pair = Pair::new();
    pair.a = Node::new(MAC_A, 9000, 1, EndpointConfig::default());
    for (len, answers) in [(1488, 1), (1489, 0), (8000, 0)] {
        let before = pair.log.len();
        let body = vec![7; len];
        send(&mut pair, MAC_B, (8, 0), EdpKind::EchoRequest, &body);
        assert_eq!(pair.log.len() - before, answers, "{len}");
    }
    assert_eq!(pair.b.ep.counters().rx_drop_edp_reply_long, 2);
}

/// W-73.
#[test]
fn answers_waiting_are_limited() {
    let mut pair = Pair::new();
    let frame = datagram(&mut pair, MAC_B, (8, 0), EdpKind::EchoRequest, b"x").unwrap();
    for _ in 0..1000 {
        pair.b.receive(pair.now, &frame);
    }
    pair.flush();
    assert_eq!(pair.log.len(), 256);
    assert_eq!(pair.b.ep.counters().rx_drop_edp_reply_limit, 1000 - 256);
}

/// Returns an echo request of A with `len` bytes, addressed to `dst` whatever the sender allows.
fn echo_to(pair: &mut Pair, dst: MacAddr, len: usize) -> OnWire {
    let body = vec![7; len];
    let mut frame = datagram(pair, MAC_B, (8, 0), EdpKind::EchoRequest, &body).unwrap();
    frame.dst = dst;
    frame
}

/// Lets B receive a frame `count` times at `at`; returns the number of answers.
fn answers(pair: &mut Pair, frame: &OnWire, at: Instant, count: usize) -> usize {
    for _ in 0..count {
        pair.b.receive(at, frame);
    }
    let before = pair.log.len();
    pair.flush();
    pair.log.len() - before
}

#[test]
fn answers_to_broadcast_echoes_have_a_rate() {
    let mut pair = Pair::new();
    let start = pair.now;
    let to_all = echo_to(&mut pair, MacAddr::BROADCAST, 64);
    let dropped = |pair: &Pair| pair.b.ep.counters().rx_drop_edp_broadcast_rate;
    assert_eq!(answers(&mut pair, &to_all, start, 200), 32, "W-79");
    assert_eq!(dropped(&pair), 168);
    // Other requests have no part in the limit.
    let to_one = echo_to(&mut pair, MAC_B, 64);
    assert_eq!(answers(&mut pair, &to_one, start, 40), 40);
    let mut info = datagram(&mut pair, MAC_B, (8, 0), EdpKind::InfoRequest, &[]).unwrap();
    info.dst = MacAddr::BROADCAST;
    assert_eq!(answers(&mut pair, &info, start, 40), 40);
    // Ten milliseconds for each further answer, and no more than the burst after a pause.
    let later = |millis| start + Duration::from_millis(millis);
    assert_eq!(answers(&mut pair, &to_all, later(9), 5), 0);
    assert_eq!(answers(&mut pair, &to_all, later(50), 50), 5);
    assert_eq!(answers(&mut pair, &to_all, later(60_000), 50), 32);
    assert_eq!(dropped(&pair), 168 + 5 + 45 + 18);
}

#[test]
fn long_broadcast_echoes_are_dropped() {
    let mut pair = Pair::new();
    let start = pair.now;
    for (len, wanted) in [(0, 1), (56, 1), (64, 1), (65, 0), (1488, 0)] {
        let frame = echo_to(&mut pair, MacAddr::BROADCAST, len);
        assert_eq!(
            answers(&mut pair, &frame, start, 1),
            wanted,
            "{len} bytes (W-78)"
        );
        let alone = echo_to(&mut pair, MAC_B, len);
        assert_eq!(answers(&mut pair, &alone, start, 1), 1, "{len} bytes");
    }
    // Programs do not receive them either.
    pair.b.ep.edp_bind(7).unwrap();
    for len in [64, 65] {
        let body = vec![7; len];
        let mut frame = datagram(&mut pair, MAC_B, (8, 7), EdpKind::EchoRequest, &body).unwrap();
        frame.dst = MacAddr::BROADCAST;
        pair.b.receive(start, &frame);
    }
    assert_eq!(pair.b.datagrams.len(), 1);
    assert_eq!(pair.b.ep.counters().rx_drop_edp_broadcast_long, 3);
}

#[test]
fn unsendable_datagrams_are_refused() {
    let mut pair = Pair::new();
    let mut head: Head = [0; HEAD_LEN];
    let ep = &mut pair.a.ep;
    let mut header = |dst, port, kind, len| {
        ep.edp_header(&mut head, 1, (dst, port), kind, 0, len)
            .is_some()
    };
    assert!(header(MAC_B.into(), 7, EdpKind::Data, 1489));
    assert!(!header(MAC_B.into(), 7, EdpKind::Data, 1490));
    assert!(!header(MAC_B.into(), 7, EdpKind::Data, usize::MAX));
    assert!(!header(MAC_B.into(), 0, EdpKind::Data, 1));
    assert!(!header(MacAddr::BROADCAST.into(), 7, EdpKind::Data, 1));
    assert!(header(MAC_B.into(), 0, EdpKind::EchoRequest, 1488));
    assert!(!header(MAC_B.into(), 0, EdpKind::EchoRequest, 1489));
    let to_all = MacAddr::BROADCAST.into();
    assert!(header(to_all, 0, EdpKind::EchoRequest, 64));
    assert!(!header(to_all, 0, EdpKind::EchoRequest, 65), "W-78");
    assert!(!header(
        MacAddr([3, 0, 0, 0, 0, 0]).into(),
        0,
        EdpKind::EchoRequest,
        8
    ));
    assert!(!header(MAC_B.into(), 0, EdpKind::InfoRequest, 1));
    assert!(!header(MAC_B.into(), 7, EdpKind::EchoReply, 1));
    assert!(!header(MAC_B.into(), 7, EdpKind::InfoReply, 1));
    let by_ip = "10.1.0.2".parse().unwrap();
    assert!(!header(by_ip, 7, EdpKind::Data, 1));
}
