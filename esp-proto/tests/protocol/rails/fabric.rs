//! Two stations with several interfaces each, and the network between them.

use crate::common::*;
use esp_proto::rails::{Rails, serve};
use esp_proto::wire::{self, FrameType, Move, SetUp, Step};
use esp_proto::*;
use std::collections::VecDeque;

/// A node with several interfaces.
pub(super) struct Station {
    pub(super) ends: Vec<Node>,
    pub(super) up: Vec<bool>,
    /// Moves of connections, in order.
    pub(super) moves: Vec<((usize, ConnId), (usize, ConnId))>,
}

impl Rails for Station {
    fn count(&self) -> usize {
        self.ends.len()
    }

    fn endpoint(&mut self, rail: usize) -> Option<&mut Endpoint> {
        self.ends.get_mut(rail).map(|node| &mut node.ep)
    }

    fn usable(&self, rail: usize, _: Port) -> bool {
        self.up[rail]
    }

    fn moved(&mut self, from: (usize, ConnId), to: (usize, ConnId)) {
        self.moves.push((from, to));
        if from.0 == to.0 {
            let node = &mut self.ends[from.0];
            let app = node.apps.remove(&from.1).unwrap();
            assert!(node.apps.insert(to.1, app).is_none());
        } else {
            let [a, b] = self.ends.get_disjoint_mut([from.0, to.0]).unwrap();
            a.hand_over(from.1, b, to.1);
        }
    }
}

impl Station {
    pub(super) fn new(number: u8, mtus: &[u32], config: &EndpointConfig) -> Station {
        let macs: Vec<_> = (0..mtus.len()).map(|rail| mac(number, rail)).collect();
        let ends = mtus
            .iter()
            .enumerate()
            .map(|(rail, mtu)| {
                let mut node =
                    Node::new(macs[rail], *mtu, number * 16 + rail as u8, config.clone());
                let others: Vec<_> = macs.iter().copied().filter(|m| *m != macs[rail]).collect();
                node.ep.set_rails(&others);
                node
            })
            .collect();
        Station {
            ends,
            up: vec![true; mtus.len()],
            moves: vec![],
        }
    }

    /// Returns the interface and id of the only connection.
    pub(super) fn only(&self) -> (usize, ConnId) {
        let all: Vec<_> = self
            .ends
            .iter()
            .enumerate()
            .flat_map(|(rail, n)| n.apps.keys().map(move |c| (rail, *c)))
            .collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    pub(super) fn app(&self) -> &App {
        let (rail, conn) = self.only();
        self.ends[rail].app(conn)
    }

    pub(super) fn info(&self) -> ConnInfo {
        let (rail, conn) = self.only();
        self.ends[rail].ep.info(conn).expect("a live connection")
    }

    pub(super) fn write(&mut self, now: Instant, bytes: u64) {
        let (rail, conn) = self.only();
        self.ends[rail].write(now, conn, bytes);
    }

    pub(super) fn shutdown(&mut self, now: Instant) {
        let (rail, conn) = self.only();
        self.ends[rail].ep.shutdown(now, conn);
    }

    pub(super) fn sum(&self, count: impl Fn(&Counters) -> u64) -> u64 {
        self.ends.iter().map(|node| count(node.ep.counters())).sum()
    }
}

pub(super) fn mac(station: u8, rail: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, rail as u8, station])
}

pub(super) type Cut = Box<dyn FnMut(Instant, &OnWire) -> bool>;

/// Two stations; every interface reaches every other, unless it is cut.
pub(super) struct Fabric {
    pub(super) now: Instant,
    pub(super) sides: [Station; 2],
    /// Returns true for frames to drop.
    pub(super) lost: Cut,
    pub(super) log: Vec<OnWire>,
    pub(super) wire: VecDeque<OnWire>,
}

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

impl Fabric {
    pub(super) fn with(mtus: [&[u32]; 2]) -> Fabric {
        let config = EndpointConfig::default();
        Fabric {
            now: Instant::from_nanos(1_000_000),
            sides: [
                Station::new(0xa, mtus[0], &config),
                Station::new(0xb, mtus[1], &config),
            ],
            lost: Box::new(|_, _| false),
            log: vec![],
            wire: VecDeque::new(),
        }
    }

