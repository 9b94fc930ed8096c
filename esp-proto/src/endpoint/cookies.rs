//! Cookies of SYNs that a listener with a full queue does not keep (W-150).

use core::hash::{Hash, Hasher};

use crate::connection::Key;
use crate::time::{Duration, Instant};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use siphasher::sip::SipHasher24;

/// Time after which the cookies of the same SYN differ. A cookie is valid for one to two of these.
const PERIOD: Duration = Duration::from_secs(10);

/// Creates and checks cookies. None is stored.
#[derive(Debug)]
pub(super) struct Cookies {
    keys: (u64, u64),
}

impl Cookies {
    /// Derives the secret from the seed of the endpoint, independently of its other random numbers.
    pub(super) fn new(seed: [u8; 32]) -> Cookies {
        let mut rng = ChaCha8Rng::from_seed(seed);
        rng.set_stream(1);
        Cookies {
            keys: (rng.next_u64(), rng.next_u64()),
        }
    }

    /// Returns the cookie of a SYN; never 0.
    pub(super) fn cookie(&self, key: &Key, nonce: u64, now: Instant) -> u64 {
        self.of_period(key, nonce, period(now))
    }

    /// Returns true if the SYN brings a cookie that it got in this period or the one before.
    pub(super) fn is_valid(&self, cookie: u64, key: &Key, nonce: u64, now: Instant) -> bool {
        let now = period(now);
        let valid = |period| self.of_period(key, nonce, period) == cookie;
        cookie != 0 && (valid(now) || now > 0 && valid(now - 1))
    }

    fn of_period(&self, key: &Key, nonce: u64, period: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.keys.0, self.keys.1);
        (key, nonce, period).hash(&mut hasher);
        hasher.finish().max(1)
    }
}

fn period(now: Instant) -> u64 {
    let since = now.since(Instant::ZERO).as_nanos() / PERIOD.as_nanos();
    u64::try_from(since).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{MacAddr, NodeAddr};

    fn key(peer: u8, peer_port: u16) -> Key {
        Key {
            local_port: 5000,
            peer: NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, peer])),
            peer_port,
        }
    }

    #[test]
    fn a_cookie_is_of_one_syn() {
        let cookies = Cookies::new([7; 32]);
        let now = Instant::ZERO + Duration::from_secs(1000);
        let cookie = cookies.cookie(&key(1, 40_000), 9, now);
        assert!(cookies.is_valid(cookie, &key(1, 40_000), 9, now));
        for (key, nonce) in [
            (key(2, 40_000), 9),
            (key(1, 40_001), 9),
            (key(1, 40_000), 10),
        ] {
            assert!(!cookies.is_valid(cookie, &key, nonce, now), "{key:?}");
        }
        let other = Cookies::new([8; 32]);
        assert!(!other.is_valid(cookie, &key(1, 40_000), 9, now));
        assert!(!cookies.is_valid(0, &key(1, 40_000), 9, now));
    }

    #[test]
    fn a_cookie_is_valid_for_ten_to_twenty_seconds() {
        let cookies = Cookies::new([7; 32]);
        for offset in 0..10 {
            let made = Instant::ZERO + Duration::from_secs(offset);
            let cookie = cookies.cookie(&key(1, 1), 1, made);
            let valid = |after| {
                let then = made + Duration::from_secs(after);
                cookies.is_valid(cookie, &key(1, 1), 1, then)
            };
            assert!(valid(0) && valid(10) && !valid(20), "{offset}");
        }
    }

    #[test]
    fn there_is_no_period_before_the_first() {
        let cookies = Cookies::new([7; 32]);
        assert!(!cookies.is_valid(7, &key(1, 1), 1, Instant::ZERO));
    }
}
