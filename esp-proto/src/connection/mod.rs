//! One connection. This file holds the state and the dispatch. The rules are in its submodules:
//! [`open`] (set-up), [`input`] (frames), [`output`] (building frames), [`timeout`] (deadlines);
//! [`resume`] (after a loss of state); and in the sibling modules `send`, `recv`, `recovery`,
//! `rtt`, `congestion` and `state`.

mod ack_requests;
mod ecn;
mod input;
mod moves;
mod open;
mod output;
mod resume;
mod timeout;

pub(crate) use moves::{MoveAction, Question};
pub(crate) use open::{Opening, SynVerdict};

use self::ack_requests::AckRequests;
use self::ecn::Ecn;
use self::moves::Mobility;
use crate::addr::{MacAddr, NodeAddr, Port};
use crate::api::{
    Buffers, CloseReason, ConnId, ConnInfo, EndpointConfig, Progress, ResetReason, State,
};
use crate::congestion::Aimd;
use crate::counters::Counters;
use crate::recovery::Recovery;
use crate::recv::{Pool, RecvSide};
use crate::rtt::Rtt;
use crate::send::{FinState, SendSide};
use crate::seq::Seq;
use crate::state::{Input, next};
use crate::time::{Duration, Instant};
use crate::timers::{Timer, TimerTable};
use crate::token_bucket::TokenBucket;
use crate::wire::MAX_WINDOW;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::net::SocketAddr;

/// Minimum number of times that a FIN is repeated within a TIME-WAIT, so that it arrives while the
/// peer still has the connection (W-47).
const FIN_TRIES: u32 = 3;

/// Identifies a connection on its endpoint (W-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) local_port: Port,
    pub(crate) peer: NodeAddr,
    pub(crate) peer_port: Port,
}

impl Hash for Key {
    /// Hashed as one word, so that the lookup for each frame costs one multiplication; an IPv6
    /// address adds a second one.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u32::from(self.local_port) << 16 | u32::from(self.peer_port);
        let peer = match self.peer {
            NodeAddr::Mac(MacAddr([a, b, c, d, e, f])) => {
                u64::from_be_bytes([0, 0, a, b, c, d, e, f])
            }
            NodeAddr::Udp(SocketAddr::V4(at)) => {
                u64::from(at.ip().to_bits()) << 16 | u64::from(at.port())
            }
            NodeAddr::Udp(SocketAddr::V6(at)) => {
                state.write_u128(at.ip().to_bits());
                u64::from(at.port())
            }
        };
        state.write_u128(u128::from(peer) << 64 | u128::from(ports));
    }
}

/// The part of the endpoint that a connection may access.
pub(crate) struct Cx {
    pub(crate) now: Instant,
    pub(crate) config: EndpointConfig,
    pub(crate) counters: Counters,
    pub(crate) pool: Pool,
    pub(crate) challenges: TokenBucket,
    /// The endpoint's own address.
    pub(crate) own: NodeAddr,
    pub(crate) mtu: u32,
    /// Maximum payload of the interface.
    pub(crate) max_payload: u16,
    /// Addresses of the node's other interfaces.
    pub(crate) rails: Vec<MacAddr>,
}

impl Cx {
    /// Returns the maximum number of outstanding packets (W-31).
    fn max_window(&self) -> u16 {
        self.config.max_window.min(MAX_WINDOW)
    }

    /// Returns the payload to this address that needs no path verification (W-53), in bytes.
    fn safe_payload(&self, peer: &NodeAddr) -> u16 {
        let safe = peer.safe_payload().saturating_sub(self.config.overhead);
        safe.max(crate::wire::MIN_MAX_PAYLOAD)
    }

    /// Returns the expiry of the first half of a peer timeout that starts now (W-46, W-77).
    fn peer_deadline(&self) -> Instant {
        self.now + self.config.peer_timeout / 2
    }
}

/// Requests of a connection to the endpoint after a call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notes {
    pub(crate) established: bool,
    pub(crate) peer_finished: bool,
    pub(crate) progress: bool,
    /// Query the peer's node for the state of the peer's port (W-77).
    pub(crate) ask_node: bool,
    /// Probe other paths to the peer (W-103).
    pub(crate) ask_paths: bool,
}

/// The endpoint's queues that contain the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queued {
    pub(crate) urgent: bool,
    pub(crate) ready: bool,
    pub(crate) progress: bool,
}

/// Pending acknowledgements.
#[derive(Clone, Copy, Debug, Default)]
struct Acks {
    /// Data frames and FINs received since the last acknowledgement was sent.
    waiting: u32,
    /// An acknowledgement is due, but may be combined with data.
    due: bool,
    /// An acknowledgement must be sent in a frame of its own (gap, duplicate, probe, new credit
    /// after none).
    now: bool,
    /// New credit is worth announcing.
    credit: bool,
    /// Data length of a probe to be answered (W-51).
    probed: Option<u16>,
}

/// Counts for `ConnInfo`.
#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    packets_sent: u64,
    packets_received: u64,
    retransmits: u64,
    timeouts: u64,
    tail_probes: u64,
    duplicates: u64,
    out_of_order: u64,
}

