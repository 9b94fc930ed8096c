//! Two stations and the wire between them.

use super::{App, MAC_A, MAC_B, Node, OnWire, ROOM};
use esp_proto::wire::{self, FrameType};
use esp_proto::*;
use std::collections::VecDeque;

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
                    ..ListenOptions::default()
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
