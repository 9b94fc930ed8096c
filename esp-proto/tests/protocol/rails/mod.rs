//! Two nodes with several interfaces: connections go on over another when theirs fails (W-100 to W-108).

use crate::common::*;
use esp_proto::rails::{Rails, serve};
use esp_proto::wire::{self, FEATURE_MOVES, Kind, Move, SetUp, Step};
use esp_proto::*;
use std::collections::VecDeque;

mod forged;

/// A node with several interfaces.
struct Station {
    ends: Vec<Node>,
    up: Vec<bool>,
    /// Where each connection has gone, in order.
    moves: Vec<((usize, ConnId), (usize, ConnId))>,
}

impl Rails for Station {
    fn count(&self) -> usize {
        self.ends.len()
    }

    fn endpoint(&mut self, rail: usize) -> Option<&mut Endpoint> {
        self.ends.get_mut(rail).map(|node| &mut node.ep)
    }

    fn usable(&self, rail: usize) -> bool {
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
    fn new(number: u8, mtus: &[u32], config: &EndpointConfig) -> Station {
        let macs: Vec<_> = (0..mtus.len()).map(|rail| mac(number, rail)).collect();
        let ends = mtus
            .iter()
            .enumerate()
            .map(|(rail, mtu)| {
                let mut node = Node::new(macs[rail], *mtu, number * 16 + rail as u8, config.clone());
                let others: Vec<_> = macs.iter().copied().filter(|m| *m != macs[rail]).collect();
                node.ep.set_rails(&others);
                node
            })
            .collect();
        Station { ends, up: vec![true; mtus.len()], moves: vec![] }
    }

    /// Where the only connection is now.
    fn only(&self) -> (usize, ConnId) {
        let all: Vec<_> = self
            .ends
            .iter()
            .enumerate()
            .flat_map(|(rail, n)| n.apps.keys().map(move |c| (rail, *c)))
            .collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    fn app(&self) -> &App {
        let (rail, conn) = self.only();
        self.ends[rail].app(conn)
    }

    fn info(&self) -> ConnInfo {
        let (rail, conn) = self.only();
        self.ends[rail].ep.info(conn).expect("it lives")
    }

    fn write(&mut self, now: Instant, bytes: u64) {
        let (rail, conn) = self.only();
        self.ends[rail].write(now, conn, bytes);
    }

    fn shutdown(&mut self, now: Instant) {
        let (rail, conn) = self.only();
        self.ends[rail].ep.shutdown(now, conn);
    }

    fn sum(&self, count: impl Fn(&Counters) -> u64) -> u64 {
        self.ends.iter().map(|node| count(node.ep.counters())).sum()
    }
}

fn mac(station: u8, rail: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, rail as u8, station])
}

type Cut = Box<dyn FnMut(Instant, &OnWire) -> bool>;

/// Two stations; every interface reaches every other, unless it is cut.
struct Fabric {
    now: Instant,
    sides: [Station; 2],
    /// True: the frame is lost.
    lost: Cut,
    log: Vec<OnWire>,
    wire: VecDeque<OnWire>,
}

const A: usize = 0;
const B: usize = 1;

impl Fabric {
    fn with(mtus: [&[u32]; 2]) -> Fabric {
        let config = EndpointConfig::default();
        Fabric {
            now: Instant::from_nanos(1_000_000),
            sides: [Station::new(0xa, mtus[0], &config), Station::new(0xb, mtus[1], &config)],
            lost: Box::new(|_, _| false),
            log: vec![],
            wire: VecDeque::new(),
        }
    }

