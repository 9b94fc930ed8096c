//! Random numbers for the unit and integration tests of this crate.
#![allow(dead_code, reason = "each test uses a part of it")]

/// Random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number less than `limit`.
    pub(crate) fn below<N: TryFrom<u64> + TryInto<u64>>(&mut self, limit: N) -> N {
        let limit = limit.try_into().unwrap_or(1).max(1);
        let number = N::try_from(self.next() % limit);
        number.unwrap_or_else(|_| unreachable!("less than the limit"))
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
