//! Records: the contents of a stream between two ranks.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | length of the rest |
//! | 1 | length of the message's header, at the front of the rest |
//! | 1 | kind |
//! | 2 | number of the record in this direction of this stream, modulo 2^16 |
//!
//! Integers are little endian. The number detects a stream that is out of step.
//!
//! | kind | name | rest | sent by |
//! |---|---|---|---|
//! | 1 | HELLO | [`Hello`] | the connector, first |
//! | 2 | WELCOME | – | the acceptor: it has no other stream |
//! | 3 | CONFIRM | – | the connector: both may send messages now |
//! | 4 | YIELD | – | the acceptor: its own stream is used instead (simultaneous open) |
//! | 5 | REFUSE | reason, UTF-8, at most [`MAX_REASON`] | both: the stream is refused |
//! | 6 | MESSAGE | header, body | both, after CONFIRM |
//! | 7 | GOODBYE | – | both, last, to leave in order |

use btl::{MAX_HEADER, Rank};

/// Length of the fields before every record's contents, in bytes.
pub const HEAD: usize = 8;
/// Length of a [`Hello`] in bytes.
pub const HELLO: usize = 48;
/// Maximum length of the reason in REFUSE, in bytes.
pub const MAX_REASON: usize = 200;
const MAGIC: [u8; 4] = *b"ebtl";
/// Version of the format. Others are refused.
pub const VERSION: u16 = 1;

/// Kind of a record.
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

/// Contents of HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Hash of the job key.
    pub job: [u8; 16],
    /// Rank that connects.
    pub from: Rank,
    /// Rank that it connects to.
    pub to: Rank,
    /// Nonce of the connector's address.
    pub from_nonce: u64,
    /// Nonce of the acceptor's address that was used.
    pub to_nonce: u64,
}

/// A decoded record.
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

/// Error of decoding a record. The rest of the stream is not readable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is too long.
    #[error("record of {length} bytes where at most {limit} are permitted")]
    TooLong {
        /// Length in the record.
        length: usize,
        /// Maximum.
        limit: usize,
    },
    /// The kind is unknown.
    #[error("record of unknown kind {0}")]
    Kind(u8),
    /// The number is not the next one.
    #[error("record number {got} instead of {expected}")]
    Number {
        /// Number in the record.
        got: u16,
        /// Expected number.
        expected: u16,
    },
    /// The fields are inconsistent.
    #[error("{0}")]
    Malformed(&'static str),
}

/// Encodes the fields before a record's contents. The caller has checked the lengths.
#[inline]
pub fn head(kind: Kind, header: usize, length: usize, number: u16) -> [u8; HEAD] {
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
    /// Encodes the contents of HELLO.
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

    fn decode(bytes: &[u8]) -> Result<Hello, RecordError> {
        let Ok(bytes) = <&[u8; HELLO]>::try_from(bytes) else {
            return Err(RecordError::Malformed("HELLO of a wrong length"));
        };
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let number = |at: usize| u64::from(word(four(at))) | u64::from(word(four(at + 4))) << 32;
        if four(0) != MAGIC {
            return Err(RecordError::Malformed("HELLO without its magic number"));
        }
        if four(4) != [VERSION.to_le_bytes()[0], VERSION.to_le_bytes()[1], 0, 0] {
            return Err(RecordError::Malformed("HELLO of another version"));
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

/// Decodes the record at the front of `bytes`. Returns it and its length; `None` if it is
/// incomplete. `number`: its expected number; `limit`: maximum length of a message, header and
/// body.
///
/// # Errors
/// See [`RecordError`].
#[inline]
pub fn decode(
    bytes: &[u8],
    number: u16,
    limit: usize,
) -> Result<Option<(Record<'_>, usize)>, RecordError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let [a, b, c, d, header, kind, n, m] = *head;
    let (length, header) = (word([a, b, c, d]) as usize, usize::from(header));
    let got = u16::from_le_bytes([n, m]);
    if got != number {
        return Err(RecordError::Number {
            got,
            expected: number,
        });
    }
    if kind == Kind::Message as u8 {
        if length > limit {
            return Err(RecordError::TooLong { length, limit });
        }
        if header > length.min(MAX_HEADER) {
            return Err(RecordError::Malformed(
                "a header longer than its message or than MAX_HEADER",
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
) -> Result<Option<(Record<'_>, usize)>, RecordError> {
    let (limit, record) = match kind {
        1 => (HELLO, None),
        2 => (0, Some(Record::Welcome)),
        3 => (0, Some(Record::Confirm)),
        4 => (0, Some(Record::Yield)),
        5 => (MAX_REASON, None),
        7 => (0, Some(Record::Goodbye)),
        other => return Err(RecordError::Kind(other)),
    };
    if length > limit {
        return Err(RecordError::TooLong { length, limit });
    }
    if header != 0 {
        return Err(RecordError::Malformed(
            "a header in a record other than MESSAGE",
        ));
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let record =
        match record {
            Some(record) => record,
            None if kind == 1 => Record::Hello(Hello::decode(body)?),
            None => {
                let reason = std::str::from_utf8(body);
                Record::Refuse(reason.map_err(|_| {
                    RecordError::Malformed("REFUSE with a reason that is not UTF-8")
                })?)
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
    fn records_round_trip_and_need_all_their_bytes() {
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
                Err(RecordError::Number {
                    got: 0,
                    expected: 7
                })
            );
        }
    }

    #[test]
    fn invalid_records_are_errors_before_they_are_complete() {
        let long = head(Kind::Message, 0, LIMIT + 1, 0);
        assert_eq!(
            decode(&long, 0, LIMIT),
            Err(RecordError::TooLong {
                length: LIMIT + 1,
                limit: LIMIT
            })
        );
        let header = head(Kind::Message, MAX_HEADER + 1, 900, 0);
        assert!(matches!(
            decode(&header, 0, LIMIT),
            Err(RecordError::Malformed(_))
        ));
        let header = head(Kind::Message, 9, 8, 0);
        assert!(matches!(
            decode(&header, 0, LIMIT),
            Err(RecordError::Malformed(_))
        ));
        for kind in [0, 8, 255] {
            assert_eq!(
                decode(&[0, 0, 0, 0, 0, kind, 0, 0], 0, LIMIT),
                Err(RecordError::Kind(kind))
            );
        }
        let words = head(Kind::Refuse, 0, MAX_REASON + 1, 0);
        assert!(matches!(
            decode(&words, 0, LIMIT),
            Err(RecordError::TooLong { .. })
        ));
        assert!(matches!(
            decode(&bytes(Kind::Refuse, 0, b"\xff", 0), 0, LIMIT),
            Err(RecordError::Malformed(_))
        ));
        assert!(matches!(
            decode(&bytes(Kind::Welcome, 1, b"", 0), 0, LIMIT),
            Err(RecordError::Malformed(_))
        ));
        assert!(matches!(
            decode(&bytes(Kind::Hello, 0, b"short", 0), 0, LIMIT),
            Err(RecordError::Malformed(_))
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
                matches!(decode(&wrong, 0, LIMIT), Err(RecordError::Malformed(_))),
                "byte {at}"
            );
        }
    }
}
