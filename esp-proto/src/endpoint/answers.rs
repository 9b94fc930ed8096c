//! Limits of answers to UDP addresses that are not validated (W-123).

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::{IpAddr, SocketAddr};

use crate::addr::NodeAddr;
use crate::time::Instant;
use crate::token_bucket::TokenBucket;
use alloc::boxed::Box;
use alloc::vec;
use foldhash::fast::FixedState;

/// Number of buckets. Networks that share a bucket share its rate.
const BUCKETS: usize = 256;
/// Average rate per second and burst of the answers to one network.
const RATE: (u32, u32) = (10_000, 1_000);

/// Limits the answers to each network: /24 of IPv4, /48 of IPv6. Ethernet addresses are not
/// limited.
#[derive(Debug)]
pub(super) struct AnswerLimits {
    /// Empty until the first UDP address.
    buckets: Box<[TokenBucket]>,
    hasher: FixedState,
}

impl AnswerLimits {
    pub(super) fn new(hasher: FixedState) -> AnswerLimits {
        AnswerLimits {
            buckets: Box::default(),
            hasher,
        }
    }

    /// Takes one answer; returns false if the network's rate is exceeded.
    pub(super) fn take(&mut self, to: &NodeAddr, now: Instant) -> bool {
        let NodeAddr::Udp(at) = to else {
            return true;
        };
        if self.buckets.is_empty() {
            self.buckets = vec![TokenBucket::new(RATE.0, RATE.1); BUCKETS].into_boxed_slice();
        }
        let bucket = self.bucket(at);
        self.buckets
            .get_mut(bucket)
            .is_none_or(|bucket| bucket.take(now))
    }

    /// Returns the index of an address's bucket. The hash is keyed: an attacker cannot choose a
    /// network that shares the bucket of another.
    fn bucket(&self, at: &SocketAddr) -> usize {
        let mut state = self.hasher.build_hasher();
        match at.ip() {
            IpAddr::V4(ip) => (ip.to_bits() >> 8).hash(&mut state),
            IpAddr::V6(ip) => (ip.to_bits() >> 80).hash(&mut state),
        }
        // The upper bits of a foldhash are no better than the lower ones.
        (state.finish() as usize) % BUCKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(limits: &mut AnswerLimits, to: &str) -> u32 {
        let to = to.parse().unwrap();
        let now = Instant::from_nanos(5_000_000_000);
        (0..3000).map(|_| u32::from(limits.take(&to, now))).sum()
    }

    /// W-123.
    #[test]
    fn each_network_has_a_rate_of_its_own() {
        let mut limits = AnswerLimits::new(FixedState::with_seed(1));
        assert_eq!(taken(&mut limits, "10.1.2.3"), RATE.1);
        assert_eq!(
            taken(&mut limits, "10.1.2.99"),
            0,
            "a network shares its rate"
        );
        assert_eq!(taken(&mut limits, "10.1.3.3"), RATE.1);
        assert_eq!(taken(&mut limits, "[fd00:0:1::1]"), RATE.1);
        assert_eq!(taken(&mut limits, "[fd00:0:1:9::7]"), 0);
        assert_eq!(taken(&mut limits, "02:00:00:00:00:01"), 3000);
    }
}
