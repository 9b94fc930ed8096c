//! Parser of the rtnetlink messages in use; the input is not trusted.
//!
//! All fields are in this machine's byte order; messages and attributes start at multiples of 4.

use pnet::util::MacAddr;

const HEADER_LEN: usize = 16;
const IFINFO_LEN: usize = 16;
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Mask of an attribute's type; the upper bits are flags.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// Meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// State of an interface, as far as the message contains it.
    Link {
        index: u32,
        flags: u32,
        mtu: Option<u32>,
        mac: Option<MacAddr>,
        interrupted: bool,
    },
    /// An interface was removed.
    Gone { index: u32 },
    /// The answer to a query is complete.
    Done { sequence: u32, interrupted: bool },
    /// A query was refused.
    Error { sequence: u32 },
    /// Irrelevant.
    Other,
    /// Violates the format.
    Malformed,
}

/// Builds the query for all interfaces.
pub(super) fn dump_request(sequence: u32) -> [u8; HEADER_LEN + IFINFO_LEN] {
    let mut request = [0; HEADER_LEN + IFINFO_LEN];
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[..4].copy_from_slice(&((HEADER_LEN + IFINFO_LEN) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request[8..12].copy_from_slice(&sequence.to_ne_bytes());
    request
}

/// Returns the messages of a datagram. Ends with [`Message::Malformed`] when the next boundary is
/// unknown.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let whole = half_or_word(rest, 0, 4).map(|len| len as usize);
        match whole {
            Some(len) if len >= HEADER_LEN && len <= rest.len() => {
                let (message, _) = rest.split_at(len);
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
                Some(parse(message).unwrap_or(Message::Malformed))
            }
            _ => {
                rest = &[];
                Some(Message::Malformed)
            }
        }
    })
}

/// Parses one whole message; `None` when it violates the format.
fn parse(message: &[u8]) -> Option<Message> {
    let kind = half_or_word(message, 4, 2)? as u16;
    let interrupted = half_or_word(message, 6, 2)? & libc::NLM_F_DUMP_INTR as u32 != 0;
    let sequence = half_or_word(message, 8, 4)?;
    Some(match kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK => {
            // Other families describe a role of the interface, for example as a bridge port:
            // leaving the bridge is not leaving the machine.
            if i32::from(*message.get(HEADER_LEN)?) != libc::AF_UNSPEC {
                return Some(Message::Other);
            }
            let index = half_or_word(message, HEADER_LEN + 4, 4)?;
            let flags = half_or_word(message, HEADER_LEN + 8, 4)?;
            if index == 0 || index > i32::MAX as u32 {
                return None;
            }
            let (mtu, mac) = attributes(message.get(HEADER_LEN + IFINFO_LEN..)?)?;
            if kind == libc::RTM_DELLINK {
                Message::Gone { index }
            } else {
                Message::Link {
                    index,
                    flags,
                    mtu,
                    mac,
                    interrupted,
                }
            }
        }
        kind if i32::from(kind) == libc::NLMSG_DONE => Message::Done {
            sequence,
            interrupted,
        },
        kind if i32::from(kind) == libc::NLMSG_ERROR => Message::Error { sequence },
        _ => Message::Other,
    })
}

/// Returns MTU and address from the attributes.
fn attributes(mut rest: &[u8]) -> Option<(Option<u32>, Option<MacAddr>)> {
    let (mut mtu, mut mac) = (None, None);
    while !rest.is_empty() {
        let len = half_or_word(rest, 0, 2)? as usize;
        let kind = half_or_word(rest, 2, 2)? as u16 & ATTRIBUTE_TYPE;
        let value = rest.get(ATTRIBUTE_HEADER_LEN..len)?;
        match kind {
            libc::IFLA_MTU if value.len() == 4 => mtu = half_or_word(value, 0, 4),
            libc::IFLA_MTU => return None,
            libc::IFLA_ADDRESS => mac = <[u8; 6]>::try_from(value).ok().map(MacAddr::from),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((mtu, mac))
}

/// Returns the unsigned integer of 2 or 4 bytes at an offset.
fn half_or_word(bytes: &[u8], at: usize, len: usize) -> Option<u32> {
    match *bytes.get(at..at.checked_add(len)?)? {
        [a, b] => Some(u32::from(u16::from_ne_bytes([a, b]))),
        [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}
