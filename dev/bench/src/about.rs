//! Description of a benchmark.

use std::time::Duration;

/// Name, title and limits of a benchmark.
#[derive(Debug)]
pub struct About {
    /// Name for `--only` and the rows.
    pub name: &'static str,
    /// Quantity and conditions of the measurement.
    pub title: &'static str,
    /// Two sentences on what limits the figures.
    pub limits: &'static str,
    /// Typical milliseconds of one measurement on two cores: in full, and quick.
    pub millis: [u64; 2],
}

impl About {
    /// Returns the typical time of one measurement.
    pub fn step(&self, quick: bool) -> Duration {
        let [full, short] = self.millis;
        Duration::from_millis(if quick { short } else { full })
    }
}
