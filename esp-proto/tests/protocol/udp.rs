//! ESP in UDP (section 13): addresses that are not validated, sizes, moves.

use crate::common::{Forge, set_up};
use esp_proto::wire::{FLAG_CTL, FLAG_PRB, FLAG_SYN, FrameType, Header, Move, SetUp, Step};
use esp_proto::*;

const A: &str = "10.1.0.1@4001";
const B: &str = "10.1.0.2";

/// A datagram: source, destination, bytes.
#[derive(Clone)]
struct Sent {
    src: NodeAddr,
    dst: NodeAddr,
    body: Vec<u8>,
}

impl Sent {
    fn esp(&self) -> wire::EspFrame<'_> {
        let (header, rest) = Header::parse(&self.body).unwrap();
        wire::EspFrame::parse(&header, rest).unwrap()
    }
}

/// Counts the bytes that arrive. Their values are tested elsewhere.
#[derive(Default)]
struct Bytes(u64);

impl Sink for Bytes {
    fn deliver(&mut self, _: ConnId, offset: u64, bytes: &[u8]) {
        assert_eq!(offset, self.0);
        self.0 += bytes.len() as u64;
    }
    fn datagram(&mut self, _: Datagram<'_>) {}
}

/// Two endpoints at A and B, B listening, and a wire without delay.
struct Routed {
    now: Instant,
    ends: [Endpoint; 2],
    got: [Bytes; 2],
    log: Vec<Sent>,
    lost: fn(&Sent) -> bool,
    /// The program of B accepts.
    accepts: bool,
}

impl Routed {
    fn new(mtu: u32, config: &EndpointConfig) -> Routed {
        let end = |at: &str, seed| {
            let addr: NodeAddr = at.parse().unwrap();
            Endpoint::new(config.clone(), addr, addr.frame_mtu(mtu), [seed; 32], 1)
        };
        let mut ends = [end(A, 1), end(B, 2)];
        let options = ListenOptions {
            backlog: 16,
            ..ListenOptions::default()
        };
        ends[1].listen(1000, options).unwrap();
        Routed {
            now: Instant::from_nanos(1_000_000),
            ends,
            got: Default::default(),
            log: vec![],
            lost: |_| false,
            accepts: true,
        }
    }

    fn connected(mtu: u32) -> (Routed, ConnId) {
        let mut net = Routed::new(mtu, &EndpointConfig::default());
        let conn = net.connect(B).unwrap();
        net.run(Duration::from_millis(1));
        assert_eq!(net.ends[0].info(conn).unwrap().state, State::Established);
        (net, conn)
    }

    fn connect(&mut self, to: &str) -> Result<ConnId, ConnectError> {
        let options = ConnOptions {
            buffers: buffers(),
            key: vec![],
        };
        self.ends[0].connect(self.now, 5000, to.parse().unwrap(), 1000, options)
    }

    /// Lets B receive bytes from any address; returns the packets that it then sends.
    fn feed(&mut self, src: &str, body: &[u8]) -> Vec<Sent> {
        let from = self.log.len();
        self.arrive(1, src.parse().unwrap(), body);
        self.flush();
        self.log[from..].to_vec()
    }

    fn arrive(&mut self, to: usize, src: NodeAddr, body: &[u8]) {
        let frame = RxFrame {
            src,
            dst: self.ends[to].addr(),
            body,
            looped: false,
            ce: false,
        };
        self.ends[to].handle_frame(self.now, frame, &mut self.got[to]);
    }

    fn flush(&mut self) {
        let mut quiet = false;
        while !quiet {
            quiet = true;
            for end in 0..2 {
                self.serve(end);
                while let Some(sent) = transmit(&mut self.ends[end], self.now) {
                    quiet = false;
                    self.log.push(sent.clone());
                    let to = self.ends.iter().position(|e| e.addr() == sent.dst);
                    if let Some(to) = to.filter(|_| !(self.lost)(&sent)) {
                        self.arrive(to, sent.src, &sent.body);
                    }
                }
            }
        }
    }

