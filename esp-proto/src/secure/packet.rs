//! Layout of protected packets and set-up packets (W-140, W-143).

use super::Suite;
use super::keys::KeyId;
use crate::wire::{HEADER_LEN, Header, put};

/// Flag of a protected packet.
pub const FLAG_SEC: u8 = 0x80;
/// Length of a tag in bytes.
pub const TAG_LEN: usize = 16;
/// Offset of the content of a packet: after the header, session and counter.
pub const DATA_AT: usize = HEADER_LEN + 4 + 8;
/// Bytes that protection adds to a packet.
pub const OVERHEAD: usize = DATA_AT - HEADER_LEN + TAG_LEN;
/// Length of a set-up packet, starting with the packet type.
pub const SETUP_PACKET: usize = SETUP_TAG_AT + 32;

/// Session number of set-up packets.
const SETUP: u32 = 0;
/// Session number of broadcasts.
pub(super) const GROUP: u32 = 1;
/// Offset of a broadcast's content: key id and run of the sender precede it.
pub(super) const GROUP_DATA_AT: usize = DATA_AT + 4 + 16;
/// Offset of the flags in the header.
const FLAGS_AT: usize = HEADER_LEN - 1;
const SETUP_TAG_AT: usize = HEADER_LEN + 4 + 1 + 1 + 4 + 16 + 8 + 16 + 16;

/// A received packet by its form.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Form<'a> {
    /// No protection.
    Plain,
    /// Set-up packet: the bytes that its tag protects, and the tag.
    SetUp(SetUpPacket, &'a [u8], &'a [u8]),
    /// Broadcast.
    Group {
        counter: u64,
        key: KeyId,
        boot: [u8; 16],
    },
    /// Packet of a session.
    Data { session: u32, counter: u64 },
    /// None of these.
    Malformed,
}

/// Fields of a protected packet that are readable without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protected {
    /// Set-up packet.
    #[allow(missing_docs)]
    SetUp {
        step: Step,
        suite: Suite,
        key: KeyId,
    },
    /// Broadcast.
    #[allow(missing_docs)]
    Broadcast { counter: u64, key: KeyId },
    /// Packet of a session.
    #[allow(missing_docs)]
    Packet { session: u32, counter: u64 },
}

impl Protected {
    /// Parses a packet, which starts with the packet type. Returns `None` if it is not protected,
    /// or has no valid layout (W-141).
    pub fn parse(body: &[u8]) -> Option<Protected> {
        match parse(body) {
            Form::SetUp(
                SetUpPacket {
                    step, suite, key, ..
                },
                ..,
            ) => Some(Protected::SetUp { step, suite, key }),
            Form::Group { counter, key, .. } => Some(Protected::Broadcast { counter, key }),
            Form::Data { session, counter } if session >> 31 == 1 => {
                Some(Protected::Packet { session, counter })
            }
            Form::Data { .. } | Form::Plain | Form::Malformed => None,
        }
    }
}

/// Recognizes the form of a packet, which starts with the packet type.
pub(super) fn parse(body: &[u8]) -> Form<'_> {
    match body.get(FLAGS_AT) {
        Some(flags) if flags & FLAG_SEC != 0 => {}
        _ => return Form::Plain,
    }
    let rest = body.get(HEADER_LEN..).unwrap_or_default();
    parse_protected(body, rest).unwrap_or(Form::Malformed)
}

fn parse_protected<'a>(body: &'a [u8], rest: &'a [u8]) -> Option<Form<'a>> {
    let (session, rest) = rest.split_first_chunk()?;
    let session = u32::from_be_bytes(*session);
    if session == SETUP {
        let (signed, tag) = body.get(..SETUP_PACKET)?.split_at_checked(SETUP_TAG_AT)?;
        return Some(Form::SetUp(SetUpPacket::parse(rest)?, signed, tag));
    }
    let (counter, rest) = rest.split_first_chunk()?;
    let counter = u64::from_be_bytes(*counter);
    if session == GROUP {
        let (key, rest) = rest.split_first_chunk()?;
        let (boot, rest) = rest.split_first_chunk()?;
        let (key, boot) = (KeyId(*key), *boot);
        let form = Form::Group { counter, key, boot };
        return (rest.len() >= TAG_LEN).then_some(form);
    }
    let form = Form::Data { session, counter };
    (rest.len() >= TAG_LEN).then_some(form)
}

/// Writes session and counter into a packet, and sets its flag.
pub(super) fn emit(packet: &mut [u8], session: u32, counter: u64) {
    if let Some(flags) = packet.get_mut(FLAGS_AT) {
        *flags |= FLAG_SEC;
    }
    put(packet, HEADER_LEN, &session.to_be_bytes());
    put(packet, HEADER_LEN + 4, &counter.to_be_bytes());
}

