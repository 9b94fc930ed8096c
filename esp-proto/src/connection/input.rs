//! Processing of received frames.

use super::ack_requests::UNASKED;
use super::{Connection, Cx};
use crate::api::{CloseReason, ConnId, ResetReason, Sink, State};
use crate::congestion::AckEvent;
use crate::recv::Verdict;
use crate::send::FinState;
use crate::seq::Seq;
use crate::state::Input;
use crate::timers::Timer;
use crate::wire::{EspFrame, Ext, FrameType, MAX_WINDOW, Reset, Retry};

impl Connection {
    /// Processes a frame that is neither SYN nor SYN+ACK. `room_to_accept` is false when the
    /// listener's accept queue is full. `ce`: the frame arrived with a congestion mark. Returns
    /// true when the sender must be answered with RST, reason UNKNOWN (W-29).
    pub(crate) fn on_frame<S: Sink>(
        &mut self,
        cx: &mut Cx,
        frame: &EspFrame<'_>,
        room_to_accept: bool,
        ce: bool,
        sink: &mut S,
    ) -> bool {
        if frame.kind == FrameType::Rst {
            self.on_reset(cx, frame);
            return false;
        }
        if self.frozen {
            cx.counters.rx_drop_moving += 1; // W-105
            return false;
        }
        match self.state {
            State::SynSent => {
                cx.counters.rx_drop_unexpected += 1;
                return true; // W-29
            }
            State::SynReceived => {
                if !self.acknowledges_syn(frame) {
                    cx.counters.rx_drop_ack_forged += 1;
                    // W-29: the sender may be talking to an earlier incarnation, and must be
                    // informed.
                    return frame.ack != self.iss.plus(1);
                }
                if self.must_wait(cx, room_to_accept) {
                    return false;
                }
                if self.has_unknown_field(frame) {
                    cx.counters.rx_drop_extension += 1; // W-114
                    return false;
                }
                self.establish(cx);
            }
            State::TimeWait => {
                self.on_frame_in_time_wait(cx, frame);
                return false;
            }
            State::Closed => return false,
            _ => {}
        }
        if !self.take_ack(cx, frame) {
            return false;
        }
        match frame.kind {
            FrameType::Data | FrameType::Fin => {
                self.acks.due |= frame.asks;
                if ce {
                    self.count_mark(cx);
                }
                let payload = (frame.kind == FrameType::Data).then_some(frame.payload);
                self.on_data(cx, frame.seq, payload, sink);
            }
            FrameType::Ack => cx.counters.rx_acks += 1,
            FrameType::Probe => {
                // W-51; the length is at most the frame's.
                cx.counters.rx_probes += 1;
                self.acks.now = true;
                // The answer is useful only if it covers the bytes that the program has read since
                // the last report.
                self.notes.progress |= self.attached && self.recv.credit() == 0;
                if !frame.payload.is_empty() {
                    self.acks.probed = u16::try_from(frame.payload.len()).ok();
                }
            }
            FrameType::Syn | FrameType::SynAck | FrameType::Rst | FrameType::Move => {}
        }
        if self.ecn.unreported {
            self.acks.now |= self.acks.due; // W-113
        }
        false
    }

    /// Records that the peer sent an acceptable frame.
    pub(super) fn heard(&mut self, cx: &Cx) {
        self.timers
            .set(Timer::KeepAlive, cx.now + cx.config.keepalive);
        if self.send.is_idle() {
            self.timers.stop(Timer::PeerDead);
            self.queries = 0;
            self.path_works();
        }
    }

    /// Sends a challenge ACK, which shows the real peer our state (W-27, W-58). Rate-limited.
    pub(super) fn challenge(&mut self, cx: &mut Cx) {
        if cx.challenges.take(cx.now) {
            cx.counters.rx_challenges += 1;
            self.acks.now = true;
        } else {
            cx.counters.tx_challenge_limited += 1;
        }
    }

