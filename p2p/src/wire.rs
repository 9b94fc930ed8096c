//! Headers on the wire, as docs/p2p.md describes them. All numbers are little-endian.

use crate::atomics::{AtomicOp, AtomicType};

/// Length of the header of an eager message, in bytes.
pub const EAGER_LENGTH: usize = 12;
/// Length of the longest header, in bytes.
pub(crate) const MAX_HEADER: usize = 52;
/// Maximum tag that needs no extension of the header, and maximum tag between ranks.
pub(crate) const NARROW: u32 = i32::MAX as u32;

pub(crate) const EAGER: u8 = 1;
const RTS: u8 = 2;
const CTS: u8 = 3;
const FRAGMENT: u8 = 4;
const FIN: u8 = 5;
const CREDIT: u8 = 6;
const SKEW: u8 = 7;
const BYE: u8 = 8;
const ACCESS: u8 = 9;
const RESULT: u8 = 10;

/// Flag of envelopes: the sender requests credit.
pub(crate) const ASK: u8 = 1;
/// Flag of `EAGER`: synchronous; the sender's request follows.
const SYNC: u8 = 2;
/// Flag of envelopes: the upper half of the tag follows. Between endpoints only.
const WIDE: u8 = 4;
/// Flag of envelopes and `ACCESS`: a number for the receiver follows. Between endpoints only.
const DATA: u8 = 8;
/// Flag of `ACCESS`: the result of an atomic operation has the old values.
const FETCH: u8 = 1;
/// Operations of `ACCESS`: the first two, and the first atomic one.
const READ: u8 = 0;
const WRITE: u8 = 1;
const FIRST_ATOMIC: u8 = 16;
/// Flag of `CTS`: the body is a key to put to.
const PUT: u8 = 1;
/// Flag of `FIN`: it is from the sender, which has put everything.
const WRITTEN: u8 = 1;
/// Flag of `CREDIT`: send RTS only.
const RTS_ONLY: u8 = 1;
/// Flag of `SKEW`: late; without it, no longer late.
const LATE: u8 = 1;

/// Maximum length of the reason in a `Bye`, in bytes.
pub(crate) const MAX_REASON: usize = 256;
/// Maximum length of a message, in bytes: that of a buffer.
const MAX_LENGTH: u64 = isize::MAX as u64;

/// The fields shared by `Eager` and `Rts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequenced {
    /// Bit 0: the sender requests credit.
    pub flags: u8,
    /// Number among all such messages from this sender to this receiver, modulo 2^16.
    pub sequence: u16,
    /// Context of the communicator.
    pub context: u32,
    /// Tag; between ranks at most 2^31 − 1.
    pub tag: u64,
    /// Number passed to the receiver, which takes no part in matching; `None` between ranks.
    pub data: Option<u64>,
}

impl Sequenced {
    /// Returns true if only endpoints may send it, not ranks.
    #[inline]
    pub(crate) fn is_extended(&self) -> bool {
        self.tag > u64::from(NARROW) || self.data.is_some()
    }
}

/// Access to the addressee's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Operation.
    pub operation: Operation,
    /// The initiator's request.
    pub request: u64,
    /// Key of the region.
    pub key: u64,
    /// Address of the first byte of the access.
    pub address: u64,
    /// Length of the access, in bytes.
    pub length: u64,
    /// `Write`: offset of the body in the access; otherwise 0.
    pub offset: u64,
    /// Number for the addressee; `Write` only.
    pub data: Option<u64>,
}

