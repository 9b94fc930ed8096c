//! Two endpoints and a wire between them, in virtual time.
//!
//! The wire has a constant delay and no rate limit; a filter decides the fate of each frame.
//! Everything is deterministic. The rig checks the invariants: each byte is delivered once and in
//! order, within the receive room, and no frame exceeds the MTU or is shorter than 60 bytes.
#![allow(dead_code, unreachable_pub)]

use esp_proto::wire::{EspFrame, FrameType, Header};
use esp_proto::*;
use std::collections::{BTreeMap, VecDeque};

pub const MAC_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
pub const MAC_B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
pub const ROOM: u32 = 256 * 1024;

/// Returns byte `at` of every program's stream.
pub fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// View of a connection by the program at one end.
#[derive(Debug, Default)]
pub struct App {
    pub written: u64,
    pub acked: u64,
    pub received: u64,
    pub consumed: u64,
    pub room: u32,
    pub finished: bool,
    /// The program called `shutdown`.
    pub finishing: bool,
    pub closed: Option<CloseReason>,
}

/// A station.
pub struct Node {
    pub ep: Endpoint,
    pub apps: BTreeMap<ConnId, App>,
    pub events: Vec<Event>,
    pub datagrams: Vec<(Port, EdpKind, Vec<u8>)>,
    /// Attaches each connection of a listener with this much receive room.
    pub attach: Option<u32>,
    /// Consumes delivered data immediately.
    pub consume: bool,
}

struct NodeSink<'a> {
    apps: &'a mut BTreeMap<ConnId, App>,
    datagrams: &'a mut Vec<(Port, EdpKind, Vec<u8>)>,
}

impl Sink for NodeSink<'_> {
    fn deliver(&mut self, conn: ConnId, offset: u64, bytes: &[u8]) {
        let app = self
            .apps
            .get_mut(&conn)
            .expect("delivery to a connection the host knows");
        assert!(app.closed.is_none(), "delivery after Closed");
        assert_eq!(offset, app.received, "in order, once");
        for (i, byte) in bytes.iter().enumerate() {
            assert_eq!(
                *byte,
                pattern(offset + i as u64),
                "byte {}",
                offset + i as u64
            );
        }
        app.received += bytes.len() as u64;
        assert!(
            app.received - app.consumed <= u64::from(app.room),
            "within the receive room"
        );
    }

    fn datagram(&mut self, d: Datagram<'_>) {
        self.datagrams.push((d.dst_port, d.kind, d.bytes.to_vec()));
    }
}

/// A frame on the wire, without addresses.
#[derive(Clone, Debug)]
pub struct OnWire {
    pub at: Instant,
    pub src: MacAddr,
    pub dst: MacAddr,
    pub body: Vec<u8>,
    pub looped: bool,
    /// The congestion mark.
    pub ce: bool,
}

impl OnWire {
    pub fn header(&self) -> Header {
        Header::parse(&self.body).unwrap().0
    }

    pub fn kind(&self) -> FrameType {
        self.esp().kind
    }

    pub fn esp(&self) -> EspFrame<'_> {
        let (header, rest) = Header::parse(&self.body).unwrap();
        EspFrame::parse(&header, rest).unwrap()
    }
}

impl Node {
    pub fn new(mac: MacAddr, mtu: u32, seed: u8, config: EndpointConfig) -> Node {
        Node {
            ep: Endpoint::new(config, mac, mtu, [seed; 32], 1),
            apps: BTreeMap::new(),
            events: vec![],
            datagrams: vec![],
            attach: Some(ROOM),
            consume: true,
        }
    }

    /// Hands the program of a connection to the endpoint that the connection moved to.
    pub fn hand_over(&mut self, from: ConnId, other: &mut Node, to: ConnId) {
        let app = self
            .apps
            .remove(&from)
            .expect("a connection the host knows");
        assert!(other.apps.insert(to, app).is_none(), "the id is new");
    }

    pub fn receive(&mut self, now: Instant, frame: &OnWire) {
        let mut sink = NodeSink {
            apps: &mut self.apps,
            datagrams: &mut self.datagrams,
        };
        let raw = RxFrame {
            src: frame.src.into(),
            dst: frame.dst.into(),
            body: &frame.body,
            looped: frame.looped,
            ce: frame.ce,
        };
        self.ep.handle_frame(now, raw, &mut sink);
    }