    fn serve(&mut self, end: usize) {
        let ep = &mut self.ends[end];
        while let Some(event) = self.accepts.then(|| ep.poll_event()).flatten() {
            if let Event::Incoming { conn, .. } = event {
                assert!(ep.attach(self.now, conn, buffers()));
            }
        }
        while let Some(p) = ep.poll_progress() {
            ep.consumed(self.now, p.conn, p.delivered);
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        for step in 0.. {
            assert!(step < 1_000_000, "the endpoints do not become idle");
            self.flush();
            let next = self
                .ends
                .iter_mut()
                .filter_map(Endpoint::poll_timeout)
                .min();
            let Some(at) = next.filter(|at| *at <= until) else {
                break;
            };
            self.now = self.now.max(at);
            for end in &mut self.ends {
                end.handle_timeout(self.now);
            }
        }
        self.now = until;
    }

    fn nonce(&self, kind: FrameType) -> u64 {
        let frame = self.log.iter().find(|sent| sent.esp().kind == kind);
        SetUp::parse(frame.unwrap().esp().payload).unwrap().nonce
    }
}

fn buffers() -> Buffers {
    let room = 256 * 1024;
    Buffers { rx: room, tx: room }
}

/// Returns the next datagram; the bytes of streams are zeros.
fn transmit(ep: &mut Endpoint, now: Instant) -> Option<Sent> {
    let mut head: Head = [0; HEAD_LEN];
    let t = ep.poll_transmit(now, &mut head)?;
    let mut body = head[12..PREFIX_LEN].to_vec();
    match &t.payload {
        Payload::None => {}
        Payload::Stream { len, .. } | Payload::Filler { len } => {
            body.resize(body.len() + usize::from(*len), 0);
        }
        Payload::Owned(owned) => body.extend_from_slice(owned),
    }
    body.extend_from_slice(&head[PREFIX_LEN..PREFIX_LEN + t.tail_len]);
    let (src, dst) = (ep.addr(), t.dst);
    Some(Sent { src, dst, body })
}

/// Returns a control datagram to port 0 of `len` bytes in all.
fn control(kind: EdpKind, len: usize) -> Vec<u8> {
    let used = match kind {
        EdpKind::EchoRequest => len - wire::HEADER_LEN,
        _ => 1,
    };
    let header = Header {
        packet_type: 0x88b6,
        dst_port: 0,
        src_port: 40_000,
        seq: Seq(1),
        ack: Seq(0),
        len: used as u16,
        flags: FLAG_CTL,
    };
    let mut body = header.emit().to_vec();
    body.push(kind as u8);
    body.resize(len, 0);
    body
}

/// W-123: no answer to an address that is not validated is longer than its request, and none is
/// repeated by itself.
#[test]
fn an_address_that_is_not_validated_gets_no_more_than_it_sent() {
    let config = EndpointConfig {
        node_name: "n".repeat(64),
        ..EndpointConfig::default()
    };
    let mut net = Routed::new(1500, &config);
    let mut version = Forge::syn(8, Seq(9)).ports(1000, 6000);
    version.payload[0] = 9;
    let requests = [
        Forge::syn(7, Seq(9)).build(),
        Forge::syn(8, Seq(9)).ports(1001, 5000).build(),
        version.build(),
        Forge::ack(Seq(1), Seq(2)).ports(1000, 7000).build(),
        control(EdpKind::EchoRequest, 48),
        control(EdpKind::EchoRequest, 1200),
        control(EdpKind::InfoRequest, 128),
    ];
    for request in &requests {
        let answers = net.feed("10.9.0.1", request);
        assert_eq!(answers.len(), 1, "{request:?}");
        assert!(answers[0].body.len() <= request.len(), "{request:?}");
    }
    let short = control(EdpKind::InfoRequest, 93);
    assert_eq!(net.feed("10.9.0.1", &short).len(), 0, "the reply has 94");
    assert_eq!(net.ends[1].counters().rx_drop_edp_reply_long, 1);
    let before = net.log.len();
    net.run(Duration::from_secs(4));
    assert_eq!(net.log.len(), before, "no SYN+ACK by itself");
    let again = net.feed("10.9.0.1", &requests[0]);
    assert_eq!(again.len(), 1, "the SYN was repeated");
    assert_eq!(again[0].esp().kind, FrameType::SynAck);
}

/// W-123: nor is a peer whose address is not validated reset when its connection ends here.
#[test]
fn an_address_that_is_not_validated_is_not_reset() {
    let mut net = Routed::new(1500, &EndpointConfig::default());
    let request = Forge::syn(7, Seq(9)).build();
    assert_eq!(net.feed("10.9.0.1", &request).len(), 1);
    let before = net.log.len();
    let now = net.now;
    net.ends[1].shutdown_all(now);
    net.run(Duration::from_secs(4));
    assert_eq!(net.log.len(), before, "its SYN is answered already");
    let again = net.feed("10.9.0.1", &request);
    assert_eq!(again.len(), 1, "a repeated one is refused");
    assert_eq!(again[0].esp().kind, FrameType::Rst);
}

/// The peer has shown by its acknowledgement that it receives at its address.
#[test]
fn an_established_connection_of_a_listener_is_reset() {
    let (mut net, conn) = Routed::connected(1500);
    let (accepted, _) = net.ends[1].connections().next().unwrap();
    net.ends[1].abort(net.now, accepted, ResetReason::Aborted);
    net.run(Duration::from_millis(1));
    assert_eq!(net.ends[0].info(conn), None);
}

/// W-123: pads a request for information to the length of its longest answer.
#[test]
fn requests_are_as_long_as_their_answers() {
    let config = EndpointConfig {
        node_name: "n".repeat(64),
        ..EndpointConfig::default()
    };
    let mut net = Routed::new(1500, &config);
    let mut head: Head = [0xff; HEAD_LEN];
    for (kind, least) in [(EdpKind::InfoRequest, 128), (EdpKind::EchoRequest, 48)] {
        let to = (B.parse().unwrap(), 0);
        let sent = net.ends[0].edp_header(&mut head, 40_000, to, kind, 5, 0);
        let start = kind.prefix_len();
        let len = start + sent.unwrap().tail_len;
        assert_eq!(len - 12, least, "{kind:?}");
        assert!(head[start..len].iter().all(|byte| *byte == 0));
        let answers = net.feed("10.9.0.1", &head[12..len]);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].body.len() <= len - 12, "{kind:?}");
    }
    let ours = net.ends[0].counters();
    assert_eq!((ours.tx_edp, ours.tx_frames), (2, 2));
}