/// Operation of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The result returns the bytes.
    Read,
    /// The body is written.
    Write,
    /// The body has the operands, then the comparands.
    Atomic {
        /// Operation.
        op: AtomicOp,
        /// Type of the values.
        number: AtomicType,
        /// The result has the old values.
        fetch: bool,
    },
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Eager message; the body is the message. With a request number it is synchronous: the sender
    /// waits for `Fin`.
    Eager(Sequenced, Option<u64>),
    /// Request to send a message of this length; the second number is the sender's request. The
    /// body is a key for a `get` of the message, or empty.
    Rts(Sequenced, u64, u64),
    /// Clear to send: the receiver requests the first `length` bytes of `request`.
    Cts {
        /// The sender's request.
        request: u64,
        /// The receiver's request.
        target: u64,
        /// Number of bytes, 1 or more.
        length: u64,
        /// The body is a key for `put`. Otherwise the bytes are sent as fragments.
        put: bool,
    },
    /// Part of a message; the body belongs at `offset` of `target`.
    Fragment {
        /// The receiver's request.
        target: u64,
        /// Offset in the message, in bytes.
        offset: u64,
    },
    /// The request of the addressee is complete.
    Fin {
        /// The addressee's request.
        request: u64,
        /// From the sender: everything was put. Otherwise from the receiver: it has the message.
        written: bool,
    },
    /// Credit for the sender.
    Credit {
        /// Number of bytes.
        amount: u32,
        /// The sender must now send RTS instead of eager messages with a body.
        rts_only: bool,
    },
    /// The receiver is late, or no longer late.
    Skew {
        /// The receiver is late.
        late: bool,
    },
    /// The sender of this header has closed the peer. The body contains the reason.
    Bye,
    /// Access to the addressee's memory. Between endpoints only.
    Access(Access),
    /// Answer to an access. The body has the bytes of a read starting at `offset`, or the old
    /// values.
    Result {
        /// The addressee's request.
        request: u64,
        /// Offset of the body in a read; otherwise 0.
        offset: u64,
        /// 0, or the number of a refusal.
        status: u16,
    },
}

/// Bytes that are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Wrong length for its kind, or too short for a header.
    #[error("a header of {0} bytes")]
    Length(usize),
    /// Unknown kind.
    #[error("a header of unknown kind {0}")]
    Kind(u8),
    /// Flags that this kind does not have, or reserved bytes that are not 0.
    #[error("unknown flags in a header of kind {0}")]
    Flags(u8),
    /// Tag in a form that is not that of its size.
    #[error("tag {0:#x} in the wrong form")]
    Tag(u64),
    /// Impossible length.
    #[error("a length of {0}")]
    Size(u64),
    /// Access that does not exist.
    #[error("an access of unknown operation {0} and type {1}")]
    Operation(u8, u8),
}

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    bytes: [u8; MAX_HEADER],
    length: usize,
}