    /// Drains progress and events until none are left.
    pub fn drain(&mut self, now: Instant) {
        loop {
            let mut quiet = true;
            while let Some(p) = self.ep.poll_progress() {
                quiet = false;
                let app = self
                    .apps
                    .get_mut(&p.conn)
                    .expect("progress of a connection the host knows");
                assert!(app.acked <= p.acked && p.acked <= app.written);
                assert_eq!(p.delivered, app.received);
                app.acked = p.acked;
                if self.consume && app.consumed < p.delivered {
                    app.consumed = p.delivered;
                    self.ep.consumed(now, p.conn, p.delivered);
                }
            }
            while let Some(event) = self.ep.poll_event() {
                quiet = false;
                self.on_event(now, &event);
                self.events.push(event);
            }
            if quiet {
                return;
            }
        }
    }

    fn on_event(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Connected(conn) => assert!(self.apps.contains_key(conn)),
            Event::Incoming { conn, .. } => {
                let room = self.attach.unwrap_or(0);
                self.apps.insert(
                    *conn,
                    App {
                        room,
                        ..App::default()
                    },
                );
                if self.attach.is_some() {
                    // False when the connection was reset within this batch; then `Closed` follows.
                    assert_eq!(
                        self.ep.attach(now, *conn, Buffers { rx: room, tx: room }),
                        self.ep.info(*conn).is_some()
                    );
                }
            }
            Event::PeerFinished(conn) => self.apps.get_mut(conn).unwrap().finished = true,
            Event::Closed { conn, reason } => {
                let app = self.apps.get_mut(conn).unwrap();
                assert_eq!(app.closed, None, "Closed comes once");
                app.closed = Some(*reason);
            }
        }
    }

    /// Returns the next frame as bytes, checked.
    pub fn transmit(&mut self, now: Instant) -> Option<OnWire> {
        let mut head: Head = [0x5a; HEAD_LEN];
        let t = self.ep.poll_transmit(now, &mut head)?;
        let mut bytes = head[..PREFIX_LEN].to_vec();
        match &t.payload {
            Payload::None => {}
            Payload::Stream { conn, offset, len } => {
                let app = &self.apps[conn];
                assert!(*offset >= app.acked, "acknowledged bytes may be gone");
                assert!(
                    offset + u64::from(*len) <= app.written,
                    "only what was written"
                );
                assert!(*len > 0);
                bytes.extend((0..u64::from(*len)).map(|i| pattern(offset + i)));
            }
            Payload::Filler { len } => bytes.extend(std::iter::repeat_n(0xf1, usize::from(*len))),
            Payload::Owned(owned) => bytes.extend_from_slice(owned),
        }
        bytes.extend_from_slice(&head[PREFIX_LEN..PREFIX_LEN + t.tail_len]);
        assert!(bytes.len() >= 60, "padded: {}", bytes.len());
        assert!(
            bytes.len() <= self.ep.mtu() as usize + 14,
            "within the MTU: {}",
            bytes.len()
        );
        assert_eq!(bytes[6..12], self.ep.addr().mac().unwrap().0);
        assert_eq!(bytes[..6], t.dst.mac().unwrap().0);
        let body = bytes[12..].to_vec();
        Some(OnWire {
            at: now,
            src: self.ep.addr().mac().unwrap(),
            dst: t.dst.mac().unwrap(),
            body,
            looped: t.dst == self.ep.addr(),
            ce: false,
        })
    }

    pub fn write(&mut self, now: Instant, conn: ConnId, bytes: u64) {
        let app = self.apps.get_mut(&conn).unwrap();
        app.written += bytes;
        self.ep.written(now, conn, app.written);
    }

    pub fn app(&self, conn: ConnId) -> &App {
        &self.apps[&conn]
    }

    /// Returns the only connection that the host knows.
    pub fn only(&self) -> ConnId {
        assert_eq!(self.apps.len(), 1);
        *self.apps.keys().next().unwrap()
    }

    pub fn state(&self, conn: ConnId) -> State {
        self.ep.info(conn).map_or(State::Closed, |info| info.state)
    }
}

/// Fate of a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Pass,
    Drop,
    Twice,
    /// It arrives with a congestion mark.
    Marked,
}

type Filter = Box<dyn FnMut(&OnWire) -> Wire>;

/// Two stations and the wire.
pub struct Pair {
    pub now: Instant,
    pub a: Node,
    pub b: Node,
    pub delay: Duration,
    pub filter: Filter,
    /// Every frame sent, whether or not it arrived.
    pub log: Vec<OnWire>,
    pub keep_log: bool,
    wire: VecDeque<OnWire>,
}

impl Pair {
    pub fn new() -> Pair {
        Pair::with(1500, EndpointConfig::default())
    }

