//! Decodes the packets of a captured frame, which is untrusted.

use std::net::{IpAddr, SocketAddr};

use esp_client::{EdpKind, MacAddr, NodeAddr};
use esp_proto::secure::{FLAG_SEC, OVERHEAD, Protected, SETUP_PACKET};
use esp_proto::wire::{
    EdpFrame, EspFrame, FLAG_EXT, FrameType, HEADER_LEN, Header, InfoReply, MIN_PACKET, Move,
    Reset, Retry, SetUp, WireError,
};
use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use netif::parse_ethernet;

/// EtherTypes of both protocols.
#[derive(Clone, Copy, Debug)]
pub(super) struct Types {
    pub(super) esp: u16,
    pub(super) edp: u16,
}

/// Protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Esp,
    Edp,
}

/// The Ethernet header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) src: MacAddr,
    pub(super) dst: MacAddr,
    /// ID in the VLAN tag.
    pub(super) vlan: Option<u16>,
    /// EtherType after the tag.
    pub(super) ethertype: u16,
}

/// A packet of either protocol.
#[derive(Clone, Debug)]
pub(super) struct Packet<'a> {
    pub(super) protocol: Protocol,
    pub(super) src: NodeAddr,
    pub(super) dst: NodeAddr,
    /// All bytes, starting at the packet type.
    pub(super) bytes: &'a [u8],
    /// `None` if the packet ends within it.
    pub(super) header: Option<Header>,
    pub(super) content: Result<Content<'a>, Problem>,
}

/// Content of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    SetUp(EspFrame<'a>, SetUp<'a>),
    Reset(EspFrame<'a>, Reset),
    Move(EspFrame<'a>, Move),
    /// Data, acknowledgement, FIN or probe.
    Stream(EspFrame<'a>),
    Info(InfoReply<'a>),
    Datagram(EdpFrame<'a>),
    /// A protected packet, whose content is not decrypted.
    Protected(Protected),
}

/// Reason why a packet has no [`Content`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The capture lacks some of its bytes.
    Cut,
    Malformed(WireError),
}

impl Types {
    fn protocol(self, packet_type: u16) -> Option<Protocol> {
        match packet_type {
            esp if esp == self.esp => Some(Protocol::Esp),
            edp if edp == self.edp => Some(Protocol::Edp),
            _ => None,
        }
    }

    /// Returns the protocol of the packet at the beginning of these bytes.
    fn of(self, bytes: &[u8]) -> Option<Protocol> {
        self.protocol(u16::from_be_bytes(*bytes.first_chunk()?))
    }
}

/// Returns the Ethernet header and the packets of a frame: none if it has another protocol, one
/// over raw Ethernet, and possibly several in UDP, because the kernel joins datagrams. `len` is the
/// length of the frame before it was cut for the capture.
pub(super) fn decode(frame: &[u8], len: usize, types: Types) -> Option<(Link, Vec<Packet<'_>>)> {
    let ethernet = parse_ethernet(frame)?;
    let ethertype = u16::from_be_bytes(*ethernet.body.first_chunk()?);
    let [src, dst] = [ethernet.src, ethernet.dst].map(|mac| MacAddr(mac.octets()));
    let link = Link {
        src,
        dst,
        vlan: ethernet.vlan,
        ethertype,
    };
    let cut = len > frame.len();
    if let Some(protocol) = types.protocol(ethertype) {
        let packet = parse(protocol, (src.into(), dst.into()), ethernet.body, cut);
        return Some((link, vec![packet]));
    }
    let payload = ethernet.body.get(2..)?;
    let packets = decode_ip(EtherType(ethertype), payload, cut, types);
    (!packets.is_empty()).then_some((link, packets))
}

/// Returns the packets in an IP packet. With segmentation offload, the kernel splits a datagram
/// late, so a capture may see it whole. Then the length of each packet except the last follows from
/// its fields, and is at least [`MIN_PACKET`].
fn decode_ip(ethertype: EtherType, bytes: &[u8], cut: bool, types: Types) -> Vec<Packet<'_>> {
    let mut packets = Vec::new();
    let sliced = LaxSlicedPacket::from_ether_type(ethertype, bytes);
    let ips = match &sliced.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let addr = |ip| IpAddr::V4(ip);
            (addr(header.source_addr()), addr(header.destination_addr()))
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let addr = |ip| IpAddr::V6(ip);
            (addr(header.source_addr()), addr(header.destination_addr()))
        }
        _ => return packets,
    };
    let Some(TransportSlice::Udp(udp)) = &sliced.transport else {
        return packets;
    };
    let ends = (
        NodeAddr::Udp(SocketAddr::new(ips.0, udp.source_port())),
        NodeAddr::Udp(SocketAddr::new(ips.1, udp.destination_port())),
    );
    let mut rest = udp.payload();
    while let Some(protocol) = types.of(rest) {
        let (packet, after) = match rest.split_at_checked(length(protocol, rest)) {
            Some((packet, after)) if after.len() >= MIN_PACKET && types.of(after).is_some() => {
                (packet, after)
            }
            _ => (rest, &[][..]),
        };
        packets.push(parse(protocol, ends, packet, cut && after.is_empty()));
        rest = after;
    }
    packets
}