impl Encoded {
    /// Writes kind, flags and the 16-bit field.
    fn new(kind: u8, flags: u8, sequence: u16) -> Encoded {
        let mut out = Encoded {
            bytes: [0; MAX_HEADER],
            length: 0,
        };
        let [low, high] = sequence.to_le_bytes();
        out.put(&[kind, flags, low, high]);
        out
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn put_numbers(mut self, numbers: &[u64]) -> Encoded {
        for number in numbers {
            self.put(&number.to_le_bytes());
        }
        self
    }

    fn of_sequenced(kind: u8, flags: u8, sequenced: Sequenced) -> Encoded {
        let (low, high) = (sequenced.tag as u32, (sequenced.tag >> 32) as u32);
        let wide = sequenced.tag > u64::from(NARROW);
        let flags = flags
            | sequenced.flags & ASK
            | if wide { WIDE } else { 0 }
            | if sequenced.data.is_some() { DATA } else { 0 };
        let mut out = Encoded::new(kind, flags, sequenced.sequence);
        out.put(&sequenced.context.to_le_bytes());
        out.put(&low.to_le_bytes());
        if wide {
            out.put(&high.to_le_bytes());
        }
        out.put_numbers(sequenced.data.as_slice())
    }
}

/// Returns the header of an eager message that is neither synchronous nor extended.
#[inline]
pub(crate) fn eager(flags: u8, sequence: u16, context: u32, tag: u32) -> [u8; EAGER_LENGTH] {
    let first = u32::from(EAGER) | u32::from(flags) << 8 | u32::from(sequence) << 16;
    let mut bytes = [0; EAGER_LENGTH];
    bytes[0..4].copy_from_slice(&first.to_le_bytes());
    bytes[4..8].copy_from_slice(&context.to_le_bytes());
    bytes[8..12].copy_from_slice(&tag.to_le_bytes());
    bytes
}

impl Header {
    /// Returns the bytes of the header.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        match *self {
            Header::Eager(sequenced, sync) => {
                Encoded::of_sequenced(EAGER, flag(sync.is_some(), SYNC), sequenced)
                    .put_numbers(sync.as_slice())
            }
            Header::Rts(sequenced, length, request) => {
                Encoded::of_sequenced(RTS, 0, sequenced).put_numbers(&[length, request])
            }
            Header::Cts {
                request,
                target,
                length,
                put,
            } => Encoded::new(CTS, flag(put, PUT), 0).put_numbers(&[request, target, length]),
            Header::Fragment { target, offset } => {
                Encoded::new(FRAGMENT, 0, 0).put_numbers(&[target, offset])
            }
            Header::Fin { request, written } => {
                Encoded::new(FIN, flag(written, WRITTEN), 0).put_numbers(&[request])
            }
            Header::Credit { amount, rts_only } => {
                let mut out = Encoded::new(CREDIT, flag(rts_only, RTS_ONLY), 0);
                out.put(&amount.to_le_bytes());
                out
            }
            Header::Skew { late } => Encoded::new(SKEW, flag(late, LATE), 0),
            Header::Bye => Encoded::new(BYE, 0, 0),
            Header::Access(access) => access.encode(),
            Header::Result {
                request,
                offset,
                status,
            } => Encoded::new(RESULT, 0, status).put_numbers(&[request, offset]),
        }
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// [`Malformed`] if [`encode`](Header::encode) does not write these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Header, Malformed> {
        let wrong_length = || Malformed::Length(bytes.len());
        let Some((&[kind, flags, low, high], rest)) = bytes.split_first_chunk::<4>() else {
            return Err(wrong_length());
        };
        let mut extension = 0;
        if matches!(kind, EAGER | RTS) {
            extension += if flags & WIDE != 0 { 4 } else { 0 };
        }
        if matches!(kind, EAGER | RTS | ACCESS) {
            extension += if flags & DATA != 0 { 8 } else { 0 };
        }
        let (length, known_flags) = match kind {
            EAGER if flags & SYNC != 0 => (16 + extension, ASK | SYNC | WIDE | DATA),
            EAGER => (8 + extension, ASK | WIDE | DATA),
            RTS => (24 + extension, ASK | WIDE | DATA),
            CTS => (24, PUT),
            FRAGMENT => (16, 0),
            FIN => (8, WRITTEN),
            CREDIT => (4, RTS_ONLY),
            SKEW => (0, LATE),
            BYE => (0, 0),
            ACCESS => (40 + extension, FETCH | DATA),
            RESULT => (16, 0),
            kind => return Err(Malformed::Kind(kind)),
        };
        let sequence = u16::from_le_bytes([low, high]);
        let has_sequence = matches!(kind, EAGER | RTS | ACCESS | RESULT);
        if flags & !known_flags != 0 || (!has_sequence && sequence != 0) {
            return Err(Malformed::Flags(kind));
        }
        if rest.len() != length {
            return Err(wrong_length());
        }
        let mut fields = Fields(rest);
        Ok(match kind {
            EAGER | RTS => {
                let (context, low) = (fields.u32(), fields.u32());
                let wide = flags & WIDE != 0;
                let high = if wide { fields.u32() } else { 0 };
                let tag = u64::from(high) << 32 | u64::from(low);
                if wide != (tag > u64::from(NARROW)) {
                    return Err(Malformed::Tag(tag));
                }
                let sequenced = Sequenced {
                    flags: flags & ASK,
                    sequence,
                    context,
                    tag,
                    data: (flags & DATA != 0).then(|| fields.u64()),
                };
                if kind == EAGER {
                    Header::Eager(sequenced, (flags & SYNC != 0).then(|| fields.u64()))
                } else {
                    Header::Rts(sequenced, size(fields.u64(), 0)?, fields.u64())
                }
            }
            CTS => Header::Cts {
                request: fields.u64(),
                target: fields.u64(),
                length: size(fields.u64(), 1)?,
                put: flags & PUT != 0,
            },
            FRAGMENT => Header::Fragment {
                target: fields.u64(),
                offset: size(fields.u64(), 0)?,
            },
            FIN => Header::Fin {
                request: fields.u64(),
                written: flags & WRITTEN != 0,
            },
            CREDIT => Header::Credit {
                amount: fields.u32(),
                rts_only: flags & RTS_ONLY != 0,
            },
            SKEW => Header::Skew {
                late: flags & LATE != 0,
            },
            ACCESS => Header::Access(Access::decode(flags, [low, high], &mut fields)?),
            RESULT => Header::Result {
                request: fields.u64(),
                offset: size(fields.u64(), 0)?,
                status: sequence,
            },
            _ => Header::Bye,
        })
    }
}

