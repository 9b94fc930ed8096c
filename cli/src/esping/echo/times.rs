//! Round-trip times of a run.

use crate::esping::report::Rtt;

/// Running minimum, maximum, mean and deviation.
#[derive(Default)]
pub(super) struct Times {
    count: u64,
    min: f64,
    max: f64,
    sum: f64,
    squares: f64,
}

impl Times {
    pub(super) fn add(&mut self, nanos: u64) {
        let us = nanos as f64 / 1000.0;
        self.min = if self.count == 0 {
            us
        } else {
            self.min.min(us)
        };
        self.max = self.max.max(us);
        self.count += 1;
        self.sum += us;
        self.squares += us * us;
    }

    pub(super) fn rtt(&self) -> Option<Rtt> {
        let n = (self.count > 0).then_some(self.count as f64)?;
        let avg = self.sum / n;
        let mdev = (self.squares / n - avg * avg).max(0.0).sqrt();
        Some(Rtt {
            min_us: self.min,
            avg_us: avg,
            max_us: self.max,
            mdev_us: mdev,
        })
    }
}
