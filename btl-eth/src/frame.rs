//! What travels in a stream between two ranks: records, one after the other.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | bytes behind these eight |
//! | 1 | bytes of them that are the message's header |
//! | 1 | kind |
//! | 2 | number of the record in this direction of this stream, modulo 2^16 |
//!
//! Integers are little endian. The number finds a stream that is out of step before its bytes are believed.
//!
//! | kind | name | behind the eight bytes | who sends it |
//! |---|---|---|---|
//! | 1 | HELLO | [`Hello`] | who connected, first |
//! | 2 | WELCOME | – | who accepted: this stream is the one, if you confirm |
//! | 3 | CONFIRM | – | who connected: it is; now both may send messages |
//! | 4 | YIELD | – | who accepted: not this one, mine comes (both connected at once) |
//! | 5 | REFUSE | words, UTF-8, at most [`MAX_WORDS`] | either: nothing will come of this |
//! | 6 | MESSAGE | header, body | both, once confirmed |
//! | 7 | GOODBYE | – | who leaves in order, last |

use btl::{MAX_HEADER, Rank};

/// Bytes in front of every record.
pub const HEAD: usize = 8;
/// Bytes of a [`Hello`].
pub const HELLO: usize = 48;
/// Longest reason of a refusal, in bytes.
pub const MAX_WORDS: usize = 200;
const MAGIC: [u8; 4] = *b"ebtl";
/// Another one is refused.
pub const VERSION: u16 = 1;

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum Kind {
    Hello = 1,
    Welcome = 2,
    Confirm = 3,
    Yield = 4,
    Refuse = 5,
    Message = 6,
    Goodbye = 7,
}

/// Who connects, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Hash of the job key.
    pub job: [u8; 16],
    /// Who connects.
    pub from: Rank,
    /// Whom it wants.
    pub to: Rank,
    /// The nonce of its card.
    pub from_nonce: u64,
    /// The nonce of the card it used.
    pub to_nonce: u64,
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum Record<'a> {
    Hello(Hello),
    Welcome,
    Confirm,
    Yield,
    Refuse(&'a str),
    Message { header: &'a [u8], body: &'a [u8] },
    Goodbye,
}

/// What is wrong with the bytes of a stream. Nothing behind it can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than it may be.
    #[error("a record of {length} bytes where at most {limit} are possible")]
    TooLong {
        /// Announced.
        length: usize,
        /// Possible.
        limit: usize,
    },
    /// Kind unknown.
    #[error("a record of kind {0}, which does not exist")]
    Kind(u8),
    /// Out of step.
    #[error("record {got} came where {expected} was next")]
    Number {
        /// Found.
        got: u16,
        /// Due.
        expected: u16,
    },
    /// The fields contradict each other.
    #[error("{0}")]
    Malformed(&'static str),
}

/// The eight bytes.
#[inline]
pub fn head(kind: Kind, header: usize, length: usize, number: u16) -> [u8; HEAD] {
    // Callers have checked: at most `max_send`, a u32, and at most MAX_HEADER.
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let [n, m] = number.to_le_bytes();
    [
        a,
        b,
        c,
        d,
        u8::try_from(header).unwrap_or(u8::MAX),
        kind as u8,
        n,
        m,
    ]
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.job);
        bytes[24..28].copy_from_slice(&self.from.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.from_nonce.to_le_bytes());
        bytes[40..].copy_from_slice(&self.to_nonce.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Hello, FrameError> {
        let Ok(bytes) = <&[u8; HELLO]>::try_from(bytes) else {
            return Err(FrameError::Malformed("an introduction of a wrong length"));
        };
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let number = |at: usize| u64::from(word(four(at))) | u64::from(word(four(at + 4))) << 32;
        if four(0) != MAGIC {
            return Err(FrameError::Malformed("an introduction that is none"));
        }
        if four(4) != [VERSION.to_le_bytes()[0], VERSION.to_le_bytes()[1], 0, 0] {
            return Err(FrameError::Malformed("an introduction of another version"));
        }
        let mut job = [0; 16];
        job.copy_from_slice(&bytes[8..24]);
        let (from, to) = (word(four(24)), word(four(28)));
        Ok(Hello {
            job,
            from,
            to,
            from_nonce: number(32),
            to_nonce: number(40),
        })
    }
}

