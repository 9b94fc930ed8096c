//! What a process publishes for its peers, through Open MPI's exchange at the start of a job.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | `ESPM` |
//! | 1 | version, [`VERSION`] |
//! | 1 | 1: a card of the Ethernet transport follows; 2: words, why there is none |
//! | 1 | length of the node's name |
//! | … | the node's name, then the card or the words |

/// Another one is refused.
const VERSION: u8 = 1;
const MAGIC: [u8; 4] = *b"ESPM";
/// Longest words and names taken from a peer.
const MOST: usize = 1024;

/// What a peer says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    /// Its node, for people.
    pub(crate) host: String,
    /// Its card, or why it has none.
    pub(crate) card: Result<Vec<u8>, String>,
}

impl Blob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let host = &self.host.as_bytes()[..self.host.len().min(usize::from(u8::MAX))];
        let (kind, rest) = match &self.card {
            Ok(card) => (1, &card[..]),
            Err(words) => (2, &words.as_bytes()[..words.len().min(MOST)]),
        };
        let length = u8::try_from(host.len()).unwrap_or(u8::MAX);
        [&MAGIC[..], &[VERSION, kind, length], host, rest].concat()
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
        let (host, rest) = rest.split_at_checked(usize::from(length)).ok_or_else(foreign)?;
        let host = plain(host);
        let card = match kind {
            1 => Ok(rest.to_vec()),
            2 => Err(plain(&rest[..rest.len().min(MOST)])),
            _ => return Err(foreign()),
        };
        Ok(Blob { host, card })
    }
}

/// Text that may go to a terminal.
fn plain(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_round_trip() {
        for card in [Ok(vec![1, 2, 3]), Err("no daemon".to_owned())] {
            let blob = Blob { host: "node7".into(), card };
            assert_eq!(Blob::decode(&blob.encode()), Ok(blob));
        }
    }

    #[test]
    fn wrong_ones_are_named_and_nothing_reaches_the_terminal() {
        let bytes = Blob { host: "node7".into(), card: Err("x\x1b[31m\ny".into()) }.encode();
        for end in 0..12 {
            assert!(Blob::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        assert_eq!(Blob::decode(&bytes).unwrap().card, Err("x[31my".into()));
        let mut other = bytes.clone();
        other[4] = 9;
        assert!(Blob::decode(&other).unwrap_err().contains("version 9"));
        other = bytes;
        other[5] = 3;
        assert!(Blob::decode(&other).is_err());
    }
}
