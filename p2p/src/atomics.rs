//! Definition of the atomic operations on the memory of endpoints.

/// Operation on each value of a peer's memory. Its number on the wire is its index in
/// [`ALL`](AtomicOp::ALL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// The lesser one.
    Min,
    /// The greater one.
    Max,
    /// The sum; integers wrap around.
    Sum,
    /// The product; integers wrap around.
    Prod,
    /// 1 if one of them is not 0, otherwise 0.
    LogicalOr,
    /// 1 if neither is 0, otherwise 0.
    LogicalAnd,
    /// Bitwise or.
    BitOr,
    /// Bitwise and.
    BitAnd,
    /// 1 if exactly one of them is not 0, otherwise 0.
    LogicalXor,
    /// Bitwise exclusive or.
    BitXor,
    /// The value is returned unchanged.
    Read,
    /// The operand replaces it.
    Write,
    /// The operand replaces it if the comparand equals it.
    SwapEqual,
    /// The operand replaces it if the comparand differs from it.
    SwapNotEqual,
    /// The operand replaces it if the comparand is at most the value.
    SwapLessEqual,
    /// The operand replaces it if the comparand is less than the value.
    SwapLess,
    /// The operand replaces it if the comparand is at least the value.
    SwapGreaterEqual,
    /// The operand replaces it if the comparand is greater than the value.
    SwapGreater,
    /// The bits of the operand that are 1 in the comparand replace those of the value.
    SwapMasked,
}

impl AtomicOp {
    /// All operations, by number.
    pub const ALL: [AtomicOp; 19] = [
        AtomicOp::Min,
        AtomicOp::Max,
        AtomicOp::Sum,
        AtomicOp::Prod,
        AtomicOp::LogicalOr,
        AtomicOp::LogicalAnd,
        AtomicOp::BitOr,
        AtomicOp::BitAnd,
        AtomicOp::LogicalXor,
        AtomicOp::BitXor,
        AtomicOp::Read,
        AtomicOp::Write,
        AtomicOp::SwapEqual,
        AtomicOp::SwapNotEqual,
        AtomicOp::SwapLessEqual,
        AtomicOp::SwapLess,
        AtomicOp::SwapGreaterEqual,
        AtomicOp::SwapGreater,
        AtomicOp::SwapMasked,
    ];

    /// Returns true if it takes a comparand.
    #[must_use]
    pub fn compares(self) -> bool {
        self as u8 >= AtomicOp::SwapEqual as u8
    }

    /// Returns the number of operands for each value: a comparand is the second one.
    #[must_use]
    pub fn operands(self) -> usize {
        match self {
            AtomicOp::Read => 0,
            _ if self.compares() => 2,
            _ => 1,
        }
    }

    fn is_bitwise(self) -> bool {
        use AtomicOp::{BitAnd, BitOr, BitXor, SwapMasked};
        matches!(self, BitAnd | BitOr | BitXor | SwapMasked)
    }

    /// Returns true if it compares the order of values.
    fn is_ordering(self) -> bool {
        use AtomicOp::{Max, Min, SwapGreater, SwapGreaterEqual, SwapLess, SwapLessEqual};
        matches!(
            self,
            Min | Max | SwapLess | SwapLessEqual | SwapGreater | SwapGreaterEqual
        )
    }
}

/// Type of the values. Its number on the wire is its index in [`ALL`](AtomicType::ALL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicType {
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
    /// Floating point, 32 bits.
    F32,
    /// Floating point, 64 bits.
    F64,
    /// Complex number: real and imaginary part of 32 bits each.
    Complex32,
    /// Complex number: real and imaginary part of 64 bits each.
    Complex64,
    /// Signed, 128 bits.
    I128,
    /// Unsigned, 128 bits.
    U128,
}

/// Maximum size of a value, in bytes.
pub(crate) const MAX_SIZE: usize = 16;

/// A value in its first bytes, in the byte order of the machine.
pub(crate) type Bytes = [u8; MAX_SIZE];

