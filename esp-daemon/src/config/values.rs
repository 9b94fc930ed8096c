//! Config values with a unit, checked during deserialisation, so that an error has its line.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};
use toml::Value;

/// Declares types that a function deserializes from the value as written. If that fails, the error
/// shows the value, its kind, and how to write it.
macro_rules! values {
    ($($(#[$doc:meta])* $name:ident($inner:ty), $kind:literal, $write:literal, $read:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let value = Value::deserialize(from)?;
                let read: fn(&Value) -> Option<$inner> = $read;
                read(&value).map($name).ok_or_else(|| {
                    D::Error::custom(format!(concat!("invalid ", $kind, " {}: write ", $write), value))
                })
            }
        }
    )*};
}

values! {
    /// A duration, written as a string with a unit: `"200us"`, `"10ms"`, `"1min 30s"`.
    Span(Duration), "duration", "a whole number and a unit in quotes, such as \"10ms\"",
        |value| humantime::parse_duration(value.as_str()?).ok();
    /// Bytes of a ring: a power of two, 4 KiB to 64 MiB.
    RingSize(u32), "ring size", "a power of two from \"4KiB\" to \"64MiB\"",
        |value| {
            let bytes = u32::try_from(bytes(value)?).ok()?;
            (bytes.is_power_of_two() && (4096..=64 << 20).contains(&bytes)).then_some(bytes)
        };
    /// Bytes of memory, written as a number, with a unit (`"1GiB"`), or as a share of the machine's
    /// memory (`"25%"`).
    Memory(u64), "amount of memory", "a size such as \"1GiB\", or a share, \"1%\" to \"100%\"",
        |value| match value.as_str().and_then(|text| text.strip_suffix('%')) {
            None => bytes(value),
            Some(share) => match share.trim_end().parse().ok()? {
                share @ 1..=100 => Some(Memory::percent(share).0),
                _ => None,
            },
        };
    /// Number of engines.
    Engines(u8), "number of engines", "1 to 16",
        |value| match value.as_integer().and_then(|number| u8::try_from(number).ok())? {
            number @ 1..=esp_engine::MAX_ENGINES => Some(number),
            _ => None,
        };
    /// Permission bits, written as an octal string, such as `"0660"`.
    Mode(u32), "permission bits", "an octal number in quotes, such as \"0660\"",
        |value| {
            let text = value.as_str().filter(|text| !text.starts_with('+'))?;
            u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
        };
    /// A numeric user id used as a key.
    Uid(u32), "user id", "a number (`id -u NAME` prints it)", |value| value.as_str()?.parse().ok();
}

impl Span {
    pub(super) const HOUR: Span = Span(Duration::from_secs(3600));

    pub(super) const fn micros(n: u64) -> Span {
        Span(Duration::from_micros(n))
    }

    pub(super) const fn millis(n: u64) -> Span {
        Span(Duration::from_millis(n))
    }
}

impl Memory {
    /// Returns this percentage of the machine's memory.
    #[allow(clippy::useless_conversion)] // 32 bits wide on some machines
    pub(super) fn percent(share: u8) -> Memory {
        let info = rustix::system::sysinfo();
        let total = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
        Memory(total / 100 * u64::from(share))
    }
}

impl From<Memory> for u64 {
    fn from(memory: Memory) -> u64 {
        memory.0
    }
}

/// Reads a number of bytes, or a string with KiB, MiB or GiB.
fn bytes(value: &Value) -> Option<u64> {
    match value {
        Value::Integer(bytes) => u64::try_from(*bytes).ok(),
        Value::String(text) => parse_size::Config::new()
            .with_binary()
            .parse_size(text)
            .ok(),
        _ => None,
    }
}

/// A network of ESP in UDP: a prefix such as `"10.1.0.0/16"`, or `"on-link"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Network {
    /// The networks of all interfaces except the loopback one.
    OnLink,
    /// The network with this prefix.
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

impl TryFrom<String> for Network {
    type Error = String;
    fn try_from(text: String) -> Result<Network, String> {
        text.parse()
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

/// Where metrics are served: an absolute path of a Unix socket, or an address with a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// A Unix socket.
    Unix(PathBuf),
    /// An address.
    Address(SocketAddr),
}

impl TryFrom<String> for Listen {
    type Error = String;
    fn try_from(text: String) -> Result<Listen, String> {
        if text.starts_with('/') {
            return Ok(Listen::Unix(text.into()));
        }
        text.parse().map(Listen::Address).map_err(|_| {
            format!(
                "invalid address `{text}`: write the path of a Unix socket, such as \
                 \"/run/esp/metrics.sock\", or an address and port, such as \"127.0.0.1:9469\""
            )
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path) => path.display().fmt(f),
            Listen::Address(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
        T::deserialize(Value::String(text.into())).ok()
    }

    #[test]
    fn units_are_read() {
        for (text, nanos) in [
            ("1ns", 1),
            ("200us", 200_000),
            ("7 ms", 7_000_000),
            ("2s", 2_000_000_000),
        ] {
            assert_eq!(
                read(text),
                Some(Span(Duration::from_nanos(nanos))),
                "{text}"
            );
        }
        for (text, bytes) in [("0", 0), ("512", 512), ("4KiB", 4096), ("3 GiB", 3 << 30)] {
            assert_eq!(read(text), Some(Memory(bytes)), "{text}");
        }
        assert!(read::<Memory>("25%").unwrap().0 > 1 << 20);
        assert_eq!(read("0660"), Some(Mode(0o660)));
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
            assert_eq!(read::<Span>(text), None, "{text}");
        }
        for text in ["", "x", "1XB", "-4", "99999999999GiB"] {
            assert_eq!(read::<Memory>(text), None, "{text}");
        }
        for text in ["0%", "101%", "%", "1.5%", "-3%"] {
            assert_eq!(read::<Memory>(text), None, "{text}");
        }
        for text in ["0", "2KiB", "5000", "128MiB", "8GiB"] {
            assert_eq!(read::<RingSize>(text), None, "{text}");
        }
        for text in ["", "8", "01000", "+7", "rw-"] {
            assert_eq!(read::<Mode>(text), None, "{text}");
        }
        assert_eq!(read::<Uid>("root"), None);
    }
}