/// State of one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) key: Key,
    pub(crate) state: State,
    /// Time of creation.
    pub(crate) born: Instant,
    /// Created by a listener.
    pub(crate) passive: bool,
    /// Half open, and the peer has answered our SYN+ACK, so that the connection only waits for room
    /// in the accept queue (W-24), or has brought a cookie (W-150).
    pub(crate) proven: bool,
    /// The host knows the id.
    pub(crate) visible: bool,
    /// The host has provided a receive buffer.
    pub(crate) attached: bool,
    /// `Closed` has been reported: only TIME-WAIT remains.
    pub(crate) over: bool,
    /// The host has polled that `Closed`.
    pub(crate) reported: bool,
    pub(crate) notes: Notes,
    pub(crate) queued: Queued,
    /// Owner with whose other connections it shares turns to send.
    pub(crate) owner: u32,
    /// Set when the connection has ended: the reason for the host, and the reset for the peer.
    pub(crate) fate: Option<(CloseReason, Option<ResetReason>)>,
    pub(crate) timers: TimerTable,
    /// Until the connection is established.
    opening: Option<Box<Opening>>,
    pub(crate) nonce: u64,
    peer_nonce: u64,
    /// Sequence number of our SYN.
    iss: Seq,
    /// Maximum payload that both sides accept (W-19).
    agreed: u16,
    /// Maximum payload in use (W-53).
    payload: u16,
    /// Payload that needs no path verification (W-53).
    safe_payload: u16,
    peer_ack_delay: Duration,
    send: SendSide,
    recovery: Recovery,
    recv: RecvSide,
    rtt: Rtt,
    congestion: Aimd,
    /// The congestion window held back data at the last check.
    window_limited: bool,
    ack_requests: AckRequests,
    ecn: Ecn,
    acks: Acks,
    /// A probe of the agreed payload is to be sent, to verify that such frames arrive (W-53).
    path_pending: bool,
    path_tries: u32,
    /// A probe without data is to be sent (W-40, W-52).
    probe: bool,
    /// Queries sent to the peer's node since the last sign of life.
    queries: u8,
    /// Consecutive timeouts without a frame from the peer.
    silent: u8,
    /// The connection has moved to another path, and the peer has not followed yet (W-105).
    pub(crate) frozen: bool,
    /// Present when the connection can move.
    mobility: Option<Box<Mobility>>,
    /// Doublings of the credit probe's interval.
    persist_tries: u32,
    /// Limits resets without a nonce (W-58).
    blind_resets: TokenBucket,
    stats: Stats,
}

impl Connection {
    /// Advances the state by the transition table.
    fn advance(&mut self, cx: &mut Cx, input: Input) {
        let before = self.state;
        self.state = next(before, input);
        if before == self.state {
            return;
        }
        match self.state {
            State::TimeWait => self.enter_time_wait(cx),
            // Not by `end`, which also sets the state.
            State::Closed => self.fate = Some((CloseReason::Finished, None)),
            _ => {}
        }
    }

    fn enter_time_wait(&mut self, cx: &mut Cx) {
        self.timers.stop_all();
        self.timers
            .set(Timer::TimeWait, cx.now + cx.config.time_wait);
        self.probe = false;
        self.frozen = false;
        self.path_pending = false;
        self.send.release();
        self.recovery = Recovery::default();
        self.recv.release(&mut cx.pool);
    }

    /// Ends the connection immediately. A peer whose address is not validated is not reset: its
    /// later frames are answered with RST.
    pub(crate) fn end(&mut self, reason: CloseReason, reset: Option<ResetReason>) {
        if self.fate.is_none() {
            let reset = reset.filter(|_| !self.is_unvalidated());
            self.state = next(self.state, Input::End);
            self.fate = Some((reason, reset));
        }
    }

    /// Ends the connection on this side, and resets the peer.
    pub(crate) fn abort(&mut self, reason: ResetReason) {
        self.end(CloseReason::Aborted(reason), Some(reason));
    }

    /// Ends a connection that the peer no longer has: successfully if only the last acknowledgement
    /// was missing, because the peer has left TIME-WAIT (W-58, W-138).
    pub(crate) fn lose_peer(&mut self) {
        let complete = matches!(self.state, State::LastAck | State::Closing)
            && self.send.fin == FinState::Sent
            && self.send.acked == self.send.written;
        let reason = if complete {
            CloseReason::Finished
        } else {
            CloseReason::Reset(ResetReason::Unknown)
        };
        self.end(reason, None);
    }

    /// Records that the program has written up to offset `total`.
    pub(crate) fn written(&mut self, total: u64) {
        self.send.set_written(total);
    }

    /// Records that the program has consumed up to offset `total`.
    pub(crate) fn consumed(&mut self, total: u64) {
        self.recv.set_consumed(total);
        if self.state.is_synchronized() && self.recv.credit_worth_announcing() {
            self.acks.credit = true;
            // W-41: a peer without credit waits for it.
            self.acks.now |= self.recv.credit() == 0;
        }
    }

