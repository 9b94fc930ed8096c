//! EDP datagrams (section 9).

use super::header::{FLAG_CTL, Header};
use super::{WireError, put, take};
use crate::api::EdpKind;

/// Maximum length of a name in an INFO_REPLY, in bytes.
pub const MAX_NAME: usize = 64;
const INFO_FIXED: usize = 16;

/// The control type byte of an EDP frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControlType {
    /// 1.
    EchoRequest = 1,
    /// 2.
    EchoReply = 2,
    /// 3.
    InfoRequest = 3,
    /// 4.
    InfoReply = 4,
    /// 5.
    PortQuery = 5,
    /// 6.
    PortReply = 6,
}

impl ControlType {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => ControlType::EchoRequest,
            2 => ControlType::EchoReply,
            3 => ControlType::InfoRequest,
            4 => ControlType::InfoReply,
            5 => ControlType::PortQuery,
            6 => ControlType::PortReply,
            _ => return None,
        })
    }
}

impl EdpKind {
    /// Returns the control type, or `None` for data.
    pub fn control_type(self) -> Option<ControlType> {
        match self {
            EdpKind::Data => None,
            EdpKind::EchoRequest => Some(ControlType::EchoRequest),
            EdpKind::EchoReply => Some(ControlType::EchoReply),
            EdpKind::InfoRequest => Some(ControlType::InfoRequest),
            EdpKind::InfoReply => Some(ControlType::InfoReply),
            EdpKind::PortQuery => Some(ControlType::PortQuery),
            EdpKind::PortReply => Some(ControlType::PortReply),
        }
    }
}

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
        let (first, body) = payload.split_first().ok_or(WireError::Control)?;
        let kind = match ControlType::from_byte(*first).ok_or(WireError::Control)? {
            ControlType::EchoRequest => EdpKind::EchoRequest,
            ControlType::EchoReply => EdpKind::EchoReply,
            ControlType::InfoRequest if body.is_empty() => EdpKind::InfoRequest,
            ControlType::InfoRequest => return Err(WireError::Control),
            ControlType::InfoReply => EdpKind::InfoReply,
            ControlType::PortQuery if body.len() == 2 => EdpKind::PortQuery,
            ControlType::PortReply if body.len() == 3 => EdpKind::PortReply,
            // W-76
            ControlType::PortQuery | ControlType::PortReply => return Err(WireError::Control),
        };
        Ok(EdpFrame { kind, body })
    }
}

/// The body of an INFO_REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoReply<'a> {
    /// Set-up version of the node.
    pub version: u8,
    /// Largest payload the node can receive.
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
        let (fixed, rest) = take::<INFO_FIXED>(body).ok_or(WireError::Control)?;
        let [
            version,
            m0,
            m1,
            f0,
            f1,
            f2,
            f3,
            i0,
            i1,
            i2,
            i3,
            i4,
            i5,
            i6,
            i7,
            name_len,
        ] = *fixed;
        let name = rest
            .get(..usize::from(name_len))
            .filter(|n| n.len() <= MAX_NAME)
            .ok_or(WireError::Control)?;
        Ok(InfoReply {
            version,
            max_payload: u16::from_be_bytes([m0, m1]),
            features: u32::from_be_bytes([f0, f1, f2, f3]),
            incarnation: u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]),
            name: core::str::from_utf8(name).map_err(|_| WireError::Control)?,
        })
    }

    /// Returns the number of bytes that `emit` writes.
    pub fn emit_len(&self) -> usize {
        INFO_FIXED + self.name.len()
    }

    /// Writes the body at the front of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &[self.version]);
        put(out, 1, &self.max_payload.to_be_bytes());
        put(out, 3, &self.features.to_be_bytes());
        put(out, 7, &self.incarnation.to_be_bytes());
        put(out, 15, &[u8::try_from(self.name.len()).unwrap_or(0)]);
        put(out, INFO_FIXED, self.name.as_bytes());
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
        let mut out = [0u8; INFO.len()];
        assert_eq!(value.emit_len(), INFO.len());
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