fn word(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

/// The record at the beginning of `bytes`, and how many bytes it takes. `None`: it has not come in whole. `number`: which one is due;
/// `limit`: longest message, header and body.
#[inline]
pub fn decode(
    bytes: &[u8],
    number: u16,
    limit: usize,
) -> Result<Option<(Record<'_>, usize)>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let [a, b, c, d, header, kind, n, m] = *head;
    let (length, header) = (word([a, b, c, d]) as usize, usize::from(header));
    let got = u16::from_le_bytes([n, m]);
    if got != number {
        return Err(FrameError::Number {
            got,
            expected: number,
        });
    }
    if kind == Kind::Message as u8 {
        if length > limit {
            return Err(FrameError::TooLong { length, limit });
        }
        if header > length.min(MAX_HEADER) {
            return Err(FrameError::Malformed(
                "a header that is longer than its message, or than any header",
            ));
        }
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let (header, body) = message.split_at(header);
        return Ok(Some((Record::Message { header, body }, HEAD + length)));
    }
    control(kind, header, length, rest)
}

#[cold]
fn control(
    kind: u8,
    header: usize,
    length: usize,
    rest: &[u8],
) -> Result<Option<(Record<'_>, usize)>, FrameError> {
    let (limit, record) = match kind {
        1 => (HELLO, None),
        2 => (0, Some(Record::Welcome)),
        3 => (0, Some(Record::Confirm)),
        4 => (0, Some(Record::Yield)),
        5 => (MAX_WORDS, None),
        7 => (0, Some(Record::Goodbye)),
        other => return Err(FrameError::Kind(other)),
    };
    if length > limit {
        return Err(FrameError::TooLong { length, limit });
    }
    if header != 0 {
        return Err(FrameError::Malformed("a header of a record that has none"));
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let record = match record {
        Some(record) => record,
        None if kind == 1 => Record::Hello(Hello::decode(body)?),
        None => {
            let words = std::str::from_utf8(body);
            Record::Refuse(words.map_err(|_| FrameError::Malformed("a refusal that is not text"))?)
        }
    };
    Ok(Some((record, HEAD + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1000;

    fn bytes(kind: Kind, header: usize, body: &[u8], number: u16) -> Vec<u8> {
        let mut bytes = head(kind, header, body.len(), number).to_vec();
        bytes.extend(body);
        bytes
    }

    #[test]
    fn records_round_trip_and_wait_for_their_last_byte() {
        let hello = Hello {
            job: [3; 16],
            from: 1,
            to: 2,
            from_nonce: u64::MAX - 5,
            to_nonce: 1 << 40,
        };
        let cases = [
            (
                bytes(Kind::Hello, 0, &hello.encode(), 0),
                Record::Hello(hello),
            ),
            (bytes(Kind::Welcome, 0, b"", 0), Record::Welcome),
            (bytes(Kind::Confirm, 0, b"", 0), Record::Confirm),
            (bytes(Kind::Yield, 0, b"", 0), Record::Yield),
            (
                bytes(Kind::Refuse, 0, "grün".as_bytes(), 0),
                Record::Refuse("grün"),
            ),
            (
                bytes(Kind::Message, 2, b"hhbody", 0),
                Record::Message {
                    header: b"hh",
                    body: b"body",
                },
            ),
            (
                bytes(Kind::Message, 0, b"", 0),
                Record::Message {
                    header: b"",
                    body: b"",
                },
            ),
            (bytes(Kind::Goodbye, 0, b"", 0), Record::Goodbye),
        ];
        for (bytes, record) in cases {
            for end in 0..bytes.len() {
                assert_eq!(
                    decode(&bytes[..end], 0, LIMIT),
                    Ok(None),
                    "{record:?} cut at {end}"
                );
            }
            let length = bytes.len();
            let mut more = bytes;
            more.extend(b"more");
            assert_eq!(decode(&more, 0, LIMIT), Ok(Some((record, length))));
            assert_eq!(
                decode(&more, 7, LIMIT),
                Err(FrameError::Number {
                    got: 0,
                    expected: 7
                })
            );
        }
    }

    #[test]
    fn nonsense_is_named_before_it_has_come_in_whole() {
        let long = head(Kind::Message, 0, LIMIT + 1, 0);
        assert_eq!(
            decode(&long, 0, LIMIT),
            Err(FrameError::TooLong {
                length: LIMIT + 1,
                limit: LIMIT
            })
        );
        let header = head(Kind::Message, MAX_HEADER + 1, 900, 0);
        assert!(matches!(
            decode(&header, 0, LIMIT),
            Err(FrameError::Malformed(_))
        ));
        let header = head(Kind::Message, 9, 8, 0);
        assert!(matches!(
            decode(&header, 0, LIMIT),
            Err(FrameError::Malformed(_))
        ));
        for kind in [0, 8, 255] {
            assert_eq!(
                decode(&[0, 0, 0, 0, 0, kind, 0, 0], 0, LIMIT),
                Err(FrameError::Kind(kind))
            );
        }
        let words = head(Kind::Refuse, 0, MAX_WORDS + 1, 0);
        assert!(matches!(
            decode(&words, 0, LIMIT),
            Err(FrameError::TooLong { .. })
        ));
        assert!(matches!(
            decode(&bytes(Kind::Refuse, 0, b"\xff", 0), 0, LIMIT),
            Err(FrameError::Malformed(_))
        ));
        assert!(matches!(
            decode(&bytes(Kind::Welcome, 1, b"", 0), 0, LIMIT),
            Err(FrameError::Malformed(_))
        ));
        assert!(matches!(
            decode(&bytes(Kind::Hello, 0, b"short", 0), 0, LIMIT),
            Err(FrameError::Malformed(_))
        ));
        let hello = Hello {
            job: [0; 16],
            from: 0,
            to: 0,
            from_nonce: 0,
            to_nonce: 0,
        }
        .encode();
        for at in [0, 4, 5, 6] {
            let mut wrong = hello;
            wrong[at] ^= 0x10;
            let wrong = bytes(Kind::Hello, 0, &wrong, 0);
            assert!(
                matches!(decode(&wrong, 0, LIMIT), Err(FrameError::Malformed(_))),
                "byte {at}"
            );
        }
    }
}
