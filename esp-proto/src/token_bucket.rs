//! Token bucket that limits replies which any station can provoke.

use crate::time::Instant;

/// Allows `rate` events a second on average and `burst` at once.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    /// Cost of one event in nanoseconds.
    cost: u64,
    /// Depth of the bucket in nanoseconds.
    depth: u64,
    saved: u64,
    last: Instant,
}

impl TokenBucket {
    pub(crate) fn new(rate: u32, burst: u32) -> Self {
        let cost = 1_000_000_000 / u64::from(rate.max(1));
        let depth = cost * u64::from(burst);
        TokenBucket {
            cost,
            depth,
            saved: depth,
            last: Instant::ZERO,
        }
    }

    /// Takes one event if there is room for it.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let passed = now.as_nanos().saturating_sub(self.last.as_nanos());
        self.last = self.last.max(now);
        self.saved = self.saved.saturating_add(passed).min(self.depth);
        if self.saved < self.cost {
            return false;
        }
        self.saved -= self.cost;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn burst_then_rate() {
        let mut bucket = TokenBucket::new(1000, 3);
        let t = Instant::from_nanos(5_000_000_000);
        assert_eq!((0..10).filter(|_| bucket.take(t)).count(), 3);
        assert!(!bucket.take(t + Duration::from_micros(999)));
        assert!(bucket.take(t + Duration::from_millis(1)));
        assert!(!bucket.take(t), "time does not run backwards");
    }
}
