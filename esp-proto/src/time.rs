//! Time as a number of nanoseconds that the host passes in.

use core::ops::{Add, Sub};
pub use core::time::Duration;

/// Nanoseconds since an epoch of the host's choice (a monotonic clock, or virtual time in the
/// simulator).
///
/// The core never reads a clock. Equal and repeated instants are allowed; an instant before the
/// latest one is treated as equal to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Instant = Instant(0);

    /// Creates the instant `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Returns nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        let nanos = d
            .as_secs()
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::from(d.subsec_nanos()));
        Instant(self.0.saturating_add(nanos))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_saturate() {
        let t = Instant::from_nanos(5);
        assert_eq!(
            t + Duration::from_nanos(1_500_000_007),
            Instant::from_nanos(1_500_000_012)
        );
        assert_eq!(t + Duration::MAX, Instant::from_nanos(u64::MAX));
        assert_eq!(t - Instant::from_nanos(9), Duration::ZERO);
        assert_eq!(Instant::from_nanos(9) - t, Duration::from_nanos(4));
    }
}
