//! Frames between a host and the network: those that arrive, the receive ring, those that an
//! endpoint sends.

use super::protect::addresses;
use crate::host::Delivery;
use crate::link::Frame;
use crate::pattern;
use crate::trace;
use crate::world::{Todo, World};
use esp_proto::wire::HEADER_LEN;
use esp_proto::{ConnId, Duration, HEAD_LEN, NodeAddr, PREFIX_LEN, Payload, RxFrame, Transmit};

impl World {
    pub(super) fn at_switch(&mut self, from: usize, frame: &Frame) {
        self.show_to_forger(from, frame);
        for node in self.net.outputs(from, frame).filter(|node| *node != from) {
            let mut arrivals = std::mem::take(&mut self.arrivals);
            let fate = self.net.down(node, self.now, frame.clone(), &mut arrivals);
            self.trace(|world| {
                trace::line(
                    world.now,
                    &format!("switch>{node}"),
                    &frame.bytes,
                    Some(fate),
                )
            });
            for (at, frame) in arrivals.drain(..) {
                self.queue.push(
                    at,
                    Todo::Arrive {
                        node,
                        frame,
                        looped: false,
                    },
                );
            }
            self.arrivals = arrivals;
        }
    }

    pub(super) fn arrive(&mut self, number: usize, frame: Frame, looped: bool) {
        let now = self.now;
        let node = &mut self.nodes[number];
        if node.ring.len() >= node.config.host.ring {
            node.ring_dropped += 1;
            return;
        }
        node.ring.push_back((frame, looped));
        if node.wake_at.is_none() {
            let at = now
                + Duration::from_nanos(node.rng.below(node.config.host.wake.as_nanos() as u64 + 1));
            let at = at.max(node.busy_until);
            node.wake_at = Some(at);
            self.queue.push(at, Todo::Wake(number));
        }
    }

    pub(super) fn hand_over(&mut self, number: usize, frame: Frame, looped: bool) {
        let frame = if looped {
            Some(frame)
        } else {
            self.opened_frame(number, frame)
        };
        let Some(frame) = frame else { return };
        self.trace(|world| trace::line(world.now, &format!("     >{number}"), &frame.bytes, None));
        self.checker
            .delivered(number, &frame.bytes, frame.origin, frame.ce);
        if self.nodes[number].station.is_none() {
            self.checker.process_moves();
        }
        let Some((dst, src)) = addresses(&frame.bytes) else {
            return;
        };
        let body = &frame.bytes[PREFIX_LEN - HEADER_LEN..];
        let node = &mut self.nodes[number];
        let mut touched = Vec::new();
        let mut sink = Delivery {
            conns: &mut node.conns,
            streams: &mut self.streams,
            datagrams: &mut node.datagrams,
            carrier: self.carrier,
            touched: &mut touched,
            now: self.now,
            check: self.check_content,
            problem: None,
        };
        let frame = RxFrame {
            src: self.carrier.node_addr(src),
            dst: self.carrier.node_addr(dst),
            body,
            looped,
            ce: frame.ce,
        };
        node.endpoint.handle_frame(self.now, frame, &mut sink);
        if let Some(problem) = sink.problem {
            self.fail(&problem);
        }
        node.dirty.extend(&touched);
        for id in touched {
            self.note_delivery(number, id);
        }
    }

    fn note_delivery(&mut self, number: usize, id: ConnId) {
        let now = self.now;
        let Some(conn) = self.nodes[number].conn(id) else {
            return;
        };
        let (delivered, Some((flow, side))) = (conn.rx.delivered, conn.role) else {
            return;
        };
        let status = self.flows[flow].side_mut(side);
        status.delivered = delivered;
        let last = status.delivered_at.replace(now).unwrap_or(now);
        if now.since(last) > status.longest_gap {
            status.longest_gap = now.since(last);
            status.longest_gap_at = Some(now);
        }
    }

