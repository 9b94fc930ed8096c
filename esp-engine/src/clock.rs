//! The clock.

use esp_proto::Instant;

/// CLOCK_MONOTONIC as the core's [`Instant`].
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
    /// Returns the time in nanoseconds of CLOCK_MONOTONIC, which processes of one machine share.
    #[inline]
    pub fn now(self) -> Instant {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // The monotonic clock counts from boot: neither part is ever negative.
        let nanos = (t.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(t.tv_nsec as u64);
        Instant::from_nanos(nanos)
    }
}
