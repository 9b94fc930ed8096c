//! Ports served by another engine of this node (leases): this endpoint ignores their frames, and
//! answers queries for them while their holder cannot.

use super::Endpoint;
use super::transmit::{Control, ControlBody};
use crate::addr::{NodeAddr, Port};
use crate::api::{EdpKind, ResetReason};
use crate::connection::Key;
use crate::seq::Seq;
use crate::time::Instant;
use crate::wire::{Header, Reset};
use alloc::boxed::Box;

/// State of an unused port in PORT_REPLY.
const FREE: u8 = 0;
const HELD: u8 = 1;

/// Answers a port query (W-76).
pub(super) fn on_query(endpoint: &mut Endpoint, peer: NodeAddr, header: &Header, body: &[u8]) {
    let [high, low] = *body else { return };
    let port = Port::from_be_bytes([high, low]);
    let state = if endpoint.held.contains(&port) {
        HELD
    } else {
        FREE
    };
    let payload = Box::new([EdpKind::PortReply as u8, high, low, state]);
    super::edp::reply(endpoint, peer, header, payload);
}

/// Processes a PORT_REPLY (W-77). An unsolicited reply, and FREE, have no effect: the node itself
/// answers frames for a free port.
pub(super) fn on_reply(endpoint: &mut Endpoint, peer: NodeAddr, local_port: Port, body: &[u8]) {
    let [high, low, state] = *body else { return };
    let key = Key {
        local_port,
        peer,
        peer_port: Port::from_be_bytes([high, low]),
    };
    match endpoint.table.find(&key) {
        Some(slot) if state == HELD => {
            endpoint.with(slot, |conn, cx| conn.on_held(cx));
        }
        Some(_) => {}
        None => endpoint.cx.counters.rx_drop_edp_port += 1,
    }
}

impl Endpoint {
    /// Hands a port to another engine: its frames from the wire are dropped here without an answer
    /// (that engine receives them), and queries for it are answered HELD (W-76). Looped frames
    /// still reach a listener here, so programs of this node can connect to each other.
    ///
    /// Returns false, without effect, when a connection of this port with another node is alive
    /// here.
    pub fn hold(&mut self, port: Port) -> bool {
        let mac = self.cx.own;
        let mut slots = self.table.of_port(port);
        let is_remote = |slot| self.table.at(slot).is_some_and(|conn| conn.key.peer != mac);
        if port == 0 || slots.any(is_remote) {
            return false;
        }
        self.held.insert(port);
        true
    }

    /// Returns a port from another engine: its frames are treated as those of any other port.
    pub fn unhold(&mut self, port: Port) {
        self.held.remove(&port);
    }

    /// Resets a peer of a connection that another engine had, using the nonce that the peer expects
    /// (W-57).
    pub fn reset_orphan(
        &mut self,
        now: Instant,
        local_port: Port,
        (peer, peer_port): (NodeAddr, Port),
        nonce: u64,
        reason: ResetReason,
    ) {
        self.clock(now);
        if local_port == 0 || peer_port == 0 || peer.is_group() {
            return;
        }
        let key = Key {
            local_port,
            peer,
            peer_port,
        };
        self.push_own(Control {
            key,
            seq: Seq(0),
            ack: None,
            body: ControlBody::Reset(Reset { reason, nonce }),
        });
    }
}
