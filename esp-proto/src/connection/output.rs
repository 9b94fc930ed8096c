//! Building the frames of a connection.

use super::ack_requests::Sending;
use super::{Connection, Cx, Key};
use crate::api::{Head, PREFIX_LEN, Payload, Proto, Transmit};
use crate::send::Segment;
use crate::seq::Seq;
use crate::state::Input;
use crate::time::Duration;
use crate::timers::Timer;
use crate::wire::{
    Ext, FLAG_ACK, FLAG_ASK, FLAG_EXT, FLAG_FIN, FLAG_PRB, FLAG_RST, FLAG_SYN, Header, MAX_SACK,
    MAX_WINDOW, MIN_FRAME, emit_prefix, pad, tail_of,
};

/// First interval between path probes (W-53).
const PATH_INTERVAL: Duration = Duration::from_millis(10);
/// Number of probes at the first interval.
const PATH_TRIES: u32 = 5;
/// Interval between later probes: a switch may be reconfigured at any time.
const PATH_INTERVAL_LATER: Duration = Duration::from_secs(10);
/// Length of an extension block with CREDIT alone, in bytes.
const CREDIT_EXT: usize = 4;
/// Maximum number of bytes of an extension block before its bitmap.
const EXT_BESIDE_SACK: usize = 8;

impl Connection {
    /// Returns true when `poll_urgent` would build a frame.
    pub(crate) fn wants_urgent(&self) -> bool {
        if self.frozen {
            return self.has_move();
        }
        self.acks.now || self.syn_is_pending() || self.probe || self.path_pending || self.has_move()
    }

    /// Returns true when `poll_data` may build a frame.
    pub(crate) fn wants_data(&self, max_window: u16) -> bool {
        if self.frozen {
            return false;
        }
        if self.acks.due || self.acks.credit {
            return true;
        }
        if !self.may_send() {
            return false;
        }
        let new = self.send.has_new()
            && self.send.credit() > 0
            && self.send.outstanding() < max_window.min(MAX_WINDOW)
            && self.recovery.in_flight < self.congestion.window();
        new || self.recovery.has_probe() || self.recovery.has_lost()
    }

    /// Builds a frame that must not wait for data: set-up, probes, immediate acknowledgements.
    pub(crate) fn poll_urgent(&mut self, cx: &mut Cx, head: &mut Head) -> Option<Transmit> {
        if let Some((seq, block)) = self.take_move(cx) {
            cx.counters.tx_moves += 1;
            let len = block.emit(tail_of(head));
            return Some(self.build(cx, head, (seq, FLAG_SYN | FLAG_PRB), Payload::None, len));
        }
        if self.frozen {
            return None;
        }
        if let Some(syn) = self.take_syn(cx, head) {
            return Some(syn);
        }
        if self.path_pending {
            self.path_pending = false;
            let wait = match self.path_tries {
                tries if tries < PATH_TRIES => PATH_INTERVAL * (1 << tries),
                _ => PATH_INTERVAL_LATER,
            };
            self.path_tries += 1;
            self.timers.set(Timer::Path, cx.now + wait);
            return Some(self.build_probe(cx, head, self.agreed));
        }
        if self.probe {
            self.probe = false;
            return Some(self.build_probe(cx, head, 0));
        }
        self.acks.now.then(|| self.build_ack(cx, head))
    }

    /// Builds the next data frame, or an acknowledgement that is due when there is no data to carry
    /// it.
    pub(crate) fn poll_data(&mut self, cx: &mut Cx, head: &mut Head) -> Option<Transmit> {
        if self.frozen {
            return None;
        }
        if self.may_send() {
            // New credit that does not fit into a frame with a full payload is sent first, in a
            // frame of its own (W-45).
            if self.acks.credit
                && self.send.has_new()
                && self.payload > cx.max_payload - CREDIT_EXT as u16
            {
                return Some(self.build_ack(cx, head));
            }
            let window = self.window(cx);
            if let Some((seq, segment)) = self.recovery.take_repeat(&mut self.send, window, cx.now)
            {
                self.stats.retransmits += 1;
                cx.counters.tx_retransmits += 1;
                return Some(self.build_segment(cx, head, (seq, segment), false));
            }
            if let Some(new) = self.take_new(cx, window) {
                let ask = self.asks(cx, window, &new.1);
                return Some(self.build_segment(cx, head, new, ask));
            }
        }
        (self.acks.due || self.acks.credit).then(|| self.build_ack(cx, head))
    }

    /// Cuts the next segment if window and credit allow (W-31).
    fn take_new(&mut self, cx: &mut Cx, window: u32) -> Option<(Seq, Segment)> {
        self.window_limited = false;
        if !self.send.has_new() || self.send.credit() == 0 {
            return None;
        }
        if self.recovery.in_flight >= window || self.recovery.has_lost() {
            self.window_limited = true;
            return None;
        }
        if self.send.outstanding() >= cx.max_window() {
            return None;
        }
        let (seq, segment) = self.send.cut(self.payload, self.recovery.next_tx, cx.now)?;
        self.recovery.on_sent(seq);
        if segment.fin {
            self.advance(cx, Input::FinSent);
        } else {
            self.stats.packets_sent += 1;
            cx.counters.tx_data += 1;
            cx.counters.tx_data_bytes += u64::from(segment.len);
        }
        Some((seq, segment))
    }

