//! Addresses of the family `AF_ENET`, as `include/esp/enet.h` declares them.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// The address family of ESP and EDP.
pub const AF_ENET: u16 = 28;
/// The level of socket options of ESP and EDP.
pub const SOL_EP: i32 = 285;
/// Length of an address, in bytes.
pub const ENET_LEN: usize = 16;

/// Address of a port of a node: `struct sockaddr_enet`. Zeros mean any port, interface or node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Enet {
    /// Port.
    pub port: u16,
    /// Index of the local interface.
    pub interface: u32,
    /// MAC address.
    pub mac: [u8; 6],
}

impl Enet {
    /// Returns the bytes of the C structure.
    pub fn to_bytes(self) -> [u8; ENET_LEN] {
        let mut bytes = [0; ENET_LEN];
        bytes[..2].copy_from_slice(&AF_ENET.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.interface.to_ne_bytes());
        bytes[8] = 6;
        bytes[9..15].copy_from_slice(&self.mac);
        bytes
    }

    /// Parses the C structure; `None` for another family, a MAC address of another length, or too
    /// few bytes.
    pub fn parse(bytes: &[u8]) -> Option<Enet> {
        let bytes: &[u8; ENET_LEN] = bytes.get(..ENET_LEN)?.try_into().ok()?;
        let [f0, f1, p0, p1, i0, i1, i2, i3, len, mac @ .., _] = *bytes;
        let mac: [u8; 6] = mac;
        let is_any = len == 0 && mac == [0; 6];
        if u16::from_ne_bytes([f0, f1]) != AF_ENET || (len != 6 && !is_any) {
            return None;
        }
        Some(Enet {
            port: u16::from_be_bytes([p0, p1]),
            interface: u32::from_ne_bytes([i0, i1, i2, i3]),
            mac,
        })
    }

    /// Returns the hexadecimal digits of the C structure.
    pub fn digits(self) -> String {
        self.to_bytes()
            .iter()
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
    }

    /// Parses the digits at the end of a name, after the last dot.
    pub fn of_name(name: &str) -> Option<Enet> {
        let (_, digits) = name.rsplit_once('.')?;
        if digits.len() != 2 * ENET_LEN || !digits.is_ascii() {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..ENET_LEN).map(byte).collect();
        Enet::parse(&bytes?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDR: Enet = Enet {
        port: 2805,
        interface: 3,
        mac: [2, 0xe5, 0, 0, 0, 1],
    };

    #[test]
    fn the_structure_has_the_layout_of_the_header() {
        let bytes = ADDR.to_bytes();
        assert_eq!(bytes[..2], 28u16.to_ne_bytes());
        assert_eq!(bytes[2..4], [0x0a, 0xf5]);
        assert_eq!(bytes[4..8], 3u32.to_ne_bytes());
        assert_eq!(bytes[8..], [6, 2, 0xe5, 0, 0, 0, 1, 0]);
        assert_eq!(Enet::parse(&bytes), Some(ADDR));
    }

    #[test]
    fn other_structures_are_refused() {
        let mut bytes = ADDR.to_bytes();
        assert_eq!(Enet::parse(&bytes[..15]), None);
        bytes[8] = 5;
        assert_eq!(Enet::parse(&bytes), None);
        bytes[8] = 6;
        bytes[0] ^= 1;
        assert_eq!(Enet::parse(&bytes), None);
        let mut any = [0; ENET_LEN];
        any[..2].copy_from_slice(&AF_ENET.to_ne_bytes());
        assert_eq!(Enet::parse(&any), Some(Enet::default()));
    }

    #[test]
    fn names_end_with_an_address() {
        let name = format!("esp.1.p.7.{}", ADDR.digits());
        assert_eq!(Enet::of_name(&name), Some(ADDR));
        for wrong in ["", "esp.1.p.7", "esp.zz", &name[..name.len() - 1]] {
            assert_eq!(Enet::of_name(wrong), None, "{wrong}");
        }
    }
}
