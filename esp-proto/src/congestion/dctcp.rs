//! The reaction to congestion marks: estimate of the share of marked packets (RFC 8257).

/// The share 1.
const ONE: u32 = 1 << 16;
/// Weight of a new sample: g = 1/16, as a shift.
const GAIN: u32 = 4;

/// Estimates the share of marked packets, and limits reductions to one for each window of data.
#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    /// Estimated share in units of 1/`ONE`.
    alpha: u32,
    /// Packets acknowledged in this round.
    acked: u32,
    /// Packets reported as marked in this round.
    marked: u32,
    /// Packets to be acknowledged until the next reduction is allowed.
    hold: u32,
}

impl Default for Dctcp {
    /// The share starts at 1, so that the first mark halves the window.
    fn default() -> Self {
        Dctcp {
            alpha: ONE,
            acked: 0,
            marked: 0,
            hold: 0,
        }
    }
}

impl Dctcp {
    /// Records acknowledged packets. At the start of a round the last round's share enters the
    /// estimate.
    pub(super) fn on_ack(&mut self, acked: u32, round_start: bool) {
        self.acked = self.acked.saturating_add(acked);
        self.hold = self.hold.saturating_sub(acked);
        if round_start && self.acked > 0 {
            // Reports are later than acknowledgements, so a round may have more marks than packets.
            let marked = u64::from(self.marked.min(self.acked));
            let share = (marked * u64::from(ONE) / u64::from(self.acked)) as u32;
            self.alpha = self.alpha - (self.alpha >> GAIN) + (share >> GAIN);
            (self.acked, self.marked) = (0, 0);
        }
    }

    /// Records packets reported as marked.
    pub(super) fn on_marks(&mut self, marked: u32) {
        self.marked = self.marked.saturating_add(marked);
    }

    /// Returns the number of packets by which a window shrinks now, or `None` within a window of
    /// data after the last reduction. `in_flight`: packets outstanding, which all count as sent
    /// before the reduction.
    pub(super) fn reduction(&mut self, window: u32, in_flight: u32) -> Option<u32> {
        if self.hold > 0 {
            return None;
        }
        self.hold = in_flight;
        let cut = u64::from(window) * u64::from(self.alpha) / u64::from(2 * ONE);
        // Windows are whole packets: with a cut below one, marks would not even stop the increase.
        Some((cut as u32).max(1))
    }

    /// Allows a reduction at once: everything outstanding counts as lost.
    pub(super) fn on_rto(&mut self) {
        self.hold = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the estimate after `rounds` of 100 packets with `marked` marks each.
    fn after(rounds: u32, marked: u32) -> f64 {
        let mut dctcp = Dctcp::default();
        for _ in 0..rounds {
            dctcp.on_marks(marked);
            dctcp.on_ack(50, false);
            dctcp.on_ack(50, true);
        }
        f64::from(dctcp.alpha) / f64::from(ONE)
    }

    #[test]
    fn a_round_without_packets_changes_no_estimate() {
        let mut dctcp = Dctcp::default();
        dctcp.on_ack(0, true);
        assert_eq!(dctcp.alpha, ONE);
    }

    #[test]
    fn the_estimate_moves_a_sixteenth_of_the_way_each_round() {
        assert!((after(0, 0) - 1.0).abs() < 1e-9);
        assert!((after(1, 0) - 15.0 / 16.0).abs() < 1e-3);
        assert!((after(1, 50) - (15.0 + 0.5) / 16.0).abs() < 1e-3);
        assert!((after(10, 0) - 0.9375f64.powi(10)).abs() < 1e-3);
        assert!((after(200, 30) - 0.3).abs() < 1e-2);
        assert!((after(200, 0)) < 1e-3);
        assert!(
            (after(200, 1000) - 1.0).abs() < 1e-3,
            "more marks than packets"
        );
    }

    #[test]
    fn only_a_round_changes_the_estimate() {
        let mut dctcp = Dctcp::default();
        dctcp.on_ack(1000, false);
        assert_eq!(dctcp.alpha, ONE);
        dctcp.on_ack(0, true);
        assert!(dctcp.alpha < ONE);
    }

    #[test]
    fn one_reduction_for_each_window_of_data() {
        let mut dctcp = Dctcp::default();
        assert_eq!(dctcp.reduction(100, 80), Some(50));
        assert_eq!(dctcp.reduction(50, 80), None);
        dctcp.on_ack(79, true);
        assert_eq!(dctcp.reduction(50, 40), None);
        dctcp.on_ack(1, false);
        assert!(dctcp.reduction(50, 40).is_some());
        assert_eq!(dctcp.reduction(50, 40), None);
        dctcp.on_rto();
        assert!(dctcp.reduction(50, 40).is_some());
    }

    #[test]
    fn a_mark_costs_one_packet_at_least() {
        let mut dctcp = Dctcp::default();
        for _ in 0..200 {
            dctcp.on_ack(10, true);
        }
        assert_eq!(dctcp.reduction(10, 0), Some(1));
    }
}
