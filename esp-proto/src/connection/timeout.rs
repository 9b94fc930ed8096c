//! Processing of expired deadlines.

use super::{Connection, Cx};
use crate::api::{CloseReason, ResetReason, State};
use crate::state::Input;
use crate::time::Duration;
use crate::timers::{TIMER_COUNT, Timer};

/// Divisor of the keep-alive time after which an unanswered probe is repeated.
const KEEPALIVE_REPEAT: u32 = 4;

/// Number of queries to the peer's node in the second half of the peer timeout.
const QUERIES: u8 = 4;

/// Maximum silence of a peer after a report that its port is closed (W-126).
const CLOSED_PORT_WAIT: Duration = Duration::from_secs(10);

impl Connection {
    /// Handles every timer that is due, each at most once.
    pub(crate) fn on_timeout(&mut self, cx: &mut Cx) {
        // The bound matters only for zero intervals, which would be due again immediately.
        for _ in 0..TIMER_COUNT {
            let Some(timer) = self.timers.take_due(cx.now) else {
                return;
            };
            self.on_timer(cx, timer);
            if self.fate.is_some() {
                return;
            }
        }
    }

    fn on_timer(&mut self, cx: &mut Cx, timer: Timer) {
        match timer {
            // W-25. The answer to a UDP address that is not validated is repeated only with the
            // request (W-123).
            Timer::Syn if self.is_unvalidated() => {}
            Timer::Syn => self.request_syn(),
            Timer::Connect => {
                cx.counters.half_open_expired += u64::from(self.passive);
                // The peer may believe that it is connected, so it is reset.
                self.end(
                    CloseReason::ConnectTimedOut,
                    self.proven.then_some(ResetReason::Resources),
                );
            }
            Timer::Retransmit => self.on_retransmit(cx),
            Timer::TailProbe => {
                if self.recovery.on_tail_probe(&mut self.send) {
                    self.stats.tail_probes += 1;
                    cx.counters.tail_probes += 1;
                }
            }
            Timer::Loss => self.detect_losses(cx),
            Timer::Ack => {
                self.acks.due = self.acks.waiting > 0;
                self.acks.now |= self.acks.due && self.ecn.unreported; // W-113
            }
            Timer::Persist => {
                self.persist_tries += 1;
                self.unanswered(cx);
                self.ask(cx);
            }
            Timer::KeepAlive => {
                self.timers.set(
                    Timer::KeepAlive,
                    cx.now + cx.config.keepalive / KEEPALIVE_REPEAT,
                );
                if self.send.is_idle() {
                    if self.timers.is_set(Timer::PeerDead) {
                        self.unanswered(cx);
                    }
                    self.send.shrink();
                    self.recovery.shrink();
                    self.ask(cx); // W-52; otherwise retransmission asks already
                }
            }
            Timer::Path => {
                self.path_pending = self.state.is_synchronized() && !self.path_verified();
            }
            Timer::PeerDead if self.queries < QUERIES => {
                self.queries += 1;
                self.notes.ask_node = true; // W-77
                self.timers.set(
                    Timer::PeerDead,
                    cx.now + cx.config.peer_timeout / (2 * u32::from(QUERIES)),
                );
            }
            Timer::PeerDead => {
                cx.counters.connections_timed_out += 1;
                self.end(CloseReason::TimedOut, Some(ResetReason::TimedOut)); // W-46
            }
            Timer::Move => self.on_move_timer(cx),
            Timer::TimeWait => self.advance(cx, Input::WaitOver),
        }
    }

    /// Sends a probe that the peer must answer within the peer timeout.
    fn ask(&mut self, cx: &Cx) {
        if self.state != State::TimeWait && !self.frozen {
            self.probe = true;
            self.start_peer_timeout(cx);
        }
    }

    /// Restarts the peer timeout because the peer's node reports that a program holds the port
    /// (W-77): the program is alive, but does not poll.
    pub(crate) fn on_held(&mut self, cx: &Cx) {
        if self.queries > 0 && self.timers.is_set(Timer::PeerDead) {
            self.queries = 0;
            self.timers.set(Timer::PeerDead, cx.peer_deadline());
        }
    }

    /// Limits the time for which a peer that owes an answer may be silent, because its node reports
    /// that its UDP port is closed (W-126).
    pub(crate) fn on_closed_port(&mut self, cx: &Cx) {
        let at = cx.now + CLOSED_PORT_WAIT;
        if self.timers.shorten(Timer::PeerDead, at) {
            self.queries = QUERIES;
        }
    }

    /// Handles the retransmission timeout (W-46, W-47).
    fn on_retransmit(&mut self, cx: &mut Cx) {
        if self.send.is_idle() {
            return;
        }
        self.stats.timeouts += 1;
        cx.counters.retransmit_timeouts += 1;
        self.recovery.on_timeout(&mut self.send);
        self.congestion.on_rto();
        self.timers.stop(Timer::TailProbe);
        self.timers.stop(Timer::Loss);
        self.timers.set(Timer::Retransmit, self.retransmit_at(cx));
        self.unanswered(cx);
    }
}
