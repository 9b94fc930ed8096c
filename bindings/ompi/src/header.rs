//! The header of a message between two components. The body is a message of Open MPI, or the bytes
//! of a put or get.
//!
//! The first two bytes are the kind and a small number. Except for kind 1, six zero bytes and
//! numbers of eight bytes, little endian, follow.
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

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Active {
        tag: u8,
    },
    Put {
        last: bool,
        operation: u64,
        key: u64,
        address: u64,
    },
    Get {
        operation: u64,
        key: u64,
        address: u64,
        length: u64,
    },
    /// `operator`: `mca_btl_base_atomic_op_t`, 0 for compare and swap, and [`FOUR_BYTES`].
    Atomic {
        operator: u8,
        operation: u64,
        key: u64,
        address: u64,
        operand: u64,
        compare: u64,
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
            Header::Put {
                last,
                operation,
                key,
                address,
            } => pack(2, last.into(), &[operation, key, address]),
            Header::Get {
                operation,
                key,
                address,
                length,
            } => pack(3, 0, &[operation, key, address, length]),
            Header::Atomic {
                operator,
                operation,
                key,
                address,
                operand,
                compare,
            } => pack(4, operator, &[operation, key, address, operand, compare]),
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

    /// From operator a peer wrote.
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
        let mut n = [0; 5];
        for (slot, chunk) in n.iter_mut().zip(chunks) {
            *slot = u64::from_le_bytes(*chunk);
        }
        let last = match small {
            0 => false,
            1 => true,
            _ if kind == 4 => false,
            _ => return None,
        };
        let [operation, b, c, d, e] = n;
        Some(match (kind, chunks.len()) {
            (2, 3) => Header::Put {
                last,
                operation,
                key: b,
                address: c,
            },
            (3, 4) if small == 0 => Header::Get {
                operation,
                key: b,
                address: c,
                length: d,
            },
            (4, 5) => Header::Atomic {
                operator: small,
                operation,
                key: b,
                address: c,
                operand: d,
                compare: e,
            },
            (5, 2) => Header::Data {
                last,
                operation,
                offset: b,
            },
            (6, 2) => Header::Done {
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
        let all = [
            Header::Active { tag: 0x41 },
            Header::Put {
                last: true,
                operation: 1,
                key: 2,
                address: u64::MAX,
            },
            Header::Get {
                operation: 1,
                key: 2,
                address: 3,
                length: 4,
            },
            Header::Atomic {
                operator: FOUR_BYTES | 0x1a,
                operation: 1,
                key: 2,
                address: 3,
                operand: 4,
                compare: 5,
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
