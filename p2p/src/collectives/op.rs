//! Operations of reductions.

use std::fmt;

use crate::error::Error;
use crate::memory::Datum;

/// Predefined operations. All are associative and commutative except for rounding; integers wrap
/// around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// a + b
    Sum,
    /// a × b
    Prod,
    /// The smaller one; the right one if either is a NaN.
    Min,
    /// The larger one; the right one if either is a NaN.
    Max,
    /// 1 if both are not 0, otherwise 0.
    LogicalAnd,
    /// 1 if one is not 0, otherwise 0.
    LogicalOr,
    /// 1 if exactly one is not 0, otherwise 0.
    LogicalXor,
    /// Bitwise and; for floats, of their bits.
    BitAnd,
    /// Bitwise or, as for [`Op::BitAnd`].
    BitOr,
    /// Bitwise exclusive or, as for [`Op::BitAnd`].
    BitXor,
}

/// A number that [`Op`] works on.
pub trait Number: Datum {
    /// a op b
    #[must_use]
    fn combine(op: Op, a: Self, b: Self) -> Self;
}

macro_rules! integer {
    ($($t:ty),*) => { $(impl Number for $t {
        #[inline]
        fn combine(op: Op, a: $t, b: $t) -> $t {
            match op {
                Op::Sum => a.wrapping_add(b),
                Op::Prod => a.wrapping_mul(b),
                Op::Min => a.min(b),
                Op::Max => a.max(b),
                Op::LogicalAnd => <$t>::from(a != 0 && b != 0),
                Op::LogicalOr => <$t>::from(a != 0 || b != 0),
                Op::LogicalXor => <$t>::from((a != 0) != (b != 0)),
                Op::BitAnd => a & b,
                Op::BitOr => a | b,
                Op::BitXor => a ^ b,
            }
        }
    })* };
}
integer!(u8, i8, u16, i16, u32, i32, u64, i64, usize, isize);

macro_rules! float {
    ($($t:ty),*) => { $(impl Number for $t {
        #[inline]
        fn combine(op: Op, a: $t, b: $t) -> $t {
            match op {
                Op::Sum => a + b,
                Op::Prod => a * b,
                Op::Min => if a < b { a } else { b },
                Op::Max => if a > b { a } else { b },
                Op::LogicalAnd => if a != 0.0 && b != 0.0 { 1.0 } else { 0.0 },
                Op::LogicalOr => if a != 0.0 || b != 0.0 { 1.0 } else { 0.0 },
                Op::LogicalXor => if (a != 0.0) != (b != 0.0) { 1.0 } else { 0.0 },
                Op::BitAnd => <$t>::from_bits(a.to_bits() & b.to_bits()),
                Op::BitOr => <$t>::from_bits(a.to_bits() | b.to_bits()),
                Op::BitXor => <$t>::from_bits(a.to_bits() ^ b.to_bits()),
            }
        }
    })* };
}
float!(f32, f64);

/// Operation defined by the caller. It must be associative.
#[derive(Clone, Copy)]
pub struct Reduction<'a, T> {
    /// Stores `left op right` in `right`, value by value: `combine(left, right)`. `left` comes from
    /// lower ranks. Both have equal length, a multiple of `unit`.
    pub combine: &'a dyn Fn(&[T], &mut [T]),
    /// The operation is commutative. Otherwise the order of ranks is kept.
    pub commutative: bool,
    /// Number of consecutive values that are never separated; at least 1.
    pub unit: usize,
}

impl<T> fmt::Debug for Reduction<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reduction")
            .field("commutative", &self.commutative)
            .field("unit", &self.unit)
            .finish_non_exhaustive()
    }
}

impl<T> Reduction<'_, T> {
    pub(crate) fn check(&self, data: &[T]) -> Result<(), Error> {
        if self.unit == 0 || !data.len().is_multiple_of(self.unit) {
            return Err(Error::InvalidArgument(
                "the length is not a multiple of the operation's unit",
            ));
        }
        Ok(())
    }
}

/// Returns a named operation as a [`Reduction`], with a loop for this operation.
pub(crate) fn with<T: Number, R>(op: Op, f: impl FnOnce(&Reduction<'_, T>) -> R) -> R {
    macro_rules! run {
        ($($name:ident),*) => {
            match op {
                $(Op::$name => f(&Reduction {
                    combine: &|left, right| {
                        for (a, b) in left.iter().zip(right) {
                            *b = T::combine(Op::$name, *a, *b);
                        }
                    },
                    commutative: true,
                    unit: 1,
                }),)*
            }
        };
    }
    run!(
        Sum, Prod, Min, Max, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor
    )
}