impl AtomicType {
    /// All types, by number.
    pub const ALL: [AtomicType; 14] = [
        AtomicType::I8,
        AtomicType::U8,
        AtomicType::I16,
        AtomicType::U16,
        AtomicType::I32,
        AtomicType::U32,
        AtomicType::I64,
        AtomicType::U64,
        AtomicType::F32,
        AtomicType::F64,
        AtomicType::Complex32,
        AtomicType::Complex64,
        AtomicType::I128,
        AtomicType::U128,
    ];

    /// Returns the size of a value, in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            AtomicType::I8 | AtomicType::U8 => 1,
            AtomicType::I16 | AtomicType::U16 => 2,
            AtomicType::I32 | AtomicType::U32 | AtomicType::F32 => 4,
            AtomicType::I64 | AtomicType::U64 | AtomicType::F64 | AtomicType::Complex32 => 8,
            AtomicType::I128 | AtomicType::U128 | AtomicType::Complex64 => 16,
        }
    }

    /// Returns true if values of this type have the operation: bitwise ones need integers, and
    /// complex numbers have no order.
    #[must_use]
    pub fn supports(self, op: AtomicOp) -> bool {
        match self {
            AtomicType::F32 | AtomicType::F64 => !op.is_bitwise(),
            AtomicType::Complex32 | AtomicType::Complex64 => !op.is_bitwise() && !op.is_ordering(),
            _ => true,
        }
    }
}

/// A value, with its operations.
trait Value: Copy + PartialOrd {
    fn of(bytes: Bytes) -> Self;
    fn bytes(self) -> Bytes;
    fn truth(self) -> bool;
    fn from_truth(truth: bool) -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
}

macro_rules! common {
    ($t:ty, $zero:expr, $one:expr) => {
        fn of(bytes: Bytes) -> Self {
            let mut own = [0; size_of::<$t>()];
            own.copy_from_slice(&bytes[..size_of::<$t>()]);
            <$t>::from_ne_bytes(own)
        }
        fn bytes(self) -> Bytes {
            let mut bytes = [0; MAX_SIZE];
            bytes[..size_of::<$t>()].copy_from_slice(&self.to_ne_bytes());
            bytes
        }
        fn truth(self) -> bool {
            self != $zero
        }
        fn from_truth(truth: bool) -> Self {
            if truth { $one } else { $zero }
        }
    };
}

macro_rules! integer {
    ($($t:ty),*) => {$(
        impl Value for $t {
            common!($t, 0, 1);
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )*};
}
integer!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128);

macro_rules! float {
    ($($t:ty),*) => {$(
        impl Value for $t {
            common!($t, 0.0, 1.0);
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn multiply(self, other: Self) -> Self {
                self * other
            }
        }
    )*};
}
float!(f32, f64);

/// A complex number. It has no order: the derived one is not used, see [`AtomicType::supports`].
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Complex<T>(T, T);

macro_rules! complex {
    ($($t:ty),*) => {$(
        impl Value for Complex<$t> {
            fn of(bytes: Bytes) -> Self {
                let mut second = [0; MAX_SIZE];
                let size = size_of::<$t>();
                second[..size].copy_from_slice(&bytes[size..2 * size]);
                Complex(<$t>::of(bytes), <$t>::of(second))
            }
            fn bytes(self) -> Bytes {
                let mut bytes = self.0.bytes();
                let size = size_of::<$t>();
                bytes[size..2 * size].copy_from_slice(&self.1.bytes()[..size]);
                bytes
            }
            fn truth(self) -> bool {
                self.0.truth() || self.1.truth()
            }
            fn from_truth(truth: bool) -> Self {
                Complex(<$t>::from_truth(truth), 0.0)
            }
            fn add(self, other: Self) -> Self {
                Complex(self.0 + other.0, self.1 + other.1)
            }
            fn multiply(self, other: Self) -> Self {
                Complex(
                    self.0 * other.0 - self.1 * other.1,
                    self.0 * other.1 + self.1 * other.0,
                )
            }
        }
    )*};
}
complex!(f32, f64);