    /// Returns true if this new segment requests an acknowledgement (W-34).
    fn asks(&mut self, cx: &Cx, window: u32, segment: &Segment) -> bool {
        let outstanding = self.send.outstanding();
        let window = window.min(u32::from(cx.max_window()));
        let room = window
            .saturating_sub(self.recovery.in_flight)
            .min(u32::from(self.send.credit()));
        let sent = segment.offset + u64::from(segment.len);
        !segment.fin
            && self.ack_requests.on_packet(&Sending {
                alone: outstanding <= 1,
                unacknowledged: self.send.written - self.send.acked,
                unsent: self.send.written.saturating_sub(sent),
                payload: self.payload,
                window,
                room,
            })
    }

    fn build_segment(
        &mut self,
        cx: &mut Cx,
        head: &mut Head,
        (seq, segment): (Seq, Segment),
        ask: bool,
    ) -> Transmit {
        let len = usize::from(segment.len);
        let free = MIN_FRAME.saturating_sub(PREFIX_LEN + len) >= CREDIT_EXT;
        let fits = len + CREDIT_EXT <= usize::from(cx.max_payload); // W-45
        let mut flags = match (segment.fin, ask) {
            (true, _) => FLAG_ACK | FLAG_FIN,
            (false, true) => FLAG_ACK | FLAG_ASK,
            (false, false) => FLAG_ACK,
        };
        let mut tail = 0;
        if free || (self.acks.credit && fits) {
            flags |= FLAG_EXT;
            let edge = self.recv.raise_edge();
            tail = Ext {
                credit: Some(edge),
                ..Ext::default()
            }
            .emit(tail_of(head));
            self.acks.credit = false;
        }
        // The data frame carries the acknowledgement (W-34), but no count of marks (W-113).
        if !self.ecn.unreported {
            self.acks.waiting = 0;
            self.acks.due = false;
            self.timers.stop(Timer::Ack);
        }
        if !self.timers.is_set(Timer::Retransmit) {
            self.timers.set(Timer::Retransmit, self.retransmit_at(cx));
        }
        self.start_peer_timeout(cx);
        self.arm_tail_probe(cx);
        let payload = match segment.len {
            0 => Payload::None,
            len => Payload::Stream {
                conn: self.id,
                offset: segment.offset,
                len,
            },
        };
        self.build(cx, head, (seq, flags), payload, tail)
    }

    /// Builds a bare acknowledgement with credit, and with the bitmap when there is a gap (W-34,
    /// W-35).
    fn build_ack(&mut self, cx: &mut Cx, head: &mut Head) -> Transmit {
        cx.counters.tx_acks += 1;
        let edge = self.recv.raise_edge();
        let mut bitmap;
        let mut ext = Ext {
            credit: Some(edge),
            probed: self.acks.probed,
            ce: self.ecn.take_field(),
            sack: &[],
        };
        if self.recv.has_gap() {
            bitmap = [0; MAX_SACK];
            let room = usize::from(cx.max_payload) - EXT_BESIDE_SACK; // W-45
            let len = self.recv.sack(&mut bitmap).min(room);
            ext.sack = bitmap.get(..len).unwrap_or_default();
        }
        let tail = ext.emit(tail_of(head));
        self.acks = super::Acks::default();
        self.timers.stop(Timer::Ack);
        let start = (self.send.next(), FLAG_ACK | FLAG_EXT);
        self.build(cx, head, start, Payload::None, tail)
    }

    fn build_probe(&mut self, cx: &mut Cx, head: &mut Head, len: u16) -> Transmit {
        cx.counters.tx_probes += 1;
        let payload = match len {
            0 => Payload::None,
            len => Payload::Filler { len },
        };
        let start = (self.send.next(), FLAG_ACK | FLAG_PRB);
        self.build(cx, head, start, payload, 0)
    }

    /// Completes a frame whose first `tail` bytes after the prefix are written.
    pub(super) fn build(
        &mut self,
        cx: &mut Cx,
        head: &mut Head,
        (seq, flags): (Seq, u8),
        payload: Payload,
        tail: usize,
    ) -> Transmit {
        let ack = match flags & FLAG_ACK {
            0 => Seq(0),
            _ => self.recv.expected,
        };
        cx.emit(
            head,
            (Proto::Esp, &self.key),
            (seq, ack, flags),
            payload,
            tail,
        )
    }
}

impl Cx {
    /// Completes a frame whose first `tail` bytes after the prefix are written: adds the prefix and
    /// padding. The block of a SYN, RST or MOVE is its payload; an extension block is not.
    pub(crate) fn emit(
        &mut self,
        head: &mut Head,
        (proto, key): (Proto, &Key),
        (seq, ack, flags): (Seq, Seq, u8),
        payload: Payload,
        tail: usize,
    ) -> Transmit {
        let block = match flags & (FLAG_SYN | FLAG_RST) {
            0 => 0,
            _ => tail,
        };
        let header = Header {
            packet_type: self.config.ethertype(proto),
            dst_port: key.peer_port,
            src_port: key.local_port,
            seq,
            ack,
            len: (payload.len() + block) as u16, // below 65536, as the MTU
            flags,
        };
        self.counters.tx_frames += 1;
        emit_prefix(head, key.peer, self.own, &header);
        let tail_len = pad(head, payload.len(), tail);
        Transmit {
            dst: key.peer,
            proto,
            payload,
            tail_len,
        }
    }
}