    pub fn with(mtu: u32, config: EndpointConfig) -> Pair {
        Pair {
            now: Instant::from_nanos(1_000_000),
            a: Node::new(MAC_A, mtu, 1, config.clone()),
            b: Node::new(MAC_B, mtu, 2, config),
            delay: Duration::from_micros(20),
            filter: Box::new(|_| Wire::Pass),
            log: vec![],
            keep_log: true,
            wire: VecDeque::new(),
        }
    }

    /// Connects port 5000 of A to port 1000 of B; returns the ids of both ends.
    pub fn connected() -> (Pair, ConnId, ConnId) {
        Pair::connected_with(1500, EndpointConfig::default())
    }

    pub fn connected_with(mtu: u32, config: EndpointConfig) -> (Pair, ConnId, ConnId) {
        let mut pair = Pair::with(mtu, config);
        pair.listen(1000, 8);
        let a = pair.connect(5000, 1000);
        pair.run(Duration::from_millis(1));
        let b = pair.b.only();
        assert_eq!(pair.a.state(a), State::Established);
        assert_eq!(pair.b.state(b), State::Established);
        (pair, a, b)
    }

    pub fn listen(&mut self, port: Port, backlog: u16) {
        self.b
            .ep
            .listen(
                port,
                ListenOptions {
                    backlog,
                    key: vec![],
                },
            )
            .unwrap();
    }

    pub fn connect(&mut self, port: Port, peer_port: Port) -> ConnId {
        let options = ConnOptions {
            buffers: Buffers { rx: ROOM, tx: ROOM },
            key: vec![],
        };
        self.connect_with(port, peer_port, options)
    }

    pub fn connect_with(&mut self, port: Port, peer_port: Port, options: ConnOptions) -> ConnId {
        let room = options.buffers.rx;
        let id = self
            .a
            .ep
            .connect(self.now, port, MAC_B.into(), peer_port, options)
            .unwrap();
        self.a.apps.insert(
            id,
            App {
                room,
                ..App::default()
            },
        );
        id
    }

    /// Sends all frames that both endpoints have ready.
    pub fn flush(&mut self) {
        for node in [&mut self.a, &mut self.b] {
            node.drain(self.now);
            while let Some(frame) = node.transmit(self.now) {
                if self.keep_log {
                    self.log.push(frame.clone());
                }
                let fate = (self.filter)(&frame);
                let copies = match fate {
                    Wire::Pass | Wire::Marked => 1,
                    Wire::Drop => 0,
                    Wire::Twice => 2,
                };
                for _ in 0..copies {
                    self.wire.push_back(OnWire {
                        at: self.now + self.delay,
                        ce: fate == Wire::Marked,
                        ..frame.clone()
                    });
                }
            }
            node.drain(self.now);
        }
    }

    /// Puts a frame on the wire as if a station had sent it.
    pub fn inject(&mut self, src: MacAddr, dst: MacAddr, body: Vec<u8>) {
        let frame = OnWire {
            at: self.now,
            src,
            dst,
            body,
            looped: false,
            ce: false,
        };
        let node = if dst == MAC_A {
            &mut self.a
        } else {
            &mut self.b
        };
        node.receive(self.now, &frame);
        self.flush();
    }

    /// Processes the next arrival or deadline. Returns false when there is none.
    pub fn step(&mut self, until: Instant) -> bool {
        self.flush();
        let next = [
            self.wire.front().map(|f| f.at),
            self.a.ep.poll_timeout(),
            self.b.ep.poll_timeout(),
        ];
        let Some(at) = next.into_iter().flatten().min().filter(|at| *at <= until) else {
            return false;
        };
        self.now = self.now.max(at);
        while self.wire.front().is_some_and(|f| f.at <= self.now) {
            let frame = self.wire.pop_front().unwrap();
            let node = if frame.dst == MAC_A {
                &mut self.a
            } else {
                &mut self.b
            };
            node.receive(self.now, &frame);
        }
        self.a.ep.handle_timeout(self.now);
        self.b.ep.handle_timeout(self.now);
        self.flush();
        true
    }

    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        let mut steps = 0u64;
        while self.step(until) {
            steps += 1;
            assert!(steps < 10_000_000, "the pair does not become idle");
        }
        self.now = until;
    }

    /// Runs until `done`, at most for `limit`; returns the time it took.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Pair) -> bool) -> Duration {
        let start = self.now;
        self.flush();
        while !done(self) {
            assert!(self.step(start + limit), "not done within {limit:?}");
        }
        self.now - start
    }

    /// Returns the frames sent from `src` since `from` in the log.
    pub fn sent(&self, src: MacAddr, from: usize) -> impl Iterator<Item = &OnWire> {
        self.log[from..].iter().filter(move |f| f.src == src)
    }
}

