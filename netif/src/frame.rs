//! The Ethernet header: parsing, and printing for traces.

use std::fmt;

use etherparse::{EtherType, Ethernet2HeaderSlice, SingleVlanHeaderSlice};
use pnet::util::MacAddr;

use crate::RawFrame;

/// Length of the two addresses in bytes; the EtherType follows.
const ADDRESSES_LEN: usize = 12;
/// Length of an 802.1Q tag in bytes.
const TAG_LEN: usize = 4;
/// Smallest EtherType; smaller values are the length of an IEEE 802.3 frame.
const FIRST_ETHERTYPE: u16 = 0x0600;

/// A parsed Ethernet II frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthFrame<'a> {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// VLAN id (1–4095) of an 802.1Q tag. A priority tag (id 0) counts as none (W-09).
    pub vlan: Option<u16>,
    /// All bytes from the EtherType on, the EtherType included.
    pub body: &'a [u8],
}

impl EthFrame<'_> {
    /// Returns the EtherType.
    pub fn ethertype(&self) -> u16 {
        match self.body {
            [high, low, ..] => u16::from_be_bytes([*high, *low]),
            // `parse_ethernet` creates no such frame.
            _ => 0,
        }
    }
}

/// Reason why bytes are not an Ethernet II frame with at most one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The bytes end before the EtherType does.
    #[error("{len} bytes are too short for an Ethernet header")]
    TooShort {
        /// Number of bytes.
        len: usize,
    },
    /// A second VLAN tag follows the first, or a service tag (802.1ad) comes first.
    #[error("more than one VLAN tag, or a service tag")]
    StackedTags,
    /// The type field is a length: an IEEE 802.3 frame.
    #[error("IEEE 802.3 frame (length field {length}) instead of Ethernet II")]
    NoEtherType {
        /// Value of the field.
        length: u16,
    },
}

/// Parses an Ethernet II frame that starts with its destination address and has no checksum. One
/// 802.1Q tag may precede the EtherType (see [`RawFrame::parse`] for a tag that the kernel
/// removed).
///
/// # Errors
/// See [`ParseError`]. Never panics.
pub fn parse_ethernet(bytes: &[u8]) -> Result<EthFrame<'_>, ParseError> {
    let too_short = ParseError::TooShort { len: bytes.len() };
    let header = Ethernet2HeaderSlice::from_slice(bytes).map_err(|_| too_short)?;
    let mut ethertype = header.ether_type();
    let mut vlan = None;
    let mut body_at = ADDRESSES_LEN;
    if ethertype == EtherType::VLAN_TAGGED_FRAME {
        let behind = bytes.get(ADDRESSES_LEN + 2..).ok_or(too_short)?;
        let tag = SingleVlanHeaderSlice::from_slice(behind).map_err(|_| too_short)?;
        ethertype = tag.ether_type();
        vlan = Some(tag.vlan_identifier().value()).filter(|&id| id != 0);
        body_at += TAG_LEN;
    }
    match ethertype {
        EtherType::VLAN_TAGGED_FRAME
        | EtherType::PROVIDER_BRIDGING
        | EtherType::VLAN_DOUBLE_TAGGED_FRAME => {
            return Err(ParseError::StackedTags);
        }
        EtherType(length) if length < FIRST_ETHERTYPE => {
            return Err(ParseError::NoEtherType { length });
        }
        _ => {}
    }
    let body = bytes.get(body_at..).ok_or(too_short)?;
    Ok(EthFrame {
        dst: header.destination().into(),
        src: header.source().into(),
        vlan,
        body,
    })
}

impl<'a> RawFrame<'a> {
    /// Parses the frame with the tag that the kernel removed; see [`parse_ethernet`].
    ///
    /// # Errors
    /// As for [`parse_ethernet`]. Two tags count as stacked wherever the outer one is found.
    pub fn parse(&self) -> Result<EthFrame<'a>, ParseError> {
        let mut frame = parse_ethernet(self.bytes)?;
        if let Some(id) = self.vlan.map(|tci| tci & 0x0fff).filter(|&id| id != 0)
            && frame.vlan.replace(id).is_some()
        {
            return Err(ParseError::StackedTags);
        }
        Ok(frame)
    }
}

/// Formats a frame for display: one line with addresses, type and length. The alternate form
/// (`{:#}`) adds its first bytes from the EtherType on, in hexadecimal, sixteen to a line and at
/// most [`Dump::MOST`].
#[derive(Clone, Copy, Debug)]
pub struct Dump<'a>(pub &'a [u8]);

impl Dump<'_> {
    /// Maximum number of bytes printed.
    pub const MOST: usize = 128;
}

