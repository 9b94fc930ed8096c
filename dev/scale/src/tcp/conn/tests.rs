//! A sender and a receiver over a link that loses chosen segments.

use super::*;

const MSS: u16 = 1448;
/// One way.
const DELAY_OF_LINK: u64 = 10_000;

/// Two ends of an open connection, of which one sends.
struct Pair {
    now: u64,
    left: Conn,
    right: Conn,
    /// Number of segments with data that were sent.
    sent: usize,
    /// Segments with their time of arrival, to the right and to the left.
    wires: [VecDeque<(u64, Segment)>; 2],
}

impl Pair {
    fn new() -> Pair {
        let conn = |state| Conn::new(0, state, Control::Reno, MSS);
        let (left, right) = (conn(State::Opening), conn(State::Answering));
        let mut pair = Pair {
            now: 1,
            left,
            right,
            sent: 0,
            wires: [VecDeque::new(), VecDeque::new()],
        };
        pair.run(|_| true);
        assert_eq!(
            (pair.left.state, pair.right.state),
            (State::Open, State::Open)
        );
        pair
    }

    /// Sends `segments` in one call, and runs until there is nothing more to do. `passes` says
    /// of each segment with data, by its number, whether it arrives. Returns the time it took.
    fn send(&mut self, segments: u64, passes: impl FnMut(usize) -> bool) -> u64 {
        let begin = self.now;
        self.sent = 0;
        self.left
            .write(self.left.written + segments * u64::from(MSS));
        self.run(passes);
        assert_eq!(self.right.expected, self.left.written);
        self.now - begin
    }

    fn run(&mut self, mut passes: impl FnMut(usize) -> bool) {
        for _ in 0..100_000 {
            let mut conns = [&mut self.left, &mut self.right];
            for (conn, wire) in conns.iter_mut().zip(&mut self.wires) {
                while let Some(segment) = conn.poll(self.now) {
                    let has_data = segment.len > 0;
                    if !has_data || passes(self.sent) {
                        wire.push_back((self.now + DELAY_OF_LINK, segment));
                    }
                    self.sent += usize::from(has_data);
                }
            }
            let arrivals = self.wires.iter().filter_map(|wire| Some(wire.front()?.0));
            let timers = conns.iter().filter_map(|conn| conn.deadline());
            let Some(next) = arrivals.chain(timers).min() else {
                return;
            };
            self.now = self.now.max(next);
            let [left, right] = conns;
            for (conn, wire) in [right, left].into_iter().zip(&mut self.wires) {
                while let Some((at, segment)) = wire.pop_front_if(|(at, _)| *at <= self.now) {
                    conn.receive(at, &segment, false);
                }
                conn.timeout(self.now);
            }
        }
        panic!("it does not end");
    }
}

#[test]
fn nothing_is_repeated_without_a_loss() {
    let mut pair = Pair::new();
    pair.send(100, |_| true);
    assert_eq!((pair.left.retransmits, pair.left.timeouts), (0, 0));
}

/// Sends a first window, all of it at one time, of which one segment is lost. Returns the time.
#[track_caller]
fn repeated_once(lost: usize) -> u64 {
    let mut pair = Pair::new();
    let time = pair.send(10, |number| number != lost);
    assert_eq!((pair.left.retransmits, pair.left.timeouts), (1, 0));
    time
}

#[test]
fn a_loss_is_found_among_segments_sent_at_one_time() {
    let time = repeated_once(2);
    assert!(time < 5 * DELAY_OF_LINK, "{time}");
}

/// Fewer than three later ones arrive, so for a quarter of a round trip it may only be late.
#[test]
fn the_last_segment_but_one_is_repeated_by_the_timer_of_reordering() {
    let time = repeated_once(8);
    assert!(time < 6 * DELAY_OF_LINK, "{time}");
}

#[test]
fn a_lost_tail_is_probed_for() {
    let mut pair = Pair::new();
    pair.send(10, |number| !(8..10).contains(&number));
    assert_eq!((pair.left.retransmits, pair.left.timeouts), (2, 0));
}

/// The receiver acknowledges each of the first segments after the pause, and the sender's
/// window doubles, so that one timeout is all that the losses cost.
#[test]
fn slow_start_follows_a_timeout() {
    let mut pair = Pair::new();
    pair.send(50, |_| true);
    // All that is sent before the timeout is lost, and the probe.
    let lost = 1 + 40.min(pair.left.window.size.floor() as usize);
    let time = pair.send(40, |number| number >= lost);
    assert_eq!(pair.left.timeouts, 1);
    assert!(time < RTO_MIN + DELAY, "{time}");
}

/// The message uses less than half of the window, and acknowledgements are delayed.
#[test]
fn a_window_that_was_not_used_grows_after_a_timeout() {
    let mut pair = Pair::new();
    pair.send(50, |_| true);
    // No pause is seen.
    pair.right.last_data = u64::MAX;
    let time = pair.send(12, |number| number > 12);
    assert_eq!(pair.left.timeouts, 1);
    assert!(time < RTO_MIN + 2 * DELAY, "{time}");
}
