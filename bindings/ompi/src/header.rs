//! The header of a message between two components. The body is a message of Open MPI, or the bytes
//! of a put or get.
//!
//! The first two bytes are the kind and a small number. Except in kind 1, six zero bytes and
//! little-endian numbers of eight bytes follow.
//!
//! | kind | name | small number | numbers | body |
//! |---|---|---|---|---|
//! | 1 | active | tag | – | for the layer that registered the tag |
//! | 2 | put | 1: last fragment | operation, key, address | bytes for that address |
//! | 3 | get | – | operation, key, address, length | – |
//! | 4 | atomic | operator, see [`Header::Atomic`] | operation, key, address, operand, compare | – |
//! | 5 | data | 1: last fragment | operation, offset | bytes of a get |
//! | 6 | done | 0: executed, 1: refused | operation, previous value | – |

use btl::MAX_HEADER;

/// Bit of an atomic operator: the value has four bytes instead of eight.
pub(crate) const FOUR_BYTES: u8 = 0x80;

/// A pending operation, and the memory of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) operation: u64,
    pub(crate) key: u64,
    pub(crate) address: u64,
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Active {
        tag: u8,
    },
    Put {
        last: bool,
        target: Target,
    },
    Get {
        target: Target,
        length: u64,
    },
    /// `operator`: `mca_btl_base_atomic_op_t`, 0 for compare and swap, and [`FOUR_BYTES`].
    /// `operands`: the operand, and the value to compare with.
    Atomic {
        operator: u8,
        target: Target,
        operands: [u64; 2],
    },
    Data {
        last: bool,
        operation: u64,
        offset: u64,
    },
    Done {
        refused: bool,
        operation: u64,
        value: u64,
    },
}

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoded {
    bytes: [u8; MAX_HEADER],
    length: usize,
}

impl Encoded {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

fn pack(kind: u8, small: u8, numbers: &[u64]) -> Encoded {
    let mut bytes = [0; MAX_HEADER];
    (bytes[0], bytes[1]) = (kind, small);
    for (slot, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
    Encoded {
        bytes,
        length: 8 + 8 * numbers.len(),
    }
}

impl Header {
    #[inline]
    pub(crate) fn encode(&self) -> Encoded {
        match *self {
            Header::Active { tag } => {
                let mut bytes = [0; MAX_HEADER];
                (bytes[0], bytes[1]) = (1, tag);
                Encoded { bytes, length: 2 }
            }
            Header::Put { last, target: t } => {
                pack(2, last.into(), &[t.operation, t.key, t.address])
            }
            Header::Get { target: t, length } => {
                pack(3, 0, &[t.operation, t.key, t.address, length])
            }
            Header::Atomic {
                operator,
                target: t,
                operands: [a, b],
            } => pack(4, operator, &[t.operation, t.key, t.address, a, b]),
            Header::Data {
                last,
                operation,
                offset,
            } => pack(5, last.into(), &[operation, offset]),
            Header::Done {
                refused,
                operation,
                value,
            } => pack(6, refused.into(), &[operation, value]),
        }
    }

    /// Decodes untrusted bytes.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Header> {
        match *bytes {
            [1, tag] => Some(Header::Active { tag }),
            [kind, small, 0, 0, 0, 0, 0, 0, ref rest @ ..] => Header::numbers(kind, small, rest),
            _ => None,
        }
    }

    fn numbers(kind: u8, small: u8, rest: &[u8]) -> Option<Header> {
        let (chunks, []) = rest.as_chunks::<8>() else {
            return None;
        };
        let mut numbers = [0; 5];
        for (slot, chunk) in numbers.iter_mut().zip(chunks) {
            *slot = u64::from_le_bytes(*chunk);
        }
        let [operation, b, c, d, e] = numbers;
        let (key, address) = (b, c);
        let target = Target {
            operation,
            key,
            address,
        };
        let last = small == 1;
        Some(match (kind, chunks.len(), small) {
            (2, 3, 0 | 1) => Header::Put { last, target },
            (3, 4, 0) => Header::Get { target, length: d },
            (4, 5, operator) => Header::Atomic {
                operator,
                target,
                operands: [d, e],
            },
            (5, 2, 0 | 1) => Header::Data {
                last,
                operation,
                offset: b,
            },
            (6, 2, 0 | 1) => Header::Done {
                refused: last,
                operation,
                value: b,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_other_bytes_are_refused() {
        let target = Target {
            operation: 1,
            key: 2,
            address: u64::MAX,
        };
        let all = [
            Header::Active { tag: 0x41 },
            Header::Put { last: true, target },
            Header::Get { target, length: 4 },
            Header::Atomic {
                operator: FOUR_BYTES | 0x1a,
                target,
                operands: [4, 5],
            },
            Header::Data {
                last: false,
                operation: 1,
                offset: 2,
            },
            Header::Done {
                refused: true,
                operation: 1,
                value: 2,
            },
        ];
        for header in all {
            let encoded = header.encode();
            let bytes = encoded.as_slice();
            assert_eq!(Header::decode(bytes), Some(header));
            for end in 0..bytes.len() {
                assert_eq!(
                    Header::decode(&bytes[..end]),
                    None,
                    "{header:?} cut at {end}"
                );
            }
            let mut longer = bytes.to_vec();
            longer.push(0);
            assert_eq!(Header::decode(&longer), None);
            if bytes.len() > 2 {
                let mut wrong = bytes.to_vec();
                wrong[5] = 1;
                assert_eq!(Header::decode(&wrong), None);
            }
        }
        assert_eq!(Header::decode(&[7, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