/// W-123: the side that connects is silent once it believes that it is connected.
#[test]
fn a_connection_that_waited_for_room_is_accepted_soon_after() {
    // The minimum MTU, at which there are no probes of the path.
    let mut net = Routed::new(1260, &EndpointConfig::default());
    let options = ListenOptions {
        backlog: 1,
        ..ListenOptions::default()
    };
    assert!(net.ends[1].listen(1001, options).is_ok());
    net.accepts = false;
    for port in [5000, 5001] {
        let options = ConnOptions {
            buffers: buffers(),
            key: vec![],
        };
        let to = B.parse().unwrap();
        net.ends[0]
            .connect(net.now, port, to, 1001, options)
            .unwrap();
    }
    // Both are half open before the first one fills the accept queue.
    net.run(Duration::from_millis(500));
    let established = |net: &Routed| {
        let all = net.ends[1].connections();
        all.filter(|(_, info)| info.state == State::Established)
            .count()
    };
    assert_eq!(established(&net), 1);
    assert!(net.ends[1].counters().rx_drop_backlog > 0);
    net.accepts = true;
    net.run(Duration::from_millis(500));
    assert_eq!(established(&net), 2);
}

/// Drops all frames of B and sends a byte to it. `act` runs after a millisecond. Returns the number
/// of milliseconds until the connection ends.
fn ends_after(act: impl Fn(&mut Endpoint, Instant)) -> u128 {
    let (mut net, conn) = Routed::connected(1500);
    net.lost = |sent| sent.src == B.parse::<NodeAddr>().unwrap();
    let begin = net.now;
    net.ends[0].written(net.now, conn, 1);
    net.run(Duration::from_millis(1));
    act(&mut net.ends[0], net.now);
    while net.ends[0]
        .info(conn)
        .is_some_and(|info| info.state == State::Established)
    {
        net.run(Duration::from_millis(1));
    }
    (net.now - begin).as_millis()
}