    fn connected_with(mtus: [&[u32]; 2]) -> Fabric {
        let mut fabric = Fabric::with(mtus);
        for node in &mut fabric.sides[B].ends {
            node.ep.listen(1000, ListenOptions { backlog: 8, key: vec![] }).unwrap();
        }
        let options = ConnOptions { rx_capacity: ROOM, key: vec![] };
        let node = &mut fabric.sides[A].ends[0];
        let id = node.ep.connect(fabric.now, 5000, mac(0xb, 0), 1000, options).unwrap();
        node.apps.insert(id, App { room: ROOM, ..App::default() });
        fabric.run(Duration::from_millis(2));
        assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (0, 0));
        fabric
    }

    fn connected() -> Fabric {
        Fabric::connected_with([&[1500, 1500], &[1500, 1500]])
    }

    /// Frames between these interfaces are lost, in silence.
    fn cut(&mut self, dead: &[MacAddr]) {
        let dead = dead.to_vec();
        self.lost = Box::new(move |_, frame| dead.contains(&frame.src) || dead.contains(&frame.dst));
    }

    fn heal(&mut self) {
        self.lost = Box::new(|_, _| false);
    }

    fn flush(&mut self) {
        for side in &mut self.sides {
            serve(side, self.now);
            for node in &mut side.ends {
                node.drain(self.now);
                while let Some(frame) = node.transmit(self.now) {
                    self.log.push(frame.clone());
                    if !(self.lost)(self.now, &frame) {
                        self.wire.push_back(OnWire { at: self.now + Duration::from_micros(20), ..frame });
                    }
                }
                node.drain(self.now);
            }
        }
    }

    fn arrive(&mut self, frame: &OnWire) {
        for node in self.sides.iter_mut().flat_map(|side| &mut side.ends) {
            if node.ep.mac() == frame.dst {
                node.receive(self.now, frame);
            }
        }
    }

    fn step(&mut self, until: Instant) -> bool {
        self.flush();
        let ends = self.sides.iter_mut().flat_map(|side| &mut side.ends);
        let next =
            ends.filter_map(|node| node.ep.poll_timeout()).chain(self.wire.front().map(|f| f.at)).min();
        let Some(at) = next.filter(|at| *at <= until) else { return false };
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

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        let mut steps = 0u64;
        while self.step(until) {
            steps += 1;
            assert!(steps < 5_000_000, "never comes to rest");
        }
        self.now = until;
    }

    fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Fabric) -> bool) -> Duration {
        let start = self.now;
        self.flush();
        while !done(self) {
            assert!(self.step(start + limit), "not done within {limit:?}");
        }
        self.now - start
    }

    fn write_both(&mut self, bytes: u64) {
        for side in &mut self.sides {
            side.write(self.now, bytes);
        }
    }

    /// Everything written on both sides has arrived and is acknowledged.
    fn settled(&self) -> bool {
        let [a, b] = [self.sides[A].app(), self.sides[B].app()];
        (a.received, b.received) == (b.written, a.written) && a.acked == a.written && b.acked == b.written
    }

    fn moved(&self) -> [u64; 2] {
        [0, 1].map(|side| self.sides[side].sum(|c| c.connections_moved))
    }

    /// No reset was ever sent.
    fn no_reset(&self) {
        assert_eq!(self.log.iter().filter(|f| f.kind() == Kind::Rst).count(), 0);
    }

    /// Both ends finish, and end well.
    fn end_well(&mut self) {
        for side in [A, B] {
            self.sides[side].shutdown(self.now);
        }
        self.run_until(Duration::from_secs(3), |f| f.sides.iter().all(|side| side.app().closed.is_some()));
        for side in &self.sides {
            assert_eq!(side.app().closed, Some(CloseReason::Finished));
            assert!(side.app().finished);
        }
        self.no_reset();
    }

    /// A move as it is on the wire.
    fn moves(&self) -> Vec<(MacAddr, MacAddr, Move)> {
        let only = self.log.iter().filter(|f| f.kind() == Kind::Move);
        only.map(|f| (f.src, f.dst, Move::parse(f.esp().payload).unwrap())).collect()
    }

    /// Puts a forged move on the wire to an interface of B; returns which `rx_drop_*` or `rx_moves` counted it.
    fn forge(
        &mut self,
        src: MacAddr,
        dst: MacAddr,
        ports: (Port, Port),
        payload: &[u8],
    ) -> Vec<&'static str> {
        let before: Vec<_> = self.counts(dst);
        let body = Forge::ack(Seq(77), Seq(0)).flags(wire::FLAG_SYN | wire::FLAG_PRB);
        let body = body.ports(ports.1, ports.0).payload(payload).build();
        self.arrive(&OnWire { at: self.now, src, dst, body, looped: false });
        serve(&mut self.sides[B], self.now);
        let after = self.counts(dst);
        before.iter().zip(&after).filter(|(b, a)| b.1 < a.1).map(|(b, _)| b.0).collect()
    }

    fn counts(&self, dst: MacAddr) -> Vec<(&'static str, u64)> {
        let node = self.sides[B].ends.iter().find(|n| n.ep.mac() == dst).unwrap();
        let named = |name: &str| name.starts_with("rx_drop_") || name == "rx_moves";
        node.ep.counters().iter().filter(|c| named(c.0)).map(|c| (c.0, c.2)).collect()
    }
}

