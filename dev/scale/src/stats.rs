//! Statistics: percentiles of sizes and times, and the fairness index.

use hdrhistogram::Histogram;

/// Distribution of sizes or times in 64 classes a factor of 1.19 or less apart.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// Four classes for each power of two.
    classes: Vec<u64>,
    count: u64,
    max: u64,
}

/// Number of classes of [`Sizes`].
const CLASSES: usize = 4 * 64;

impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            classes: vec![0; CLASSES],
            count: 0,
            max: 0,
        }
    }
}

impl Sizes {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        let class = match value {
            0..4 => value as usize,
            _ => {
                let log = value.ilog2();
                (4 * log as usize - 4) + (value >> (log - 2)) as usize - 4
            }
        };
        self.classes[class] += 1;
        self.count += 1;
        self.max = self.max.max(value);
    }

    /// Returns the largest value.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the percentile `share`, in per mille: the upper end of its class, at most a fourth
    /// too large.
    pub fn per_mille(&self, share: u64) -> u64 {
        let wanted = (self.count * share).div_ceil(1000);
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return upper(class).min(self.max);
            }
        }
        self.max
    }
}

/// Returns the largest value of a class.
fn upper(class: usize) -> u64 {
    match class {
        0..4 => class as u64,
        _ => {
            let log = class / 4 + 1;
            let quarter = (class % 4 + 4) as u64;
            ((quarter + 1) << (log - 2)) - 1
        }
    }
}

/// Maximum recorded time in nanoseconds: 1000 s. Longer times count as this.
const MAX_NANOS: u64 = 1_000_000_000_000;

/// Times of messages in nanoseconds.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(MAX_NANOS, 3);
        Times(histogram.unwrap_or_else(|_| unreachable!("bounds and digits are allowed")))
    }
}

impl Times {
    /// Adds a time.
    pub fn add(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time that `percent` % of the times do not exceed.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.0.value_at_percentile(percent)
    }
}

/// Returns Jain's fairness index of rates: 1 when all are equal, 1/n when one has everything, 1
/// without any.
pub fn jain(rates: impl IntoIterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for rate in rates {
        count += 1.0;
        sum += rate;
        squares += rate * rate;
    }
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (count * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_contiguous() {
        let mut sizes = Sizes::default();
        for value in 0..5000 {
            sizes.add(value);
            let class = sizes.classes.iter().rposition(|count| *count > 0).unwrap();
            assert!(upper(class) >= value && upper(class) <= value + value / 4);
        }
        sizes.add(u64::MAX);
        assert_eq!(sizes.max(), u64::MAX);
    }

    #[test]
    fn percentiles_are_close_from_above() {
        let mut sizes = Sizes::default();
        let mut times = Times::default();
        for value in 1..=1000 {
            sizes.add(value * 100);
            times.add(value * 1_000_000);
        }
        for share in [500, 990, 1000] {
            let exact = share * 100;
            let found = sizes.per_mille(share);
            assert!((exact..=exact + exact / 4).contains(&found), "{found}");
        }
        let p999 = times.percentile(99.9);
        assert!((999_000_000..1_001_000_000).contains(&p999), "{p999}");
        assert_eq!(times.count(), 1000);
        assert_eq!(Sizes::default().per_mille(990), 0);
    }

    #[test]
    fn jain_of_equal_and_of_one() {
        assert_eq!(jain([3.0; 8]), 1.0);
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain([]), 1.0);
    }
}
