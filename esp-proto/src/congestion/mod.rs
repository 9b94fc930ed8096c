//! Congestion control: additive increase, and multiplicative decrease by the *rate* of loss.
//!
//! Windows count packets, as sequence numbers do. `docs/congestion.md` describes the design.

mod dctcp;

use self::dctcp::Dctcp;
use crate::time::Duration;

/// Initial window. Four connections that start at once still fit the queue of a shallow switch port
/// (64 frames), and LAN round trips are short enough to grow from here.
const INITIAL: u32 = 16;
/// Lower bound of the window after a single loss with a standing queue: hosts work in batches of
/// this size.
const MIN_STANDING_WINDOW: u32 = 32;
/// Lower bound of the window, so that a batch always gives the peer two frames to acknowledge
/// together.
const MIN_WINDOW: u32 = 2;
/// Window after a retransmission timeout: large enough for selective repair to work again.
const AFTER_RTO: u32 = 4;
/// Share of packets that may be lost without shrinking the window, in units of 1/`UNIT` (BBRv2's 2
/// %).
const TOLERATED: u64 = 20;
const UNIT: u64 = 1000;
/// Depth of the loss budget: losses tolerated in a burst beyond `TOLERATED`.
const BURST: u64 = 4 * UNIT;
/// Budget after a decrease: queue overflow continues for a moment, random loss rarely does.
const BUDGET_AFTER_DECREASE: u64 = UNIT;
/// Factor of a decrease: 7/10, as in CUBIC (RFC 9438).
const DECREASE: (u32, u32) = (7, 10);
/// Slack of the slow-start exit: slow start ends when the minimum round trip of a round exceeds 1.5
/// × that of the connection plus this. It covers the delay that reception in batches adds.
const DELAY_SLACK: Duration = Duration::from_micros(50);
/// Slack of standing-queue detection: a queue stands when the minimum round trip of a round exceeds
/// 2 × that of the connection plus this. On a busy node the scheduler dominates round trips; a
/// smaller slack would end the tolerance of random loss there.
const STANDING_SLACK: Duration = Duration::from_micros(500);
/// Round-trip samples that a round needs before its minimum can end slow start.
const DELAY_SAMPLES: u32 = 8;

/// The acknowledgements in one received frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckEvent {
    /// Packets newly acknowledged, cumulatively or selectively.
    pub(crate) acked: u32,
    /// Round-trip time of the newest of them that was sent only once.
    pub(crate) rtt: Option<Duration>,
    /// Minimum round-trip time of the connection so far.
    pub(crate) min_rtt: Option<Duration>,
    /// Packets outstanding before this frame.
    pub(crate) in_flight: u32,
    /// True when the window limits the sending rate, not the program's data or the peer's credit.
    pub(crate) window_limited: bool,
    /// True for the first acknowledgement of a packet sent after the previous round ended.
    pub(crate) round_start: bool,
}

/// Controller of one connection: decides how many packets may be outstanding.
#[derive(Clone, Debug)]
pub(crate) struct Aimd {
    window: u32,
    threshold: u32,
    max: u32,
    /// Acknowledged packets not yet turned into window growth.
    credit: u32,
    /// Losses that are still tolerated, in 1/`UNIT` packets.
    budget: u64,
    /// Round starts until the next decrease is allowed: two after a decrease, since the first may
    /// acknowledge packets sent before it.
    cooldown: u8,
    round_min_rtt: Option<Duration>,
    round_samples: u32,
    /// True when a queue stood during the whole previous round.
    standing: bool,
    /// Window, threshold and budget before the timeout, until an acknowledgement follows it.
    before_rto: Option<(u32, u32, u64)>,
    /// Present when ECN is in force.
    ecn: Option<Dctcp>,
}

impl Aimd {
    /// Creates a controller whose window never exceeds `max` packets, for a connection with ECN or
    /// without.
    pub(crate) fn new(max: u32, ecn: bool) -> Self {
        let max = max.max(MIN_WINDOW);
        Aimd {
            window: INITIAL.min(max),
            threshold: max,
            max,
            credit: 0,
            budget: BURST,
            cooldown: 0,
            round_min_rtt: None,
            round_samples: 0,
            standing: false,
            before_rto: None,
            ecn: ecn.then(Dctcp::default),
        }
    }

