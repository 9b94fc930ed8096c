//! Selection of the next frame to send, and frames that belong to no connection.

use super::Endpoint;
use crate::addr::{NodeAddr, Port};
use crate::api::{ConnId, Head, PREFIX_LEN, Payload, Proto, ResetReason, Transmit};
use crate::connection::Key;
use crate::seq::Seq;
use crate::time::Instant;
use crate::wire::{
    ControlType, FLAG_ACK, FLAG_CTL, FLAG_PRB, FLAG_RST, FLAG_SYN, Header, MOVE_LEN, Move,
    RESET_LEN, Reset, emit_prefix, pad,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Frames that one connection may send before the next is served: half of the host's batch, so that
/// a batch serves at least two.
const QUANTUM: u32 = 32;
/// Maximum number of queued replies that belong to no connection (W-50, W-73).
const ANSWERS_WAITING: usize = 256;

/// A frame that belongs to no connection.
#[derive(Debug)]
pub(super) enum Control {
    Reset {
        key: Key,
        seq: Seq,
        ack: Option<Seq>,
        reset: Reset,
    },
    Move {
        key: Key,
        block: Move,
    },
    Edp {
        dst: NodeAddr,
        dst_port: Port,
        src_port: Port,
        sequence: u16,
        payload: Box<[u8]>,
    },
}

/// Round-robin queue of connections.
#[derive(Debug, Default)]
pub(super) struct Ring {
    queue: VecDeque<ConnId>,
    /// Frames sent by the first connection in this round.
    spent: u32,
}

impl Ring {
    pub(super) fn push(&mut self, id: ConnId) {
        self.queue.push_back(id);
    }

    fn front(&self) -> Option<ConnId> {
        self.queue.front().copied()
    }

    /// Charges a frame to the first connection.
    fn spend(&mut self) {
        self.spent += 1;
        if self.spent >= QUANTUM && self.queue.len() > 1 {
            self.queue.rotate_left(1);
            self.spent = 0;
        }
    }

    fn pop(&mut self) {
        self.queue.pop_front();
        self.spent = 0;
    }
}

impl Endpoint {
    /// Builds the next frame in `head`, or returns `None` when there is none. See [`Transmit`] for
    /// the order of its parts.
    ///
    /// Frames of no connection come first, then frames that must not wait (set-up, probes,
    /// immediate acknowledgements), then data, 32 frames of each connection in turn. An
    /// acknowledgement that is due is combined with data if there is any.
    pub fn poll_transmit(&mut self, now: Instant, head: &mut Head) -> Option<Transmit> {
        self.clock(now);
        if let Some(control) = self.control.pop_front() {
            return Some(self.build_control(head, control));
        }
        while let Some(id) = self.urgent.front().copied() {
            if self.table.get(id).is_some()
                && let Some(Some(transmit)) =
                    self.with(id.slot, |conn, cx| conn.poll_urgent(cx, head))
            {
                return Some(transmit);
            }
            self.urgent.pop_front();
            if let Some(conn) = self.table.get_mut(id) {
                conn.queued.urgent = false;
            }
        }
        while let Some(id) = self.ready.front() {
            if self.table.get(id).is_some()
                && let Some(Some(transmit)) =
                    self.with(id.slot, |conn, cx| conn.poll_data(cx, head))
            {
                self.ready.spend();
                return Some(transmit);
            }
            self.ready.pop();
            if let Some(conn) = self.table.get_mut(id) {
                conn.queued.ready = false;
            }
        }
        None
    }

    /// Queues a RST for an unknown connection or a confused peer, within the limits (W-50).
    pub(super) fn push_reset(
        &mut self,
        key: Key,
        seq: Seq,
        ack: Option<Seq>,
        nonce: u64,
        reason: ResetReason,
    ) {
        let limited = !self.resets.take(self.now) || !self.answers.take(&key.peer, self.now);
        if self.control.len() >= ANSWERS_WAITING || limited {
            self.counters.tx_reset_limited += 1;
            return;
        }
        self.control.push_back(Control::Reset {
            key,
            seq,
            ack,
            reset: Reset { reason, nonce },
        });
    }

    /// Queues the RST that ends a connection of this endpoint: at most one for each connection.
    pub(super) fn push_own_reset(
        &mut self,
        key: Key,
        seq: Seq,
        ack: Seq,
        nonce: u64,
        reason: ResetReason,
    ) {
        let limit = self
            .config
            .max_connections
            .max(ANSWERS_WAITING)
            .saturating_mul(2);
        if self.control.len() >= limit {
            self.counters.tx_reset_limited += 1;
            return;
        }
        self.control.push_back(Control::Reset {
            key,
            seq,
            ack: Some(ack),
            reset: Reset { reason, nonce },
        });
    }

    /// Queues the reply to an EDP request. Returns false when too many are waiting (W-73), or were
    /// sent to the address's network (W-123).
    pub(super) fn push_edp(
        &mut self,
        dst: NodeAddr,
        dst_port: Port,
        sequence: u16,
        payload: Box<[u8]>,
    ) -> bool {
        let room = self.control.len() < ANSWERS_WAITING && self.answers.take(&dst, self.now);
        if room {
            self.control.push_back(Control::Edp {
                dst,
                dst_port,
                src_port: 0,
                sequence,
                payload,
            });
        }
        room
    }

    /// Queues a query for the peer's port, in the name of the local one (W-77); omitted when too
    /// many replies are waiting.
    pub(super) fn push_query(&mut self, key: Key) {
        if self.control.len() >= ANSWERS_WAITING {
            return; // the next one is due soon
        }
        self.edp_sequence = self.edp_sequence.wrapping_add(1);
        let [high, low] = key.peer_port.to_be_bytes();
        let payload = Box::new([ControlType::PortQuery as u8, high, low]);
        let (dst, src_port, sequence) = (key.peer, key.local_port, self.edp_sequence);
        self.control.push_back(Control::Edp {
            dst,
            dst_port: 0,
            src_port,
            sequence,
            payload,
        });
    }

    fn build_control(&mut self, head: &mut Head, control: Control) -> Transmit {
        self.counters.tx_frames += 1;
        match control {
            Control::Reset {
                key,
                seq,
                ack,
                reset,
            } => {
                self.counters.tx_resets += 1;
                let header = Header {
                    packet_type: self.config.esp_ethertype,
                    dst_port: key.peer_port,
                    src_port: key.local_port,
                    seq,
                    ack: ack.unwrap_or_default(),
                    len: RESET_LEN as u16,
                    flags: if ack.is_some() {
                        FLAG_RST | FLAG_ACK
                    } else {
                        FLAG_RST
                    },
                };
                emit_prefix(head, key.peer, self.addr, &header);
                let len = head
                    .get_mut(PREFIX_LEN..)
                    .map_or(0, |tail| reset.emit(tail));
                let tail_len = pad(head, 0, len);
                Transmit {
                    dst: key.peer,
                    proto: Proto::Esp,
                    payload: Payload::None,
                    tail_len,
                }
            }
            Control::Move { key, block } => {
                self.counters.tx_moves += 1;
                let header = Header {
                    packet_type: self.config.esp_ethertype,
                    dst_port: key.peer_port,
                    src_port: key.local_port,
                    seq: Seq(0),
                    ack: Seq(0),
                    len: MOVE_LEN as u16,
                    flags: FLAG_SYN | FLAG_PRB,
                };
                emit_prefix(head, key.peer, self.addr, &header);
                let len = head
                    .get_mut(PREFIX_LEN..)
                    .map_or(0, |tail| block.emit(tail));
                let tail_len = pad(head, 0, len);
                Transmit {
                    dst: key.peer,
                    proto: Proto::Esp,
                    payload: Payload::None,
                    tail_len,
                }
            }
            Control::Edp {
                dst,
                dst_port,
                src_port,
                sequence,
                payload,
            } => {
                self.counters.tx_edp += 1;
                let header = Header {
                    packet_type: self.config.edp_ethertype,
                    dst_port,
                    src_port,
                    seq: Seq(sequence),
                    ack: Seq(0),
                    len: u16::try_from(payload.len()).unwrap_or(0),
                    flags: FLAG_CTL,
                };
                emit_prefix(head, dst, self.addr, &header);
                let tail_len = pad(head, payload.len(), 0);
                Transmit {
                    dst,
                    proto: Proto::Edp,
                    payload: Payload::Owned(payload),
                    tail_len,
                }
            }
        }
    }
}
