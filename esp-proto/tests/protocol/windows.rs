//! Every parser of the wire format on every value of every two adjacent bytes of every kind of
//! packet: none panics, and what is accepted keeps its meaning when it is emitted and parsed again.

use crate::vectors::{EDP, ESP, rows};
use esp_proto::wire::*;
use esp_proto::*;
use std::hint::black_box;

/// Meaning of an accepted packet.
#[derive(Debug, PartialEq)]
enum Body<'a> {
    Bytes(FrameType, &'a [u8]),
    SetUp(SetUp<'a>),
    Reset(Reset),
    Retry(Retry),
    Move(Move),
    Datagram(EdpKind, &'a [u8]),
    Info(InfoReply<'a>),
}

type Packet<'a> = (Header, Body<'a>, Option<Ext<'a>>);

fn parse(bytes: &[u8]) -> Result<Packet<'_>, WireError> {
    let (header, rest) = Header::parse(bytes)?;
    if header.packet_type != ESP {
        let datagram = EdpFrame::parse(&header, rest)?;
        let body = match datagram.kind {
            EdpKind::InfoReply => Body::Info(InfoReply::parse(datagram.body)?),
            kind => Body::Datagram(kind, datagram.body),
        };
        return Ok((header, body, None));
    }
    let frame = EspFrame::parse(&header, rest)?;
    let body = match frame.kind {
        FrameType::Syn | FrameType::SynAck => Body::SetUp(SetUp::parse(frame.payload)?),
        FrameType::Rst => match Retry::parse(frame.payload) {
            Some(retry) => Body::Retry(retry?),
            None => Body::Reset(Reset::parse(frame.payload)?),
        },
        FrameType::Move => Body::Move(Move::parse(frame.payload)?),
        kind => Body::Bytes(kind, frame.payload),
    };
    Ok((header, body, frame.ext))
}

/// Emits the packet with the length of its own body: bytes after a block are not kept.
fn emit((header, body, ext): &Packet<'_>, out: &mut Vec<u8>) {
    let mut block = [0; MAX_SETUP];
    let payload: &[u8] = match body {
        Body::Bytes(_, bytes) => bytes,
        Body::SetUp(set_up) => {
            let len = set_up.emit(&mut block);
            &block[..len]
        }
        Body::Reset(reset) => {
            let len = reset.emit(&mut block);
            &block[..len]
        }
        Body::Retry(retry) => {
            let len = retry.emit(&mut block);
            &block[..len]
        }
        Body::Move(moving) => {
            let len = moving.emit(&mut block);
            &block[..len]
        }
        Body::Datagram(..) | Body::Info(_) => &[],
    };
    let len = u16::try_from(payload.len()).expect("a short payload");
    out.clear();
    out.extend(Header { len, ..*header }.emit());
    out.extend_from_slice(payload);
    match body {
        Body::Datagram(EdpKind::Data, bytes) => out.extend_from_slice(bytes),
        Body::Datagram(kind, bytes) => {
            out.push(*kind as u8);
            out.extend_from_slice(bytes);
        }
        Body::Info(info) => {
            out.push(EdpKind::InfoReply as u8);
            info.emit(out);
        }
        _ => {}
    }
    if header.packet_type != ESP {
        let len = u16::try_from(out.len() - HEADER_LEN).expect("a short datagram");
        out[..HEADER_LEN].copy_from_slice(&Header { len, ..*header }.emit());
    }
    if let Some(ext) = ext {
        let mut block = [0; MAX_EXT];
        let len = ext.emit(&mut block);
        out.extend_from_slice(&block[..len]);
    }
}

#[test]
fn parsers_accept_only_what_keeps_its_meaning() {
    let vectors = [rows("V-"), rows("D-"), rows("S-")].concat();
    assert!(vectors.len() > 40);
    let (mut accepted, mut out) = (0u64, Vec::new());
    for (id, _, mut bytes) in vectors {
        // As padding of Ethernet, and for lengths and bitmaps that grow.
        bytes.resize(bytes.len() + 4, 0);
        for at in 0..bytes.len() - 1 {
            let window = [bytes[at], bytes[at + 1]];
            for value in 0..=u16::MAX {
                bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
                black_box(secure::Protected::parse(&bytes));
                let Ok(packet) = parse(&bytes) else { continue };
                if ![ESP, EDP].contains(&packet.0.packet_type) {
                    continue;
                }
                accepted += 1;
                emit(&packet, &mut out);
                let again = parse(&out);
                let is_kept = again.as_ref().is_ok_and(|(header, body, ext)| {
                    let len = header.len;
                    (*header, body, ext) == (Header { len, ..packet.0 }, &packet.1, &packet.2)
                });
                assert!(is_kept, "{id} at {at}: {packet:?}, then {again:?}");
            }
            bytes[at..at + 2].copy_from_slice(&window);
        }
    }
    assert!(accepted > 10_000_000, "{accepted}");
}
