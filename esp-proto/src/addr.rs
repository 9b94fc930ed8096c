//! Ethernet addresses and ports.

use core::fmt;
use core::str::FromStr;

/// Number of an ESP or EDP port. Port 0 addresses the node itself (W-15).
pub type Port = u16;

/// First port that an unprivileged program may choose.
pub const FIRST_USER_PORT: Port = 1024;
/// First port assigned to connections that did not choose one.
pub const FIRST_EPHEMERAL_PORT: Port = 32768;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address, ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Returns true for broadcast and multicast addresses.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Returns the six bytes in wire order.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error of parsing an address that is not six hexadecimal bytes separated by `:` or `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address (six hexadecimal bytes, like 02:00:00:00:00:01)")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;
    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut octets = [0u8; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().ok_or(ParseMacError)?;
            if part.is_empty() || part.len() > 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(ParseMacError);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() {
            Err(ParseMacError)
        } else {
            Ok(MacAddr(octets))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn text_form_round_trips() {
        let mac = MacAddr([0x02, 0, 0xab, 0xcd, 0xef, 0x01]);
        assert_eq!(mac.to_string(), "02:00:ab:cd:ef:01");
        assert_eq!("02:00:ab:cd:ef:01".parse(), Ok(mac));
        assert_eq!("2-0-AB-cd-ef-1".parse(), Ok(mac));
    }

    #[test]
    fn malformed_text_is_refused() {
        for bad in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "0g:0:0:0:0:0",
            "002:0:0:0:0:0",
            "+2:0:0:0:0:0",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(ParseMacError), "{bad}");
        }
    }
}
