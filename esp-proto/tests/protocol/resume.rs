//! Resumption after a loss of state (section 10, W-130 to W-139).

mod half_open;
mod images;

use crate::common::*;
use esp_proto::wire::{FLAG_PRB, FLAG_SYN, FrameType, Move, Step};
use esp_proto::*;

/// Enough for the time before the first GO, and some repetitions.
const SETTLED: Duration = Duration::from_secs(2);

/// The parts of a connection that survive: its image and its program.
pub(super) struct Rest(ConnImage, App);

/// Replaces a node's endpoint by a new one.
pub(super) fn lose(node: &mut Node, seed: u8) -> Vec<Rest> {
    let apps = std::mem::take(&mut node.apps);
    let rests = apps
        .into_iter()
        .filter(|(_, app)| app.closed.is_none())
        .map(|(conn, app)| Rest(node.ep.image(conn).expect("can be resumed"), app))
        .collect();
    let (addr, mtu) = (node.ep.addr(), node.ep.mtu());
    let config = node.ep.config().clone();
    node.ep = Endpoint::new(config, addr, mtu, [seed; 32], seed.into());
    rests
}

fn positions(app: &App) -> Positions {
    Positions {
        acked: app.acked,
        written: app.written,
        finished: app.finishing,
        delivered: app.received,
        consumed: app.consumed,
        peer_finished: app.finished,
    }
}

/// Resumes a connection at the node's new endpoint.
pub(super) fn adopt(node: &mut Node, now: Instant, Rest(image, app): Rest) -> ConnId {
    let buffers = Buffers { rx: ROOM, tx: ROOM };
    let conn = node.ep.resume(now, &image, &positions(&app), buffers);
    let conn = conn.expect("resumed");
    node.apps.insert(conn, app);
    conn
}

/// Loses the state of a node with one connection, and resumes it.
fn restart(node: &mut Node, now: Instant, seed: u8) -> ConnId {
    let rest = lose(node, seed).pop().expect("a connection");
    adopt(node, now, rest)
}

/// Connects; both sides then write 100 kB, a part of which is in transit.
fn busy() -> (Pair, ConnId, ConnId) {
    let (mut pair, a, b) = Pair::connected();
    pair.a.write(pair.now, a, 100_000);
    pair.b.write(pair.now, b, 100_000);
    pair.run(Duration::from_micros(70));
    assert!((1..100_000).contains(&pair.b.app(b).received));
    (pair, a, b)
}

fn finish(pair: &mut Pair, a: ConnId, b: ConnId) {
    pair.run(SETTLED);
    assert_eq!(pair.b.app(b).received, 100_000);
    assert_eq!(pair.a.app(a).received, 100_000);
    assert_eq!(
        (pair.a.app(a).acked, pair.b.app(b).acked),
        (100_000, 100_000)
    );
    pair.a.ep.shutdown(pair.now, a);
    pair.b.ep.shutdown(pair.now, b);
    pair.run(SETTLED);
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::Finished));
    assert_eq!(pair.b.app(b).closed, Some(CloseReason::Finished));
}

#[test]
fn each_side_and_both_at_once_continue_after_a_loss() {
    for (lose_a, lose_b) in [(true, false), (false, true), (true, true)] {
        let (mut pair, mut a, mut b) = busy();
        if lose_a {
            a = restart(&mut pair.a, pair.now, 10);
        }
        if lose_b {
            b = restart(&mut pair.b, pair.now, 11);
        }
        finish(&mut pair, a, b);
        let resumed = |node: &Node| node.ep.counters().connections_resumed;
        assert_eq!((resumed(&pair.a), resumed(&pair.b)), (1, 1));
    }
}

/// W-135: all that was written may have been sent.
#[test]
fn a_program_may_write_read_and_finish_meanwhile() {
    let (mut pair, _, b) = busy();
    let a = restart(&mut pair.a, pair.now, 10);
    pair.a.write(pair.now, a, 50_000);
    pair.a.ep.shutdown(pair.now, a);
    pair.run(SETTLED);
    assert_eq!(pair.b.app(b).received, 150_000);
    assert!(pair.b.app(b).finished);
    assert_eq!(pair.a.app(a).received, 100_000);
}

