//! When other paths are asked, and how often (W-103, W-105).

use super::*;
use crate::resume::{adopt, lose};

/// Returns the steps of the MOVE frames that A has sent since `from`, with one ASK for each round.
fn steps(fabric: &Fabric, from: usize) -> Vec<Step> {
    let of_a = |(src, dst, block): &(MacAddr, MacAddr, Move)| {
        let one = (*src, *dst) == (mac(0xa, 1), mac(0xb, 1));
        src.0[5] == 0xa && (one || block.step != Step::Ask)
    };
    let moves = fabric.moves().into_iter().skip(from);
    moves.filter(of_a).map(|(.., block)| block.step).collect()
}

/// Returns true for a frame of the second interfaces.
fn is_second(frame: &OnWire) -> bool {
    frame.src.0[4] == 1 || frame.dst.0[4] == 1
}

#[test]
fn a_path_that_works_again_is_kept() {
    let mut fabric = Fabric::connected();
    fabric.lost = Box::new(|_, _| true);
    let now = fabric.now;
    fabric.sides[A].write(now, 100_000);
    fabric.run_until(Duration::from_secs(1), |f| !steps(f, 0).is_empty());
    fabric.lost = Box::new(|_, frame| is_second(frame));
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    let asked = steps(&fabric, 0).len();
    fabric.heal();
    fabric.run(Duration::from_secs(1));
    assert_eq!((steps(&fabric, 0).len(), fabric.moved()), (asked, [0, 0]));
    fabric.end_well();
}

/// They may have been in its queue.
#[test]
fn frames_of_a_dead_interface_count_only_after_eight_rounds() {
    let mut fabric = Fabric::connected();
    fabric.lost = Box::new(|_, frame| is_second(frame));
    let now = fabric.now;
    fabric.sides[A].ends[0].ep.abandon(now, false);
    for _ in 0..300 {
        let now = fabric.now;
        fabric.sides[B].write(now, 1);
        fabric.run(Duration::from_millis(10));
    }
    assert_eq!(steps(&fabric, 0), [Step::Ask; 9]);
    fabric.heal();
    fabric.run(Duration::from_secs(1));
    assert_eq!(fabric.moved(), [0, 0]);
    fabric.end_well();
}

#[test]
fn a_go_without_an_answer_is_repeated_before_others_are_asked_again() {
    let mut fabric = Fabric::connected();
    fabric.lost = Box::new(|_, frame| {
        let answers = frame.kind() == FrameType::Move
            && Move::parse(frame.esp().payload).unwrap().step == Step::Answer;
        frame.src.0[5] == 0xb && !answers
    });
    let now = fabric.now;
    fabric.sides[A].write(now, 100_000);
    fabric.flush();
    fabric.sides[A].ends[0].ep.abandon(now, false);
    fabric.run(Duration::from_millis(500));
    // It is frozen: no timer of its packets runs.
    assert_eq!(fabric.sides[A].sum(|c| c.retransmit_timeouts), 0);
    fabric.run(Duration::from_millis(1500));
    let steps = steps(&fabric, 0);
    let mut expected = vec![Step::Ask];
    expected.extend([Step::Go; 7]);
    expected.push(Step::Ask);
    assert_eq!(steps.get(..9), Some(&expected[..]), "{steps:?}");
    fabric.heal();
    fabric.run(Duration::from_secs(1));
    fabric.write_both(10_000);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    fabric.end_well();
}

/// W-131: the peer, which is idle, notices nothing.
#[test]
fn a_lost_connection_whose_path_is_dead_takes_another() {
    let mut fabric = Fabric::connected();
    let now = fabric.now;
    fabric.sides[A].write(now, 100_000);
    fabric.run_until(Duration::from_secs(1), Fabric::settled);
    let (node, now) = (&mut fabric.sides[A].ends[0], fabric.now);
    let conn = *node.apps.keys().next().expect("a connection");
    let image = node.ep.image(conn).expect("can be resumed");
    let others = image.rails.iter().filter(|mac| mac.0 != [0; 6]);
    assert_eq!(others.collect::<Vec<_>>(), [&mac(0xb, 1)]);
    let rest = lose(node, 10).pop().expect("a connection");
    node.ep.set_rails(&[mac(0xa, 1)]);
    let conn = adopt(node, now, rest);
    node.write(now, conn, 100_000);
    fabric.cut(&[mac(0xa, 0)]);
    fabric.run_until(Duration::from_secs(3), Fabric::settled);
    assert_eq!(fabric.sides[A].only().0, 1);
    fabric.end_well();
}