/// W-126: a peer whose node reports that its port is closed has ten seconds more to answer, however
/// often that is reported, and the report affects no other peer.
#[test]
fn a_peer_whose_port_is_closed_is_lost_sooner() {
    let report = |address: &str| {
        let address: NodeAddr = address.parse().unwrap();
        move |end: &mut Endpoint, now| end.port_closed(now, address)
    };
    let forever = ends_after(|_, _| {});
    assert!((30_000..30_010).contains(&forever), "{forever} ms");
    for other in ["10.1.0.3", "10.1.0.2@4001"] {
        assert_eq!(ends_after(report(other)), forever, "{other}");
    }
    let sooner = ends_after(report(B));
    assert!((10_000..10_010).contains(&sooner), "{sooner} ms");
    let often = ends_after(|end, now| {
        for n in 0..1000 {
            end.port_closed(now + Duration::from_nanos(n), B.parse().unwrap());
        }
    });
    assert_eq!(often, sooner);
}

/// W-126: the report proves nothing: a peer that answers is as alive as before, and one that owes
/// no answer is not affected.
#[test]
fn a_peer_that_answers_has_its_port() {
    let (mut net, conn) = Routed::connected(1500);
    let report = |net: &mut Routed| net.ends[0].port_closed(net.now, B.parse().unwrap());
    report(&mut net);
    net.run(Duration::from_secs(60));
    net.lost = |_| true;
    net.ends[0].written(net.now, conn, 1);
    net.run(Duration::from_secs(1));
    report(&mut net);
    net.run(Duration::from_secs(8));
    net.lost = |_| false;
    net.run(Duration::from_secs(1));
    assert_eq!(net.got[1].0, 1);
    // It has the whole time to answer again.
    net.lost = |_| true;
    net.ends[0].written(net.now, conn, 2);
    net.run(Duration::from_secs(29));
    assert_eq!(net.ends[0].info(conn).unwrap().state, State::Established);
}

/// W-123: 1000 at once, as `endpoint::answers` says.
#[test]
fn answers_to_one_network_have_a_rate() {
    let mut net = Routed::new(1500, &EndpointConfig::default());
    let request = control(EdpKind::EchoRequest, 48);
    let answers = |net: &mut Routed, network: u8| -> usize {
        let from = |n: u32| format!("10.9.{network}.{}", 1 + n % 200);
        (0..3000).map(|n| net.feed(&from(n), &request).len()).sum()
    };
    assert_eq!(answers(&mut net, 1), 1000);
    assert_eq!(answers(&mut net, 2), 1000);
    assert_eq!(net.ends[1].counters().rx_drop_edp_reply_limit, 4000);
    // SYNs share the rate.
    let syn = Forge::syn(7, Seq(9)).build();
    assert_eq!(net.feed("10.9.1.9", &syn).len(), 0);
    assert_eq!(net.ends[1].counters().rx_drop_answer_rate, 1);
    assert_eq!(net.feed("10.9.3.9", &syn).len(), 1);
}

/// W-122: the UDP port is part of the address, and some addresses belong to no node.
#[test]
fn data_from_another_udp_port_belongs_to_no_connection() {
    let (mut net, conn) = Routed::connected(1500);
    net.lost = |_| true;
    net.ends[0].written(net.now, conn, 100);
    let from = net.log.len();
    net.flush();
    let data = net.log[from].body.clone();
    for other in ["10.1.0.1@4002", "10.1.0.3@4001"] {
        net.feed(other, &data);
        assert_eq!(net.got[1].0, 0, "{other}");
    }
    assert_eq!(net.ends[1].counters().rx_drop_no_connection, 2);
    net.feed(A, &data);
    assert_eq!(net.got[1].0, 100);

    let nowhere = [
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "[::]",
        "[ff02::1]",
    ];
    for (n, group) in (1..).zip(nowhere) {
        assert_eq!(net.feed(group, &data).len(), 0, "{group}");
        assert_eq!(net.ends[1].counters().rx_drop_source_group, n, "{group}");
        let refused = net.connect(group).map(drop);
        assert_eq!(refused, Err(ConnectError::BadAddress), "{group}");
    }
}