/// W-105: between GO and DONE a side sends and accepts nothing but MOVE and RST.
#[test]
fn a_side_is_frozen_until_the_peer_confirms() {
    let (mut pair, a, _) = busy();
    // The peer goes on: its data and acknowledgements arrive at the side that has lost its state.
    pair.filter = Box::new(|frame| match frame.kind() {
        FrameType::Move if frame.src == MAC_B => Wire::Drop,
        _ => Wire::Pass,
    });
    let before = (pair.a.app(a).received, pair.a.app(a).acked);
    let a = restart(&mut pair.a, pair.now, 10);
    let from = pair.log.len();
    pair.run(Duration::from_secs(1));
    let (sent, moves) = (
        pair.sent(MAC_A, from).count(),
        pair.kinds(MAC_A, from, FrameType::Move),
    );
    assert!(moves > 2 && sent == moves, "{sent} and {moves}");
    assert_eq!((pair.a.app(a).received, pair.a.app(a).acked), before);
    assert!(pair.a.ep.counters().rx_drop_moving > 0);
}

/// W-104.
#[test]
fn a_request_has_an_epoch_of_its_side() {
    for lost in [MAC_A, MAC_B] {
        let (mut pair, ..) = busy();
        let node = match lost {
            MAC_A => &mut pair.a,
            _ => &mut pair.b,
        };
        restart(node, pair.now, 10);
        pair.run(SETTLED);
        let moves = pair.sent(lost, 0).filter(|f| f.kind() == FrameType::Move);
        let blocks: Vec<_> = moves
            .map(|frame| Move::parse(frame.esp().payload).unwrap())
            .filter(|block| block.step == Step::Go)
            .collect();
        assert!(!blocks.is_empty());
        for block in blocks {
            let larger = block.sender_nonce > block.nonce;
            assert_eq!(block.epoch % 2 == 1, larger, "{block:?}");
        }
    }
}

/// W-134: the first mark after a loss is number 1 again, and is believed.
#[test]
fn counts_of_marks_start_again() {
    let config = EndpointConfig {
        ecn: true,
        ..EndpointConfig::default()
    };
    for lose_sender in [true, false] {
        let (mut pair, mut a, mut b) = Pair::connected_with(1500, config.clone());
        let last_count = |pair: &Pair, from| {
            let acks = pair
                .sent(MAC_B, from)
                .filter(|f| f.kind() == FrameType::Ack);
            acks.filter_map(|f| f.esp().ext.and_then(|ext| ext.ce))
                .last()
        };
        let mark = |f: &OnWire| match f.kind() {
            FrameType::Data => Wire::Marked,
            _ => Wire::Pass,
        };
        pair.filter = Box::new(mark);
        for _ in 0..5 {
            pair.a.write(pair.now, a, 1000);
            pair.run(Duration::from_millis(5));
        }
        assert_eq!(last_count(&pair, 0), Some(5));
        if lose_sender {
            a = restart(&mut pair.a, pair.now, 10);
        } else {
            b = restart(&mut pair.b, pair.now, 10);
        }
        pair.run(SETTLED);
        let from = pair.log.len();
        pair.a.write(pair.now, a, 1000);
        pair.run(Duration::from_millis(5));
        assert_eq!(last_count(&pair, from), Some(1), "{lose_sender}");
        assert_eq!(pair.b.app(b).received, 6000);
    }
}

/// W-132.
#[test]
fn nothing_is_sent_before_older_frames_have_left_the_network() {
    let (mut pair, ..) = busy();
    let from = pair.log.len();
    restart(&mut pair.a, pair.now, 10);
    pair.run(Duration::from_millis(99));
    assert_eq!(pair.sent(MAC_A, from).count(), 0);
    pair.run(Duration::from_millis(2));
    assert_eq!(pair.kinds(MAC_A, from, FrameType::Move), 1);
}

#[test]
fn lost_and_repeated_requests_are_repaired() {
    for lost in 1..8 {
        for fate in [Wire::Drop, Wire::Twice] {
            let (mut pair, _, b) = busy();
            let a = restart(&mut pair.a, pair.now, 10);
            let mut moves = 0;
            pair.filter = Box::new(move |frame| {
                moves += u32::from(frame.kind() == FrameType::Move);
                if frame.kind() == FrameType::Move && moves <= lost {
                    fate
                } else {
                    Wire::Pass
                }
            });
            finish(&mut pair, a, b);
        }
    }
}

/// W-132: otherwise the epoch of a later GO is stale.
#[test]
fn a_side_may_lose_its_state_again_at_any_time() {
    for pause in [0, 50, 100_000, 100_010, 100_030, 100_045, 100_060, 130_000] {
        let (mut pair, _, b) = busy();
        restart(&mut pair.a, pair.now, 10);
        pair.run(Duration::from_micros(pause));
        let a = restart(&mut pair.a, pair.now, 12);
        pair.run(Duration::from_micros(pause / 2));
        let b2 = restart(&mut pair.b, pair.now, 13);
        assert_eq!(b.slot, b2.slot);
        finish(&mut pair, a, b2);
    }
}

