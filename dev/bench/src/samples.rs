//! Samples of times, which can be serialized and merged.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Maximum recorded time: an hour.
const MAX_NANOS: u64 = 3_600_000_000_000;

/// A histogram of nanoseconds with three digits of precision.
#[derive(Clone, Debug)]
pub struct Samples(Histogram<u64>);

impl Default for Samples {
    fn default() -> Self {
        Samples::new()
    }
}

impl Samples {
    /// Creates an empty histogram.
    pub fn new() -> Samples {
        Samples(
            Histogram::new_with_bounds(1, MAX_NANOS, 3)
                .unwrap_or_else(|_| unreachable!("these bounds are allowed")),
        )
    }

    /// Adds a sample; a longer one than an hour counts as an hour.
    pub fn add(&mut self, nanos: u64) {
        self.0.saturating_record(nanos.max(1));
    }

    /// Adds all samples of another histogram.
    pub fn merge(&mut self, other: &Samples) {
        for value in other.0.iter_recorded() {
            self.0
                .saturating_record_n(value.value_iterated_to(), value.count_at_value());
        }
    }

    /// Returns the number of samples.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns true if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the nanoseconds that `percent` % of the samples do not exceed.
    pub fn percentile(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64
    }
}

impl Serialize for Samples {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(
            self.0
                .iter_recorded()
                .map(|v| (v.value_iterated_to(), v.count_at_value())),
        )
    }
}

impl<'de> Deserialize<'de> for Samples {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Samples, D::Error> {
        let mut samples = Samples::new();
        for (value, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            samples.0.saturating_record_n(value, count);
        }
        Ok(samples)
    }
}

/// Returns the median; NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns the smallest value that `percent` % of the values do not exceed; NaN without values.
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted
        .get(place.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_serialized_and_merged() -> Result<(), serde_json::Error> {
        let mut a = Samples::new();
        for n in 1..=1000 {
            a.add(n * 1000);
        }
        let mut b: Samples = serde_json::from_str(&serde_json::to_string(&a)?)?;
        assert_eq!(b.len(), 1000);
        assert!((b.percentile(50.0) - 500_000.0).abs() < 1000.0);
        b.merge(&a);
        assert_eq!(b.len(), 2000);
        assert!((b.percentile(99.0) - 990_000.0).abs() < 2000.0);
        Ok(())
    }

    #[test]
    fn percentiles_are_values() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(
            [0.0, 50.0, 99.0, 100.0].map(|p| percentile(&hundred, p)),
            [1.0, 50.0, 99.0, 100.0]
        );
        assert!(percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn medians_of_even_counts_are_means() {
        assert!(median(&[]).is_nan());
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }
}