/// Clears the flag of a packet whose protection was removed.
pub(super) fn clear_flag(packet: &mut [u8]) {
    if let Some(flags) = packet.get_mut(FLAGS_AT) {
        *flags &= !FLAG_SEC;
    }
}

/// Step of the set-up of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Proposes a session.
    Hello = 1,
    /// Answers a HELLO.
    Accept = 2,
}

/// Fields of a set-up packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetUpPacket {
    pub(super) step: Step,
    pub(super) suite: Suite,
    pub(super) key: KeyId,
    /// Random number of the sender's run.
    pub(super) boot: [u8; 16],
    /// Counter of the sender's next broadcast.
    pub(super) group: u64,
    /// Nonces of the side that sent HELLO, and of the other (0 in a HELLO).
    pub(super) nonces: [u8; 32],
}

impl SetUpPacket {
    fn parse(rest: &[u8]) -> Option<SetUpPacket> {
        let ([step, suite], rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (boot, rest) = rest.split_first_chunk()?;
        let (group, rest) = rest.split_first_chunk()?;
        let (nonces, _) = rest.split_first_chunk()?;
        Some(SetUpPacket {
            step: match step {
                1 => Step::Hello,
                2 => Step::Accept,
                _ => return None,
            },
            suite: Suite::from_bits(*suite)?,
            key: KeyId(*key),
            boot: *boot,
            group: u64::from_be_bytes(*group),
            nonces: *nonces,
        })
    }

    /// Returns the packet without its tag, which `sign` makes of the bytes before it.
    pub(super) fn emit(
        &self,
        edp_ethertype: u16,
        sign: impl FnOnce(&[u8]) -> [u8; 32],
    ) -> [u8; SETUP_PACKET] {
        let header = Header {
            packet_type: edp_ethertype,
            dst_port: 0,
            src_port: 0,
            seq: crate::Seq(0),
            ack: crate::Seq(0),
            len: 0,
            flags: FLAG_SEC,
        };
        let mut out = [0; SETUP_PACKET];
        let mut at = 0;
        for part in [
            &header.emit()[..],
            &SETUP.to_be_bytes(),
            &[self.step as u8, self.suite.0],
            &self.key.0,
            &self.boot,
            &self.group.to_be_bytes(),
            &self.nonces,
        ] {
            put(&mut out, at, part);
            at += part.len();
        }
        let (signed, _) = out.split_at(SETUP_TAG_AT);
        let tag = sign(signed);
        put(&mut out, SETUP_TAG_AT, &tag);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> SetUpPacket {
        SetUpPacket {
            step: Step::Hello,
            suite: Suite::ENCRYPT,
            key: KeyId([1, 2, 3, 4]),
            boot: [5; 16],
            group: 6,
            nonces: core::array::from_fn(|at| at as u8),
        }
    }

    #[test]
    fn a_set_up_packet_is_read_as_it_was_written() {
        let bytes = hello().emit(0x88b6, |signed| {
            assert_eq!(signed.len(), 79);
            [9; 32]
        });
        let Form::SetUp(parsed, signed, tag) = parse(&bytes) else {
            panic!("not a set-up packet");
        };
        assert_eq!(parsed, hello());
        assert_eq!((signed, tag), (&bytes[..79], &[9; 32][..]));
        for len in HEADER_LEN..SETUP_PACKET {
            assert_eq!(parse(&bytes[..len]), Form::Malformed, "{len} bytes");
        }
        for (at, value) in [(17, 0), (17, 3), (18, 5), (18, 0xff)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(parse(&wrong), Form::Malformed, "byte {at} is {value}");
        }
    }

    #[test]
    fn form_follows_from_flag_and_session() {
        let mut packet = [0u8; 80];
        assert_eq!(parse(&packet), Form::Plain);
        assert_eq!(parse(&[]), Form::Plain);
        emit(&mut packet, 0x8000_0001, 7);
        let (session, counter) = (0x8000_0001, 7);
        assert_eq!(parse(&packet), Form::Data { session, counter });
        assert_eq!(parse(&packet[..40]), Form::Malformed);
        let seen = Protected::Packet { session, counter };
        assert_eq!(Protected::parse(&packet), Some(seen));
        emit(&mut packet, 2, 7);
        assert_eq!(Protected::parse(&packet), None, "no session has number 2");
        emit(&mut packet, GROUP, 7);
        assert!(matches!(parse(&packet), Form::Group { counter: 7, .. }));
        clear_flag(&mut packet);
        assert_eq!(parse(&packet), Form::Plain);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Protected::parse(&bytes);
            if let Some(flags) = bytes.get_mut(FLAGS_AT) {
                *flags |= FLAG_SEC;
            }
            Protected::parse(&bytes);
        }
    }
}