    fn slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Detects a standing queue; the first detection ends slow start.
    fn watch_delay(&mut self, event: &AckEvent) {
        let Some(min_rtt) = event.min_rtt else { return };
        let limit = min_rtt + min_rtt / 2 + DELAY_SLACK;
        if event.round_start {
            self.standing = self
                .round_min_rtt
                .is_some_and(|rtt| rtt > min_rtt * 2 + STANDING_SLACK);
            (self.round_min_rtt, self.round_samples) = (None, 0);
        }
        let Some(rtt) = event.rtt else { return };
        let round_min = self.round_min_rtt.map_or(rtt, |min| min.min(rtt));
        self.round_min_rtt = Some(round_min);
        self.round_samples += 1;
        if self.slow_start() && self.round_samples >= DELAY_SAMPLES && round_min > limit {
            self.threshold = self.window;
        }
    }

    fn decrease(&mut self, min: u32) {
        self.window = (self.window * DECREASE.0 / DECREASE.1).max(min);
        self.threshold = self.window;
        self.credit = 0;
        self.cooldown = 2;
    }

    /// Returns the maximum number of packets that may be outstanding; at least 1.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Records acknowledged packets.
    pub(crate) fn on_ack(&mut self, event: &AckEvent) {
        self.before_rto = None;
        self.budget = (self.budget + u64::from(event.acked) * TOLERATED).min(BURST);
        if event.round_start {
            self.cooldown = self.cooldown.saturating_sub(1);
        }
        if let Some(ecn) = &mut self.ecn {
            ecn.on_ack(event.acked, event.round_start);
        }
        self.watch_delay(event);
        if self.window >= self.max {
            return;
        }
        if self.slow_start() {
            // In slow start, only until such messages fill half of the window, as in Linux: then
            // their answers may carry the acknowledgements (W-34).
            if event.window_limited || 2 * event.in_flight >= self.window {
                self.window = (self.window + event.acked)
                    .min(self.threshold)
                    .min(self.max);
            }
            return;
        }
        if !event.window_limited {
            return;
        }
        self.credit += event.acked;
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window += 1;
        }
    }

    /// Reduces the window by the share of packets newly reported as `marked` (W-116), unless losses
    /// have reduced it for this window of data. Called before `on_ack` of that frame. Returns true
    /// when the window was reduced.
    pub(crate) fn on_marks(&mut self, marked: u32, in_flight: u32) -> bool {
        let Some(ecn) = &mut self.ecn else {
            return false;
        };
        ecn.on_marks(marked);
        if self.cooldown > 0 {
            return false;
        }
        let Some(cut) = ecn.reduction(self.window, in_flight) else {
            return false;
        };
        let before = self.window;
        self.window = before.saturating_sub(cut).max(MIN_WINDOW).min(before);
        self.threshold = self.window;
        self.credit = 0;
        self.window < before
    }

    /// Records packets found lost by acknowledgements, not by a retransmission timeout.
    pub(crate) fn on_loss(&mut self, lost: u32) {
        let cost = u64::from(lost) * UNIT;
        let exhausted = cost > self.budget;
        self.budget = self.budget.saturating_sub(cost);
        if self.slow_start() && exhausted {
            // The loss is one round trip old: in slow start the window has doubled since.
            self.threshold = self.window;
        }
        if self.cooldown > 0 {
            return;
        }
        if exhausted {
            self.decrease(MIN_WINDOW);
            self.budget = BUDGET_AFTER_DECREASE;
        } else if self.standing && self.window > MIN_STANDING_WINDOW {
            // A standing queue keeps the link busy with a smaller window and leaves room for other
            // flows.
            self.decrease(MIN_STANDING_WINDOW);
        }
    }

    /// Records a retransmission timeout: everything outstanding counts as lost.
    pub(crate) fn on_rto(&mut self) {
        // Only the first timeout of a series has the state to restore.
        self.before_rto
            .get_or_insert((self.window, self.threshold, self.budget));
        if self.window > AFTER_RTO {
            self.threshold = (self.window / 2).max(AFTER_RTO);
        }
        self.window = AFTER_RTO.min(self.max);
        if let Some(ecn) = &mut self.ecn {
            ecn.on_rto();
        }
        self.credit = 0;
        self.budget = BUDGET_AFTER_DECREASE;
    }

    /// Undoes the last timeout, because the acknowledgement that follows is for packets sent before
    /// it.
    pub(crate) fn on_spurious_rto(&mut self) {
        if let Some(before) = self.before_rto.take() {
            (self.window, self.threshold, self.budget) = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(acked: u32, round_start: bool) -> AckEvent {
        AckEvent {
            acked,
            rtt: Some(Duration::from_micros(50)),
            min_rtt: Some(Duration::from_micros(50)),
            in_flight: acked,
            window_limited: true,
            round_start,
        }
    }

    #[test]
    fn slow_start_doubles_and_stops_at_the_limit() {
        let mut cc = Aimd::new(100, false);
        assert_eq!(cc.window(), 16);
        cc.on_ack(&ack(16, true));
        assert_eq!(cc.window(), 32);
        cc.on_ack(&ack(32, true));
        assert_eq!(cc.window(), 64);
        cc.on_ack(&ack(64, true));
        assert_eq!(cc.window(), 100);
    }

    #[test]
    fn a_spurious_timeout_restores_the_window() {
        let mut cc = Aimd::new(100, false);
        cc.on_ack(&ack(64, true));
        let before = cc.clone();
        cc.on_rto();
        cc.on_rto();
        assert_eq!(cc.window(), AFTER_RTO);
        cc.on_spurious_rto();
        assert_eq!(
            (cc.window, cc.threshold, cc.budget),
            (before.window, before.threshold, before.budget),
            "as before the first of them"
        );
        // A later spurious timeout must not undo an earlier genuine one.
        cc.on_rto();
        cc.on_ack(&ack(1, true));
        let after = cc.window();
        cc.on_rto();
        cc.on_spurious_rto();
        assert_eq!(cc.window(), after);
    }

    #[test]
    fn a_second_timeout_leaves_the_threshold() {
        let mut cc = Aimd::new(100, false);
        cc.on_rto();
        cc.on_rto();
        assert_eq!((cc.window, cc.threshold), (AFTER_RTO, INITIAL / 2));
    }

    #[test]
    fn losses_within_the_budget_change_nothing() {
        let mut cc = Aimd::new(1000, false);
        cc.on_loss(4);
        assert!(cc.slow_start() && cc.window() == INITIAL, "all of it");
        cc.on_loss(1);
        assert!(!cc.slow_start() && cc.window() < INITIAL);
    }

    #[test]
    fn a_loss_behind_a_standing_queue_leaves_the_window_of_a_batch() {
        let mut cc = Aimd::new(1000, false);
        cc.on_ack(&ack(16, true));
        for _ in 0..2 {
            cc.on_ack(&AckEvent {
                rtt: Some(Duration::from_micros(800)),
                in_flight: 0,
                window_limited: false,
                ..ack(0, true)
            });
        }
        cc.on_loss(1);
        assert!(cc.standing && cc.slow_start());
        assert_eq!(cc.window(), MIN_STANDING_WINDOW);
    }

    /// Acknowledges messages of `packets` that the window does not limit.
    fn messages(cc: &mut Aimd, packets: u32) {
        for _ in 0..100 {
            cc.on_ack(&AckEvent {
                window_limited: false,
                ..ack(packets, true)
            });
        }
    }

    #[test]
    fn slow_start_grows_until_messages_fill_less_than_half_of_the_window() {
        let mut cc = Aimd::new(100, false);
        messages(&mut cc, 7);
        assert_eq!(cc.window(), 16);
        messages(&mut cc, 12);
        assert_eq!(cc.window(), 28);
        messages(&mut cc, 45);
        assert_eq!(cc.window(), 100);
    }

    #[test]
    fn later_growth_needs_a_full_window() {
        let mut cc = Aimd::new(100, false);
        cc.on_loss(10);
        let window = cc.window();
        assert!(!cc.slow_start());
        messages(&mut cc, window - 1);
        assert_eq!(cc.window(), window);
    }

    #[test]
    fn one_percent_random_loss_does_not_shrink_the_window() {
        let mut cc = Aimd::new(64, false);
        for round in 0..1000u32 {
            cc.on_ack(&ack(64, true));
            if round % 3 != 0 {
                cc.on_loss(1);
            }
        }
        assert_eq!(cc.window(), 64);
    }

    #[test]
    fn heavy_loss_shrinks_once_a_round() {
        let mut cc = Aimd::new(1000, false);
        cc.on_ack(&ack(84, true));
        assert_eq!(cc.window(), 100);
        cc.on_loss(10);
        assert_eq!(cc.window(), 70);
        cc.on_loss(10);
        assert_eq!(cc.window(), 70);
        cc.on_ack(&ack(1, true));
        cc.on_loss(10);
        assert_eq!(
            cc.window(),
            70,
            "packets sent before the decrease do not count again"
        );
        cc.on_ack(&ack(1, true));
        cc.on_loss(10);
        assert_eq!(cc.window(), 49);
    }

    #[test]
    fn additive_increase_is_one_a_round() {
        let mut cc = Aimd::new(1000, false);
        cc.on_loss(10);
        let start = cc.window();
        for _ in 0..10 {
            cc.on_ack(&ack(cc.window(), true));
        }
        assert_eq!(cc.window(), start + 10);
    }

    #[test]
    fn rising_delay_ends_slow_start() {
        let mut cc = Aimd::new(1000, false);
        let slow = |round_start| AckEvent {
            rtt: Some(Duration::from_micros(200)),
            ..ack(1, round_start)
        };
        cc.on_ack(&slow(true));
        for _ in 0..7 {
            cc.on_ack(&slow(false));
        }
        let window = cc.window();
        cc.on_ack(&ack(window, true));
        assert_eq!(cc.window(), window + 1);
    }

    #[test]
    fn a_single_loss_behind_a_standing_queue_shrinks_to_a_batch_at_least() {
        let mut cc = Aimd::new(1000, false);
        cc.on_ack(&ack(17, true));
        cc.on_loss(1);
        assert_eq!(cc.window(), 33, "no queue, within the budget");
        let slow = AckEvent {
            rtt: Some(Duration::from_micros(800)),
            in_flight: 0,
            window_limited: false,
            ..ack(50, true)
        };
        for expected in [33, 32, 32] {
            assert_eq!(cc.window(), expected);
            cc.on_ack(&slow);
            cc.on_ack(&slow);
            cc.on_loss(1);
        }
        assert_eq!(cc.window(), 32);
    }

    /// Runs one round of `samples` acknowledgements with this round-trip time.
    fn round(cc: &mut Aimd, rtt: u64, min_rtt: u64, samples: u32) {
        for n in 0..samples {
            cc.on_ack(&AckEvent {
                rtt: Some(Duration::from_micros(rtt)),
                min_rtt: Some(Duration::from_micros(min_rtt)),
                in_flight: 0,
                window_limited: false,
                ..ack(0, n == 0)
            });
        }
    }

    #[test]
    fn slow_start_ends_beyond_the_limit_of_delay_after_eight_samples() {
        for (rtt, min_rtt, samples, ends) in [
            (200, 100, 8, false),
            (201, 100, 8, true),
            (10_000, 100, 7, false),
            (1500, 1000, 8, false),
            (1551, 1000, 8, true),
        ] {
            let mut cc = Aimd::new(1000, false);
            round(&mut cc, rtt, min_rtt, samples);
            assert_eq!(cc.slow_start(), !ends, "{rtt} {min_rtt} {samples}");
        }
    }

    #[test]
    fn a_queue_stands_after_a_whole_round_beyond_its_limit() {
        for (rtt, stands) in [(700, false), (701, true)] {
            let mut cc = Aimd::new(1000, false);
            round(&mut cc, rtt, 100, 1);
            assert!(!cc.standing, "the round has not ended");
            round(&mut cc, 100, 100, 1);
            assert_eq!(cc.standing, stands);
            round(&mut cc, 100, 100, 1);
            assert!(!cc.standing);
        }
    }

    /// Each acknowledged packet adds a fiftieth of a loss to the budget.
    #[test]
    fn acknowledgements_fill_the_budget_of_losses() {
        let mut cc = Aimd::new(1000, false);
        cc.on_loss(5);
        assert_eq!(cc.budget, BUDGET_AFTER_DECREASE);
        cc.on_ack(&ack(10, true));
        cc.on_ack(&ack(10, true));
        assert_eq!(cc.budget, BUDGET_AFTER_DECREASE + 400);
        let window = cc.window();
        cc.on_loss(1);
        assert_eq!((cc.window(), cc.budget), (window, 400));
        cc.on_loss(1);
        assert!(cc.window() < window);
        cc.on_ack(&ack(1000, true));
        assert_eq!(cc.budget, BURST);
    }

    #[test]
    fn growth_keeps_the_acknowledgements_beyond_a_window() {
        let mut cc = Aimd::new(1000, false);
        cc.on_loss(5);
        assert_eq!(cc.window(), 11);
        cc.on_ack(&ack(20, true));
        assert_eq!((cc.window(), cc.credit), (12, 9));
        cc.on_ack(&ack(3, true));
        assert_eq!((cc.window(), cc.credit), (13, 0));
    }

    #[test]
    fn marks_reduce_the_window_by_their_share_once_a_window() {
        assert!(!Aimd::new(1000, false).on_marks(1, 16), "not in force");
        let mut cc = Aimd::new(1000, true);
        cc.on_ack(&ack(84, false));
        assert_eq!(cc.window(), 100);
        assert!(cc.on_marks(1, 100));
        assert_eq!(cc.window(), 50, "the estimate starts at 1");
        assert!(!cc.on_marks(30, 50));
        cc.on_ack(&ack(99, false));
        assert_eq!(cc.window(), 51, "slow start has ended");
        assert!(!cc.on_marks(1, 50));
        // Rounds without a mark: the estimate falls, and the window grows.
        for _ in 0..100 {
            cc.on_ack(&ack(50, true));
        }
        let before = cc.window();
        assert!(cc.on_marks(1, 100));
        assert_eq!(cc.window(), before - 1);
    }

    #[test]
    fn marks_after_a_timeout_count_at_once() {
        let mut cc = Aimd::new(1000, true);
        assert!(cc.on_marks(1, 100));
        cc.on_rto();
        assert_eq!(cc.window(), AFTER_RTO);
        assert!(cc.on_marks(1, 4));
        assert_eq!(cc.window(), 2);
    }

    #[test]
    fn marks_and_losses_of_one_window_reduce_it_once() {
        let mut cc = Aimd::new(1000, true);
        cc.on_ack(&ack(84, true));
        cc.on_loss(10);
        let window = cc.window();
        assert!(!cc.on_marks(50, 100));
        assert_eq!(cc.window(), window);
    }

    #[test]
    fn marks_never_reduce_the_window_below_its_minimum() {
        let mut cc = Aimd::new(1000, true);
        for _ in 0..100 {
            cc.on_marks(1000, 0);
            assert!(cc.window() >= MIN_WINDOW);
        }
        assert!(!cc.on_marks(1000, 0));
        assert_eq!(cc.window(), MIN_WINDOW);
        let mut cc = Aimd::new(2, true);
        assert!(!cc.on_marks(1, 0));
        assert_eq!(cc.window(), 2);
    }

    #[test]
    fn a_timeout_restarts_slow_start() {
        let mut cc = Aimd::new(1000, false);
        cc.on_rto();
        assert_eq!(cc.window(), 4);
        cc.on_ack(&ack(4, true));
        cc.on_ack(&ack(8, true));
        assert_eq!(
            cc.window(),
            9,
            "slow start up to half of the window before, then one a round"
        );
    }
}
