//! EDP datagrams (section 9).

use super::header::{FLAG_CTL, Header};
use super::{Reader, WireError};
use crate::api::EdpKind;
use alloc::vec::Vec;

/// Maximum length of a name in an INFO_REPLY, in bytes.
pub const MAX_NAME: usize = 64;

/// A checked EDP frame.
#[derive(Clone, Copy, Debug)]
pub struct EdpFrame<'a> {
    /// Data or control type.
    pub kind: EdpKind,
    /// The bytes after the control type byte, or all for data.
    pub body: &'a [u8],
}

impl<'a> EdpFrame<'a> {
    /// Checks flags, length and control type. `rest` is the frame after the header.
    pub fn parse(header: &Header, rest: &'a [u8]) -> Result<Self, WireError> {
        if header.flags & !FLAG_CTL != 0 {
            return Err(WireError::ReservedFlag); // W-05
        }
        let (payload, _) = header.split_payload(rest)?;
        if header.flags & FLAG_CTL == 0 {
            return Ok(EdpFrame {
                kind: EdpKind::Data,
                body: payload,
            });
        }
        let (&control, body) = payload.split_first().ok_or(WireError::Control)?;
        let kind = match (control, body.len()) {
            (1, _) => EdpKind::EchoRequest,
            (2, _) => EdpKind::EchoReply,
            (3, 0) => EdpKind::InfoRequest,
            (4, _) => EdpKind::InfoReply,
            (5, 2) => EdpKind::PortQuery, // W-76
            (6, 3) => EdpKind::PortReply,
            _ => return Err(WireError::Control),
        };
        Ok(EdpFrame { kind, body })
    }
}

/// The body of an INFO_REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoReply<'a> {
    /// Set-up version of the node.
    pub version: u8,
    /// Maximum payload that the node can receive.
    pub max_payload: u16,
    /// Feature bits known to the node.
    pub features: u32,
    /// Differs at every start of the service.
    pub incarnation: u64,
    /// The node's name, at most 64 bytes.
    pub name: &'a str,
}

impl<'a> InfoReply<'a> {
    /// Parses a body; bytes after the name are ignored.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        Self::read(body).ok_or(WireError::Control)
    }

    fn read(body: &'a [u8]) -> Option<Self> {
        let mut fields = Reader(body);
        Some(InfoReply {
            version: fields.u8()?,
            max_payload: fields.u16()?,
            features: fields.u32()?,
            incarnation: fields.u64()?,
            name: {
                let len = usize::from(fields.u8()?);
                let name = fields.bytes(len).filter(|name| name.len() <= MAX_NAME)?;
                core::str::from_utf8(name).ok()?
            },
        })
    }

    /// Appends the body to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(self.version);
        out.extend(self.max_payload.to_be_bytes());
        out.extend(self.features.to_be_bytes());
        out.extend(self.incarnation.to_be_bytes());
        out.push(u8::try_from(self.name.len()).unwrap_or(0));
        out.extend(self.name.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::Seq;

    const INFO: [u8; 19] = [
        1, 0x23, 0x1d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 3, b'n', b'0', b'7',
    ];

    #[test]
    fn info_reply_both_directions_on_literal_bytes() {
        let value = InfoReply {
            version: 1,
            max_payload: 8989,
            features: 0,
            incarnation: 0x1234,
            name: "n07",
        };
        assert_eq!(InfoReply::parse(&INFO), Ok(value));
        let mut out = Vec::new();
        value.emit(&mut out);
        assert_eq!(out, INFO);
        for len in 0..INFO.len() {
            assert_eq!(InfoReply::parse(&INFO[..len]), Err(WireError::Control));
        }
        let mut bad = INFO;
        bad[16] = 0xff;
        assert_eq!(InfoReply::parse(&bad), Err(WireError::Control), "not UTF-8");
    }

    #[test]
    fn control_types_are_checked() {
        let parse = |flags, rest: &'static [u8]| {
            let len = rest.len() as u16;
            let header = Header {
                packet_type: 0,
                dst_port: 0,
                src_port: 2,
                seq: Seq(0),
                ack: Seq(0),
                len,
                flags,
            };
            EdpFrame::parse(&header, rest).map(|f| (f.kind, f.body))
        };
        assert_eq!(parse(0, &[1, 2]), Ok((EdpKind::Data, &[1u8, 2][..])));
        assert_eq!(parse(1, &[1, 2]), Ok((EdpKind::EchoRequest, &[2u8][..])));
        assert_eq!(parse(1, &[2]), Ok((EdpKind::EchoReply, &[][..])));
        assert_eq!(parse(1, &[3]), Ok((EdpKind::InfoRequest, &[][..])));
        assert_eq!(parse(1, &[3, 0]), Err(WireError::Control));
        assert_eq!(parse(1, &[5]), Err(WireError::Control));
        assert_eq!(
            parse(1, &[5, 3, 232]),
            Ok((EdpKind::PortQuery, &[3u8, 232][..]))
        );
        assert_eq!(parse(1, &[5, 3, 232, 0]), Err(WireError::Control));
        assert_eq!(
            parse(1, &[6, 3, 232, 1]),
            Ok((EdpKind::PortReply, &[3u8, 232, 1][..]))
        );
        assert_eq!(parse(1, &[6, 3, 232]), Err(WireError::Control));
        assert_eq!(parse(1, &[7]), Err(WireError::Control));
        assert_eq!(parse(1, &[]), Err(WireError::Control));
        assert_eq!(parse(2, &[1]), Err(WireError::ReservedFlag));
    }
}