#[test]
fn ends_of_the_streams_survive() {
    // The FIN of A is acknowledged, in transit, or not sent when A loses its state.
    for pause in [0, 10, 25, 45, 5000] {
        for b_finishes in [false, true] {
            let (mut pair, a, b) = Pair::connected();
            pair.a.write(pair.now, a, 1000);
            pair.a.ep.shutdown(pair.now, a);
            if b_finishes {
                pair.b.ep.shutdown(pair.now, b);
                pair.b.apps.get_mut(&b).unwrap().finishing = true;
            }
            pair.run(Duration::from_micros(pause));
            let mut rests = lose(&mut pair.a, 10);
            let Some(mut rest) = rests.pop() else {
                continue; // both had finished
            };
            rest.1.finishing = true;
            let rest_unacked = rest.1.acked < 1000;
            let a = adopt(&mut pair.a, pair.now, rest);
            pair.run(SETTLED);
            assert_eq!(pair.b.app(b).received, 1000, "{pause} {b_finishes}");
            assert!(pair.b.app(b).finished);
            if !b_finishes {
                pair.b.write(pair.now, b, 500);
                pair.b.ep.shutdown(pair.now, b);
                pair.run(SETTLED);
                assert_eq!(pair.a.app(a).received, 500);
            }
            // W-138: without the last acknowledgement A cannot know that all has arrived.
            let unsure = rest_unacked && b_finishes;
            let lost = CloseReason::Reset(ResetReason::Unknown);
            let closed = pair.a.app(a).closed;
            assert!(closed == Some(CloseReason::Finished) || unsure && closed == Some(lost));
            assert_eq!(pair.b.app(b).closed, Some(CloseReason::Finished));
        }
    }
}

#[test]
fn a_peer_without_the_connection_ends_it() {
    let (mut pair, ..) = busy();
    let a = restart(&mut pair.a, pair.now, 10);
    lose(&mut pair.b, 11);
    pair.run(SETTLED);
    let closed = pair.a.app(a).closed;
    assert_eq!(closed, Some(CloseReason::Reset(ResetReason::Unknown)));
}

/// W-136.
#[test]
fn a_peer_that_still_adopts_is_silent() {
    let (mut pair, ..) = busy();
    let a = restart(&mut pair.a, pair.now, 10);
    let rest = lose(&mut pair.b, 11).pop().expect("a connection");
    let from = pair.log.len();
    pair.b
        .ep
        .expect_resumptions(pair.now + Duration::from_secs(3));
    // New connections to a listener that is not back yet wait, too.
    let early = pair.connect(5001, 1001);
    pair.run(SETTLED);
    assert_eq!(pair.sent(MAC_B, from).count(), 0);
    assert!(pair.b.ep.counters().rx_drop_adopting > 0);
    assert_eq!(pair.a.app(a).closed, None);
    assert_eq!(pair.a.app(early).closed, None);
    let b = adopt(&mut pair.b, pair.now, rest);
    finish(&mut pair, a, b);
    pair.run(SETTLED);
    let refused = CloseReason::Reset(ResetReason::Refused);
    assert_eq!(
        pair.a.app(early).closed,
        Some(refused),
        "the grace period has ended"
    );
}

#[test]
fn a_silent_peer_ends_it_at_the_peer_timeout() {
    let (mut pair, ..) = busy();
    let a = restart(&mut pair.a, pair.now, 10);
    pair.filter = Box::new(|_| Wire::Drop);
    pair.run(Duration::from_secs(32));
    assert_eq!(pair.a.app(a).closed, Some(CloseReason::TimedOut));
}

fn move_frame(block: Move) -> Vec<u8> {
    let mut payload = [0; wire::MOVE_LEN];
    block.emit(&mut payload);
    let forged = Forge::ack(Seq(9), Seq(0)).payload(&payload);
    forged.flags(FLAG_SYN | FLAG_PRB).build()
}

/// A GO with RESUMED, without the nonces.
const GO: Move = Move {
    step: Step::Go,
    finished: false,
    resumed: true,
    max_payload: 1489,
    epoch: 1001,
    nonce: 0,
    sender_nonce: 0,
    received: 0,
    credit: 100,
};

