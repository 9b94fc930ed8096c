//! Datagrams (section 9).

use super::Endpoint;
use crate::addr::{NodeAddr, Port};
use crate::api::{
    Datagram, EdpKind, Head, ListenError, PREFIX_LEN, Payload, Proto, RxFrame, Sink, Transmit,
};
use crate::connection::Key;
use crate::seq::Seq;
use crate::wire::{
    EdpFrame, FLAG_CTL, HEADER_LEN, Header, InfoReply, MIN_FRAME, MIN_UDP_REQUEST, VERSION,
    emit_prefix, put,
};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Maximum body of an echo request in a broadcast frame, in bytes (W-78).
const MAX_BROADCAST_ECHO: usize = 64;
/// Average rate per second and burst of answers to such requests (W-79). Each node of the segment
/// answers one request, so the requester receives them all at this rate.
pub(super) const BROADCAST_ECHO_RATE: (u32, u32) = (100, 32);

/// Processes a checked EDP frame that is addressed to us or to broadcast.
pub(super) fn receive<S: Sink>(
    endpoint: &mut Endpoint,
    raw: &RxFrame<'_>,
    header: &Header,
    frame: &EdpFrame<'_>,
    sink: &mut S,
) {
    let request = matches!(frame.kind, EdpKind::EchoRequest | EdpKind::InfoRequest);
    let group_echo = raw.dst.is_group() && frame.kind == EdpKind::EchoRequest;
    if raw.dst.is_group() && !request {
        endpoint.cx.counters.rx_drop_broadcast += 1; // W-72
    } else if group_echo && frame.body.len() > MAX_BROADCAST_ECHO {
        endpoint.cx.counters.rx_drop_edp_broadcast_long += 1; // W-78
    } else if header.dst_port == 0 && request {
        if group_echo && !endpoint.broadcast_echoes.take(endpoint.cx.now) {
            endpoint.cx.counters.rx_drop_edp_broadcast_rate += 1; // W-79
            return;
        }
        answer(endpoint, raw, header, frame);
    } else if frame.kind == EdpKind::PortReply {
        super::held_ports::on_reply(endpoint, raw.src, header.dst_port, frame.body);
    } else if frame.kind == EdpKind::PortQuery {
        if header.dst_port == 0 && header.src_port != 0 {
            super::held_ports::on_query(endpoint, raw.src, header, frame.body);
        } else {
            endpoint.cx.counters.rx_drop_control += 1; // W-76
        }
    } else if endpoint.edp_ports.contains(&header.dst_port) {
        endpoint.cx.counters.rx_datagrams += 1;
        sink.datagram(Datagram {
            src: raw.src,
            src_port: header.src_port,
            dst_port: header.dst_port,
            sequence: header.seq.0,
            kind: frame.kind,
            bytes: frame.body,
        });
    } else {
        endpoint.cx.counters.rx_drop_edp_port += 1; // W-74
    }
}

/// Answers an echo or info request (W-70, W-71).
fn answer(endpoint: &mut Endpoint, raw: &RxFrame<'_>, header: &Header, frame: &EdpFrame<'_>) {
    let (peer, received) = (raw.src, raw.body.len());
    let payload = match frame.kind {
        EdpKind::EchoRequest => {
            let mut reply = Vec::with_capacity(1 + frame.body.len());
            reply.push(EdpKind::EchoReply as u8);
            reply.extend(frame.body);
            reply
        }
        _ => info_reply(endpoint),
    };
    // W-123: never more bytes than the address has sent.
    let unpaid = peer.is_udp() && HEADER_LEN + payload.len() > received;
    if unpaid {
        endpoint.cx.counters.rx_drop_edp_reply_long += 1;
    } else if payload.len() > usize::from(endpoint.cx.max_payload) {
        endpoint.cx.counters.rx_drop_edp_reply_long += 1; // W-75
    } else {
        reply(endpoint, peer, header, payload.into());
    }
}

/// Queues the reply to a request that the node itself answers.
pub(super) fn reply(endpoint: &mut Endpoint, peer: NodeAddr, to: &Header, payload: Box<[u8]>) {
    let key = Key {
        local_port: 0,
        peer,
        peer_port: to.src_port,
    };
    if endpoint.push_edp(key, to.seq, payload) {
        endpoint.cx.counters.rx_edp_requests += 1;
    } else {
        endpoint.cx.counters.rx_drop_edp_reply_limit += 1; // W-73
    }
}