    pub(super) fn connected_with(mtus: [&[u32]; 2]) -> Fabric {
        let mut fabric = Fabric::with(mtus);
        for node in &mut fabric.sides[B].ends {
            node.ep
                .listen(
                    1000,
                    ListenOptions {
                        backlog: 8,
                        ..ListenOptions::default()
                    },
                )
                .unwrap();
        }
        let options = ConnOptions {
            buffers: Buffers { rx: ROOM, tx: ROOM },
            key: vec![],
        };
        let node = &mut fabric.sides[A].ends[0];
        let id = node
            .ep
            .connect(fabric.now, 5000, mac(0xb, 0).into(), 1000, options)
            .unwrap();
        node.apps.insert(
            id,
            App {
                room: ROOM,
                ..App::default()
            },
        );
        fabric.run(Duration::from_millis(2));
        assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (0, 0));
        fabric
    }

    pub(super) fn connected() -> Fabric {
        Fabric::connected_with([&[1500, 1500], &[1500, 1500]])
    }

    /// Drops all frames of these interfaces silently.
    pub(super) fn cut(&mut self, dead: &[MacAddr]) {
        let dead = dead.to_vec();
        self.lost =
            Box::new(move |_, frame| dead.contains(&frame.src) || dead.contains(&frame.dst));
    }

    pub(super) fn heal(&mut self) {
        self.lost = Box::new(|_, _| false);
    }

    pub(super) fn flush(&mut self) {
        for side in &mut self.sides {
            serve(side, self.now);
            for node in &mut side.ends {
                node.drain(self.now);
                while let Some(frame) = node.transmit(self.now) {
                    self.log.push(frame.clone());
                    if !(self.lost)(self.now, &frame) {
                        self.wire.push_back(OnWire {
                            at: self.now + Duration::from_micros(20),
                            ..frame
                        });
                    }
                }
                node.drain(self.now);
            }
        }
    }

    pub(super) fn arrive(&mut self, frame: &OnWire) {
        for node in self.sides.iter_mut().flat_map(|side| &mut side.ends) {
            if node.ep.addr() == frame.dst {
                node.receive(self.now, frame);
            }
        }
    }

    pub(super) fn step(&mut self, until: Instant) -> bool {
        self.flush();
        let ends = self.sides.iter_mut().flat_map(|side| &mut side.ends);
        let next = ends
            .filter_map(|node| node.ep.poll_timeout())
            .chain(self.wire.front().map(|f| f.at))
            .min();
        let Some(at) = next.filter(|at| *at <= until) else {
            return false;
        };
        self.now = self.now.max(at);
        while self.wire.front().is_some_and(|f| f.at <= self.now) {
            let frame = self.wire.pop_front().unwrap();
            self.arrive(&frame);
        }
        for node in self.sides.iter_mut().flat_map(|side| &mut side.ends) {
            node.ep.handle_timeout(self.now);
        }
        self.flush();
        true
    }

    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        let mut steps = 0u64;
        while self.step(until) {
            steps += 1;
            assert!(steps < 5_000_000, "does not become idle");
        }
        self.now = until;
    }

    pub(super) fn run_until(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&Fabric) -> bool,
    ) -> Duration {
        let start = self.now;
        self.flush();
        while !done(self) {
            assert!(self.step(start + limit), "not done within {limit:?}");
        }
        self.now - start
    }

    pub(super) fn write_both(&mut self, bytes: u64) {
        for side in &mut self.sides {
            side.write(self.now, bytes);
        }
    }

    /// Returns true when everything written on both sides has arrived and is acknowledged.
    pub(super) fn settled(&self) -> bool {
        let [a, b] = [self.sides[A].app(), self.sides[B].app()];
        (a.received, b.received) == (b.written, a.written)
            && a.acked == a.written
            && b.acked == b.written
    }

    pub(super) fn moved(&self) -> [u64; 2] {
        [0, 1].map(|side| self.sides[side].sum(|c| c.connections_moved))
    }

    /// Asserts that no reset was sent.
    pub(super) fn no_reset(&self) {
        assert_eq!(
            self.log
                .iter()
                .filter(|f| f.kind() == FrameType::Rst)
                .count(),
            0
        );
    }

    /// Finishes both ends and asserts that they end successfully.
    pub(super) fn end_well(&mut self) {
        for side in [A, B] {
            self.sides[side].shutdown(self.now);
        }
        self.run_until(Duration::from_secs(3), |f| {
            f.sides.iter().all(|side| side.app().closed.is_some())
        });
        for side in &self.sides {
            assert_eq!(side.app().closed, Some(CloseReason::Finished));
            assert!(side.app().finished);
        }
        self.no_reset();
    }

    /// Returns the MOVE frames on the wire.
    pub(super) fn moves(&self) -> Vec<(MacAddr, MacAddr, Move)> {
        let only = self.log.iter().filter(|f| f.kind() == FrameType::Move);
        only.map(|f| (f.src, f.dst, Move::parse(f.esp().payload).unwrap()))
            .collect()
    }

    /// Sends a forged MOVE to an interface of B; returns the counter that counted it (`rx_drop_*`
    /// or `rx_moves`).
    pub(super) fn forge(
        &mut self,
        src: MacAddr,
        dst: MacAddr,
        ports: (Port, Port),
        payload: &[u8],
    ) -> Vec<&'static str> {
        let before: Vec<_> = self.counts(dst);
        let body = Forge::ack(Seq(77), Seq(0)).flags(wire::FLAG_SYN | wire::FLAG_PRB);
        let body = body.ports(ports.1, ports.0).payload(payload).build();
        self.arrive(&OnWire {
            at: self.now,
            src,
            dst,
            body,
            looped: false,
            ce: false,
        });
        serve(&mut self.sides[B], self.now);
        let after = self.counts(dst);
        before
            .iter()
            .zip(&after)
            .filter(|(b, a)| b.1 < a.1)
            .map(|(b, _)| b.0)
            .collect()
    }

    pub(super) fn counts(&self, dst: MacAddr) -> Vec<(&'static str, u64)> {
        let node = self.sides[B]
            .ends
            .iter()
            .find(|n| n.ep.addr() == dst)
            .unwrap();
        let named = |name: &str| name.starts_with("rx_drop_") || name == "rx_moves";
        node.ep
            .counters()
            .iter()
            .filter(|c| named(c.0))
            .map(|c| (c.0, c.2))
            .collect()
    }
}

pub(super) fn block(fabric: &Fabric) -> Move {
    let nonce = |kind| {
        let frame = fabric.log.iter().find(|f| f.kind() == kind).unwrap();
        SetUp::parse(frame.esp().payload).unwrap().nonce
    };
    Move {
        resumed: false,
        step: Step::Ask,
        finished: false,
        max_payload: 1489,
        epoch: 100,
        nonce: nonce(FrameType::SynAck),
        sender_nonce: nonce(FrameType::Syn),
        received: 0,
        credit: 10,
    }
}

pub(super) fn bytes(block: Move) -> Vec<u8> {
    let mut out = vec![0; wire::MOVE_LEN];
    block.emit(&mut out);
    out
}
