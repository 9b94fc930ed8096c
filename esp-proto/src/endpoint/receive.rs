//! Dispatch of received frames.

use super::{Endpoint, ListenerInfo, edp};
use crate::api::{CloseReason, ResetReason, RxFrame, Sink, State};
use crate::connection::{Connection, Key, SynVerdict};
use crate::seq::Seq;
use crate::time::Instant;
use crate::wire::{
    EspFrame, FEATURE_COOKIES, FrameType, Header, MIN_PACKET, Reset, Retry, SetUp, VERSION,
    WireError, keys_equal,
};
use alloc::boxed::Box;

impl Endpoint {
    /// Processes a received frame. `sink` receives its contents before this returns. Any frame
    /// either changes state according to the protocol or increments one counter.
    pub fn handle_frame<S: Sink>(&mut self, now: Instant, frame: RxFrame<'_>, sink: &mut S) {
        self.clock(now);
        self.cx.counters.rx_frames += 1;
        self.cx.counters.rx_bytes += frame.body.len() as u64;
        if let Err(error) = self.route(&frame, sink) {
            self.cx.counters.wire(error);
        }
    }

    fn route<S: Sink>(&mut self, frame: &RxFrame<'_>, sink: &mut S) -> Result<(), WireError> {
        let (header, rest) = Header::parse(frame.body)?;
        if frame.src.is_udp() && frame.body.len() < MIN_PACKET {
            return Err(WireError::Runt); // W-120
        }
        let esp = header.packet_type == self.cx.config.esp_ethertype;
        if !esp && header.packet_type != self.cx.config.edp_ethertype {
            self.cx.counters.rx_drop_ethertype += 1;
        } else if frame.src == self.cx.own && !frame.looped {
            self.cx.counters.rx_drop_echo += 1; // W-06
        } else if frame.src.is_group() {
            self.cx.counters.rx_drop_source_group += 1; // W-07
        } else if frame.dst != self.cx.own && (esp || frame.dst != crate::NodeAddr::BROADCAST) {
            self.cx.counters.rx_drop_destination += 1; // W-07
        } else if esp {
            let parsed = EspFrame::parse(&header, rest)?;
            return self.on_esp(frame, &parsed, sink);
        } else {
            let parsed = crate::wire::EdpFrame::parse(&header, rest)?;
            edp::receive(self, frame, &header, &parsed, sink);
        }
        Ok(())
    }

    fn on_esp<S: Sink>(
        &mut self,
        raw: &RxFrame<'_>,
        frame: &EspFrame<'_>,
        sink: &mut S,
    ) -> Result<(), WireError> {
        if !raw.looped && !self.held.is_empty() && self.held.contains(&frame.dst_port) {
            // W-76: waited in our socket when the port was given away
            self.cx.counters.rx_drop_held += 1;
            return Ok(());
        }
        let key = Key {
            local_port: frame.dst_port,
            peer: raw.src,
            peer_port: frame.src_port,
        };
        match frame.kind {
            FrameType::Syn | FrameType::SynAck => {
                let block = SetUp::parse(frame.payload);
                if block == Err(WireError::Version) {
                    self.refuse(key, frame, 0, ResetReason::Version(VERSION)); // W-17
                }
                let block = block?; // W-22
                if frame.kind == FrameType::Syn {
                    self.on_syn(key, frame, &block);
                } else {
                    self.on_syn_ack(key, frame, &block);
                }
            }
            FrameType::Move => self.on_move(key, frame),
            _ => self.on_other(key, frame, raw.ce, sink),
        }
        Ok(())
    }

    fn on_other<S: Sink>(&mut self, key: Key, frame: &EspFrame<'_>, ce: bool, sink: &mut S) {
        let Some(slot) = self.table.find(&key) else {
            return self.no_connection(key, frame);
        };
        let room = self.has_room_to_accept(slot);
        if self.with(slot, |conn, cx| conn.on_frame(cx, frame, room, ce, sink)) == Some(true) {
            self.reset_unknown(key, frame);
        }
    }

    /// Returns false if the connection is half open and its listener's accept queue is full (W-24).
    pub(super) fn has_room_to_accept(&self, slot: u32) -> bool {
        let conn = self.table.at(slot);
        let half_open = conn.filter(|conn| conn.state == State::SynReceived);
        let listener = half_open.and_then(|conn| self.listeners.get(&conn.key.local_port));
        listener.is_none_or(|listener| !listener.info.accept_full())
    }

    /// Answers a frame for which there is no connection (W-50).
    fn no_connection(&mut self, key: Key, frame: &EspFrame<'_>) {
        if (self.moved_keys.get(&key)).is_some_and(|until| self.cx.now < *until) {
            self.cx.counters.rx_drop_moved += 1; // W-108
            return;
        }
        if self.stays_silent() {
            return;
        }
        self.cx.counters.rx_drop_no_connection += 1;
        if frame.kind != FrameType::Rst {
            self.reset_unknown(key, frame);
        }
    }