impl fmt::Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = match parse_ethernet(self.0) {
            Ok(frame) => {
                write!(
                    f,
                    "{} > {} type {:#06x}",
                    frame.src,
                    frame.dst,
                    frame.ethertype()
                )?;
                if let Some(id) = frame.vlan {
                    write!(f, " vlan {id}")?;
                }
                write!(f, " len {}", self.0.len())?;
                frame.body
            }
            Err(error) => {
                write!(f, "not a frame: {error}")?;
                self.0
            }
        };
        if f.alternate() {
            for (line, bytes) in shown.chunks(16).take(Self::MOST / 16).enumerate() {
                write!(f, "\n  {:04x} ", line * 16)?;
                for byte in bytes {
                    write!(f, " {byte:02x}")?;
                }
            }
            if shown.len() > Self::MOST {
                write!(f, "\n  … {} more", shown.len() - Self::MOST)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameKind;

    const UNTAGGED: &[u8] = &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 0, 7, 1];
    const TAGGED: &[u8] = &[
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x60, 5, 0x88, 0xb5, 0, 7,
    ];

    #[test]
    fn untagged_frame() {
        let frame = parse_ethernet(UNTAGGED).unwrap();
        assert_eq!(frame.dst, MacAddr::new(2, 0, 0, 0, 0, 1));
        assert_eq!(frame.src, MacAddr::new(2, 0, 0, 0, 0, 2));
        assert_eq!((frame.vlan, frame.body), (None, &UNTAGGED[12..]));
        assert_eq!(frame.ethertype(), 0x88b5);
    }

    #[test]
    fn one_tag_and_a_priority_tag() {
        let frame = parse_ethernet(TAGGED).unwrap();
        assert_eq!((frame.vlan, frame.body), (Some(5), &TAGGED[16..]));
        let mut priority = TAGGED.to_vec();
        priority[15] = 0;
        let frame = parse_ethernet(&priority).unwrap();
        assert_eq!((frame.vlan, frame.body), (None, &TAGGED[16..]));
    }

    #[test]
    fn tag_removed_by_the_kernel() {
        let raw = |bytes, vlan| RawFrame {
            bytes,
            kind: FrameKind::Host,
            truncated: false,
            vlan,
        };
        assert_eq!(raw(UNTAGGED, None).parse().unwrap().vlan, None);
        assert_eq!(raw(UNTAGGED, Some(0x6005)).parse().unwrap().vlan, Some(5));
        assert_eq!(raw(UNTAGGED, Some(0x6000)).parse().unwrap().vlan, None);
        assert_eq!(raw(TAGGED, Some(0x6000)).parse().unwrap().vlan, Some(5));
        assert_eq!(
            raw(TAGGED, Some(0x6007)).parse(),
            Err(ParseError::StackedTags)
        );
    }

    #[test]
    fn stacked_tags_and_lengths_are_refused() {
        for outer in [[0x81, 0], [0x88, 0xa8], [0x91, 0]] {
            let mut bytes = UNTAGGED[..12].to_vec();
            bytes.extend(outer);
            bytes.extend([0, 5]);
            bytes.extend(&TAGGED[12..]);
            assert_eq!(parse_ethernet(&bytes), Err(ParseError::StackedTags));
        }
        let mut bytes = UNTAGGED.to_vec();
        bytes[12..14].copy_from_slice(&[0, 46]);
        assert_eq!(
            parse_ethernet(&bytes),
            Err(ParseError::NoEtherType { length: 46 })
        );
    }

    #[test]
    fn every_length_is_parsed_or_refused() {
        for whole in [UNTAGGED, TAGGED] {
            let header = if whole == TAGGED { 18 } else { 14 };
            for len in 0..=whole.len() {
                let result = parse_ethernet(&whole[..len]);
                let expected = (len < header).then_some(ParseError::TooShort { len });
                assert_eq!(result.err(), expected, "{len} bytes");
            }
        }
    }

    #[test]
    fn printed() {
        assert_eq!(
            Dump(TAGGED).to_string(),
            "02:00:00:00:00:02 > 02:00:00:00:00:01 type 0x88b5 vlan 5 len 20"
        );
        let lines = format!("{:#}", Dump(UNTAGGED));
        assert_eq!(lines.lines().nth(1), Some("  0000  88 b5 00 07 01"));
        assert_eq!(
            Dump(&[1, 2]).to_string(),
            "not a frame: 2 bytes are too short for an Ethernet header"
        );
        let long = [UNTAGGED, &[0; 1000]].concat();
        let lines = format!("{:#}", Dump(&long));
        assert_eq!(lines.lines().count(), 1 + 8 + 1);
        assert_eq!(lines.lines().last(), Some("  … 877 more"));
    }
}