/// A hand-made ESP frame from the EtherType on, padded.
pub struct Forge {
    pub dst_port: Port,
    pub src_port: Port,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: u8,
    pub payload: Vec<u8>,
    pub ext: Vec<u8>,
}

impl Forge {
    /// A bare acknowledgement from port 5000 of A to port 1000 of B with the given numbers.
    pub fn ack(seq: Seq, ack: Seq) -> Forge {
        let flags = wire::FLAG_ACK;
        Forge {
            dst_port: 1000,
            src_port: 5000,
            seq,
            ack,
            flags,
            payload: vec![],
            ext: vec![],
        }
    }

    pub fn flags(mut self, flags: u8) -> Forge {
        self.flags = flags;
        self
    }

    pub fn payload(mut self, payload: &[u8]) -> Forge {
        self.payload = payload.to_vec();
        self
    }

    pub fn ext(mut self, ext: &[u8]) -> Forge {
        self.ext = ext.to_vec();
        self.flags |= wire::FLAG_EXT;
        self
    }

    pub fn reset(mut self, reason: ResetReason, nonce: u64) -> Forge {
        self.flags = wire::FLAG_RST;
        self.payload = vec![0; wire::RESET_LEN];
        wire::Reset { reason, nonce }.emit(&mut self.payload);
        self
    }

    pub fn syn(nonce: u64, seq: Seq) -> Forge {
        Forge::ack(seq, Seq(0)).set_up(wire::FLAG_SYN, &set_up(nonce, 0))
    }

    /// Makes it a SYN or SYN+ACK.
    pub fn set_up(mut self, flags: u8, block: &wire::SetUp<'_>) -> Forge {
        self.flags = flags;
        self.payload = vec![0; wire::MAX_SETUP];
        let len = block.emit(&mut self.payload);
        self.payload.truncate(len);
        self
    }

    pub fn ports(mut self, dst_port: Port, src_port: Port) -> Forge {
        (self.dst_port, self.src_port) = (dst_port, src_port);
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let header = Header {
            packet_type: 0x88b5,
            dst_port: self.dst_port,
            src_port: self.src_port,
            seq: self.seq,
            ack: self.ack,
            len: self.payload.len() as u16,
            flags: self.flags,
        };
        let mut body = header.emit().to_vec();
        body.extend_from_slice(&self.payload);
        body.extend_from_slice(&self.ext);
        body.resize(body.len().max(48), 0);
        body
    }
}

pub fn set_up(nonce: u64, peer_nonce: u64) -> wire::SetUp<'static> {
    let (max_payload, features, credit, max_ack_delay) = (1489, 0, 100, 200);
    wire::SetUp {
        max_payload,
        features,
        nonce,
        peer_nonce,
        credit,
        max_ack_delay,
        key: &[],
        rails: &[],
    }
}

/// Sequence numbers of a connection, read from its latest frames.
pub struct Numbers {
    /// Next sequence of A.
    pub a_next: Seq,
    /// Next sequence of B.
    pub b_next: Seq,
    pub a_nonce: u64,
    pub b_nonce: u64,
}

impl Pair {
    /// Returns the numbers of an idle connection between port 5000 of A and port 1000 of B.
    pub fn numbers(&mut self) -> Numbers {
        let nonce = |kind| {
            let frame = self.log.iter().rev().find(|f| f.kind() == kind).unwrap();
            (
                wire::SetUp::parse(frame.esp().payload).unwrap().nonce,
                frame.esp().seq,
            )
        };
        let (a_nonce, a_syn) = nonce(FrameType::Syn);
        let (b_nonce, b_syn) = nonce(FrameType::SynAck);
        let count = |src, syn: Seq| {
            let takes =
                |f: &&OnWire| f.src == src && matches!(f.kind(), FrameType::Data | FrameType::Fin);
            let last = self
                .log
                .iter()
                .filter(takes)
                .map(|f| f.esp().seq.ahead_of(syn))
                .max();
            syn.plus(last.unwrap_or(0) + 1)
        };
        Numbers {
            a_next: count(MAC_A, a_syn),
            b_next: count(MAC_B, b_syn),
            a_nonce,
            b_nonce,
        }
    }

    /// Counts the frames of a kind that `src` sent since `from` in the log.
    pub fn kinds(&self, src: MacAddr, from: usize, kind: FrameType) -> usize {
        self.sent(src, from)
            .filter(|f| f.header().packet_type == 0x88b5 && f.kind() == kind)
            .count()
    }
}