/// Returns the new value, or `None` if `value` stays.
pub(crate) fn replacement(
    op: AtomicOp,
    number: AtomicType,
    value: Bytes,
    operands: [Bytes; 2],
) -> Option<Bytes> {
    if op.is_bitwise() {
        return Some(combine(op, value, operands));
    }
    match number {
        AtomicType::I8 => compute::<i8>(op, value, operands),
        AtomicType::U8 => compute::<u8>(op, value, operands),
        AtomicType::I16 => compute::<i16>(op, value, operands),
        AtomicType::U16 => compute::<u16>(op, value, operands),
        AtomicType::I32 => compute::<i32>(op, value, operands),
        AtomicType::U32 => compute::<u32>(op, value, operands),
        AtomicType::I64 => compute::<i64>(op, value, operands),
        AtomicType::U64 => compute::<u64>(op, value, operands),
        AtomicType::F32 => compute::<f32>(op, value, operands),
        AtomicType::F64 => compute::<f64>(op, value, operands),
        AtomicType::Complex32 => compute::<Complex<f32>>(op, value, operands),
        AtomicType::Complex64 => compute::<Complex<f64>>(op, value, operands),
        AtomicType::I128 => compute::<i128>(op, value, operands),
        AtomicType::U128 => compute::<u128>(op, value, operands),
    }
}

/// Computes a bitwise operation, for which types make no difference.
fn combine(op: AtomicOp, value: Bytes, operands: [Bytes; 2]) -> Bytes {
    let [value, operand, mask] = [value, operands[0], operands[1]].map(u128::from_ne_bytes);
    let new = match op {
        AtomicOp::BitOr => value | operand,
        AtomicOp::BitAnd => value & operand,
        AtomicOp::BitXor => value ^ operand,
        _ => value & !mask | operand & mask,
    };
    new.to_ne_bytes()
}