fn block(fabric: &Fabric) -> Move {
    let nonce = |kind| {
        let frame = fabric.log.iter().find(|f| f.kind() == kind).unwrap();
        SetUp::parse(frame.esp().payload).unwrap().nonce
    };
    Move {
        step: Step::Ask,
        finished: false,
        max_payload: 1489,
        epoch: 100,
        nonce: nonce(Kind::SynAck),
        sender_nonce: nonce(Kind::Syn),
        received: 0,
        credit: 10,
    }
}

fn bytes(block: Move) -> Vec<u8> {
    let mut out = vec![0; wire::MOVE_LEN];
    block.emit(&mut out);
    out
}

#[test]
fn set_up_names_the_other_interfaces_and_only_between_such_nodes() {
    let fabric = Fabric::connected();
    let set_up = |kind| {
        let frame = fabric.log.iter().find(|f| f.kind() == kind).unwrap();
        let block = SetUp::parse(frame.esp().payload).unwrap();
        (block.features, block.rails.to_vec())
    };
    assert_eq!(set_up(Kind::Syn), (FEATURE_MOVES, mac(0xa, 1).0.to_vec()));
    assert_eq!(set_up(Kind::SynAck), (FEATURE_MOVES, mac(0xb, 1).0.to_vec()));

    let fabric = Fabric::connected_with([&[1500], &[1500, 1500]]);
    for frame in &fabric.log {
        if matches!(frame.kind(), Kind::Syn | Kind::SynAck) {
            let block = SetUp::parse(frame.esp().payload).unwrap();
            assert_eq!(
                (block.features, block.rails.len(), block.len()),
                (0, 0, 28),
                "no byte more than before"
            );
        }
    }
}

#[test]
fn a_dead_path_under_load_is_left_and_nothing_is_lost() {
    let mut fabric = Fabric::connected();
    fabric.write_both(3_000_000);
    fabric.run(Duration::from_micros(700));
    assert!(!fabric.settled(), "under way");
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    let took = fabric.run_until(Duration::from_secs(2), Fabric::settled);
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (1, 1));
    assert_eq!(fabric.moved(), [1, 1]);
    assert_eq!((fabric.sides[A].info().moves, fabric.sides[A].info().peer), (1, mac(0xb, 1)));
    fabric.end_well();
}

#[test]
fn only_one_end_has_lost_its_interface() {
    let mut fabric = Fabric::connected();
    fabric.write_both(3_000_000);
    fabric.run(Duration::from_micros(300));
    assert!(!fabric.settled(), "under way");
    fabric.cut(&[mac(0xb, 0)]);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    assert_eq!(fabric.sides[B].only().0, 1);
    fabric.end_well();
}

#[test]
fn a_link_that_goes_down_is_left_at_once_even_by_idle_connections() {
    let mut fabric = Fabric::connected();
    fabric.cut(&[mac(0xa, 0)]);
    fabric.sides[A].up[0] = false;
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, false);
    let took = fabric.run_until(Duration::from_secs(1), |f| f.moved() == [1, 1]);
    assert!(took < Duration::from_millis(1), "{took:?}");
    fabric.write_both(100_000);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    fabric.end_well();
}

#[test]
fn an_idle_connection_finds_out_by_its_keep_alive() {
    let mut fabric = Fabric::connected();
    fabric.cut(&[mac(0xa, 0)]);
    fabric.run_until(Duration::from_secs(9), |f| f.moved() == [1, 1]);
    fabric.write_both(1000);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    fabric.end_well();
}

#[test]
fn when_every_path_is_dead_the_connection_fails_as_ever() {
    let mut fabric = Fabric::connected();
    fabric.write_both(100_000);
    fabric.lost = Box::new(|_, _| true);
    fabric.run(Duration::from_secs(30));
    for side in &fabric.sides {
        assert_eq!(side.app().closed, Some(CloseReason::TimedOut));
    }
    assert_eq!(fabric.moved(), [0, 0]);
}

#[test]
fn both_links_die_and_one_comes_back() {
    let mut fabric = Fabric::connected();
    fabric.write_both(3_000_000);
    fabric.run(Duration::from_micros(300));
    assert!(!fabric.settled(), "under way");
    fabric.lost = Box::new(|_, _| true);
    fabric.run(Duration::from_secs(3));
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    fabric.run_until(Duration::from_secs(3), Fabric::settled);
    assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (1, 1));
    fabric.end_well();
}