    /// Processes the acknowledgement and extension of a frame. Returns false when the whole frame
    /// must be dropped.
    fn take_ack(&mut self, cx: &mut Cx, frame: &EspFrame<'_>) -> bool {
        if self.has_unknown_field(frame) {
            cx.counters.rx_drop_extension += 1; // W-114
            return false;
        }
        if !self.recv.is_plausible(frame.seq) {
            cx.counters.rx_drop_sequence_forged += 1; // W-33
            return false;
        }
        let una = self.send.una;
        let outstanding = self.send.outstanding();
        let ahead = frame.ack.ahead_of(una);
        if ahead > outstanding {
            if self.send.may_be_old_ack(frame.ack) {
                cx.counters.rx_old_acks += 1; // W-33: the rest of the frame counts
                self.heard(cx);
                return true;
            }
            cx.counters.rx_drop_ack_forged += 1; // W-33
            return false;
        }
        if let Some(ext) = &frame.ext {
            let reach = ext.sack_reach();
            if reach > 0 && u32::from(ahead) + u32::from(reach) >= u32::from(outstanding) {
                cx.counters.rx_drop_sack_forged += 1; // W-44
                return false;
            }
            self.take_ext(cx, frame.ack, ext);
        }
        let sack = frame.ext.map_or(&[][..], |ext| ext.sack);
        if ahead > 0 || !sack.is_empty() {
            self.settle_ack(cx, frame.ack, sack);
        }
        self.heard(cx);
        true
    }

    fn take_ext(&mut self, cx: &mut Cx, ack: Seq, ext: &Ext<'_>) {
        if let Some(edge) = ext.credit {
            // W-39: not backwards (the known edge is accepted), and not too far ahead.
            if edge.ahead_of(ack) > MAX_WINDOW
                || (!self.send.raise_edge(edge) && edge != self.send.edge)
            {
                cx.counters.rx_credit_ignored += 1;
            }
        }
        if let Some(count) = ext.ce {
            self.take_report(cx, count);
        }
        if ext.probed.is_some_and(|len| len == self.agreed) && !self.path_verified() {
            self.payload = self.agreed; // W-53
            self.path_pending = false;
            self.timers.stop(Timer::Path);
        }
    }

    /// Applies an acceptable acknowledgement.
    fn settle_ack(&mut self, cx: &mut Cx, ack: Seq, sack: &[u8]) {
        let in_flight = self.recovery.in_flight;
        let outcome = self
            .recovery
            .on_ack(&mut self.send, &mut self.rtt, ack, sack, cx.now);
        if outcome.acked == 0 && !outcome.advanced {
            return;
        }
        self.notes.progress |= outcome.advanced;
        self.path_works();
        if outcome.spurious {
            cx.counters.spurious_timeouts += 1;
            self.congestion.on_spurious_rto();
        }
        if outcome.acked > 0 {
            self.congestion.on_ack(&AckEvent {
                acked: outcome.acked,
                rtt: outcome.rtt,
                min_rtt: self.rtt.min,
                in_flight,
                window_limited: self.window_limited,
                round_start: outcome.round_start,
            });
        }
        self.detect_losses(cx);
        if self.send.is_idle() {
            for timer in [Timer::Retransmit, Timer::TailProbe, Timer::PeerDead] {
                self.timers.stop(timer);
            }
        } else {
            self.timers.set(Timer::Retransmit, self.retransmit_at(cx)); // RFC 6298 5.3
            self.timers.set(Timer::PeerDead, cx.peer_deadline());
            self.arm_tail_probe(cx);
        }
        self.queries = 0;
        if self.send.fin == FinState::Acked {
            self.advance(cx, Input::FinAcked);
        }
    }

    pub(super) fn detect_losses(&mut self, cx: &mut Cx) {
        let (lost, suspect) = self.recovery.detect(&mut self.send, &self.rtt, cx.now);
        match suspect {
            Some(at) => self.timers.set(Timer::Loss, at),
            None => self.timers.stop(Timer::Loss),
        }
        if lost > 0 {
            cx.counters.losses_detected += u64::from(lost);
            self.congestion.on_loss(lost);
        }
    }

    pub(super) fn arm_tail_probe(&mut self, cx: &Cx) {
        if self.recovery.may_probe() {
            let delay = self.rtt.tail_delay(self.peer_ack_delay);
            self.timers.set(
                Timer::TailProbe,
                cx.now + self.recovery.tail_backed_off(delay, cx.config.max_rto),
            );
        } else {
            self.timers.stop(Timer::TailProbe);
        }
    }