    pub(super) fn drain_frames(&mut self, number: usize) -> bool {
        let mut any = false;
        let mut head = [0u8; HEAD_LEN];
        loop {
            if !self.net.may_send(number, self.now) {
                if !self.nodes[number].waits_for_room {
                    self.nodes[number].waits_for_room = true;
                    let at = self.net.room_at(number, self.now);
                    self.queue.push(at, Todo::Room(number));
                }
                return any;
            }
            if let Some(frame) = self.set_up_frame(number) {
                any = true;
                self.transmit(number, frame);
                continue;
            }
            let Some(transmit) = self.nodes[number]
                .endpoint
                .poll_transmit(self.now, &mut head)
            else {
                return any;
            };
            any = true;
            let bytes = self.assemble(number, &transmit, &head);
            self.send(number, transmit.dst, bytes);
        }
    }

    fn assemble(&mut self, number: usize, transmit: &Transmit, head: &[u8; HEAD_LEN]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1600);
        bytes.extend_from_slice(&head[..PREFIX_LEN]);
        match &transmit.payload {
            Payload::None => {}
            Payload::Filler { len } => bytes.resize(PREFIX_LEN + usize::from(*len), 0x5a),
            Payload::Owned(owned) => bytes.extend_from_slice(owned),
            Payload::Stream {
                conn: id,
                offset,
                len,
            } => {
                let Some(conn) = self.nodes[number].conn(*id) else {
                    self.fail(&format!(
                        "a frame with bytes of {id:?}, which the host does not have"
                    ));
                };
                let (tx, end) = (conn.tx.clone(), offset + u64::from(*len));
                if *offset < tx.acked || end > tx.written || *len == 0 {
                    self.fail(&format!(
                        "bytes {offset}..{end} of {tx:?} are not in the buffer"
                    ));
                }
                bytes.resize(PREFIX_LEN + usize::from(*len), 0);
                pattern::fill(tx.stream, *offset, &mut bytes[PREFIX_LEN..]);
            }
        }
        bytes.extend_from_slice(&head[PREFIX_LEN..PREFIX_LEN + transmit.tail_len]);
        bytes
    }

    pub(super) fn send(&mut self, number: usize, to: NodeAddr, mut bytes: Vec<u8>) {
        let Some(dst) = self.carrier.mac(to) else {
            self.fail(&format!("a packet to {to}, an address of another carrier"));
        };
        if self.carrier.is_udp() {
            // The endpoint leaves them zero: the addresses of a datagram are not in its payload.
            bytes[..6].copy_from_slice(&dst.0);
            bytes[6..12].copy_from_slice(&self.nodes[number].mac.0);
        }
        let origin = match self.checker.sent(number, &bytes) {
            Ok(origin) => origin,
            Err(problem) => {
                let line = trace::line(self.now, &format!("{number}>"), &bytes, None);
                self.fail(&format!("{problem}\n{line}"));
            }
        };
        if bytes.get(..6) != Some(&dst.0[..]) {
            self.fail("Transmit::dst is not the frame's destination");
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.push((self.now, number, bytes.clone()));
        }
        let frame = Frame {
            bytes,
            origin,
            ect: self.nodes[number].config.endpoint.ecn,
            ce: false,
        };
        if dst == self.nodes[number].mac {
            let at = self.now + Duration::from_micros(1);
            self.queue.push(
                at,
                Todo::Arrive {
                    node: number,
                    frame,
                    looped: true,
                },
            );
            return;
        }
        if let Some(frame) = self.protected(number, dst, frame) {
            self.transmit(number, frame);
        }
    }

    fn transmit(&mut self, number: usize, frame: Frame) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let copy = if self.trace {
            frame.bytes.clone()
        } else {
            Vec::new()
        };
        let fate = self.net.up(number, self.now, frame, &mut arrivals);
        self.trace(|world| trace::line(world.now, &format!("{number}>switch"), &copy, Some(fate)));
        for (at, frame) in arrivals.drain(..) {
            self.queue.push(
                at,
                Todo::AtSwitch {
                    from: number,
                    frame,
                },
            );
        }
        self.arrivals = arrivals;
    }
}
