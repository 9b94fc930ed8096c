//! The layer between endpoint and network, and the station that forges frames.

use crate::forger::Forger;
use crate::link::Frame;
use crate::rng::Rng;
use crate::secure::Weak;
use crate::trace;
use crate::world::{NodeConfig, Todo, World};
use esp_proto::secure::{DATA_AT, FLAG_SEC, Layer, Opened};
use esp_proto::wire::HEADER_LEN;
use esp_proto::{Duration, MacAddr, NodeAddr, PREFIX_LEN};

/// Port of the switch to which the station that forges is connected.
const FORGER: usize = usize::MAX;
/// Bytes of the two addresses, which precede the packet in a frame.
const ADDRESSES: usize = PREFIX_LEN - HEADER_LEN;

/// Creates the layer of a node with protection.
pub(crate) fn new_layer(config: &NodeConfig, addr: NodeAddr, rng: &mut Rng) -> Option<Layer<Weak>> {
    let protection = config.protection?;
    Some(protection.layer(addr, config.endpoint.edp_ethertype, rng))
}

/// Returns destination and source of a frame.
pub(super) fn addresses(bytes: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let (dst, rest) = bytes.split_first_chunk::<6>()?;
    Some((MacAddr(*dst), MacAddr(*rest.first_chunk::<6>()?)))
}

impl World {
    /// Adds a station that sees all frames and acts on `rate` parts per million of them.
    pub fn add_forger(&mut self, rate: u32) {
        let rng = self.rng.fork(u64::MAX);
        self.forger = Some(Forger::new(rng, rate, self.nodes.len()));
    }

    /// Returns the number of frames sent by the station that forges.
    pub fn forged(&self) -> u64 {
        self.forger.as_ref().map_or(0, Forger::sent)
    }

    /// Returns the number of protected packets that were taken.
    pub fn opened(&self) -> u64 {
        self.ledger.total()
    }

    /// Returns the number of packets that layers have dropped.
    pub fn refused(&self) -> u64 {
        let of_layer = |layer: &Layer<Weak>| layer.counters().dropped();
        let nodes = self.nodes.iter();
        nodes
            .map(|node| node.refused + node.layer.as_ref().map_or(0, of_layer))
            .sum()
    }

    /// Protects a frame of the node's endpoint, if it has to be. Returns `None` if it waits for a
    /// session.
    pub(super) fn protected(&mut self, number: usize, dst: MacAddr, frame: Frame) -> Option<Frame> {
        let to = self.carrier.node_addr(dst);
        let node = &mut self.nodes[number];
        let Some(layer) = &mut node.layer else {
            return Some(frame);
        };
        if !layer.protects(self.now, to) {
            return Some(frame);
        }
        let (addresses, body) = frame.bytes.split_at(ADDRESSES);
        self.ledger.sent(node.mac, dst, body, frame.origin);
        let (header, content) = body.split_at(HEADER_LEN);
        let packet = [header, &[0; DATA_AT - HEADER_LEN], content].concat();
        let sealed = layer.seal(self.now, to, packet)?;
        let bytes = [addresses, &sealed].concat();
        Some(Frame { bytes, ..frame })
    }

    /// Returns the next frame of the node's layer itself: a set-up packet, or one that has waited.
    pub(super) fn set_up_frame(&mut self, number: usize) -> Option<Frame> {
        let node = &mut self.nodes[number];
        let (dst, packet) = node.layer.as_mut()?.poll_transmit()?;
        let dst = self.carrier.mac(dst).unwrap_or_default();
        Some(Frame {
            bytes: [&dst.0[..], &node.mac.0, &packet].concat(),
            origin: 0,
            ect: node.config.endpoint.ecn,
            ce: false,
        })
    }

    /// Returns a received frame in the form that the node's endpoint gets; `None` if it gets none.
    pub(super) fn opened_frame(&mut self, number: usize, frame: Frame) -> Option<Frame> {
        let node = &mut self.nodes[number];
        let (Some(layer), Some((dst, src))) = (&mut node.layer, addresses(&frame.bytes)) else {
            return Some(frame);
        };
        let is_protected = frame
            .bytes
            .get(PREFIX_LEN - 1)
            .is_some_and(|x| x & FLAG_SEC != 0);
        let body = &frame.bytes[ADDRESSES..];
        let from_to = [src, dst].map(|mac| self.carrier.node_addr(mac));
        let (dst, body) = match layer.open(self.now, from_to[0], from_to[1], body) {
            Opened::Nothing => return None,
            Opened::Packet(_) if !is_protected => return Some(frame),
            Opened::Packet(body) => (dst, body),
            Opened::Broadcast(body) => (MacAddr::BROADCAST, body),
        };
        let bytes = [&dst.0[..], &src.0, body].concat();
        let mark = match self.ledger.taken(src, dst, body) {
            Ok(mark) => mark,
            Err(problem) => {
                let line = trace::line(self.now, &format!(">{number}"), &bytes, None);
                self.fail(&format!("{problem}\n{line}"));
            }
        };
        // A packet that has waited for a session has no mark of its own.
        let origin = if frame.origin == 0 {
            mark
        } else {
            frame.origin
        };
        Some(Frame {
            bytes,
            origin,
            ..frame
        })
    }

    /// Shows a frame to the station that forges, unless it sent it, before the switch forwards it:
    /// the station can be faster.
    pub(super) fn show_to_forger(&mut self, from: usize, frame: &Frame) {
        let Some(forger) = self.forger.as_mut().filter(|_| from != FORGER) else {
            return;
        };
        for (delay, frame) in forger.sees(frame) {
            if self.trace {
                eprintln!("{}", trace::line(self.now, "forger", &frame.bytes, None));
            }
            if delay == Duration::ZERO {
                self.at_switch(FORGER, &frame);
            } else {
                let (at, from) = (self.now + delay, FORGER);
                self.queue.push(at, Todo::AtSwitch { from, frame });
            }
        }
    }
}
