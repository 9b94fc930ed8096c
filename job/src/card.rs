//! The notes that processes leave for each other while a job starts.
//!
//! *Cards*: version, the node's boot (processes of one boot share its CPUs), the node's name, the
//! transports' business cards. *Verdict*: empty, or why this process cannot start. Both come from
//! other processes and are read as hostile.

use p2p::TransportAddress;

use crate::error::printable;

/// Of the layout below.
const VERSION: u8 = 1;
/// Bytes of a kernel's boot id.
pub(crate) const BOOT: usize = 16;
/// Longest name of a node that is passed on, in bytes.
const MAX_NODE: usize = 64;
/// Longest name of a transport.
const MAX_NAME: usize = 16;
/// Most transports of a process.
const MAX_CARDS: usize = 9;
/// Bytes of a set of CPUs.
const MAX_CPUS: usize = 128;
/// Longest reason in a verdict, in characters.
pub(crate) const MAX_REASON: usize = 900;

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Random number of this boot of its machine.
    pub(crate) boot: [u8; BOOT],
    /// Its node's name.
    pub(crate) node: String,
    /// The CPUs it may run on, a bit each, lowest first.
    pub(crate) cpus: Vec<u8>,
    /// One for each transport.
    pub(crate) cards: Vec<TransportAddress>,
}

impl Introduction {
    /// As bytes, shorter than [`boot::MAX_VALUE`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.boot);
        let node = cut(&self.node, MAX_NODE);
        push(&mut out, node.as_bytes());
        push(&mut out, self.cpus.get(..MAX_CPUS).unwrap_or(&self.cpus));
        for card in self.cards.iter().take(MAX_CARDS) {
            let name = cut(&card.transport, MAX_NAME).as_bytes();
            let address = card
                .address
                .get(..btl::MAX_ADDRESS)
                .unwrap_or(&card.address);
            // Ours are much shorter than they may be. What does not fit is a way less.
            if out.len() + 4 + name.len() + address.len() > boot::MAX_VALUE {
                break;
            }
            push(&mut out, name);
            push(&mut out, address);
        }
        out
    }

    /// From bytes of another process.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Introduction, String> {
        let damaged = || "its business cards are damaged".to_owned();
        let (&version, rest) = bytes.split_first().ok_or_else(damaged)?;
        if version != VERSION {
            return Err(format!(
                "its business cards are of version {version}, ours of {VERSION}: all processes must run the same build"
            ));
        }
        let (boot, mut rest) = rest.split_first_chunk::<BOOT>().ok_or_else(damaged)?;
        let node = text(&mut rest, MAX_NODE).ok_or_else(damaged)?;
        let cpus = pull(&mut rest, MAX_CPUS).ok_or_else(damaged)?.to_vec();
        let mut cards = Vec::new();
        while !rest.is_empty() {
            let transport = text(&mut rest, MAX_NAME).ok_or_else(damaged)?;
            let address = pull(&mut rest, btl::MAX_ADDRESS)
                .ok_or_else(damaged)?
                .to_vec();
            if cards.len() == MAX_CARDS {
                return Err(damaged());
            }
            cards.push(TransportAddress { transport, address });
        }
        Ok(Introduction {
            boot: *boot,
            node: printable(&node, MAX_NODE).replace('\n', " "),
            cpus,
            cards,
        })
    }
}

/// The beginning of a text, at most so many bytes.
fn cut(text: &str, limit: usize) -> &str {
    let end = text
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|&end| end <= limit)
        .last();
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// Two bytes of length, then the bytes.
fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    // All lengths are bounded by constants far below.
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

    fn introduction() -> Introduction {
        let card = |name: &str, length| TransportAddress {
            transport: name.into(),
            address: vec![7; length],
        };
        Introduction {
            boot: [9; BOOT],
            node: "node1".into(),
            cpus: vec![3, 0, 0x80],
            cards: vec![card("shm", 0), card("eth", btl::MAX_ADDRESS)],
        }
    }

    #[test]
    fn there_and_back_and_always_short_enough() {
        assert_eq!(
            Introduction::decode(&introduction().encode()),
            Ok(introduction())
        );
        let card = TransportAddress {
            transport: "t".repeat(90),
            address: vec![0; 2 * btl::MAX_ADDRESS],
        };
        let huge = Introduction {
            node: "ü".repeat(500),
            cards: vec![card; 20],
            ..introduction()
        };
        let bytes = huge.encode();
        assert!(bytes.len() <= boot::MAX_VALUE, "{}", bytes.len());
        let back = Introduction::decode(&bytes).unwrap();
        assert_eq!((back.cards.len(), back.node.len()), (7, MAX_NODE));
        let card = TransportAddress {
            transport: "eth".into(),
            address: vec![0; 100],
        };
        let many = Introduction {
            cards: vec![card; 20],
            ..introduction()
        };
        assert_eq!(
            Introduction::decode(&many.encode()).unwrap().cards.len(),
            MAX_CARDS
        );
    }

    #[test]
    fn another_version_is_told_and_any_cut_is_refused() {
        let mut bytes = introduction().encode();
        for length in 0..bytes.len() {
            let cut = Introduction::decode(&bytes[..length]);
            assert!(cut.is_err() || cut.unwrap().cards.len() < 2, "{length}");
        }
        bytes[0] = 9;
        assert!(
            Introduction::decode(&bytes)
                .unwrap_err()
                .contains("version 9")
        );
    }

    #[test]
    fn a_name_cannot_disturb_a_terminal() {
        let evil = Introduction {
            node: "\u{1b}[2J\nx".into(),
            ..introduction()
        };
        assert_eq!(Introduction::decode(&evil.encode()).unwrap().node, "[2J x");
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_without_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Introduction::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(found) = Introduction::decode(&bytes) {
                prop_assert!(found.cards.len() <= MAX_CARDS);
                prop_assert!(!found.node.chars().any(char::is_control));
            }
        }
    }
}
