//! Headers on the wire, as docs/p2p.md describes them. All numbers are little-endian.

/// Bytes of the header of a message sent at once.
pub const EAGER_LENGTH: usize = 12;

pub(crate) const EAGER: u8 = 1;
const ANNOUNCE: u8 = 2;
const ACCEPT: u8 = 3;
const FRAGMENT: u8 = 4;
const DONE: u8 = 5;
const CREDIT: u8 = 6;
const SKEW: u8 = 7;
const SEEN: u8 = 8;
const BYE: u8 = 9;
const LANE: u8 = 10;

/// Flag of envelopes: the sender asks for credit.
pub(crate) const ASK: u8 = 1;
/// Flag of envelopes: the sender asks to be told when this one was seen in order.
pub(crate) const ASK_SEEN: u8 = 2;
/// Flag of `EAGER`: synchronous, a number follows.
const SYNC: u8 = 4;
/// Flag of `ACCEPT`: the body is a key to put to.
const PUT: u8 = 1;
/// Flag of `DONE`: from the sender, everything was put.
const WRITTEN: u8 = 1;
/// Flag of `CREDIT`: announce instead of sending at once.
const ANNOUNCE_ONLY: u8 = 1;
/// Flag of `FRAGMENT`: the sender wants `Done` when all are there.
const TELL: u8 = 1;
/// Flag of `LANE`: it is gone.
const GONE: u8 = 1;
/// Flag of `SKEW`: late, or else not any more.
const LATE: u8 = 1;

/// Longest reason in a `Bye`.
pub(crate) const MAX_REASON: usize = 256;
/// Longest message: what one buffer can be.
const MAX_LENGTH: u64 = isize::MAX as u64;

/// What eager messages and announcements have in common: they take part in matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequenced {
    /// 1: asks for credit; 2: asks to be told when it was seen.
    pub flags: u8,
    /// Place among all such messages from this sender to this receiver, modulo 2^16.
    pub sequence: u16,
    /// Context of the communicator.
    pub context: u32,
    /// Tag, 0 or more.
    pub tag: i32,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The body is the message. With a number: the sender wants `Done` for it when it is received.
    Eager(Sequenced, Option<u64>),
    /// A message of this length waits at the sender under this number. The body is the key to `get` it by, or empty.
    Announce(Sequenced, u64, u64),
    /// The receiver of the announced `request` wants its first `length` bytes: by `put` to the key in the body, or as fragments to
    /// `target`.
    Accept {
        /// The sender's number.
        request: u64,
        /// The receiver's number.
        target: u64,
        /// Bytes wanted, 1 or more.
        length: u64,
        /// The body is a key.
        put: bool,
    },
    /// The body belongs at `offset` of `target`.
    Fragment {
        /// The receiver's number.
        target: u64,
        /// Place in the message.
        offset: u64,
        /// The sender wants `Done` when all are there.
        tell: bool,
    },
    /// The request is over: to the sender, received as far as the receiver wants; to the receiver (`written`), everything was put.
    Done {
        /// The addressee's number.
        request: u64,
        /// From the sender.
        written: bool,
    },
    /// The sender may send so many bytes more; from now on at once, or only announced.
    Credit {
        /// Bytes.
        amount: u32,
        /// Announce only.
        announce: bool,
    },
    /// The receiver is late, or not any more.
    Skew {
        /// Which.
        late: bool,
    },
    /// All up to this one were seen.
    Seen {
        /// Its place.
        sequence: u16,
    },
    /// How many messages have come over one of several lanes.
    Lane {
        /// Place of the addressee's card that the lane belongs to.
        card: u8,
        /// Messages since the start.
        received: u64,
        /// No more of them are taken from there.
        gone: bool,
    },
    /// The peer has closed this process out; the body says why.
    Bye,
}

/// A header that no sender writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No header at all, or too short for its kind, or too long.
    #[error("a header of {0} bytes")]
    Length(usize),
    /// A kind that there is not.
    #[error("a header of kind {0}")]
    Kind(u8),
    /// Flags that this kind has not, or reserved bytes that are not 0.
    #[error("unknown flags in a header of kind {0}")]
    Flags(u8),
    /// A tag below 0.
    #[error("tag {0}")]
    Tag(i32),
    /// A length that no message has.
    #[error("a length of {0}")]
    Size(u64),
}

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    bytes: [u8; 28],
    length: u8,
}

impl Encoded {
    /// A header that is bytes already; at most 28 of them.
    pub(crate) fn of(header: &[u8]) -> Encoded {
        let mut out = Encoded {
            bytes: [0; 28],
            length: 0,
        };
        for (place, byte) in out.bytes.iter_mut().zip(header) {
            *place = *byte;
            out.length += 1;
        }
        out
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }
}