    /// Records that the program will write no more.
    pub(crate) fn shutdown(&mut self) {
        if self.send.fin == FinState::Open {
            self.send.fin = FinState::Wanted;
        }
    }

    /// Sets the buffers of a listener's connection.
    pub(crate) fn attach(&mut self, buffers: Buffers) {
        self.attached = true;
        self.recv.set_capacity(buffers.rx);
        self.ack_requests = AckRequests::new(buffers.tx);
        self.acks.now = true;
    }

    /// Sets the maximum payload that both sides accept.
    fn agree(&mut self, payload: u16) {
        self.agreed = payload;
        self.payload = payload.min(self.safe_payload); // W-53
    }

    /// Returns true when frames of the agreed payload arrive, or need no verification (W-53).
    fn path_verified(&self) -> bool {
        self.payload == self.agreed
    }

    /// Returns the maximum payload that both sides accept.
    pub(crate) fn agreed(&self) -> u16 {
        self.agreed
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            epoch: self.mobility.as_ref().map_or(0, |m| m.epoch),
            conn: self.id,
            acked: self.send.acked,
            delivered: self.recv.delivered,
        }
    }

    /// Returns true while bytes or a FIN wait to be sent or sent again.
    pub(crate) fn has_unsent(&self) -> bool {
        self.send.has_new() || self.recovery.has_lost()
    }

    /// Returns the fields of a RST to the peer: sequence, ack sequence, nonce. `None` before the
    /// peer is known: its later frames are answered with RST because the connection no longer
    /// exists.
    pub(crate) fn reset_fields(&self) -> Option<(Seq, Seq, u64)> {
        (self.peer_nonce != 0).then(|| (self.send.next(), self.recv.expected, self.peer_nonce))
    }

    /// Returns true while the peer has not shown that it receives at its address. Until then, it is
    /// sent one answer for each of its packets, and nothing else (W-123).
    fn is_unvalidated(&self) -> bool {
        let is_half_open = self.passive && self.state == State::SynReceived;
        is_half_open && self.key.peer.is_udp() && !self.proven
    }

    /// Returns buffers to the pool.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        self.recv.release(pool);
    }

    /// Returns true when data, a FIN or retransmissions may be sent.
    fn may_send(&self) -> bool {
        self.state.is_synchronized() && !self.frozen
    }

    fn rto(&self, cx: &Cx) -> Duration {
        self.rtt
            .rto(self.peer_ack_delay, cx.config.min_rto, cx.config.max_rto)
    }

    /// Returns the expiry of a retransmission timeout that starts now (W-47).
    fn retransmit_at(&self, cx: &Cx) -> Instant {
        let ceiling = match self.send.fin {
            FinState::Sent => cx.config.max_rto.min(cx.config.time_wait / FIN_TRIES),
            _ => cx.config.max_rto,
        };
        cx.now
            + self
                .recovery
                .backed_off(self.rto(cx), ceiling.max(cx.config.min_rto))
    }

    fn window(&self, cx: &Cx) -> u32 {
        self.congestion
            .window()
            .min(u32::from(cx.config.max_window))
    }

    /// Runs the credit probe's timer exactly while credit alone blocks sending (W-40).
    pub(crate) fn refresh(&mut self, cx: &Cx) {
        if self.may_send() && self.send.is_idle() && self.send.has_new() && self.send.credit() == 0
        {
            let wait = self.rto(cx) * (1 << self.persist_tries.min(10));
            self.timers
                .start(Timer::Persist, cx.now + wait.min(cx.config.max_rto));
        } else if self.timers.is_set(Timer::Persist) {
            self.timers.stop(Timer::Persist);
            self.persist_tries = 0;
        }
    }

    /// Returns a snapshot of the connection for display.
    pub(crate) fn info(&self, cx: &Cx) -> ConnInfo {
        ConnInfo {
            state: self.state,
            local_port: self.key.local_port,
            peer: self.key.peer,
            peer_port: self.key.peer_port,
            srtt: self.rtt.smoothed,
            rttvar: self.rtt.variation,
            min_rtt: self.rtt.min,
            rto: self.recovery.backed_off(self.rto(cx), cx.config.max_rto),
            cwnd: self.window(cx),
            in_flight: self.recovery.in_flight,
            credit: u32::from(self.send.credit()),
            rx_credit: u32::from(self.recv.credit()),
            payload: self.payload,
            payload_agreed: self.agreed,
            send_queue: self.send.written - self.send.acked,
            recv_queue: self.recv.queued(),
            packets_sent: self.stats.packets_sent,
            packets_received: self.stats.packets_received,
            bytes_acked: self.send.acked,
            bytes_received: self.recv.delivered,
            retransmits: self.stats.retransmits,
            timeouts: self.stats.timeouts,
            tail_probes: self.stats.tail_probes,
            duplicates: self.stats.duplicates,
            out_of_order: self.stats.out_of_order,
            moves: self.mobility.as_ref().map_or(0, |m| m.moves),
        }
    }
}
