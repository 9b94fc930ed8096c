//! Selection of the next frame to send, and frames that belong to no connection.

use super::Endpoint;
use crate::api::{EdpKind, Head, Payload, Proto, Transmit};
use crate::connection::Key;
use crate::seq::Seq;
use crate::time::Instant;
use crate::wire::{FLAG_ACK, FLAG_CTL, FLAG_PRB, FLAG_RST, FLAG_SYN, Move, Reset, Retry, tail_of};
use alloc::boxed::Box;

/// Frames that one connection, or the connections of one owner, may send before the next is served:
/// half of the host's batch, so that a batch serves at least two.
const QUANTUM: u32 = 32;
/// Maximum number of queued replies that belong to no connection (W-50, W-73).
const ANSWERS_WAITING: usize = 256;

/// Number of data frames sent.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// By the connection that is served.
    by_connection: u32,
    /// In the turn of its owner.
    by_owner: u32,
}

/// A frame that belongs to no connection.
#[derive(Debug)]
pub(super) struct Control {
    /// Ports and destination of the frame.
    pub(super) key: Key,
    pub(super) seq: Seq,
    pub(super) ack: Option<Seq>,
    pub(super) body: ControlBody,
}

#[derive(Debug)]
pub(super) enum ControlBody {
    Reset(Reset),
    Retry(Retry),
    Move(Move),
    /// A control datagram.
    Edp(Box<[u8]>),
}

impl Endpoint {
    /// Builds the next frame in `head`, or returns `None` when there is none. See [`Transmit`] for
    /// the order of its parts.
    ///
    /// Frames of no connection come first, then frames that must not wait (set-up, probes,
    /// immediate acknowledgements), then data, 32 frames of each [owner](Self::set_owner) in turn,
    /// and 32 of each of its connections in turn. An acknowledgement that is due is combined with
    /// data if there is any.
    pub fn poll_transmit(&mut self, now: Instant, head: &mut Head) -> Option<Transmit> {
        self.clock(now);
        if let Some(control) = self.control.pop_front() {
            return Some(self.build_control(head, control));
        }
        while let Some(id) = self.urgent.front().copied() {
            let frame = self.with_id(id, |conn, cx| conn.poll_urgent(cx, head));
            if let Some(Some(frame)) = frame {
                self.urgent.pass();
                return Some(frame);
            }
            self.urgent.pop();
            if let Some(conn) = self.table.get_mut(id) {
                conn.queued.urgent = false;
            }
        }
        while let Some(id) = self.ready.front().copied() {
            let frame = self.with_id(id, |conn, cx| conn.poll_data(cx, head));
            if let Some(Some(frame)) = frame {
                self.spend();
                return Some(frame);
            }
            self.spent.by_connection = 0;
            if self.ready.pop().is_some_and(|(_, turn_ended)| turn_ended) {
                self.spent.by_owner = 0;
            }
            if let Some(conn) = self.table.get_mut(id) {
                conn.queued.ready = false;
            }
        }
        None
    }

    /// Counts a data frame, and passes the turn on after [`QUANTUM`].
    #[inline]
    fn spend(&mut self) {
        let Spent {
            by_connection,
            by_owner,
        } = &mut self.spent;
        *by_connection = by_connection.saturating_add(1);
        *by_owner = by_owner.saturating_add(1);
        if *by_connection >= QUANTUM && self.ready.rotate() {
            *by_connection = 0;
        }
        if *by_owner >= QUANTUM && self.ready.pass() {
            self.spent = Spent::default();
        }
    }

    /// Queues a RST for an unknown connection or a confused peer, within the limits (W-50).
    pub(super) fn push_reset(&mut self, key: Key, seq: Seq, ack: Option<Seq>, reset: Reset) {
        self.push_refusal(key, seq, ack, ControlBody::Reset(reset));
    }

    /// Requests that a SYN be repeated with a cookie (W-150), within the limits of resets.
    pub(super) fn push_retry(&mut self, key: Key, syn: Seq, retry: Retry) {
        let seq = syn.plus(1);
        self.push_refusal(key, seq, Some(seq), ControlBody::Retry(retry));
    }

    fn push_refusal(&mut self, key: Key, seq: Seq, ack: Option<Seq>, body: ControlBody) {
        let limited = !self.resets.take(self.cx.now) || !self.answers.take(&key.peer, self.cx.now);
        if self.control.len() >= ANSWERS_WAITING || limited {
            self.cx.counters.tx_reset_limited += 1;
            return;
        }
        self.control.push_back(Control {
            key,
            seq,
            ack,
            body,
        });
    }

    /// Queues a frame for a connection of this endpoint, such as the RST that ends it: at most one
    /// for each connection.
    pub(super) fn push_own(&mut self, control: Control) {
        let connections = self.cx.config.max_connections.max(ANSWERS_WAITING);
        if self.control.len() >= connections.saturating_mul(2) {
            self.cx.counters.tx_reset_limited += 1;
            return;
        }
        self.control.push_back(control);
    }

    /// Queues the reply to an EDP request. Returns false when too many are waiting (W-73), or were
    /// sent to the address's network (W-123).
    pub(super) fn push_edp(&mut self, key: Key, seq: Seq, payload: Box<[u8]>) -> bool {
        let room =
            self.control.len() < ANSWERS_WAITING && self.answers.take(&key.peer, self.cx.now);
        if room {
            self.control.push_back(Control {
                key,
                seq,
                ack: None,
                body: ControlBody::Edp(payload),
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
        self.control.push_back(Control {
            key: Key {
                peer_port: 0,
                ..key
            },
            seq: Seq(self.edp_sequence),
            ack: None,
            body: ControlBody::Edp(Box::new([EdpKind::PortQuery as u8, high, low])),
        });
    }

    fn build_control(&mut self, head: &mut Head, control: Control) -> Transmit {
        let Control { key, ack, .. } = control;
        let tail = tail_of(head);
        let (proto, flags, payload, tail) = match control.body {
            ControlBody::Reset(reset) => {
                self.cx.counters.tx_resets += 1;
                let flags = ack.map_or(FLAG_RST, |_| FLAG_RST | FLAG_ACK);
                (Proto::Esp, flags, Payload::None, reset.emit(tail))
            }
            ControlBody::Retry(retry) => {
                self.cx.counters.tx_cookies += 1;
                (
                    Proto::Esp,
                    FLAG_RST | FLAG_ACK,
                    Payload::None,
                    retry.emit(tail),
                )
            }
            ControlBody::Move(block) => {
                self.cx.counters.tx_moves += 1;
                let flags = FLAG_SYN | FLAG_PRB;
                (Proto::Esp, flags, Payload::None, block.emit(tail))
            }
            ControlBody::Edp(bytes) => {
                self.cx.counters.tx_edp += 1;
                (Proto::Edp, FLAG_CTL, Payload::Owned(bytes), 0)
            }
        };
        let start = (control.seq, ack.unwrap_or_default(), flags);
        (self.cx).emit(head, (proto, &key), start, payload, tail)
    }
}
