//! 16-bit serial numbers (RFC 1982).

use core::fmt;

/// Sequence number of a packet. Windows are at most 4096 packets, so the order of two numbers is
/// unambiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u16);

impl Seq {
    /// Returns the sequence number `n` after this one.
    #[must_use]
    pub const fn plus(self, n: u16) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// Returns the distance from `base` to `self`, modulo 2^16.
    pub const fn ahead_of(self, base: Seq) -> u16 {
        self.0.wrapping_sub(base.0)
    }

    /// Returns true when `other` is 1 ..= 2^15 − 1 ahead of `self`.
    pub const fn is_before(self, other: Seq) -> bool {
        let distance = other.ahead_of(self);
        distance != 0 && distance < 0x8000
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_holds_across_the_wrap() {
        assert!(Seq(65535).is_before(Seq(0)));
        assert!(!Seq(0).is_before(Seq(65535)));
        assert!(!Seq(7).is_before(Seq(7)));
        assert_eq!(Seq(65535).plus(2), Seq(1));
        assert_eq!(Seq(1).ahead_of(Seq(65535)), 2);
        assert_eq!(std::format!("{}", Seq(65535).plus(8)), "7");
    }

    /// All 2^32 pairs of numbers, compared with a model without wrap: `base + n` for each distance
    /// `n`.
    #[test]
    fn every_pair_of_numbers_is_ordered_by_its_distance() {
        for base in 0..=u16::MAX {
            let mut wrong = 0;
            for n in 0..=u16::MAX {
                let (a, b) = (
                    Seq(base),
                    Seq(((u32::from(base) + u32::from(n)) % 65_536) as u16),
                );
                let sound = (a.plus(n) == b)
                    & (b.ahead_of(a) == n)
                    & (a.is_before(b) == (1..0x8000).contains(&n))
                    & (b.is_before(a) == (n > 0x8000));
                wrong += u32::from(!sound);
            }
            assert_eq!(wrong, 0, "distances from {base}");
        }
    }

    proptest! {
        #[test]
        fn plus_and_ahead_are_inverse(base: u16, n: u16) {
            prop_assert_eq!(Seq(base).plus(n).ahead_of(Seq(base)), n);
        }

        #[test]
        fn before_is_a_strict_order_within_half_the_circle(base: u16, n in 1u16..0x8000) {
            let (a, b) = (Seq(base), Seq(base).plus(n));
            prop_assert!(a.is_before(b));
            prop_assert!(!b.is_before(a));
        }

        #[test]
        fn exactly_opposite_numbers_are_not_ordered(base: u16) {
            prop_assert!(!Seq(base).is_before(Seq(base).plus(0x8000)));
        }

        #[test]
        fn before_is_transitive_within_a_window(base: u16, n in 1u16..4096, m in 1u16..4096) {
            let (a, b) = (Seq(base), Seq(base).plus(n));
            let c = b.plus(m);
            prop_assert!(a.is_before(b) && b.is_before(c) && a.is_before(c));
        }
    }
}