impl Access {
    fn encode(&self) -> Encoded {
        let (operation, number, fetch) = match self.operation {
            Operation::Read => (READ, 0, false),
            Operation::Write => (WRITE, 0, false),
            Operation::Atomic { op, number, fetch } => {
                (FIRST_ATOMIC + op as u8, number as u8, fetch)
            }
        };
        let fetch = if fetch { FETCH } else { 0 };
        let data = if self.data.is_some() { DATA } else { 0 };
        let what = u16::from_le_bytes([operation, number]);
        let numbers = [
            self.request,
            self.key,
            self.address,
            self.length,
            self.offset,
        ];
        Encoded::new(ACCESS, fetch | data, what)
            .put_numbers(&numbers)
            .put_numbers(self.data.as_slice())
    }

    /// Decodes the fields, whose length was checked.
    fn decode(
        flags: u8,
        [operation, number]: [u8; 2],
        fields: &mut Fields<'_>,
    ) -> Result<Access, Malformed> {
        let unknown = Malformed::Operation(operation, number);
        let fetch = flags & FETCH != 0;
        let operation = match operation {
            READ if number == 0 && !fetch => Operation::Read,
            WRITE if number == 0 && !fetch => Operation::Write,
            _ => {
                let op = operation.checked_sub(FIRST_ATOMIC).map(usize::from);
                let op = op.and_then(|op| AtomicOp::ALL.get(op));
                let number = AtomicType::ALL.get(usize::from(number));
                let (op, number) = op.zip(number).ok_or(unknown)?;
                let (op, number) = (*op, *number);
                Operation::Atomic { op, number, fetch }
            }
        };
        let access = Access {
            operation,
            request: fields.u64(),
            key: fields.u64(),
            address: fields.u64(),
            length: size(fields.u64(), 0)?,
            offset: size(fields.u64(), 0)?,
            data: (flags & DATA != 0).then(|| fields.u64()),
        };
        let plain = access.offset == 0 && access.data.is_none();
        if plain || access.operation == Operation::Write {
            Ok(access)
        } else {
            Err(Malformed::Flags(ACCESS))
        }
    }
}

fn size(length: u64, least: u64) -> Result<u64, Malformed> {
    if (least..=MAX_LENGTH).contains(&length) {
        Ok(length)
    } else {
        Err(Malformed::Size(length))
    }
}

/// Reads numbers in order. The caller has checked the length.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> u32 {
        let Some((bytes, rest)) = self.0.split_first_chunk() else {
            return 0;
        };
        self.0 = rest;
        u32::from_le_bytes(*bytes)
    }

    fn u64(&mut self) -> u64 {
        let Some((bytes, rest)) = self.0.split_first_chunk() else {
            return 0;
        };
        self.0 = rest;
        u64::from_le_bytes(*bytes)
    }
}

#[cfg(test)]
mod tests;