fn compute<T: Value>(op: AtomicOp, value: Bytes, operands: [Bytes; 2]) -> Option<Bytes> {
    let [value, operand, comparand] = [value, operands[0], operands[1]].map(T::of);
    let when = |condition: bool| condition.then_some(operand);
    let truth = |truth: bool| Some(T::from_truth(truth));
    let new = match op {
        AtomicOp::Min => when(operand < value),
        AtomicOp::Max => when(operand > value),
        AtomicOp::Sum => Some(value.add(operand)),
        AtomicOp::Prod => Some(value.multiply(operand)),
        AtomicOp::LogicalOr => truth(value.truth() || operand.truth()),
        AtomicOp::LogicalAnd => truth(value.truth() && operand.truth()),
        AtomicOp::LogicalXor => truth(value.truth() != operand.truth()),
        AtomicOp::Read => None,
        AtomicOp::Write => Some(operand),
        AtomicOp::SwapEqual => when(comparand == value),
        AtomicOp::SwapNotEqual => when(comparand != value),
        AtomicOp::SwapLessEqual => when(comparand <= value),
        AtomicOp::SwapLess => when(comparand < value),
        AtomicOp::SwapGreaterEqual => when(comparand >= value),
        AtomicOp::SwapGreater => when(comparand > value),
        // Bitwise ones are computed above.
        AtomicOp::BitOr | AtomicOp::BitAnd | AtomicOp::BitXor | AtomicOp::SwapMasked => None,
    };
    new.map(T::bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i32s(op: AtomicOp, value: i32, operand: i32, comparand: i32) -> i32 {
        let operands = [operand, comparand].map(Value::bytes);
        let new = replacement(op, AtomicType::I32, value.bytes(), operands);
        new.map_or(value, Value::of)
    }

    #[test]
    fn each_operation_computes_what_its_name_says() {
        use AtomicOp::*;
        let expected = [
            (Min, [-5, 3, -5]),
            (Max, [3, 9, 9]),
            (Sum, [-2, 12, 4]),
            (Prod, [-15, 27, -45]),
            (LogicalOr, [1, 1, 1]),
            (LogicalAnd, [1, 1, 1]),
            (BitOr, [-5 | 3, 3 | 9, -5 | 9]),
            (BitAnd, [-5 & 3, 3 & 9, -5 & 9]),
            (LogicalXor, [0, 0, 0]),
            (BitXor, [-5 ^ 3, 3 ^ 9, -5 ^ 9]),
            (Read, [3, 3, 9]),
            (Write, [-5, 9, -5]),
        ];
        for (op, results) in expected {
            let pairs = [(3, -5), (3, 9), (9, -5)];
            let got = pairs.map(|(value, operand)| i32s(op, value, operand, 0));
            assert_eq!(got, results, "{op:?}");
        }
        // The comparand is less than, equal to and greater than the value 7; the operand is 1.
        let swaps = [
            (SwapEqual, [7, 1, 7]),
            (SwapNotEqual, [1, 7, 1]),
            (SwapLessEqual, [1, 1, 7]),
            (SwapLess, [1, 7, 7]),
            (SwapGreaterEqual, [7, 1, 1]),
            (SwapGreater, [7, 7, 1]),
        ];
        for (op, results) in swaps {
            assert_eq!([6, 7, 8].map(|c| i32s(op, 7, 1, c)), results, "{op:?}");
        }
        assert_eq!(i32s(SwapMasked, 0x1234, 0xABCD, 0x0F0F), 0x1B3D);
        assert_eq!(i32s(LogicalXor, 0, 2, 0), 1);
        assert_eq!(i32s(Sum, i32::MAX, 1, 0), i32::MIN);
    }

    #[test]
    fn floats_and_short_integers_keep_their_size() {
        let sum = replacement(
            AtomicOp::Sum,
            AtomicType::F64,
            1.5f64.bytes(),
            [2.25f64.bytes(); 2],
        );
        assert_eq!(sum.map(f64::of), Some(3.75));
        let min = replacement(
            AtomicOp::Min,
            AtomicType::F32,
            1.5f32.bytes(),
            [f32::NAN.bytes(); 2],
        );
        assert_eq!(min, None);
        let sum = replacement(
            AtomicOp::Sum,
            AtomicType::U8,
            200u8.bytes(),
            [100u8.bytes(); 2],
        );
        assert_eq!(sum.map(|sum| sum[..2] == [44, 0]), Some(true));
        let sum = replacement(
            AtomicOp::Sum,
            AtomicType::U128,
            u128::from(u64::MAX).bytes(),
            [1u128.bytes(); 2],
        );
        assert_eq!(sum.map(u128::of), Some(1 << 64));
        assert!(!AtomicType::F32.supports(AtomicOp::BitOr));
        assert!(AtomicType::F32.supports(AtomicOp::SwapLess));
        for (place, op) in AtomicOp::ALL.iter().enumerate() {
            assert_eq!(*op as usize, place);
        }
        for (place, number) in AtomicType::ALL.iter().enumerate() {
            assert_eq!(*number as usize, place);
        }
    }

    #[test]
    fn complex_numbers_have_two_parts_and_no_order() {
        fn check<T: Copy>(number: AtomicType, of: impl Fn(f32, f32) -> Complex<T>)
        where
            Complex<T>: Value,
        {
            let one = |op, operand: Complex<T>, comparand: Complex<T>| {
                let operands = [operand.bytes(), comparand.bytes()];
                replacement(op, number, of(1.0, 2.0).bytes(), operands).map(Complex::<T>::of)
            };
            let (second, zero) = (of(3.0, -1.0), of(0.0, 0.0));
            assert!(one(AtomicOp::Sum, second, zero) == Some(of(4.0, 1.0)));
            assert!(one(AtomicOp::Prod, second, zero) == Some(of(5.0, 5.0)));
            assert!(one(AtomicOp::LogicalAnd, of(0.0, 1.0), zero) == Some(of(1.0, 0.0)));
            assert!(one(AtomicOp::LogicalAnd, zero, zero) == Some(zero));
            assert!(one(AtomicOp::SwapEqual, second, of(1.0, 2.0)) == Some(second));
            assert!(one(AtomicOp::SwapEqual, second, of(1.0, 3.0)).is_none());
            assert!(one(AtomicOp::SwapNotEqual, second, of(1.0, 3.0)) == Some(second));
            let refused = AtomicOp::ALL.iter().filter(|op| !number.supports(**op));
            assert_eq!(refused.count(), 10);
        }
        check(AtomicType::Complex32, |real, imaginary| {
            Complex(real, imaginary)
        });
        check(AtomicType::Complex64, |real, imaginary| {
            Complex(f64::from(real), f64::from(imaginary))
        });
    }
}