/// Returns a GO by which the service of A resumes its connection with B.
fn resumed_go(pair: &mut Pair) -> Move {
    let n = pair.numbers();
    Move {
        nonce: n.b_nonce,
        sender_nonce: n.a_nonce,
        ..GO
    }
}

/// W-133, W-102.
#[test]
fn a_request_with_other_nonces_or_from_elsewhere_changes_nothing() {
    let (mut pair, a, b) = Pair::connected();
    let go = resumed_go(&mut pair);
    let lies = [
        (MAC_A, Move { nonce: 5, ..go }),
        (
            MAC_A,
            Move {
                sender_nonce: 5,
                ..go
            },
        ),
        (MAC_A, Move { received: 1, ..go }),
        (
            MAC_A,
            Move {
                finished: true,
                ..go
            },
        ),
        // Moves are not enabled: these belong to resumption only.
        (
            MAC_A,
            Move {
                resumed: false,
                ..go
            },
        ),
        (
            MAC_A,
            Move {
                step: Step::Ask,
                ..go
            },
        ),
        (
            MAC_A,
            Move {
                step: Step::Done,
                ..go
            },
        ),
        (
            MAC_A,
            Move {
                step: Step::Gone,
                ..go
            },
        ),
        (MacAddr([2, 9, 9, 9, 9, 9]), go),
    ];
    for (src, block) in lies {
        pair.inject(src, MAC_B, move_frame(block));
        assert_eq!(pair.b.ep.counters().rx_moves, 0, "{block:?}");
    }
    pair.a.write(pair.now, a, 1000);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.b.app(b).received, 1000);
}

#[test]
fn without_the_feature_there_is_no_image() {
    let mut pair = Pair::new();
    pair.listen(1000, 8);
    let syn = Forge::syn(7, Seq(100)).build();
    pair.inject(MAC_A, MAC_B, syn);
    let answer = pair.log.last().expect("SYN+ACK").clone();
    let block = wire::SetUp::parse(answer.esp().payload).unwrap();
    assert_eq!(block.features, 0, "only offered to one that offers it");
    let ack = Forge::ack(Seq(101), answer.esp().seq.plus(1)).build();
    pair.inject(MAC_A, MAC_B, ack);
    let b = pair.b.only();
    assert_eq!(pair.b.state(b), State::Established);
    assert_eq!(pair.b.ep.image(b), None);
    let go = Move {
        nonce: block.nonce,
        sender_nonce: 7,
        ..GO
    };
    pair.inject(MAC_A, MAC_B, move_frame(go));
    assert_eq!(pair.b.ep.counters().rx_moves, 0, "W-133");
    assert_eq!(pair.b.state(b), State::Established);
}

/// W-130: this includes a peer that offers to move.
#[test]
fn resumption_is_only_offered_to_a_peer_that_offers_it() {
    let mut pair = Pair::new();
    pair.b.ep.set_rails(&[MacAddr([2, 0, 0, 0, 1, 0xb])]);
    pair.listen(1000, 8);
    let rails = [2, 0, 0, 0, 1, 0xa];
    for (port, features) in [
        (5000, wire::FEATURE_MOVES),
        (5001, wire::FEATURE_MOVES | wire::FEATURE_RESUME),
    ] {
        let block = wire::SetUp {
            features,
            rails: &rails,
            ..set_up(port.into(), 0)
        };
        let syn = Forge::ack(Seq(100), Seq(0)).ports(1000, port);
        let syn = syn.set_up(wire::FLAG_SYN, &block).build();
        pair.inject(MAC_A, MAC_B, syn);
        let answer = pair.log.last().expect("SYN+ACK").clone();
        let block = wire::SetUp::parse(answer.esp().payload).unwrap();
        assert_eq!((block.features, block.rails.len()), (features, 6));
    }
}

#[test]
fn a_node_with_one_interface_answers_a_resumption_of_an_unknown_connection() {
    let (mut pair, ..) = busy();
    let a = restart(&mut pair.a, pair.now, 10);
    lose(&mut pair.b, 11);
    let from = pair.log.len();
    pair.run_until(SETTLED, |pair| pair.a.app(a).closed.is_some());
    let gone = pair
        .sent(MAC_B, from)
        .filter(|f| f.kind() == FrameType::Move);
    let gone: Vec<_> = gone
        .map(|f| Move::parse(f.esp().payload).unwrap())
        .collect();
    let [gone] = gone[..] else {
        panic!("{gone:?}");
    };
    assert_eq!(gone.step, Step::Gone);
    let repeated = (gone.resumed, gone.received, gone.finished, gone.credit);
    assert_eq!(repeated, (false, 0, false, 0));
}