/// A packet to another kind of address cannot be sent by the carrier, whose error would concern the
/// packets after it, too.
#[test]
fn addresses_of_another_kind_are_refused() {
    let mut net = Routed::new(1500, &EndpointConfig::default());
    for other in ["02:00:00:00:00:07", "ff:ff:ff:ff:ff:ff", "[fd00::1]"] {
        let refused = net.connect(other).map(drop);
        assert_eq!(refused, Err(ConnectError::BadAddress), "{other}");
        let to = (other.parse().unwrap(), 7);
        for kind in [EdpKind::Data, EdpKind::EchoRequest] {
            let mut head: Head = [0; HEAD_LEN];
            let header = net.ends[0].edp_header(&mut head, 1, to, kind, 0, 8);
            assert!(header.is_none(), "{other} {kind:?}");
        }
    }
}

/// W-121: the header of IP and UDP, and 13 bytes without the packet type of Ethernet.
#[test]
fn the_largest_payload_is_what_ip_and_udp_leave() {
    for (at, mtu, payload) in [(A, 1500, 1459), ("[fd00::1]", 1500, 1439), (A, 9000, 8959)] {
        let addr: NodeAddr = at.parse().unwrap();
        assert_eq!(
            wire::max_payload(addr.frame_mtu(mtu)),
            payload,
            "{at} {mtu}"
        );
    }
}

/// W-124: packets that fit the minimum MTU of IPv6 need no verification, and longer ones are not
/// sent before it.
#[test]
fn small_packets_are_used_until_a_larger_size_is_verified() {
    let (net, conn) = Routed::connected(9000);
    assert_eq!(net.ends[0].info(conn).unwrap().payload, 8959, "verified");

    let mut net = Routed::new(9000, &EndpointConfig::default());
    net.lost = |sent| sent.body.len() > 1280 - 48;
    let conn = net.connect(B).unwrap();
    net.ends[0].written(net.now, conn, 200_000);
    net.run(Duration::from_millis(100));
    assert_eq!(net.got[1].0, 200_000);
    let info = net.ends[0].info(conn).unwrap();
    assert_eq!((info.payload, info.payload_agreed), (1219, 8959));
    let data = |sent: &&Sent| sent.esp().kind == FrameType::Data;
    let longest = net
        .log
        .iter()
        .filter(data)
        .map(|sent| sent.esp().payload.len());
    assert_eq!(longest.max(), Some(1219));
}

/// W-125: neither offered, nor accepted in a set-up, nor obeyed.
#[test]
fn connections_do_not_move() {
    let mut net = Routed::new(1500, &EndpointConfig::default());
    let rails = [MacAddr([2, 0, 0, 0, 1, 0xa])];
    for end in &mut net.ends {
        end.set_rails(&rails);
    }
    net.connect(B).unwrap();
    net.run(Duration::from_millis(1));
    let offered = set_up(7, 0);
    let offered = SetUp {
        features: wire::FEATURE_MOVES | wire::FEATURE_RESUME,
        rails: &[2, 0, 0, 0, 1, 0xb],
        ..offered
    };
    let syn = Forge::ack(Seq(1), Seq(0)).set_up(FLAG_SYN, &offered);
    net.feed("10.9.0.1", &syn.build());
    for sent in &net.log {
        if matches!(sent.esp().kind, FrameType::Syn | FrameType::SynAck) {
            let block = SetUp::parse(sent.esp().payload).unwrap();
            assert_eq!(block.features & wire::FEATURE_MOVES, 0, "{block:?}");
        }
    }
    let (mut net, conn) = Routed::connected(1500);
    let ask = Move {
        step: Step::Ask,
        finished: false,
        resumed: false,
        max_payload: 1459,
        epoch: 1001,
        nonce: net.nonce(FrameType::SynAck),
        sender_nonce: net.nonce(FrameType::Syn),
        received: 0,
        credit: 100,
    };
    let go = Move {
        step: Step::Go,
        ..ask
    };
    for block in [ask, go] {
        let mut payload = [0; wire::MOVE_LEN];
        block.emit(&mut payload);
        let forged = Forge::ack(Seq(9), Seq(0)).payload(&payload);
        let forged = forged.flags(FLAG_SYN | FLAG_PRB).build();
        assert_eq!(net.feed(A, &forged).len(), 0, "{block:?}");
        assert_eq!(net.ends[1].counters().rx_moves, 0, "{block:?}");
    }
    assert_eq!(net.ends[1].counters().rx_drop_move_stale, 2);
    net.ends[0].written(net.now, conn, 1000);
    net.run(Duration::from_millis(5));
    assert_eq!(net.got[1].0, 1000);
}
