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
//! | 7 | GOODBYE | – | both, last, to leave gracefully |
//! | 8 | RELEASE | – | both, last, to end this stream alone: the next message makes another |

use btl::{MAX_HEADER, Rank};

/// Length of the fields before every record's contents, in bytes.
pub const HEAD: usize = 8;
/// Length of a [`Hello`] in bytes.
pub const HELLO: usize = 48;
/// Maximum length of the reason in REFUSE, in bytes.
pub const MAX_REASON: usize = 200;
const MAGIC: [u8; 4] = *b"ebtl";
/// Version of the format. Others are refused.
pub const VERSION: u16 = 2;

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
    Release = 8,
}

/// Contents of HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Hash of the job key.
    pub job: [u8; 16],
    /// Rank that connects. Between open transports: port of the connector's listener.
    pub from: Rank,
    /// Rank that it connects to. Between open transports: maximum length of a message that the
    /// connector accepts.
    pub to: Rank,
    /// Nonce of the connector's address; that of an open transport is its identity.
    pub from_nonce: u64,
    /// Nonce of the acceptor's address that was used.
    pub to_nonce: u64,
    /// Number of the connector's attempt to reach the acceptor, modulo 2^16.
    pub attempt: u16,
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Header of MESSAGE; empty for the others.
    pub header: &'a [u8],
    /// Contents: body of MESSAGE, [`Hello`], or reason of REFUSE.
    pub body: &'a [u8],
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
        bytes[6..8].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.job);
        bytes[24..28].copy_from_slice(&self.from.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.from_nonce.to_le_bytes());
        bytes[40..].copy_from_slice(&self.to_nonce.to_le_bytes());
        bytes
    }

    /// Decodes the contents of HELLO; `None` if they are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let mut fields = Fields(bytes);
        let front: [u8; 6] = fields.array()?;
        let hello = Hello {
            attempt: u16::from_le_bytes(fields.array()?),
            job: fields.array()?,
            from: u32::from_le_bytes(fields.array()?),
            to: u32::from_le_bytes(fields.array()?),
            from_nonce: u64::from_le_bytes(fields.array()?),
            to_nonce: u64::from_le_bytes(fields.array()?),
        };
        let is_valid = front == hello.encode()[..6] && fields.0.is_empty();
        is_valid.then_some(hello)
    }
}

/// Takes fields from the front of untrusted bytes.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Decodes the record at the front of `bytes`. Returns it and its length; `None` if it is
/// incomplete. `number`: its expected number; `limit`: maximum length of a message, header and
/// body.
///
/// # Errors
/// The reason why the record, and so the rest of the stream, is not readable.
#[inline]
pub fn decode(
    bytes: &[u8],
    number: u16,
    limit: usize,
) -> Result<Option<(Record<'_>, usize)>, String> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let [a, b, c, d, header, kind, n, m] = *head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let (header, got) = (usize::from(header), u16::from_le_bytes([n, m]));
    if got != number {
        return Err(format!("record number {got} instead of {number}"));
    }
    let (kind, limit, max_header) = match kind {
        6 => (Kind::Message, limit, MAX_HEADER.min(length)),
        1 => (Kind::Hello, HELLO, 0),
        2 => (Kind::Welcome, 0, 0),
        3 => (Kind::Confirm, 0, 0),
        4 => (Kind::Yield, 0, 0),
        5 => (Kind::Refuse, MAX_REASON, 0),
        7 => (Kind::Goodbye, 0, 0),
        8 => (Kind::Release, 0, 0),
        other => return Err(format!("record of unknown kind {other}")),
    };
    if length > limit {
        return Err(format!(
            "record of {length} bytes: at most {limit} are permitted"
        ));
    }
    if header > max_header {
        return Err(format!(
            "a header of {header} bytes, longer than its message or than {kind:?} permits"
        ));
    }
    let Some(contents) = rest.get(..length) else {
        return Ok(None);
    };
    let (header, body) = contents.split_at(header);
    Ok(Some((Record { kind, header, body }, HEAD + length)))
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
        let cases: [(Kind, &[u8], &[u8]); 9] = [
            (Kind::Hello, b"", &[7; HELLO]),
            (Kind::Welcome, b"", b""),
            (Kind::Confirm, b"", b""),
            (Kind::Yield, b"", b""),
            (Kind::Refuse, b"", "grün".as_bytes()),
            (Kind::Message, b"hh", b"body"),
            (Kind::Message, b"", b""),
            (Kind::Goodbye, b"", b""),
            (Kind::Release, b"", b""),
        ];
        for (kind, header, body) in cases {
            let record = Record { kind, header, body };
            let mut bytes = bytes(kind, header.len(), &[header, body].concat(), 0);
            for end in 0..bytes.len() {
                let cut = decode(&bytes[..end], 0, LIMIT);
                assert_eq!(cut, Ok(None), "{record:?} cut at {end}");
            }
            let length = bytes.len();
            bytes.extend(b"more");
            assert_eq!(decode(&bytes, 0, LIMIT), Ok(Some((record, length))));
            let error = decode(&bytes, 7, LIMIT).unwrap_err();
            assert!(error.contains("number 0 instead of 7"), "{error}");
        }
    }

    #[test]
    fn a_malformed_hello_is_none() {
        let hello = Hello {
            job: [1; 16],
            from: 2,
            to: 3,
            from_nonce: 4,
            to_nonce: 5,
            attempt: 6,
        };
        let good = hello.encode();
        assert_eq!(Hello::decode(&good), Some(hello));
        // Magic and version.
        for place in 0..6 {
            let mut bad = good;
            bad[place] ^= 1;
            assert_eq!(Hello::decode(&bad), None, "byte {place}");
        }
        for length in 0..HELLO {
            assert_eq!(Hello::decode(&good[..length]), None, "{length} bytes");
        }
        assert_eq!(Hello::decode(&[&good[..], &[0]].concat()), None);
    }

    #[test]
    fn invalid_records_are_errors_before_they_are_complete() {
        for (head, part) in [
            (head(Kind::Message, 0, LIMIT + 1, 0), "1001 bytes"),
            (head(Kind::Message, MAX_HEADER + 1, 900, 0), "65 bytes"),
            (head(Kind::Message, 9, 8, 0), "9 bytes"),
            (head(Kind::Refuse, 0, MAX_REASON + 1, 0), "201 bytes"),
            (head(Kind::Hello, 0, HELLO + 1, 0), "49 bytes"),
            (head(Kind::Welcome, 0, 1, 0), "1 bytes"),
            (head(Kind::Welcome, 1, 0, 0), "header"),
            ([0, 0, 0, 0, 0, 0, 0, 0], "kind 0"),
            ([0, 0, 0, 0, 0, 9, 0, 0], "kind 9"),
            ([0, 0, 0, 0, 0, 255, 0, 0], "kind 255"),
        ] {
            let error = decode(&head, 0, LIMIT).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn hello_round_trips_and_other_bytes_are_refused() {
        let hello = Hello {
            job: [3; 16],
            from: 1,
            to: 2,
            from_nonce: u64::MAX - 5,
            to_nonce: 1 << 40,
            attempt: 65_535,
        };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        assert_eq!(Hello::decode(&bytes[..HELLO - 1]), None);
        assert_eq!(Hello::decode(&[&bytes[..], &[0]].concat()), None);
        for at in [0, 4, 5] {
            let mut wrong = bytes;
            wrong[at] ^= 0x10;
            assert_eq!(Hello::decode(&wrong), None, "byte {at}");
        }
    }
}
