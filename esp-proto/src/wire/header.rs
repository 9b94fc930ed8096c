//! The 13-byte header (W-01).

use super::WireError;
use crate::addr::Port;
use crate::seq::Seq;

/// Length of the header in bytes, EtherType included.
pub const HEADER_LEN: usize = 13;

/// Opens a connection.
pub const FLAG_SYN: u8 = 0x01;
/// The ack sequence is valid.
pub const FLAG_ACK: u8 = 0x02;
/// No more data.
pub const FLAG_FIN: u8 = 0x04;
/// Ends the connection at once.
pub const FLAG_RST: u8 = 0x08;
/// An extension block follows the payload.
pub const FLAG_EXT: u8 = 0x10;
/// Probe: requests an immediate acknowledgement, carries no data.
pub const FLAG_PRB: u8 = 0x20;
/// On data: requests an acknowledgement at the end of the batch it arrives in (W-34).
pub const FLAG_ASK: u8 = 0x40;
/// EDP: the payload begins with a control type byte.
pub const FLAG_CTL: u8 = 0x01;

/// The header fields, unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Header {
    /// EtherType.
    pub packet_type: u16,
    pub dst_port: Port,
    pub src_port: Port,
    pub seq: Seq,
    pub ack: Seq,
    /// Payload bytes.
    pub len: u16,
    /// Flags, `FLAG_*`.
    pub flags: u8,
}

impl Header {
    /// Splits a body into header and rest. The only error is [`WireError::Runt`] (W-02).
    pub fn parse(body: &[u8]) -> Result<(Header, &[u8]), WireError> {
        let (bytes, rest) = body
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(WireError::Runt)?;
        let [t0, t1, d0, d1, s0, s1, q0, q1, a0, a1, l0, l1, flags] = *bytes;
        let header = Header {
            packet_type: u16::from_be_bytes([t0, t1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            src_port: u16::from_be_bytes([s0, s1]),
            seq: Seq(u16::from_be_bytes([q0, q1])),
            ack: Seq(u16::from_be_bytes([a0, a1])),
            len: u16::from_be_bytes([l0, l1]),
            flags,
        };
        Ok((header, rest))
    }

    /// Returns the 13 bytes of the header.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let [t0, t1] = self.packet_type.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [s0, s1] = self.src_port.to_be_bytes();
        let [q0, q1] = self.seq.0.to_be_bytes();
        let [a0, a1] = self.ack.0.to_be_bytes();
        let [l0, l1] = self.len.to_be_bytes();
        [t0, t1, d0, d1, s0, s1, q0, q1, a0, a1, l0, l1, self.flags]
    }

    /// Splits the rest of a body into payload and the bytes after it. Returns [`WireError::Length`]
    /// when the data length exceeds the frame (W-03).
    pub fn split_payload<'a>(&self, rest: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), WireError> {
        rest.split_at_checked(usize::from(self.len))
            .ok_or(WireError::Length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 13] = [
        0x88,
        0xb5,
        0x04,
        0x01,
        0x80,
        0x02,
        0x12,
        0x34,
        0x56,
        0x78,
        0x00,
        0x03,
        FLAG_ACK | FLAG_EXT,
    ];

    #[test]
    fn both_directions_on_literal_bytes() {
        let (header, rest) = Header::parse(&BYTES).unwrap();
        assert!(rest.is_empty());
        assert_eq!(
            header,
            Header {
                packet_type: 0x88b5,
                dst_port: 0x0401,
                src_port: 0x8002,
                seq: Seq(0x1234),
                ack: Seq(0x5678),
                len: 3,
                flags: 0x12,
            }
        );
        assert_eq!(header.emit(), BYTES);
    }

    /// W-02.
    #[test]
    fn a_runt_of_every_length_is_refused() {
        for len in 0..HEADER_LEN {
            assert_eq!(Header::parse(&BYTES[..len]), Err(WireError::Runt));
        }
    }

    #[test]
    fn length_beyond_the_frame_is_refused() {
        let (header, _) = Header::parse(&BYTES).unwrap();
        assert_eq!(header.split_payload(&[1, 2]), Err(WireError::Length));
        assert_eq!(
            header.split_payload(&[1, 2, 3, 4]),
            Ok((&[1u8, 2, 3][..], &[4u8][..]))
        );
    }
}
