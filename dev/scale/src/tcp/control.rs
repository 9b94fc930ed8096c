//! Congestion control of the TCP models. Windows are in segments, as in Linux.

/// Algorithm of congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// RFC 5681.
    Reno,
    /// RFC 9438, without HyStart.
    Cubic,
    /// RFC 8257.
    Dctcp,
}

/// Window after the first round trip (RFC 6928).
const INITIAL: f64 = 10.0;
/// Constant of CUBIC, in segments per cubic second.
const C: f64 = 0.4;
/// Factor of CUBIC's decrease.
const BETA: f64 = 0.7;
/// Weight of the last round in DCTCP's average.
const G: f64 = 1.0 / 16.0;

/// Window of a connection.
#[derive(Clone, Debug)]
pub(super) struct Window {
    control: Control,
    /// Segments that may be in flight.
    pub(super) size: f64,
    threshold: f64,
    /// CUBIC: the window before the last decrease, its time, and the time of reaching it again.
    peak: f64,
    epoch: Option<u64>,
    k: f64,
    reno: f64,
    /// DCTCP: share of marked segments, and counts of the round that ends at `round_end`.
    alpha: f64,
    acked: u64,
    marked: u64,
    round_end: u64,
    reduced_until: u64,
}

impl Window {
    pub(super) fn new(control: Control) -> Window {
        Window {
            control,
            size: INITIAL,
            threshold: f64::INFINITY,
            peak: 0.0,
            epoch: None,
            k: 0.0,
            reno: 0.0,
            alpha: 1.0,
            acked: 0,
            marked: 0,
            round_end: 0,
            reduced_until: 0,
        }
    }

    /// Processes acknowledged segments outside of a recovery. `grow` is false while the program
    /// limits the rate.
    pub(super) fn on_ack(&mut self, now: u64, segments: f64, srtt: u64, grow: bool) {
        if !grow {
            return;
        }
        let mut left = segments;
        if self.size < self.threshold {
            let step = left.min(self.threshold - self.size);
            self.size += step;
            left -= step;
        }
        if left <= 0.0 {
            return;
        }
        match self.control {
            Control::Reno | Control::Dctcp => self.size += left / self.size,
            Control::Cubic => self.cubic(now, left, srtt),
        }
    }

    fn cubic(&mut self, now: u64, segments: f64, srtt: u64) {
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.peak = self.peak.max(self.size);
            self.k = ((self.peak - self.size) / C).cbrt();
            self.reno = self.size;
            now
        });
        let t = (now + srtt - epoch) as f64 / 1e9;
        let target = self.peak + C * (t - self.k).powi(3);
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) * segments / self.size;
        let target = target.clamp(self.size, 1.5 * self.size);
        self.size += segments * (target - self.size) / self.size;
        self.size = self.size.max(self.reno);
    }

    /// Shrinks the window because of a loss.
    pub(super) fn on_loss(&mut self) {
        let factor = match self.control {
            Control::Cubic => {
                let reached = self.size < self.peak;
                self.peak = self.size * if reached { (1.0 + BETA) / 2.0 } else { 1.0 };
                self.epoch = None;
                BETA
            }
            Control::Reno | Control::Dctcp => 0.5,
        };
        self.threshold = (self.size * factor).max(2.0);
        self.size = self.threshold;
    }

    /// Begins again after a timeout; `first` unless it follows another one.
    pub(super) fn on_timeout(&mut self, first: bool) {
        if first {
            self.on_loss();
        }
        self.size = 1.0;
    }

    /// Counts acknowledged bytes, `marked` or not, and shrinks the window once for each round with
    /// marks. `una` and `next` are the first byte not acknowledged and the first not sent.
    pub(super) fn on_feedback(&mut self, bytes: u64, marked: bool, una: u64, next: u64) {
        if self.control != Control::Dctcp {
            return;
        }
        self.acked += bytes;
        self.marked += if marked { bytes } else { 0 };
        if una >= self.round_end {
            if self.acked > 0 {
                let share = self.marked as f64 / self.acked as f64;
                self.alpha += G * (share - self.alpha);
            }
            (self.acked, self.marked, self.round_end) = (0, 0, next);
        }
        if marked && una >= self.reduced_until {
            self.threshold = (self.size * (1.0 - self.alpha / 2.0)).max(2.0);
            self.size = self.threshold;
            self.reduced_until = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_and_reno_adds_one() {
        let mut window = Window::new(Control::Reno);
        window.on_ack(0, 10.0, 0, true);
        assert_eq!(window.size, 20.0);
        window.on_ack(0, 20.0, 0, false);
        assert_eq!(window.size, 20.0);
        window.on_loss();
        assert_eq!(window.size, 10.0);
        window.on_ack(0, 10.0, 0, true);
        assert_eq!(window.size, 11.0);
        window.on_timeout(true);
        assert_eq!((window.size, window.threshold), (1.0, 5.5));
    }

    #[test]
    fn cubic_returns_to_its_peak_after_k() {
        let mut window = Window::new(Control::Cubic);
        window.size = 100.0;
        window.on_loss();
        assert_eq!(window.size, 70.0);
        let k = (30.0_f64 / C).cbrt();
        // One window is acknowledged every 100 ms, until K has passed.
        let mut now = 0;
        while (now as f64) < k * 1e9 {
            window.on_ack(now, window.size, 100_000_000, true);
            now += 100_000_000;
        }
        assert!((97.0..103.0).contains(&window.size), "{}", window.size);
    }

    #[test]
    fn dctcp_shrinks_by_the_share_of_marks() {
        let mut window = Window::new(Control::Dctcp);
        window.size = 100.0;
        for round in 0..200 {
            window.on_feedback(1000, false, round * 1000, (round + 1) * 1000);
        }
        assert!(window.alpha < 0.001);
        window.on_feedback(500, true, 200_000, 201_000);
        let size = window.size;
        assert!(size < 100.0 && size > 95.0, "{size}");
        window.on_feedback(500, true, 200_500, 201_000);
        assert_eq!(window.size, size);
    }
}
