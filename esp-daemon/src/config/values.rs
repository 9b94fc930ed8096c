//! Config values with a unit, checked during deserialisation, so that an error has its line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration, written as a string with a unit: `"200us"`, `"10ms"`, `"1min 30s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

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
        let duration = humantime::parse_duration(text);
        duration.map(Span).map_err(|_| {
            format!("invalid duration `{text}`: write a whole number and a unit, such as \"10ms\"")
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// A network of ESP in UDP: a prefix such as `"10.1.0.0/16"`, or `"on-link"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The networks of all interfaces but the loopback one.
    OnLink,
    /// This one.
    Prefix(netif::IpNetwork),
}

impl FromStr for Network {
    type Err = String;
    fn from_str(text: &str) -> Result<Network, String> {
        if text == "on-link" {
            return Ok(Network::OnLink);
        }
        let prefix = text.parse().map(Network::Prefix);
        prefix.map_err(|_| {
            format!(
                "invalid network `{text}`: write a prefix, such as \"10.1.0.0/16\", or \"on-link\""
            )
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Network::OnLink => f.write_str("on-link"),
            Network::Prefix(prefix) => prefix.fmt(f),
        }
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Network, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// A number of bytes, written as a number or as a string with KiB, MiB or GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Bytes, String> {
        let bytes = parse_size::Config::new().with_binary().parse_size(text);
        bytes.map(Bytes).map_err(|_| {
            format!("invalid size `{text}`: write a number of bytes, or a unit, such as \"16MiB\"")
        })
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

/// An amount of memory: [`Bytes`], or a share of the machine's memory, such as `"25%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Number of bytes.
    Bytes(Bytes),
    /// Percentage of the machine's memory, 1 to 100.
    Percent(u8),
}

impl Memory {
    /// Returns the number of bytes on a machine with `total` bytes of memory.
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
                    "invalid share of memory `{text}`: write \"1%\" to \"100%\""
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

/// Permission bits, written as an octal string, such as `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Mode, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 && !text.starts_with('+') => Ok(Mode(mode)),
            _ => Err(format!(
                "invalid permission bits `{text}`: write an octal number, such as \"0660\""
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
        text.parse().map(Uid).map_err(|_| {
            format!("invalid user id `{text}`: write a number (`id -u NAME` prints it)")
        })
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

struct Text<T> {
    expecting: &'static str,
    /// Conversion of an integer, if one is allowed.
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

serde_as_text!(Span, "a duration in quotes, such as \"10ms\"", None);
serde_as_text!(Bytes, "a size, such as 65536 or \"64KiB\"", Some(Bytes));
serde_as_text!(
    Memory,
    "a size or a share, such as \"1GiB\" or \"25%\"",
    Some(|n| Memory::Bytes(Bytes(n)))
);
serde_as_text!(Mode, "permission bits in quotes, such as \"0660\"", None);
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
    fn invalid_values_are_refused() {
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "99999999999999999999min",
            "18446744073709551616ns",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["", "x", "1XB", "-4", "99999999999GiB"] {
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
