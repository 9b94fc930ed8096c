//! What a process publishes for its peers, through Open MPI's exchange at the start of a job.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | `ESPM` |
//! | 1 | version, [`VERSION`] |
//! | 1 | 1: cards of the Ethernet transport follow; 2: words, why there is none |
//! | 1 | length of the node's name |
//! | … | the node's name |
//! | … | the words; or for each interface, 1 to [`MOST`], the length of its card (2, little endian) and the card |

use crate::rail::MOST;

/// Another one is refused.
const VERSION: u8 = 2;
const MAGIC: [u8; 4] = *b"ESPM";
/// Longest words taken from a peer.
const WORDS: usize = 1024;

/// What a peer says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    /// Its node, for people.
    pub(crate) host: String,
    /// The card of each of its interfaces, or why it has none.
    pub(crate) cards: Result<Vec<Vec<u8>>, String>,
}

impl Blob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let host = &self.host.as_bytes()[..self.host.len().min(usize::from(u8::MAX))];
        let kind = if self.cards.is_ok() { 1 } else { 2 };
        let length = u8::try_from(host.len()).unwrap_or(u8::MAX);
        let mut bytes = [&MAGIC[..], &[VERSION, kind, length], host].concat();
        match &self.cards {
            Ok(cards) => {
                for card in cards.iter().take(MOST) {
                    // Cards are much shorter; one that were not would be refused as damaged.
                    let card = &card[..card.len().min(usize::from(u16::MAX))];
                    bytes.extend(u16::try_from(card.len()).unwrap_or(u16::MAX).to_le_bytes());
                    bytes.extend_from_slice(card);
                }
            }
            Err(words) => bytes.extend_from_slice(&words.as_bytes()[..words.len().min(WORDS)]),
        }
        bytes
    }

    /// From bytes that anybody may have written.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Blob, String> {
        let foreign = || "what it published is not from this component".to_owned();
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or_else(foreign)?;
        let (&[version, kind, length], rest) = rest.split_first_chunk::<3>().ok_or_else(foreign)?;
        if *magic != MAGIC {
            return Err(foreign());
        }
        if version != VERSION {
            return Err(format!(
                "its component is of version {version}, this one of {VERSION}: install the same on all nodes"
            ));
        }
        let (host, rest) = rest
            .split_at_checked(usize::from(length))
            .ok_or_else(foreign)?;
        let host = plain(host);
        let cards = match kind {
            1 => Ok(cards(rest).ok_or_else(|| "what it published is damaged".to_owned())?),
            2 => Err(plain(&rest[..rest.len().min(WORDS)])),
            _ => return Err(foreign()),
        };
        Ok(Blob { host, cards })
    }
}

fn cards(mut rest: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut cards = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let (card, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        cards.push(card.to_vec());
        rest = behind;
    }
    (rest.is_empty() && (1..=MOST).contains(&cards.len())).then_some(cards)
}

/// Text that may go to a terminal.
fn plain(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_round_trip() {
        for cards in [
            Ok(vec![vec![1, 2, 3]]),
            Ok(vec![vec![1], vec![], vec![2; 400]]),
            Err("no daemon".to_owned()),
        ] {
            let blob = Blob {
                host: "node7".into(),
                cards,
            };
            assert_eq!(Blob::decode(&blob.encode()), Ok(blob));
        }
    }

    #[test]
    fn wrong_ones_are_named_and_nothing_reaches_the_terminal() {
        let bytes = Blob {
            host: "node7".into(),
            cards: Err("x\x1b[31m\ny".into()),
        }
        .encode();
        for end in 0..12 {
            assert!(Blob::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        assert_eq!(Blob::decode(&bytes).unwrap().cards, Err("x[31my".into()));
        let mut other = bytes.clone();
        other[4] = 9;
        assert!(Blob::decode(&other).unwrap_err().contains("version 9"));
        other = bytes;
        other[5] = 3;
        assert!(Blob::decode(&other).is_err());
    }

    #[test]
    fn cards_are_whole_and_neither_none_nor_too_many() {
        let bytes = Blob {
            host: "node7".into(),
            cards: Ok(vec![vec![1, 2, 3], vec![4]]),
        }
        .encode();
        for end in (12..bytes.len()).filter(|end| *end != 17) {
            assert!(
                Blob::decode(&bytes[..end]).unwrap_err().contains("damaged"),
                "cut at {end}"
            );
        }
        assert_eq!(
            Blob::decode(&bytes[..17]).unwrap().cards,
            Ok(vec![vec![1, 2, 3]])
        );
        let mut more = bytes[..17].to_vec();
        more.extend([0; 2 * MOST]);
        assert!(Blob::decode(&more).unwrap_err().contains("damaged"));
    }
}
