//! The transport ESP: the endpoint of `esp-proto` itself.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use esp_proto::{
    Buffers, ConnId, ConnOptions, Datagram, Endpoint, EndpointConfig, Event, HEAD_LEN, Head,
    Instant, ListenOptions, MacAddr, NodeAddr, PREFIX_LEN, Payload, Port, RxFrame, Sink, UDP_PORT,
};
use esp_sim::rng::{Rng, mix};

use crate::packet::{self, Packet, Stop, wire_bytes};
use crate::stack::{Counts, Notice, Stack};

/// Port of every node's listener.
const LISTENER: Port = 5000;
/// Port from which connections are opened.
const OPENER: Port = 40_000;
/// Maximum number of bytes of a packet's end that are stored inline, with its header.
const SHORT: usize = 56;
/// Bytes of the header, EtherType included.
const HEADER: usize = PREFIX_LEN - 12;
/// Bytes of the headers of IP and UDP.
const IP_UDP: u32 = 28;

/// Parameters of ESP.
#[derive(Clone, Debug)]
pub struct Config {
    /// Parameters of the endpoints.
    pub endpoint: EndpointConfig,
    /// Carried by UDP over IPv4; otherwise by raw Ethernet.
    pub udp: bool,
    /// MTU of the nodes' links.
    pub mtu: u32,
    /// Bytes of the send and of the receive buffer of a connection.
    pub buffer: u32,
}

impl Config {
    /// Returns the parameters of a node's service for this carrier; over UDP, with congestion marks
    /// if `ecn`.
    pub fn new(udp: bool, ecn: bool, mtu: u32) -> Config {
        Config {
            endpoint: EndpointConfig {
                ecn: udp && ecn,
                ..EndpointConfig::default()
            },
            udp,
            mtu,
            buffer: 1 << 20,
        }
    }

    /// Returns the address of a node.
    fn addr(&self, node: u32) -> NodeAddr {
        if !self.udp {
            let [a, b, c, d] = node.to_be_bytes();
            return MacAddr([2, 0, a, b, c, d]).into();
        }
        // 250 nodes in a network of 24 bits.
        let [_, _, high, low] = (node / 250).to_be_bytes();
        let ip = Ipv4Addr::new(10, high, low, (node % 250 + 1) as u8);
        SocketAddr::from((ip, UDP_PORT)).into()
    }

    /// Returns the node with an address.
    fn node(addr: NodeAddr) -> u32 {
        match addr {
            NodeAddr::Mac(MacAddr([_, _, a, b, c, d])) => u32::from_be_bytes([a, b, c, d]),
            NodeAddr::Udp(SocketAddr::V4(at)) => {
                let [_, high, low, host] = at.ip().octets().map(u32::from);
                (high << 8 | low) * 250 + host.saturating_sub(1)
            }
            NodeAddr::Udp(SocketAddr::V6(_)) => 0,
        }
    }

    /// Returns the number of bytes after the EtherType of a packet whose ESP header, with the
    /// EtherType, and payload have this length.
    fn carried(&self, body: u32) -> u32 {
        if self.udp { body + IP_UDP } else { body - 2 }
    }
}

/// An ESP packet: its contents without the payload, which has no meaning.
#[derive(Debug)]
pub struct Body {
    header: [u8; HEADER],
    payload: u16,
    end_len: u16,
    end: [u8; SHORT],
    /// The end of the packet if it is longer.
    long: Option<Box<[u8]>>,
}

/// One end of a connection, as its program sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    generation: u32,
    delivered: u64,
    /// Noted for [`Esp::settle`].
    touched: bool,
}

/// The endpoint of a node with its programs' positions.
#[derive(Debug)]
pub struct Esp {
    endpoint: Endpoint,
    config: Config,
    node: u32,
    sides: Vec<Side>,
    /// Connections with new bytes.
    touched: Vec<u32>,
    notices: VecDeque<Notice>,
}

/// The endpoint's sink.
struct Delivery<'a> {
    sides: &'a mut [Side],
    touched: &'a mut Vec<u32>,
}

impl Sink for Delivery<'_> {
    fn deliver(&mut self, conn: ConnId, offset: u64, bytes: &[u8]) {
        let side = &mut self.sides[conn.slot as usize];
        assert_eq!(
            (side.generation, side.delivered),
            (conn.generation, offset),
            "delivered twice, not in order, or for no connection"
        );
        side.delivered += bytes.len() as u64;
        if !std::mem::replace(&mut side.touched, true) {
            self.touched.push(conn.slot);
        }
    }

    fn datagram(&mut self, _: Datagram<'_>) {}
}

impl Esp {
    fn buffers(&self) -> Buffers {
        Buffers {
            rx: self.config.buffer,
            tx: self.config.buffer,
        }
    }

    fn id(&self, slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: self.sides[slot as usize].generation,
        }
    }

    fn enter(&mut self, conn: ConnId) {
        let slot = conn.slot as usize;
        if self.sides.len() <= slot {
            self.sides.resize(slot + 1, Side::default());
        }
        self.sides[slot] = Side {
            generation: conn.generation,
            ..Side::default()
        };
    }

    fn on_event(&mut self, now: u64, event: &Event) {
        match *event {
            Event::Connected(conn) => {
                self.notices
                    .push_back(Notice::Connected { slot: conn.slot });
            }
            Event::Incoming { conn, peer, .. } => {
                self.enter(conn);
                let buffers = self.buffers();
                self.endpoint.attach(at(now), conn, buffers);
                let (slot, peer) = (conn.slot, Config::node(peer));
                self.notices.push_back(Notice::Incoming { slot, peer });
            }
            Event::PeerFinished(_) => {}
            Event::Closed { conn, .. } => {
                self.notices.push_back(Notice::Failed { slot: conn.slot });
            }
        }
    }
}