#[test]
fn links_that_flap_in_turn() {
    let mut fabric = Fabric::connected();
    fabric.lost = Box::new(|now, frame| {
        let dead = now.as_nanos() / 150_000_000 % 2;
        u64::from(frame.src.0[4]) == dead || u64::from(frame.dst.0[4]) == dead
    });
    for _ in 0..40 {
        fabric.write_both(200_000);
        fabric.run(Duration::from_millis(60));
    }
    fabric.run_until(Duration::from_secs(5), Fabric::settled);
    assert!(fabric.moved()[0] >= 4, "{:?}", fabric.moved());
    fabric.heal();
    fabric.end_well();
}

#[test]
fn both_ends_leave_at_the_same_moment() {
    for late in [0, 10, 20, 30, 45, 60, 90] {
        let mut fabric = Fabric::connected_with([&[1500; 3], &[1500; 3]]);
        fabric.write_both(3_000_000);
        fabric.run(Duration::from_micros(200));
        let now = fabric.now;
        fabric.sides[A].ends[0].ep.abandon(now, false);
        fabric.run(Duration::from_micros(late));
        let now = fabric.now;
        let (rail, _) = fabric.sides[B].only();
        fabric.sides[B].ends[rail].ep.abandon(now, false);
        fabric.run_until(Duration::from_secs(2), Fabric::settled);
        fabric.run(Duration::from_millis(100));
        let (here, there) = (fabric.sides[A].only().0, fabric.sides[B].only().0);
        assert_eq!(fabric.sides[A].info().peer, mac(0xb, there), "late {late}");
        assert_eq!(fabric.sides[B].info().peer, mac(0xa, here), "late {late}");
        fabric.end_well();
    }
}

/// Each move frame in turn is lost: whoever waits for it says it again.
#[test]
fn no_single_move_frame_matters() {
    for victim in 0..8 {
        let mut fabric = Fabric::connected();
        fabric.write_both(3_000_000);
        fabric.run(Duration::from_micros(200));
        assert!(!fabric.settled(), "under way");
        let mut seen = 0;
        fabric.lost = Box::new(move |_, frame| {
            let dead = frame.src.0[4] == 0 || frame.dst.0[4] == 0;
            if !dead && frame.kind() == Kind::Move {
                seen += 1;
                return seen - 1 == victim;
            }
            dead
        });
        fabric.run_until(Duration::from_secs(3), Fabric::settled);
        assert_eq!(fabric.sides[A].info().moves.min(fabric.sides[B].info().moves), 1, "victim {victim}");
        fabric.end_well();
    }
}

/// The answer to GO never comes, and then that path dies, too: what was received must not be taken for more.
#[test]
fn a_move_that_never_completed_is_followed_by_another() {
    let mut fabric = Fabric::connected_with([&[1500; 3], &[1500; 3]]);
    fabric.write_both(900_000);
    fabric.run(Duration::from_micros(400));
    let start = fabric.now;
    fabric.lost = Box::new(move |now, frame| {
        let rail = |r: u8| frame.src.0[4] == r || frame.dst.0[4] == r;
        let done = frame.kind() == Kind::Move && Move::parse(frame.esp().payload).unwrap().step == Step::Done;
        let dead = now.since(start) > Duration::from_millis(400);
        // Rail 2 works later only, and rail 1 loses every DONE before it dies.
        rail(0) || (rail(1) && (done || dead)) || (rail(2) && !dead)
    });
    fabric.run_until(Duration::from_secs(5), Fabric::settled);
    assert_eq!((fabric.sides[A].only().0, fabric.sides[B].only().0), (2, 2));
    fabric.heal();
    fabric.end_well();
}

#[test]
fn a_smaller_mtu_cuts_again_and_a_larger_one_returns() {
    let mut fabric = Fabric::connected_with([&[9000, 1500], &[9000, 1500]]);
    fabric.run(Duration::from_millis(5));
    assert_eq!(fabric.sides[A].info().payload, 8989, "verified");
    fabric.write_both(2_000_000);
    fabric.run(Duration::from_micros(300));
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    assert_eq!(fabric.sides[A].info().payload_agreed, 1489);
    assert_eq!(fabric.sides[B].info().payload, 1489);
    fabric.write_both(1_000_000);
    fabric.run(Duration::from_micros(300));
    fabric.cut(&[mac(0xa, 1), mac(0xb, 1)]);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    fabric.run(Duration::from_millis(50));
    assert_eq!((fabric.sides[A].info().payload, fabric.sides[B].info().payload_agreed), (8989, 8989));
    fabric.end_well();
}

