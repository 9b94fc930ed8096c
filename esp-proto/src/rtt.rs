//! Round-trip time and retransmission timeout (RFC 6298 with the bounds of W-47).

use crate::time::Duration;

/// Timeout until the first sample; far above any LAN round trip.
const INITIAL_RTO: Duration = Duration::from_millis(20);
/// Lower bound of the variation term (W-47): the cost of a timer and a scheduler on an idle
/// machine.
const GRANULARITY: Duration = Duration::from_micros(100);
/// Lower bound of the time threshold of loss detection (W-48): frames of one reception batch spread
/// this much.
const LOSS_GRANULARITY: Duration = Duration::from_micros(50);

/// Round-trip estimator of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rtt {
    pub(crate) smoothed: Option<Duration>,
    pub(crate) variation: Duration,
    latest: Duration,
    /// Minimum sample.
    pub(crate) min: Option<Duration>,
}

impl Rtt {
    /// Adds a sample of a frame that was sent only once (Karn's algorithm, W-47).
    pub(crate) fn sample(&mut self, rtt: Duration) {
        self.latest = rtt;
        self.min = Some(self.min.map_or(rtt, |m| m.min(rtt)));
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(srtt) => {
                let difference = srtt.abs_diff(rtt);
                self.variation = (self.variation * 3 + difference) / 4;
                self.smoothed = Some((srtt * 7 + rtt) / 8);
            }
        }
    }

    /// Returns the timeout without back-off (W-47): two round trips for the tail-loss probe, one
    /// for its answer.
    pub(crate) fn rto(
        &self,
        peer_ack_delay: Duration,
        floor: Duration,
        ceiling: Duration,
    ) -> Duration {
        let base = match self.smoothed {
            Some(srtt) => srtt * 3 + (self.variation * 4).max(GRANULARITY) + peer_ack_delay,
            None => INITIAL_RTO,
        };
        base.max(floor).min(ceiling)
    }

    /// Returns the time after which a frame counts as lost once a later one was acknowledged
    /// (W-48).
    pub(crate) fn loss_delay(&self) -> Duration {
        let rtt = self.smoothed.unwrap_or(INITIAL_RTO).max(self.latest);
        rtt + (rtt / 4).max(LOSS_GRANULARITY)
    }

    /// Returns the time of silence after which the tail is sent again (W-49).
    pub(crate) fn tail_delay(&self, peer_ack_delay: Duration) -> Duration {
        self.smoothed.unwrap_or(INITIAL_RTO) * 2 + GRANULARITY + peer_ack_delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: Duration = Duration::from_millis(2);
    const CEILING: Duration = Duration::from_millis(200);

    /// W-47.
    #[test]
    fn first_sample_sets_and_later_ones_smooth() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.rto(Duration::ZERO, FLOOR, CEILING), INITIAL_RTO);
        rtt.sample(Duration::from_millis(8));
        assert_eq!(rtt.smoothed, Some(Duration::from_millis(8)));
        assert_eq!(rtt.variation, Duration::from_millis(4));
        assert_eq!(
            rtt.rto(Duration::ZERO, FLOOR, CEILING),
            Duration::from_millis(40)
        );
        assert_eq!(rtt.loss_delay(), Duration::from_millis(10));
        assert!(rtt.tail_delay(Duration::ZERO) < rtt.rto(Duration::ZERO, FLOOR, CEILING));
        rtt.sample(Duration::from_millis(16));
        assert_eq!(rtt.smoothed, Some(Duration::from_millis(9)));
        assert_eq!(rtt.variation, Duration::from_millis(5));
        assert_eq!(rtt.min, Some(Duration::from_millis(8)));
    }

    #[test]
    fn bounds_hold() {
        let mut rtt = Rtt::default();
        rtt.sample(Duration::from_micros(20));
        assert_eq!(rtt.rto(Duration::ZERO, FLOOR, CEILING), FLOOR);
        rtt.sample(Duration::from_secs(9));
        assert_eq!(rtt.rto(Duration::ZERO, FLOOR, CEILING), CEILING);
    }
}
