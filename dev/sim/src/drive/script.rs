//! Actions of a scenario's script: connections are opened and aborted, nodes restart, frames are
//! injected.

use super::protect::new_layer;
use crate::host::Conn;
use crate::link::Frame;
use crate::plan::Side;
use crate::trace;
use crate::world::{Action, World};
use esp_proto::{ConnOptions, EdpKind, Endpoint, HEAD_LEN, MacAddr, Port};

/// Bytes of a packet in addition to a datagram: the minimum over all kinds.
const MIN_OVERHEAD: usize = 14;

impl World {
    pub(super) fn act(&mut self, action: Action) {
        self.trace(|world| trace::note(world.now, 0, &format!("{action:?}")));
        let now = self.now;
        match action {
            Action::Open(flow) => self.open(flow),
            Action::Abort(flow, side, reason) => {
                let (node, status) = (self.flows[flow].node(side), self.flows[flow].side(side));
                if let Some(id) = status.conn.filter(|_| status.closed.is_none()) {
                    self.nodes[node].endpoint.abort(now, id, reason);
                }
                self.drain(node);
            }
            Action::Restart(node) => self.restart(node),
            Action::Lose(node, down) => self.lose(node, down),
            Action::Adopt(node) => self.adopt(node),
            Action::Inject(node, bytes) => {
                self.checker.forged(node, &bytes);
                let frame = Frame {
                    bytes,
                    ..Frame::default()
                };
                self.arrive(node, frame, false);
            }
            Action::Unlisten(node, port) => {
                self.excuse_unattached(node, port);
                self.nodes[node].listeners.remove(&port);
                self.nodes[node].endpoint.unlisten(now, port);
                self.drain(node);
            }
            Action::SetMtu(node, mtu) => {
                let mtu = self.nodes[node]
                    .config
                    .frame_mtu(self.nodes[node].addr, mtu);
                self.checker.set_mtu(node, mtu);
                self.nodes[node].endpoint.set_mtu(now, mtu);
                self.drain(node);
            }
            Action::Abandon(node) => {
                self.nodes[node].endpoint.abandon(now, false);
                self.drain(node);
            }
            Action::ShutdownAll(node) => {
                for member in self.members(node) {
                    self.nodes[member].listeners.clear();
                    self.nodes[member].endpoint.shutdown_all(now);
                    self.drain(member);
                }
            }
            Action::Datagram(node, port, dst, dst_port, kind, len) => {
                self.datagram(node, (port, dst, dst_port), kind, len);
            }
        }
    }

    fn datagram(
        &mut self,
        node: usize,
        (port, dst, dst_port): (Port, MacAddr, Port),
        kind: EdpKind,
        len: usize,
    ) {
        let (mut head, carrier) = ([0u8; HEAD_LEN], self.carrier);
        // The interface may carry less than when the datagram was planned.
        let len = len.min(self.nodes[node].endpoint.mtu() as usize - MIN_OVERHEAD);
        let built = self.nodes[node].endpoint.edp_header(
            &mut head,
            port,
            (carrier.node_addr(dst), dst_port),
            kind,
            0,
            len,
        );
        let Some(transmit) = built else {
            self.fail(&format!("no header for {kind:?} of {len} bytes"))
        };
        let prefix = kind.prefix_len();
        let mut frame = head[..prefix].to_vec();
        frame.extend((0..len).map(|at| at as u8));
        frame.extend_from_slice(&head[prefix..prefix + transmit.tail_len]);
        self.send(node, transmit.dst, frame);
    }

    fn open(&mut self, flow: usize) {
        self.flows[flow].started = true;
        let plan = self.flows[flow].plan.clone();
        self.connect(
            flow,
            Side::Active,
            (plan.from, plan.from_port),
            (plan.to, plan.to_port),
        );
        if plan.crossing {
            self.connect(
                flow,
                Side::Passive,
                (plan.to, plan.to_port),
                (plan.from, plan.from_port),
            );
        }
    }

    fn connect(&mut self, flow: usize, side: Side, own: (usize, Port), peer: (usize, Port)) {
        let now = self.now;
        let plan = self.flows[flow].side_plan(side).clone();
        let options = ConnOptions {
            buffers: plan.buffers(),
            key: self.flows[flow].plan.key.clone(),
        };
        let peer = (crate::net::mac_of(peer.0), peer.1);
        let peer_addr = self.carrier.node_addr(peer.0);
        let node = &mut self.nodes[own.0];
        let id = match node
            .endpoint
            .connect(now, own.1, peer_addr, peer.1, options)
        {
            Ok(id) => id,
            Err(error) => self.fail(&format!("connect of flow {flow}: {error}")),
        };
        if node.conns.contains_key(&id.slot) {
            self.fail(&format!("slot {} given out again before Closed", id.slot));
        }
        let mut conn = Conn::new(id, (node.mac, own.1), peer, plan, &mut self.streams, now);
        conn.rx.capacity = conn.plan.rx_buffer;
        conn.role = Some((flow, side));
        node.conns.insert(id.slot, conn);
        self.flows[flow].side_mut(side).conn = Some(id);
        self.drain(own.0);
    }

    fn restart(&mut self, number: usize) {
        let members = self.members(number);
        for member in &members {
            self.renew(*member);
            self.checker.forget_addresses(self.nodes[*member].mac);
            for (_, conn) in std::mem::take(&mut self.nodes[*member].conns) {
                self.end_program(&conn);
            }
        }
        for member in members {
            self.drain(member);
        }
    }

    /// Allows flows to fail whose connection is not yet attached to the listener's program.
    fn excuse_unattached(&mut self, number: usize, port: Port) {
        for flow in &mut self.flows {
            let plan = &flow.plan;
            let side = &flow.passive;
            let node = &self.nodes[side.moved_to.unwrap_or(number)];
            let conn = side.conn.and_then(|id| node.conns.get(&id.slot));
            let is_attached =
                side.closed.is_some() || conn.is_some_and(|conn| conn.rx.capacity > 0);
            if (plan.to, plan.to_port, plan.crossing) == (number, port, false) && !is_attached {
                flow.plan.may_fail = true;
            }
        }
    }

    /// Replaces a node's endpoint by a new one with its listeners.
    pub(crate) fn renew(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.incarnation += 1;
        let (config, mtu) = (node.config.endpoint_config(), node.endpoint.mtu());
        node.endpoint = Endpoint::new(config, node.addr, mtu, node.rng.seed32(), node.incarnation);
        if let Some(layer) = new_layer(&node.config, node.addr, &mut node.rng) {
            let before = node.layer.replace(layer);
            node.refused += before.map_or(0, |layer| layer.counters().dropped());
        }
        for (port, options) in node.listeners.clone() {
            if node.endpoint.listen(port, options).is_err() {
                self.fail("listen after restart");
            }
        }
        if let Some(station) = node.station {
            self.announce_rails(station);
        }
        let node = &mut self.nodes[number];
        self.checker.forget(node.mac);
        node.ring.clear();
        node.dirty.clear();
    }
}