#[test]
fn the_end_of_a_connection_moves_too() {
    for when in [0, 10, 30, 50, 70, 90, 200] {
        let mut fabric = Fabric::connected();
        fabric.write_both(20_000);
        for side in [A, B] {
            let now = fabric.now;
            fabric.sides[side].shutdown(now);
        }
        fabric.run(Duration::from_micros(when));
        fabric.cut(&[mac(0xa, 0)]);
        fabric.run_until(Duration::from_secs(12), |f| f.sides.iter().all(|side| side.app().closed.is_some()));
        for side in &fabric.sides {
            assert_eq!(side.app().closed, Some(CloseReason::Finished), "cut after {when} µs");
            assert_eq!(side.app().received, 20_000);
        }
    }
}

#[test]
fn a_reader_that_pauses_keeps_its_room_across_a_move() {
    let mut fabric = Fabric::connected();
    for node in &mut fabric.sides[B].ends {
        node.consume = false;
    }
    fabric.sides[A].write(fabric.now, 2 * u64::from(ROOM));
    fabric.run(Duration::from_millis(2));
    fabric.cut(&[mac(0xa, 0)]);
    // The rig checks that never more than the room is delivered.
    fabric.run(Duration::from_secs(4));
    assert!(fabric.sides[B].app().received > u64::from(ROOM) - 1500);
    for node in &mut fabric.sides[B].ends {
        node.consume = true;
    }
    let (rail, conn) = fabric.sides[B].only();
    let received = fabric.sides[B].app().received;
    let now = fabric.now;
    fabric.sides[B].ends[rail].apps.get_mut(&conn).unwrap().consumed = received;
    fabric.sides[B].ends[rail].ep.consumed(now, conn, received);
    fabric.run_until(Duration::from_secs(2), Fabric::settled);
    assert!(fabric.moved()[0] >= 1);
    fabric.end_well();
}

#[test]
fn a_peer_that_was_restarted_says_so() {
    let mut fabric = Fabric::connected();
    fabric.sides[B] = Station::new(0xb, &[1500, 1500], &EndpointConfig::default());
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    fabric.sides[A].write(fabric.now, 1000);
    let took = fabric.run_until(Duration::from_secs(2), |f| f.sides[A].app().closed.is_some());
    assert_eq!(fabric.sides[A].app().closed, Some(CloseReason::Reset(ResetReason::Unknown)), "{took:?}");
    assert_eq!(fabric.sides[B].sum(|c| c.rx_drop_move_unknown), 1);
}

#[test]
fn another_connection_of_the_same_ports_is_not_touched() {
    let mut fabric = Fabric::connected();
    let options = ConnOptions { rx_capacity: ROOM, key: vec![] };
    let node = &mut fabric.sides[A].ends[1];
    let other = node.ep.connect(fabric.now, 5000, mac(0xb, 1), 1000, options).unwrap();
    node.apps.insert(other, App { room: ROOM, ..App::default() });
    fabric.run(Duration::from_millis(2));
    fabric.sides[A].ends[1].write(fabric.now, other, 50_000);
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    let (first, _) = (fabric.sides[A].ends[0].only(), ());
    fabric.sides[A].ends[0].write(fabric.now, first, 1000);
    fabric.run(Duration::from_secs(30));
    // The place is taken on the only path left: the first fails as ever, the second never notices.
    assert_eq!(fabric.sides[A].ends[0].app(first).closed, Some(CloseReason::TimedOut));
    assert_eq!(fabric.sides[A].ends[1].app(other).acked, 50_000);
    assert_eq!(fabric.sides[A].ends[1].app(other).closed, None);
    assert_eq!(fabric.moved(), [0, 0]);
}

#[test]
fn a_port_that_a_program_holds_takes_nobody_in() {
    let mut fabric = Fabric::connected();
    assert!(fabric.sides[B].ends[1].ep.hold(1000));
    fabric.cut(&[mac(0xa, 0), mac(0xb, 0)]);
    fabric.sides[A].write(fabric.now, 1000);
    fabric.run(Duration::from_secs(30));
    assert_eq!(fabric.sides[A].app().closed, Some(CloseReason::TimedOut));
    assert_eq!(fabric.moved(), [0, 0]);
}

#[test]
fn an_interface_that_is_gone_resets_those_who_cannot_leave() {
    let mut fabric = Fabric::connected_with([&[1500], &[1500, 1500]]);
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, true);
    fabric.run(Duration::from_millis(1));
    assert_eq!(fabric.sides[A].app().closed, Some(CloseReason::Aborted(ResetReason::Shutdown)));

    let mut fabric = Fabric::connected();
    fabric.lost = Box::new(|_, _| true);
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, true);
    fabric.run(Duration::from_secs(15));
    assert_eq!(fabric.sides[A].app().closed, Some(CloseReason::TimedOut), "nobody answered");
}