/// Returns the length of the first packet, without padding beyond the minimum length. (The length
/// of an encrypted extension is unknown, so packets after such a packet are not decoded.)
fn length(protocol: Protocol, bytes: &[u8]) -> usize {
    let Ok((header, rest)) = Header::parse(bytes) else {
        return bytes.len();
    };
    let payload = usize::from(header.len);
    let extension = match rest.get(payload) {
        Some(len) if protocol == Protocol::Esp && header.flags & FLAG_EXT != 0 => usize::from(*len),
        _ => 0,
    };
    if header.flags & FLAG_SEC == 0 {
        return (HEADER_LEN + payload + extension).max(MIN_PACKET);
    }
    match Protected::parse(bytes) {
        Some(Protected::SetUp { .. }) => SETUP_PACKET,
        _ => (HEADER_LEN + payload).max(MIN_PACKET) + OVERHEAD,
    }
}

fn parse(
    protocol: Protocol,
    (src, dst): (NodeAddr, NodeAddr),
    bytes: &[u8],
    cut: bool,
) -> Packet<'_> {
    let (header, content) = match Header::parse(bytes) {
        Ok((header, rest)) => (
            Some(header),
            match Protected::parse(bytes) {
                Some(protected) => Ok(Content::Protected(protected)),
                None => content(protocol, &header, rest),
            },
        ),
        Err(error) => (None, Err(error)),
    };
    Packet {
        protocol,
        src,
        dst,
        bytes,
        header,
        // A packet is not malformed because the capture lacks some of its bytes.
        content: content.map_err(|error| match cut {
            true => Problem::Cut,
            false => Problem::Malformed(error),
        }),
    }
}

fn content<'a>(
    protocol: Protocol,
    header: &Header,
    rest: &'a [u8],
) -> Result<Content<'a>, WireError> {
    if protocol == Protocol::Edp {
        let frame = EdpFrame::parse(header, rest)?;
        return Ok(match frame.kind {
            EdpKind::InfoReply => Content::Info(InfoReply::parse(frame.body)?),
            _ => Content::Datagram(frame),
        });
    }
    let frame = EspFrame::parse(header, rest)?;
    Ok(match frame.kind {
        FrameType::Syn | FrameType::SynAck => Content::SetUp(frame, SetUp::parse(frame.payload)?),
        FrameType::Rst => {
            Retry::parse(frame.payload).transpose()?;
            Content::Reset(frame, Reset::parse(frame.payload)?)
        }
        FrameType::Move => Content::Move(frame, Move::parse(frame.payload)?),
        FrameType::Data | FrameType::Ack | FrameType::Fin | FrameType::Probe => {
            Content::Stream(frame)
        }
    })
}

impl<'a> Content<'a> {
    /// Returns the frame if it belongs to a stream.
    pub(super) fn stream(&self) -> Option<&EspFrame<'a>> {
        match self {
            Content::SetUp(frame, _)
            | Content::Reset(frame, _)
            | Content::Move(frame, _)
            | Content::Stream(frame) => Some(frame),
            Content::Info(_) | Content::Datagram(_) | Content::Protected(_) => None,
        }
    }
}

/// Returns the reason why a receiver would drop a packet.
pub(super) fn explain(error: WireError) -> &'static str {
    match error {
        WireError::Runt => "it ends within the header (W-02)",
        WireError::Length => "its data length is beyond its end (W-03)",
        WireError::ReservedFlag => "a reserved flag is set (W-05)",
        WireError::FlagCombination => "an invalid combination of flags (W-11)",
        WireError::FinLength => "a FIN with data (W-13)",
        WireError::PortZero => "port 0 (W-15)",
        WireError::Extension => "the extension (W-43)",
        WireError::SetUp => "the set-up block (W-22)",
        WireError::Version => "another version (W-17)",
        WireError::ResetBlock => "the reset block is short",
        WireError::MoveBlock => "the move block (W-101)",
        WireError::Control => "the control datagram (W-71, W-74, W-76)",
    }
}

#[cfg(test)]
mod tests;
