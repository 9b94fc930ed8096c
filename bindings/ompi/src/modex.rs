//! The modex entry, which a process publishes for its peers when the job starts.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | `ESPM` |
//! | 1 | version, [`VERSION`] |
//! | 1 | 1: rails follow; 2: a text follows that gives the reason why there are none |
//! | 1 | length of the node's name |
//! | … | the node's name |
//! | … | the text; or 1 to [`MAX_RAILS`] rails |
//!
//! Each rail: its carrier (1 byte; 0: raw Ethernet, 1: UDP), the length of its interface's name (1
//! byte), the name, the length of its transport's address (2 bytes, little-endian), the address.

use btl_eth::Carrier;

use crate::endpoint::MAX_RAILS;

/// Version of the format. Entries of other versions are refused.
const VERSION: u8 = 4;
const MAGIC: [u8; 4] = *b"ESPM";
/// Numbers of the carriers.
const RAW: u8 = 0;
const UDP: u8 = 1;
/// Maximum length of a peer's text, in bytes.
const MAX_TEXT: usize = 1024;

/// A published rail of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RailAddress {
    /// Name of the interface.
    pub(crate) interface: String,
    pub(crate) carrier: Carrier,
    /// Address of the transport.
    pub(crate) address: Vec<u8>,
}

/// Published addresses of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModexEntry {
    /// Name of the node, for messages to the user.
    pub(crate) node: String,
    /// The rails, or the reason why there are none.
    pub(crate) rails: Result<Vec<RailAddress>, String>,
}

/// Returns the longest prefix whose length fits into a byte.
fn prefix(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(usize::from(u8::MAX))]
}

impl ModexEntry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let node = prefix(&self.node);
        let kind = if self.rails.is_ok() { 1 } else { 2 };
        let length = u8::try_from(node.len()).unwrap_or(u8::MAX);
        let mut bytes = [&MAGIC[..], &[VERSION, kind, length], node].concat();
        match &self.rails {
            Ok(rails) => {
                for rail in rails.iter().take(MAX_RAILS) {
                    let (name, address) = (prefix(&rail.interface), &rail.address);
                    bytes.push(match rail.carrier {
                        Carrier::Raw => RAW,
                        Carrier::Udp => UDP,
                    });
                    bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                    bytes.extend_from_slice(name);
                    // At most `btl::MAX_ADDRESS` bytes.
                    let length = u16::try_from(address.len()).unwrap_or(u16::MAX);
                    bytes.extend(length.to_le_bytes());
                    bytes.extend_from_slice(address);
                }
            }
            Err(text) => bytes.extend_from_slice(&text.as_bytes()[..text.len().min(MAX_TEXT)]),
        }
        bytes
    }

    /// Decodes untrusted bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ModexEntry, String> {
        let foreign = || "its modex entry is not one of this component".to_owned();
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or_else(foreign)?;
        let (&[version, kind, length], rest) = rest.split_first_chunk::<3>().ok_or_else(foreign)?;
        if *magic != MAGIC {
            return Err(foreign());
        }
        if version != VERSION {
            return Err(format!(
                "its component has version {version}, this one {VERSION}: install the same version on all nodes"
            ));
        }
        let (node, rest) = rest
            .split_at_checked(usize::from(length))
            .ok_or_else(foreign)?;
        let rails = match kind {
            1 => Ok(rails(rest).ok_or_else(|| "its modex entry is damaged".to_owned())?),
            2 => Err(printable(&rest[..rest.len().min(MAX_TEXT)])),
            _ => return Err(foreign()),
        };
        Ok(ModexEntry {
            node: printable(node),
            rails,
        })
    }
}

fn rails(mut rest: &[u8]) -> Option<Vec<RailAddress>> {
    let mut rails = Vec::new();
    while let Some((carrier, after)) = rest.split_first() {
        let carrier = match *carrier {
            RAW => Carrier::Raw,
            UDP => Carrier::Udp,
            _ => return None,
        };
        let (length, after) = after.split_first()?;
        let (name, after) = after.split_at_checked(usize::from(*length))?;
        let (length, after) = after.split_first_chunk::<2>()?;
        let (address, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        rails.push(RailAddress {
            interface: printable(name),
            carrier,
            address: address.to_vec(),
        });
        rest = after;
    }
    (1..=MAX_RAILS).contains(&rails.len()).then_some(rails)
}

/// Returns text without control characters, which a terminal would interpret.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(rails: Result<Vec<RailAddress>, String>) -> ModexEntry {
        let node = "node7".into();
        ModexEntry { node, rails }
    }

    fn rail(interface: &str, carrier: Carrier, address: &[u8]) -> RailAddress {
        RailAddress {
            interface: interface.into(),
            carrier,
            address: address.into(),
        }
    }

    #[test]
    fn entries_round_trip() {
        for rails in [
            Ok(vec![rail("eth0", Carrier::Raw, &[1, 2, 3])]),
            Ok(vec![
                rail("eth0", Carrier::Udp, &[]),
                rail("", Carrier::Raw, &[2; 400]),
            ]),
            Err("no daemon".to_owned()),
        ] {
            let entry = entry(rails);
            assert_eq!(ModexEntry::decode(&entry.encode()), Ok(entry));
        }
    }

    #[test]
    fn wrong_entries_are_named_and_control_characters_removed() {
        let bytes = entry(Err("x\x1b[31m\ny".into())).encode();
        for end in 0..12 {
            assert!(ModexEntry::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        let decoded = ModexEntry::decode(&bytes).unwrap();
        assert_eq!(decoded.rails, Err("x[31my".into()));
        let mut other = bytes.clone();
        other[4] = 9;
        assert!(
            ModexEntry::decode(&other)
                .unwrap_err()
                .contains("version 9")
        );
        other = bytes;
        other[5] = 3;
        assert!(ModexEntry::decode(&other).is_err());
    }

    #[test]
    fn cut_empty_and_too_long_lists_are_damaged() {
        let damaged = |bytes: &[u8]| ModexEntry::decode(bytes).unwrap_err().contains("damaged");
        let one = entry(Ok(vec![rail("a", Carrier::Udp, &[1, 2, 3])])).encode();
        for end in 12..one.len() {
            assert!(damaged(&one[..end]), "cut at {end}");
        }
        let mut many = one[..12].to_vec();
        many.extend([0; 4 * (MAX_RAILS + 1)]);
        assert!(damaged(&many));
    }
}
