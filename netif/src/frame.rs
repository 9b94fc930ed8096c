//! The Ethernet header.

use etherparse::{EtherType, Ethernet2HeaderSlice, SingleVlanHeaderSlice};
use pnet::util::MacAddr;

/// Length of the two addresses in bytes; the EtherType follows.
const ADDRESSES_LEN: usize = 12;
/// Length of an 802.1Q tag in bytes.
const TAG_LEN: usize = 4;
/// Minimum EtherType; smaller values are the length of an IEEE 802.3 frame.
const MIN_ETHERTYPE: u16 = 0x0600;

/// A parsed Ethernet II frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthFrame<'a> {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// VLAN id (1–4095) of an 802.1Q tag. A priority tag (id 0) counts as none (W-09).
    pub vlan: Option<u16>,
    /// The EtherType and all bytes after it.
    pub body: &'a [u8],
}

/// Parses an Ethernet II frame that starts with its destination address and has no checksum. One
/// 802.1Q tag may precede the EtherType. Returns `None` for other bytes: too few, a second tag or a
/// service tag (802.1ad), or a length in place of the EtherType (IEEE 802.3).
pub fn parse_ethernet(bytes: &[u8]) -> Option<EthFrame<'_>> {
    let header = Ethernet2HeaderSlice::from_slice(bytes).ok()?;
    let mut ethertype = header.ether_type();
    let mut vlan = None;
    let mut body_at = ADDRESSES_LEN;
    if ethertype == EtherType::VLAN_TAGGED_FRAME {
        let tag = SingleVlanHeaderSlice::from_slice(bytes.get(ADDRESSES_LEN + 2..)?).ok()?;
        ethertype = tag.ether_type();
        vlan = Some(tag.vlan_identifier().value()).filter(|&id| id != 0);
        body_at += TAG_LEN;
    }
    let refused = matches!(
        ethertype,
        EtherType::VLAN_TAGGED_FRAME
            | EtherType::PROVIDER_BRIDGING
            | EtherType::VLAN_DOUBLE_TAGGED_FRAME
    ) || ethertype.0 < MIN_ETHERTYPE;
    if refused {
        return None;
    }
    Some(EthFrame {
        dst: header.destination().into(),
        src: header.source().into(),
        vlan,
        body: bytes.get(body_at..)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn stacked_tags_and_lengths_are_refused() {
        for outer in [[0x81, 0], [0x88, 0xa8], [0x91, 0]] {
            let mut bytes = UNTAGGED[..12].to_vec();
            bytes.extend(outer);
            bytes.extend([0, 5]);
            bytes.extend(&TAGGED[12..]);
            assert_eq!(parse_ethernet(&bytes), None);
        }
        let mut bytes = UNTAGGED.to_vec();
        bytes[12..14].copy_from_slice(&[0, 46]);
        assert_eq!(parse_ethernet(&bytes), None);
    }

    #[test]
    fn every_length_is_parsed_or_refused() {
        for whole in [UNTAGGED, TAGGED] {
            let header = if whole == TAGGED { 18 } else { 14 };
            for len in 0..=whole.len() {
                let parsed = parse_ethernet(&whole[..len]).is_some();
                assert_eq!(parsed, len >= header, "{len} bytes");
            }
        }
    }
}
