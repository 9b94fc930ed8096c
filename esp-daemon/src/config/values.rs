//! Values of the config file that have a unit: checked while they are read, so that an error knows its line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time, written as a string with its unit: `"200us"`, `"10ms"`, `"5s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

const SPAN_UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
];

impl Span {
    pub(super) const fn micros(n: u64) -> Span {
        Span(Duration::from_micros(n))
    }
    pub(super) const fn millis(n: u64) -> Span {
        Span(Duration::from_millis(n))
    }
    pub(super) const fn secs(n: u64) -> Span {
        Span(Duration::from_secs(n))
    }
}

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Span, String> {
        let bad = || {
            format!(
                "`{text}` is no length of time; write a whole number and ns, us, ms, s or min, like \"10ms\""
            )
        };
        let (number, unit) = split(text);
        let factor = SPAN_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(bad)?
            .1;
        let nanos = number.and_then(|n| n.checked_mul(factor)).ok_or_else(bad)?;
        Ok(Span(Duration::from_nanos(nanos)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        for (name, factor) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
            if nanos >= factor && nanos.is_multiple_of(factor) {
                return write!(f, "{}{name}", nanos / factor);
            }
        }
        write!(f, "{nanos}ns")
    }
}

/// A number of bytes: a whole number, or a string with KiB, MiB or GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const BYTE_UNITS: [(&str, u64); 5] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

impl FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Bytes, String> {
        let bad = || {
            format!(
                "`{text}` is no number of bytes; write a whole number, or one with KiB, MiB or GiB, like \"16MiB\""
            )
        };
        let (number, unit) = split(text);
        let factor = BYTE_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(bad)?
            .1;
        number
            .and_then(|n| n.checked_mul(factor))
            .map(Bytes)
            .ok_or_else(bad)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, factor) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{name}", self.0 / factor);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// An amount of memory: [`Bytes`], or a share of the machine's memory like `"25%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// So many bytes.
    Bytes(Bytes),
    /// Per cent of the machine's memory, 1 to 100.
    Percent(u8),
}

impl Memory {
    /// The number of bytes on a machine with `total` bytes of memory.
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Memory::Bytes(Bytes(bytes)) => bytes,
            Memory::Percent(share) => total / 100 * u64::from(share),
        }
    }
}

impl FromStr for Memory {
    type Err = String;
    fn from_str(text: &str) -> Result<Memory, String> {
        match text.strip_suffix('%') {
            None => text.parse().map(Memory::Bytes),
            Some(share) => match share.trim_end().parse::<u8>() {
                Ok(share @ 1..=100) => Ok(Memory::Percent(share)),
                _ => Err(format!(
                    "`{text}` is no share of the memory; write \"1%\" to \"100%\""
                )),
            },
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Bytes(bytes) => bytes.fmt(f),
            Memory::Percent(share) => write!(f, "{share}%"),
        }
    }
}

/// Permission bits, written as an octal string like `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Mode, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 && !text.starts_with('+') => Ok(Mode(mode)),
            _ => Err(format!(
                "`{text}` are no permission bits; write them in octal, like \"0660\""
            )),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// A numeric user id used as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub u32);

impl FromStr for Uid {
    type Err = String;
    fn from_str(text: &str) -> Result<Uid, String> {
        text.parse()
            .map(Uid)
            .map_err(|_| format!("`{text}` is no numeric user id; `id -u NAME` shows it"))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Leading digits and the rest.
fn split(text: &str) -> (Option<u64>, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.parse().ok(), unit.trim_start())
}

struct Text<T> {
    expecting: &'static str,
    /// What a bare whole number means, if it may stand there.
    number: Option<fn(u64) -> T>,
}

impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
    fn visit_u64<E: Error>(self, n: u64) -> Result<T, E> {
        match self.number {
            Some(make) => Ok(make(n)),
            None => Err(E::invalid_type(
                serde::de::Unexpected::Unsigned(n),
                &self.expecting,
            )),
        }
    }
    fn visit_i64<E: Error>(self, n: i64) -> Result<T, E> {
        match u64::try_from(n) {
            Ok(n) => self.visit_u64(n),
            Err(_) => Err(E::invalid_value(
                serde::de::Unexpected::Signed(n),
                &self.expecting,
            )),
        }
    }
}

macro_rules! serde_as_text {
    ($type:ty, $expecting:literal, $number:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Text {
                    expecting: $expecting,
                    number: $number,
                })
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

serde_as_text!(Span, "a length of time in quotes, like \"10ms\"", None);
serde_as_text!(
    Bytes,
    "a number of bytes, like 65536 or \"64KiB\"",
    Some(Bytes)
);
serde_as_text!(
    Memory,
    "a number of bytes or a share, like \"1GiB\" or \"25%\"",
    Some(|n| Memory::Bytes(Bytes(n)))
);
serde_as_text!(Mode, "permission bits in quotes, like \"0660\"", None);
serde_as_text!(Uid, "a numeric user id", None);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_written() {
        for (text, nanos) in [
            ("1ns", 1),
            ("200us", 200_000),
            ("7 ms", 7_000_000),
            ("2s", 2_000_000_000),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_nanos(nanos), "{text}");
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        for (text, bytes) in [("0", 0), ("512", 512), ("4KiB", 4096), ("3 GiB", 3 << 30)] {
            let value: Bytes = text.parse().unwrap();
            assert_eq!(value.0, bytes, "{text}");
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        assert_eq!("25%".parse::<Memory>().unwrap().bytes(400), 100);
        assert_eq!("0660".parse(), Ok(Mode(0o660)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "1h",
            "99999999999min",
            "18446744073709551616ns",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["", "x", "1KB", "-4", "99999999999GiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        for text in ["0%", "101%", "%", "1.5%", "-3%"] {
            assert!(text.parse::<Memory>().is_err(), "{text}");
        }
        for text in ["", "8", "01000", "+7", "rw-"] {
            assert!(text.parse::<Mode>().is_err(), "{text}");
        }
        assert!("root".parse::<Uid>().is_err());
    }
}