fn at(now: u64) -> Instant {
    Instant::from_nanos(now)
}

impl Stack for Esp {
    type Body = Body;
    type Config = Config;

    fn new(config: &Config, node: u32, seed: u64) -> Esp {
        let mut rng = Rng::new(mix(seed) ^ u64::from(node));
        let addr = config.addr(node);
        let mtu = addr.frame_mtu(config.mtu);
        let mut endpoint = Endpoint::new(config.endpoint.clone(), addr, mtu, rng.seed32(), 1);
        let options = ListenOptions {
            backlog: 1024,
            ..ListenOptions::default()
        };
        let listening = endpoint.listen(LISTENER, options);
        debug_assert_eq!(listening, Ok(()));
        Esp {
            endpoint,
            config: config.clone(),
            node,
            sides: Vec::new(),
            touched: Vec::new(),
            notices: VecDeque::new(),
        }
    }

    fn connect(&mut self, now: u64, peer: u32) -> Option<u32> {
        let options = ConnOptions {
            buffers: self.buffers(),
            key: Vec::new(),
        };
        let peer = self.config.addr(peer);
        let conn = (self.endpoint)
            .connect(at(now), OPENER, peer, LISTENER, options)
            .ok()?;
        self.enter(conn);
        Some(conn.slot)
    }

    fn written(&mut self, now: u64, slot: u32, total: u64) {
        let id = self.id(slot);
        self.endpoint.written(at(now), id, total);
    }

    fn receive(&mut self, now: u64, packet: &Packet<Body>, room: &mut [u8]) {
        let Body {
            header,
            payload,
            end_len,
            end,
            long,
        } = &packet.body;
        let end = long.as_deref().unwrap_or(&end[..usize::from(*end_len)]);
        let after_payload = HEADER + usize::from(*payload);
        let len = after_payload + end.len();
        room[..HEADER].copy_from_slice(header);
        room[after_payload..len].copy_from_slice(end);
        let frame = RxFrame {
            src: self.config.addr(packet.head.src),
            dst: self.config.addr(packet.head.dst),
            body: &room[..len],
            looped: false,
            ce: packet.head.ce,
        };
        let mut sink = Delivery {
            sides: &mut self.sides,
            touched: &mut self.touched,
        };
        self.endpoint.handle_frame(at(now), frame, &mut sink);
    }

    fn settle(&mut self, now: u64) {
        while let Some(event) = self.endpoint.poll_event() {
            self.on_event(now, &event);
        }
        while let Some(slot) = self.touched.pop() {
            let id = self.id(slot);
            let side = &mut self.sides[slot as usize];
            side.touched = false;
            let total = side.delivered;
            self.endpoint.consumed(at(now), id, total);
            self.notices.push_back(Notice::Delivered { slot, total });
        }
        while self.endpoint.poll_progress().is_some() {}
    }

    fn transmit(&mut self, now: u64) -> Option<Packet<Body>> {
        let mut head: Head = [0; HEAD_LEN];
        let frame = self.endpoint.poll_transmit(at(now), &mut head)?;
        let dst = Config::node(frame.dst);
        let (payload, own) = match &frame.payload {
            Payload::None => (0, None),
            Payload::Stream { len, .. } | Payload::Filler { len } => (*len, None),
            Payload::Owned(bytes) => (0, Some(bytes)),
        };
        let tail = &head[PREFIX_LEN..PREFIX_LEN + frame.tail_len];
        let mut body = Body {
            header: [0; HEADER],
            payload,
            end_len: 0,
            end: [0; SHORT],
            long: None,
        };
        body.header.copy_from_slice(&head[12..PREFIX_LEN]);
        let end_len = match own {
            None if tail.len() <= SHORT => {
                body.end[..tail.len()].copy_from_slice(tail);
                tail.len()
            }
            _ => {
                let own = own.map_or(&[][..], |bytes| bytes);
                let end = [own, tail].concat();
                let len = end.len();
                body.long = Some(end.into());
                len
            }
        };
        body.end_len = end_len as u16;
        let len = (HEADER + end_len) as u32 + u32::from(payload);
        let pair = mix(u64::from(self.node) << 32 | u64::from(dst));
        let head = packet::Head {
            src: self.node,
            dst,
            wire: wire_bytes(self.config.carried(len)),
            hash: pair as u32,
            ect: self.config.endpoint.ecn,
            ce: false,
            stop: Stop::First,
        };
        Some(Packet { head, body })
    }

    fn next_timeout(&mut self) -> Option<u64> {
        self.endpoint.poll_timeout().map(Instant::as_nanos)
    }

    fn timeout(&mut self, now: u64) {
        self.endpoint.handle_timeout(at(now));
    }

    fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn counts(&self) -> Counts {
        let counters = self.endpoint.counters();
        Counts {
            packets: counters.tx_frames,
            retransmits: counters.tx_retransmits,
            timeouts: counters.retransmit_timeouts,
        }
    }
}