    /// Processes a data frame, or a FIN when `payload` is `None`.
    fn on_data<S: Sink>(&mut self, cx: &mut Cx, seq: Seq, payload: Option<&[u8]>, sink: &mut S) {
        let id: ConnId = self.id;
        let verdict = self
            .recv
            .accept(seq, payload, &mut cx.pool, |offset, bytes| {
                sink.deliver(id, offset, bytes);
            });
        match verdict {
            Verdict::InOrder => {
                self.acks.waiting += 1;
                self.acks.due |= self.acks.waiting >= UNASKED || self.recv.credit() == 0;
                self.timers
                    .start(Timer::Ack, cx.now + cx.config.max_ack_delay);
            }
            // W-34: immediately when out of order, filling a gap, or duplicate.
            _ => self.acks.now = true,
        }
        match verdict {
            Verdict::InOrder | Verdict::Filled => self.count_data(cx, payload),
            Verdict::Kept => {
                self.count_data(cx, payload);
                self.stats.out_of_order += 1;
                cx.counters.rx_out_of_order += 1;
                return;
            }
            Verdict::Duplicate => {
                self.stats.duplicates += 1;
                cx.counters.rx_drop_duplicate += 1; // W-32
                return;
            }
            Verdict::BeyondCredit => {
                cx.counters.rx_drop_beyond_credit += 1; // W-32
                return;
            }
            Verdict::TooLong => {
                cx.counters.rx_drop_too_long += 1; // W-19
                return;
            }
            Verdict::Violation => {
                cx.counters.rx_drop_violation += 1; // W-56
                return self.abort(ResetReason::Protocol);
            }
        }
        self.notes.progress = true;
        if self.recv.finished {
            self.acks.now = true;
            self.notes.peer_finished = true;
            self.advance(cx, Input::PeerFin);
        }
    }

    fn count_data(&mut self, cx: &mut Cx, payload: Option<&[u8]>) {
        self.stats.packets_received += 1;
        cx.counters.rx_data += 1;
        cx.counters.rx_data_bytes += payload.map_or(0, |bytes| bytes.len() as u64);
    }

    /// W-55: repeated FINs and probes are still answered.
    fn on_frame_in_time_wait(&mut self, cx: &mut Cx, frame: &EspFrame<'_>) {
        if frame.ack != self.send.next() {
            cx.counters.rx_drop_ack_forged += 1;
            return;
        }
        match frame.kind {
            FrameType::Fin | FrameType::Data => {
                cx.counters.rx_drop_duplicate += 1;
                self.acks.now = true;
                self.timers
                    .set(Timer::TimeWait, cx.now + cx.config.time_wait);
            }
            FrameType::Probe => self.acks.now = true,
            _ => cx.counters.rx_acks += 1,
        }
    }

    /// Processes a reset, if its sender may end the connection (W-58).
    fn on_reset(&mut self, cx: &mut Cx, frame: &EspFrame<'_>) {
        if let Some(retry) = Retry::parse(frame.payload) {
            match retry {
                Ok(retry) if retry.nonce == self.nonce && self.state == State::SynSent => {
                    cx.counters.rx_cookies += 1;
                    self.retry_with(retry.cookie);
                }
                Ok(_) => cx.counters.rx_drop_reset_forged += 1,
                Err(error) => cx.counters.wire(error),
            }
            return;
        }
        let reset = match Reset::parse(frame.payload) {
            Ok(reset) => reset,
            Err(error) => return cx.counters.wire(error),
        };
        let expected = if self.state == State::SynSent {
            self.iss.plus(1)
        } else {
            self.recv.expected
        };
        let exact = reset.nonce == 0 && self.blind_resets.take(cx.now) && frame.seq == expected;
        if reset.nonce == self.nonce || exact {
            cx.counters.rx_resets += 1;
            match reset.reason {
                ResetReason::Unknown => self.lose_peer(),
                reason => self.end(CloseReason::Reset(reason), None), // W-59: never answered
            }
            return;
        }
        cx.counters.rx_drop_reset_forged += 1;
        if reset.nonce == 0
            && self.state.is_synchronized()
            && frame.seq.ahead_of(expected) < self.recv.credit()
        {
            self.challenge(cx);
        }
    }
}
