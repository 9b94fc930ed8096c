//! Value that each process publishes while a job starts: version, boot id of the machine (processes
//! of one boot share its CPUs), the node's name, its CPUs, the addresses of its transports. Values
//! of other processes are untrusted.

use p2p::TransportAddress;

use crate::error::printable;
use crate::options::MAX_RAILS;

/// Version of the layout below.
const VERSION: u8 = 1;
/// Bytes of a kernel's boot id.
pub(crate) const BOOT: usize = 16;
/// Maximum length of a node's name, in bytes.
const MAX_NODE: usize = 64;
/// Maximum length of a transport's name, in bytes.
const MAX_NAME: usize = 16;
/// Maximum number of transports of a process: one within the node, and rails of three other kinds.
const MAX_ADDRESSES: usize = 1 + 3 * MAX_RAILS;
/// Maximum length of a set of CPUs, in bytes.
const MAX_CPUS: usize = 128;
/// Maximum length of the reason why a process cannot start, in characters.
pub(crate) const MAX_REASON: usize = 900;

/// Published value of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModexEntry {
    /// Random number of this boot of its machine.
    pub(crate) boot: [u8; BOOT],
    /// Name of its node.
    pub(crate) node: String,
    /// CPUs it may run on, one bit each, lowest first.
    pub(crate) cpus: Vec<u8>,
    /// Addresses of the transports.
    pub(crate) addresses: Vec<TransportAddress>,
}

impl ModexEntry {
    /// Returns the value as at most [`boot::MAX_VALUE`] bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.boot);
        let node = cut(&self.node, MAX_NODE);
        push(&mut out, node.as_bytes());
        push(&mut out, self.cpus.get(..MAX_CPUS).unwrap_or(&self.cpus));
        for one in self.addresses.iter().take(MAX_ADDRESSES) {
            let name = cut(&one.transport, MAX_NAME).as_bytes();
            let address = one.address.get(..btl::MAX_ADDRESS).unwrap_or(&one.address);
            // Real addresses are far below the limit; a transport that does not fit is omitted.
            if out.len() + 4 + name.len() + address.len() > boot::MAX_VALUE {
                break;
            }
            push(&mut out, name);
            push(&mut out, address);
        }
        out
    }

    /// Parses the bytes of another process.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ModexEntry, String> {
        let damaged = || "its addresses are malformed".to_owned();
        let (&version, rest) = bytes.split_first().ok_or_else(damaged)?;
        if version != VERSION {
            return Err(format!(
                "its addresses have version {version}, ours {VERSION}: all processes must be of one build"
            ));
        }
        let (boot, mut rest) = rest.split_first_chunk::<BOOT>().ok_or_else(damaged)?;
        let node = text(&mut rest, MAX_NODE).ok_or_else(damaged)?;
        let cpus = pull(&mut rest, MAX_CPUS).ok_or_else(damaged)?.to_vec();
        let mut addresses = Vec::new();
        while !rest.is_empty() {
            let transport = text(&mut rest, MAX_NAME).ok_or_else(damaged)?;
            let address = pull(&mut rest, btl::MAX_ADDRESS)
                .ok_or_else(damaged)?
                .to_vec();
            if addresses.len() == MAX_ADDRESSES {
                return Err(damaged());
            }
            addresses.push(TransportAddress { transport, address });
        }
        Ok(ModexEntry {
            boot: *boot,
            node: printable(&node, MAX_NODE).replace('\n', " "),
            cpus,
            addresses,
        })
    }
}

/// Returns the longest prefix of a text that has at most `limit` bytes.
fn cut(text: &str, limit: usize) -> &str {
    let end = text
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|&end| end <= limit)
        .last();
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// Appends the length in two bytes, then the bytes.
fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    // All lengths are bounded by constants far below the maximum.
    let length = u16::try_from(bytes.len()).unwrap_or(0);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes.get(..usize::from(length)).unwrap_or_default());
}

fn pull<'a>(rest: &mut &'a [u8], limit: usize) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    if length > limit {
        return None;
    }
    let (bytes, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

fn text(rest: &mut &[u8], limit: usize) -> Option<String> {
    String::from_utf8(pull(rest, limit)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> ModexEntry {
        let address = |name: &str, length| TransportAddress {
            transport: name.into(),
            address: vec![7; length],
        };
        ModexEntry {
            boot: [9; BOOT],
            node: "node1".into(),
            cpus: vec![3, 0, 0x80],
            addresses: vec![address("shm", 0), address("eth", btl::MAX_ADDRESS)],
        }
    }

    #[test]
    fn round_trip_stays_within_the_limit() {
        assert_eq!(ModexEntry::decode(&entry().encode()), Ok(entry()));
        let address = TransportAddress {
            transport: "t".repeat(90),
            address: vec![0; 2 * btl::MAX_ADDRESS],
        };
        let huge = ModexEntry {
            node: "ü".repeat(500),
            addresses: vec![address; 20],
            ..entry()
        };
        let bytes = huge.encode();
        assert!(bytes.len() <= boot::MAX_VALUE, "{}", bytes.len());
        let back = ModexEntry::decode(&bytes).unwrap();
        assert_eq!((back.addresses.len(), back.node.len()), (7, MAX_NODE));
        let address = TransportAddress {
            transport: "eth".into(),
            address: vec![0; 100],
        };
        let many = ModexEntry {
            addresses: vec![address; 20],
            ..entry()
        };
        assert_eq!(
            ModexEntry::decode(&many.encode()).unwrap().addresses.len(),
            MAX_ADDRESSES
        );
    }

    #[test]
    fn all_rails_of_all_transports_are_published() {
        let address = |name: &str| TransportAddress {
            transport: name.into(),
            address: vec![7; btl::MAX_ADDRESS / 2],
        };
        let mut addresses = vec![address("shm")];
        for name in ["ib", "eth", "udp"] {
            addresses.extend((0..MAX_RAILS).map(|_| address(name)));
        }
        let full = ModexEntry {
            addresses,
            ..entry()
        };
        assert_eq!(ModexEntry::decode(&full.encode()), Ok(full));
    }

    #[test]
    fn refuses_other_version_and_truncation() {
        let mut bytes = entry().encode();
        for length in 0..bytes.len() {
            let cut = ModexEntry::decode(&bytes[..length]);
            assert!(cut.is_err() || cut.unwrap().addresses.len() < 2, "{length}");
        }
        bytes[0] = 9;
        assert!(
            ModexEntry::decode(&bytes)
                .unwrap_err()
                .contains("version 9")
        );
    }

    #[test]
    fn control_characters_are_removed_from_names() {
        let evil = ModexEntry {
            node: "\u{1b}[2J\nx".into(),
            ..entry()
        };
        assert_eq!(ModexEntry::decode(&evil.encode()).unwrap().node, "[2J x");
    }

    proptest! {
        #[test]
        fn decodes_any_bytes_without_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200)
        ) {
            let _ = ModexEntry::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(found) = ModexEntry::decode(&bytes) {
                prop_assert!(found.addresses.len() <= MAX_ADDRESSES);
                prop_assert!(!found.node.chars().any(char::is_control));
            }
        }
    }
}