fn info_reply(endpoint: &Endpoint) -> Vec<u8> {
    let info = InfoReply {
        version: VERSION,
        max_payload: endpoint.cx.max_payload,
        features: 0,
        incarnation: endpoint.incarnation,
        name: &endpoint.cx.config.node_name,
    };
    let mut reply = vec![EdpKind::InfoReply as u8];
    info.emit(&mut reply);
    reply
}

impl Endpoint {
    /// Opens a port for datagrams.
    pub fn edp_bind(&mut self, port: Port) -> Result<(), ListenError> {
        if port == 0 {
            return Err(ListenError::BadPort);
        }
        if self.edp_ports.insert(port) {
            Ok(())
        } else {
            Err(ListenError::InUse)
        }
    }

    /// Closes a port for datagrams.
    pub fn edp_unbind(&mut self, port: Port) {
        self.edp_ports.remove(&port);
    }

    /// Builds the header of a datagram whose payload the host sends itself.
    ///
    /// The order on the wire is `head[..n]`, the host's `len` bytes, then `tail_len` zero bytes
    /// `head[n..][..tail_len]`, with `n = kind.prefix_len()`: 25 for data, 26 for a request, whose
    /// control type byte is in `head[25]`. The returned payload is `Payload::None`, since the host
    /// has it. The endpoint numbers data; a request carries the number given by the program, which
    /// comes back in the reply (W-70).
    ///
    /// Returns `None` when the datagram cannot be sent: longer than the MTU allows, a reply (made
    /// by the node itself), data to port 0, to an address of a different kind than the endpoint's
    /// own, or data to a group address. A request may go to broadcast (W-72), an echo request with
    /// at most 64 bytes (W-78), but to no other group.
    pub fn edp_header(
        &mut self,
        head: &mut Head,
        src_port: Port,
        (dst, dst_port): (NodeAddr, Port),
        kind: EdpKind,
        request_sequence: u16,
        len: usize,
    ) -> Option<Transmit> {
        let request = matches!(kind, EdpKind::EchoRequest | EdpKind::InfoRequest);
        let sendable = match kind {
            EdpKind::Data => dst_port != 0,
            EdpKind::InfoRequest => len == 0,
            _ => request,
        };
        let short = kind != EdpKind::EchoRequest || len <= MAX_BROADCAST_ECHO;
        // Such a packet cannot be sent, and the kernel's error would concern those after it.
        let foreign = !dst.is_kind_of(&self.cx.own);
        let group = dst.is_group() && !(request && short && dst == NodeAddr::BROADCAST);
        let total = len.checked_add(usize::from(request))?;
        if !sendable || foreign || group || total > usize::from(self.cx.max_payload) {
            return None;
        }
        let sequence = if request {
            request_sequence
        } else {
            self.edp_sequence = self.edp_sequence.wrapping_add(1);
            self.edp_sequence
        };
        let header = Header {
            packet_type: self.cx.config.edp_ethertype,
            dst_port,
            src_port,
            seq: Seq(sequence),
            ack: Seq(0),
            len: u16::try_from(total).ok()?,
            flags: if request { FLAG_CTL } else { 0 },
        };
        emit_prefix(head, dst, self.cx.own, &header);
        if request {
            put(head, PREFIX_LEN, &[kind as u8]);
        }
        let start = kind.prefix_len();
        let min_len = match kind {
            EdpKind::InfoRequest if dst.is_udp() => MIN_UDP_REQUEST + 12,
            _ => MIN_FRAME,
        };
        let tail_len = min_len.saturating_sub(start + len);
        if let Some(tail) = head.get_mut(start..start + tail_len) {
            tail.fill(0); // W-04
        }
        self.cx.counters.tx_frames += 1;
        self.cx.counters.tx_edp += 1;
        Some(Transmit {
            dst,
            proto: Proto::Edp,
            payload: Payload::None,
            tail_len,
        })
    }
}

impl EdpKind {
    /// Returns the length of the head before the payload in bytes: 25, or 26 with the control type
    /// byte.
    pub fn prefix_len(self) -> usize {
        PREFIX_LEN + usize::from(self != EdpKind::Data)
    }
}