/// The header of an ordinary message sent at once.
#[inline]
pub(crate) fn eager(flags: u8, sequence: u16, context: u32, tag: i32) -> [u8; EAGER_LENGTH] {
    let first = u32::from(EAGER) | u32::from(flags) << 8 | u32::from(sequence) << 16;
    let mut bytes = [0; EAGER_LENGTH];
    bytes[0..4].copy_from_slice(&first.to_le_bytes());
    bytes[4..8].copy_from_slice(&context.to_le_bytes());
    bytes[8..12].copy_from_slice(&tag.to_le_bytes());
    bytes
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let mut out = Encoded {
            bytes: [0; 28],
            length: 0,
        };
        let mut put = |bytes: &[u8]| {
            let start = usize::from(out.length);
            if let Some(room) = out.bytes.get_mut(start..start + bytes.len()) {
                room.copy_from_slice(bytes);
                out.length += bytes.len() as u8;
            }
        };
        match *self {
            Header::Eager(envelope, sync) => {
                put_envelope(
                    &mut put,
                    EAGER,
                    if sync.is_some() { SYNC } else { 0 },
                    envelope,
                );
                if let Some(request) = sync {
                    put(&request.to_le_bytes());
                }
            }
            Header::Announce(envelope, length, request) => {
                put_envelope(&mut put, ANNOUNCE, 0, envelope);
                put(&length.to_le_bytes());
                put(&request.to_le_bytes());
            }
            Header::Accept {
                request,
                target,
                length,
                put: by_put,
            } => {
                put(&[ACCEPT, if by_put { PUT } else { 0 }, 0, 0]);
                put(&request.to_le_bytes());
                put(&target.to_le_bytes());
                put(&length.to_le_bytes());
            }
            Header::Fragment {
                target,
                offset,
                tell,
            } => {
                put(&[FRAGMENT, if tell { TELL } else { 0 }, 0, 0]);
                put(&target.to_le_bytes());
                put(&offset.to_le_bytes());
            }
            Header::Done { request, written } => {
                put(&[DONE, if written { WRITTEN } else { 0 }, 0, 0]);
                put(&request.to_le_bytes());
            }
            Header::Credit { amount, announce } => {
                put(&[CREDIT, if announce { ANNOUNCE_ONLY } else { 0 }, 0, 0]);
                put(&amount.to_le_bytes());
            }
            Header::Skew { late } => put(&[SKEW, if late { LATE } else { 0 }, 0, 0]),
            Header::Seen { sequence } => {
                let [low, high] = sequence.to_le_bytes();
                put(&[SEEN, 0, low, high]);
            }
            Header::Lane {
                card,
                received,
                gone,
            } => {
                put(&[LANE, if gone { GONE } else { 0 }, card, 0]);
                put(&received.to_le_bytes());
            }
            Header::Bye => put(&[BYE, 0, 0, 0]),
        }
        out
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// [`Malformed`]: they are not what [`encode`](Header::encode) writes.
    pub fn decode(bytes: &[u8]) -> Result<Header, Malformed> {
        let wrong_length = || Malformed::Length(bytes.len());
        let Some((&[kind, flags, low, high], rest)) = bytes.split_first_chunk::<4>() else {
            return Err(wrong_length());
        };
        let (length, known_flags) = match kind {
            EAGER if flags & SYNC != 0 => (16, ASK | ASK_SEEN | SYNC),
            EAGER => (8, ASK | ASK_SEEN),
            ANNOUNCE => (24, ASK | ASK_SEEN),
            ACCEPT => (24, PUT),
            FRAGMENT => (16, TELL),
            DONE => (8, WRITTEN),
            CREDIT => (4, ANNOUNCE_ONLY),
            SKEW => (0, LATE),
            SEEN | BYE => (0, 0),
            LANE => (8, GONE),
            kind => return Err(Malformed::Kind(kind)),
        };
        let sequence = u16::from_le_bytes([low, high]);
        let has_sequence = matches!(kind, EAGER | ANNOUNCE | SEEN) || (kind == LANE && high == 0);
        if flags & !known_flags != 0 || (!has_sequence && sequence != 0) {
            return Err(Malformed::Flags(kind));
        }
        if rest.len() != length {
            return Err(wrong_length());
        }
        let mut fields = Fields(rest);
        let header = match kind {
            EAGER | ANNOUNCE => {
                let (context, tag) = (fields.u32(), fields.u32().cast_signed());
                if tag < 0 {
                    return Err(Malformed::Tag(tag));
                }
                let envelope = Sequenced {
                    flags: flags & (ASK | ASK_SEEN),
                    sequence,
                    context,
                    tag,
                };
                if kind == EAGER {
                    Header::Eager(envelope, (flags & SYNC != 0).then(|| fields.u64()))
                } else {
                    Header::Announce(envelope, size(fields.u64(), 0)?, fields.u64())
                }
            }
            ACCEPT => Header::Accept {
                request: fields.u64(),
                target: fields.u64(),
                length: size(fields.u64(), 1)?,
                put: flags & PUT != 0,
            },
            FRAGMENT => Header::Fragment {
                target: fields.u64(),
                offset: size(fields.u64(), 0)?,
                tell: flags & TELL != 0,
            },
            DONE => Header::Done {
                request: fields.u64(),
                written: flags & WRITTEN != 0,
            },
            CREDIT => Header::Credit {
                amount: fields.u32(),
                announce: flags & ANNOUNCE_ONLY != 0,
            },
            SKEW => Header::Skew {
                late: flags & LATE != 0,
            },
            SEEN => Header::Seen { sequence },
            LANE => Header::Lane {
                card: low,
                received: fields.u64(),
                gone: flags & GONE != 0,
            },
            _ => Header::Bye,
        };
        Ok(header)
    }
}

fn put_envelope(put: &mut impl FnMut(&[u8]), kind: u8, flags: u8, envelope: Sequenced) {
    let [low, high] = envelope.sequence.to_le_bytes();
    put(&[kind, flags | envelope.flags & (ASK | ASK_SEEN), low, high]);
    put(&envelope.context.to_le_bytes());
    put(&envelope.tag.to_le_bytes());
}

fn size(length: u64, least: u64) -> Result<u64, Malformed> {
    if (least..=MAX_LENGTH).contains(&length) {
        Ok(length)
    } else {
        Err(Malformed::Size(length))
    }
}

/// Reads numbers one after the other; the length was checked before.
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
