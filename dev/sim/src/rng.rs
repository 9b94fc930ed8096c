//! Small seeded generator: xoshiro256** (Blackman and Vigna), seeded through splitmix64.
//!
//! Its output for a seed must not change: it determines the scenario of every printed seed.

/// A deterministic random generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// Performs one step of splitmix64, which spreads `x` over 64 bits.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        let state = [0u64; 4].map(|_| {
            let out = mix(x);
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            out
        });
        Rng { state }
    }

    /// Creates an independent generator for a part of the simulation, so that draws of one part do
    /// not shift another's.
    #[must_use]
    pub fn fork(&mut self, label: u64) -> Rng {
        Rng::new(self.next_u64() ^ mix(label))
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let out = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= t;
        *d = d.rotate_left(45);
        out
    }

    /// Returns a number in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // Multiply-shift; the bias is below n / 2^64.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns a number in `low..=high` with uniform magnitude: 1..=10 is as likely as 100..=1000.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let (low_bits, high_bits) = ((low + 1).ilog2(), (high + 1).ilog2());
        let bits = self.range(u64::from(low_bits), u64::from(high_bits));
        self.range((1 << bits) - 1, (2 << bits) - 2)
            .clamp(low, high)
    }

    /// Returns true with a probability of `ppm` per million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Returns one of the items; panics when there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Returns 32 random bytes, for an endpoint's seed.
    pub fn seed32(&mut self) -> [u8; 32] {
        let mut out = [0; 32];
        for chunk in out.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_is_fixed() {
        let mut rng = Rng::new(1);
        let first = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        assert_eq!(
            first,
            [
                0xb3f2_af6d_0fc7_10c5,
                0x853b_5596_4736_4cea,
                0x92f8_9756_082a_4514
            ]
        );
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let mut rng = Rng::new(7);
        for _ in 0..10_000 {
            assert!(rng.below(3) < 3);
            assert!((5..=9).contains(&rng.range(5, 9)));
            assert!((0..=1_000_000).contains(&rng.magnitude(0, 1_000_000)));
        }
        assert_eq!(rng.below(0), 0);
        assert!(!rng.chance(0));
        assert!(rng.chance(1_000_000));
    }

    #[test]
    fn chance_is_about_right() {
        let mut rng = Rng::new(3);
        let hits = (0..100_000).filter(|_| rng.chance(10_000)).count();
        assert!((800..1200).contains(&hits), "{hits}");
    }
}