    /// Refuses a SYN or SYN+ACK. The sequence is the one that its sender expects (W-58); the nonce
    /// is the sender's, if known.
    fn refuse(&mut self, key: Key, frame: &EspFrame<'_>, nonce: u64, reason: ResetReason) {
        let seq = if frame.kind == FrameType::Syn {
            frame.seq.plus(1)
        } else {
            frame.ack
        };
        let reset = Reset { reason, nonce };
        self.push_reset(key, seq, Some(frame.seq.plus(1)), reset);
    }

    /// Resets the sender of a frame that belongs to no known connection (W-29, W-50), unless it may
    /// still be resumed: the known one may be half open by a late copy of a SYN.
    fn reset_unknown(&mut self, key: Key, frame: &EspFrame<'_>) {
        if self.stays_silent() {
            return;
        }
        let (reason, nonce) = (ResetReason::Unknown, 0);
        self.push_reset(key, frame.ack, None, Reset { reason, nonce });
    }

    fn on_syn_ack(&mut self, key: Key, frame: &EspFrame<'_>, block: &SetUp<'_>) {
        let Some(slot) = self.table.find(&key) else {
            return self.no_connection(key, frame);
        };
        if self.with(slot, |conn, cx| conn.on_syn_ack(cx, frame, block)) == Some(true) {
            self.reset_unknown(key, frame); // W-29
        }
    }

    fn on_syn(&mut self, key: Key, frame: &EspFrame<'_>, block: &SetUp<'_>) {
        if let Some(slot) = self.table.find(&key) {
            match self.with(slot, |conn, cx| conn.on_syn(cx, frame, block)) {
                Some(SynVerdict::Fresh) => {
                    if !self.listeners.contains_key(&key.local_port) {
                        return self.refuse_syn(key, frame, block); // TIME-WAIT goes on
                    }
                    if self
                        .table
                        .at(slot)
                        .is_some_and(|conn| conn.state == State::TimeWait)
                    {
                        self.reclaim(slot); // W-55
                    } else {
                        self.finish(slot, CloseReason::ConnectTimedOut, None); // W-26: the newer
                    }
                }
                Some(SynVerdict::BadKey) => {
                    return self.refuse(key, frame, block.nonce, ResetReason::BadKey);
                }
                Some(SynVerdict::Done) | None => return,
            }
        }
        self.open_passive(key, frame, block);
    }

    fn refuse_syn(&mut self, key: Key, frame: &EspFrame<'_>, block: &SetUp<'_>) {
        if self.stays_silent() {
            return; // the listener may come back
        }
        self.cx.counters.rx_drop_refused += 1; // W-23
        self.refuse(key, frame, block.nonce, ResetReason::Refused);
    }

    fn open_passive(&mut self, key: Key, frame: &EspFrame<'_>, block: &SetUp<'_>) {
        let Some(listener) = self.listeners.get(&key.local_port) else {
            return self.refuse_syn(key, frame, block);
        };
        if !keys_equal(&listener.key, block.key) {
            self.cx.counters.rx_drop_key += 1; // W-20
            return self.refuse(key, frame, block.nonce, ResetReason::BadKey);
        }
        if listener.info.accept_full() {
            self.cx.counters.rx_drop_backlog += 1; // W-24
            return;
        }
        let ListenerInfo {
            half_open, backlog, ..
        } = listener.info;
        let (nonce, now) = (block.nonce, self.cx.now);
        let owner = listener.owner;
        let proven = (half_open >= backlog || self.unattached.is_full(owner, false))
            && (self.cookies).is_valid(block.peer_nonce, &key, nonce, now);
        let full = half_open >= if proven { 2 * backlog } else { backlog }
            || self.unattached.is_full(owner, proven);
        if full || self.table.is_full() {
            let made_room = self.evict_half_open(key.local_port);
            if full && !made_room {
                self.cx.counters.rx_drop_backlog += 1; // W-24
                if !proven && block.features & FEATURE_COOKIES != 0 {
                    let cookie = self.cookies.cookie(&key, nonce, now);
                    self.push_retry(key, frame.seq, Retry { nonce, cookie });
                }
                return;
            }
        }
        if !self.answers.take(&key.peer, self.cx.now) {
            self.cx.counters.rx_drop_answer_rate += 1; // W-123
            return;
        }
        let Some(id) = self.table.next_id() else {
            self.cx.counters.rx_drop_limit += 1;
            return;
        };
        let secrets: (u64, Seq) = self.secrets();
        let mut conn = Connection::passive(&self.cx, id, key, secrets, frame, block);
        conn.proven = proven; // W-150: not evicted
        conn.owner = owner;
        self.unattached.add(owner);
        self.table.insert(Box::new(conn));
        self.moved_keys.remove(&key);
        self.join_listener(key.local_port, id);
        self.settle(id.slot);
    }
}
