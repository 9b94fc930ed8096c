//! ESP frames: their kinds and what each may carry (W-11 to W-13).

use super::header::{FLAG_ACK, FLAG_ASK, FLAG_EXT, FLAG_FIN, FLAG_PRB, FLAG_RST, FLAG_SYN, Header};
use super::{Ext, WireError};
use crate::addr::Port;
use crate::seq::Seq;

/// Type of a frame, determined by its flags and data length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// SYN: payload is a set-up block.
    Syn,
    /// SYN+ACK: payload is a set-up block.
    SynAck,
    /// ACK with data; uses one sequence.
    Data,
    /// ACK without data: a bare acknowledgement.
    Ack,
    /// ACK+FIN; uses one sequence.
    Fin,
    /// ACK+PRB; the payload is filler.
    Probe,
    /// RST with or without ACK: payload is a reset block.
    Rst,
    /// SYN+PRB: payload is a move block.
    Move,
}

/// A checked ESP frame that borrows from the received bytes.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct EspFrame<'a> {
    /// Destination port, never 0.
    pub dst_port: Port,
    /// Source port, never 0.
    pub src_port: Port,
    pub seq: Seq,
    /// Ack sequence; undefined in SYN, in MOVE and in RST without ACK.
    pub ack: Seq,
    pub kind: FrameType,
    /// Data that requests an acknowledgement (W-34).
    pub asks: bool,
    /// The payload, exactly as long as the header says.
    pub payload: &'a [u8],
    /// Extension block, if present.
    pub ext: Option<Ext<'a>>,
}

impl<'a> EspFrame<'a> {
    /// Checks everything that does not depend on a connection. `rest` is the frame after the
    /// header.
    pub fn parse(header: &Header, rest: &'a [u8]) -> Result<Self, WireError> {
        let kind = kind(header)?;
        let (payload, after_payload) = header.split_payload(rest)?;
        if header.dst_port == 0 || header.src_port == 0 {
            return Err(WireError::PortZero); // W-15
        }
        let ext = if header.flags & FLAG_EXT != 0 {
            Some(Ext::parse(after_payload)?)
        } else {
            None
        };
        Ok(EspFrame {
            dst_port: header.dst_port,
            src_port: header.src_port,
            seq: header.seq,
            ack: header.ack,
            kind,
            asks: header.flags & FLAG_ASK != 0,
            payload,
            ext,
        })
    }
}

/// Determines the kind of a frame from its header (W-05, W-11, W-12, W-13, W-101).
fn kind(header: &Header) -> Result<FrameType, WireError> {
    const ALL: u8 = FLAG_SYN | FLAG_ACK | FLAG_FIN | FLAG_RST | FLAG_EXT | FLAG_PRB | FLAG_ASK;
    const SYN_ACK: u8 = FLAG_SYN | FLAG_ACK;
    const ACK_FIN: u8 = FLAG_ACK | FLAG_FIN;
    const ACK_ASK: u8 = FLAG_ACK | FLAG_ASK;
    const ACK_PRB: u8 = FLAG_ACK | FLAG_PRB;
    const RST_ACK: u8 = FLAG_RST | FLAG_ACK;
    const SYN_PRB: u8 = FLAG_SYN | FLAG_PRB;
    if header.flags & !ALL != 0 {
        return Err(WireError::ReservedFlag);
    }
    let with_ext = header.flags & FLAG_EXT != 0;
    let kind = match header.flags & !FLAG_EXT {
        FLAG_ACK | ACK_ASK if header.len > 0 => FrameType::Data,
        FLAG_ACK => FrameType::Ack,
        ACK_FIN if header.len > 0 => return Err(WireError::FinLength),
        ACK_FIN => FrameType::Fin,
        ACK_PRB => FrameType::Probe,
        FLAG_SYN if !with_ext => FrameType::Syn,
        SYN_ACK if !with_ext => FrameType::SynAck,
        FLAG_RST | RST_ACK if !with_ext => FrameType::Rst,
        SYN_PRB if !with_ext => FrameType::Move,
        _ => return Err(WireError::FlagCombination),
    };
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: u8, len: u16, rest: &[u8]) -> Result<FrameType, WireError> {
        let header = Header {
            packet_type: 0,
            dst_port: 1,
            src_port: 2,
            seq: Seq(0),
            ack: Seq(0),
            len,
            flags,
        };
        EspFrame::parse(&header, rest).map(|f| f.kind)
    }

    #[test]
    fn exactly_the_listed_combinations_are_accepted() {
        let listed = [
            0x01u8, 0x03, 0x02, 0x06, 0x22, 0x08, 0x0a, 0x12, 0x16, 0x32, 0x21,
        ];
        for flags in 0..=255u8 {
            let got = parse(flags, 0, &[2, 0]);
            if flags & 0x80 != 0 {
                assert_eq!(got, Err(WireError::ReservedFlag), "{flags:#x}");
            } else if listed.contains(&flags) {
                assert!(got.is_ok(), "{flags:#x}");
            } else {
                assert_eq!(got, Err(WireError::FlagCombination), "{flags:#x}");
            }
        }
    }

    #[test]
    fn data_and_bare_acknowledgement_differ_by_length() {
        assert_eq!(parse(FLAG_ACK, 0, &[]), Ok(FrameType::Ack));
        assert_eq!(parse(FLAG_ACK, 1, &[7]), Ok(FrameType::Data));
        assert_eq!(parse(FLAG_ACK, 2, &[7]), Err(WireError::Length));
        assert_eq!(
            parse(FLAG_ACK | FLAG_FIN, 1, &[7]),
            Err(WireError::FinLength)
        );
    }

    #[test]
    fn port_zero_is_refused() {
        let mut header = Header {
            packet_type: 0,
            dst_port: 0,
            src_port: 2,
            seq: Seq(0),
            ack: Seq(0),
            len: 0,
            flags: 2,
        };
        assert_eq!(
            EspFrame::parse(&header, &[]).err(),
            Some(WireError::PortZero)
        );
        (header.dst_port, header.src_port) = (1, 0);
        assert_eq!(
            EspFrame::parse(&header, &[]).err(),
            Some(WireError::PortZero)
        );
    }

    #[test]
    fn the_extension_follows_the_payload() {
        let header = Header {
            packet_type: 0,
            dst_port: 1,
            src_port: 2,
            seq: Seq(0),
            ack: Seq(0),
            len: 2,
            flags: FLAG_ACK | FLAG_EXT,
        };
        let frame = EspFrame::parse(&header, &[9, 9, 4, 1, 0, 5, 0, 0]).unwrap();
        assert_eq!(frame.payload, [9, 9]);
        assert_eq!(frame.ext.unwrap().credit, Some(Seq(5)));
        assert_eq!(
            EspFrame::parse(&header, &[9, 9]).err(),
            Some(WireError::Extension)
        );
    }
}
