//! Set-up: SYN, SYN+ACK and the acknowledgement that completes it (section 3).

use super::ack_requests::AckRequests;
use super::ecn::Ecn;
use super::moves::Mobility;
use super::{Acks, Connection, Cx, Key, Notes, Queued, Stats};
use crate::api::{Buffers, ConnId, State};
use crate::congestion::Aimd;
use crate::recovery::Recovery;
use crate::recv::{RecvSide, packets};
use crate::rtt::Rtt;
use crate::send::SendSide;
use crate::seq::Seq;
use crate::state::Input;
use crate::time::{Duration, Instant};
use crate::timers::{Timer, TimerTable};
use crate::token_bucket::TokenBucket;
use crate::wire::{EspFrame, FEATURE_ECN, FEATURE_MOVES, FEATURE_RESUME, MAX_WINDOW, SetUp};
use alloc::vec::Vec;

/// First interval between SYNs; a LAN answers well within it.
const SYN_INTERVAL: Duration = Duration::from_millis(20);
/// Longest interval between SYNs.
const SYN_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// State needed until the connection is established.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    /// Job key; cleared afterwards.
    job_key: Vec<u8>,
    /// Largest payload announced to the peer.
    offered: u16,
    /// Credit announced to the peer.
    credit: u16,
    /// Size of the host's receive buffer in bytes.
    capacity: u32,
    /// A SYN or SYN+ACK is to be sent.
    pub(super) pending: bool,
    /// Number of SYNs sent.
    pub(super) tries: u32,
    /// Time of the last SYN.
    pub(super) sent_at: Instant,
}

/// Effect of a SYN on an existing connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SynVerdict {
    /// Handled.
    Done,
    /// The new connection replaces this one.
    Fresh,
    /// Refused: the job keys differ.
    BadKey,
}

/// Average rate per second and burst of resets without a nonce that a connection considers (W-58).
/// The first one of a peer that lost the connection ends it.
const BLIND_RESETS: (u32, u32) = (1, 16);

impl Connection {
    /// Creates a connection for `connect`, which sends a SYN. The receive buffer has at least 64
    /// bytes.
    pub(crate) fn active(
        cx: &Cx,
        id: ConnId,
        key: Key,
        secrets: (u64, Seq),
        buffers: Buffers,
        job_key: Vec<u8>,
    ) -> Self {
        let offered = buffers.rx.min(cx.max_payload.into()) as u16;
        let opening = Opening {
            job_key,
            offered,
            credit: packets(buffers.rx.into(), offered),
            capacity: buffers.rx,
            pending: true,
            ..Opening::default()
        };
        let mut conn = Connection::new(cx, id, key, secrets, opening, State::SynSent);
        conn.ack_requests = AckRequests::new(buffers.tx);
        conn.mobility = Some(Mobility::offer(cx, key.peer));
        conn.visible = true;
        conn.attached = true;
        conn
    }

    /// Creates a connection of a listener, which answers a SYN. Its credit is 0 until `attach`.
    pub(crate) fn passive(
        cx: &Cx,
        id: ConnId,
        key: Key,
        secrets: (u64, Seq),
        syn: &EspFrame<'_>,
        block: &SetUp<'_>,
    ) -> Self {
        let opening = Opening {
            job_key: block.key.to_vec(),
            offered: cx.max_payload,
            pending: true,
            ..Opening::default()
        };
        let mut conn = Connection::new(cx, id, key, secrets, opening, State::SynReceived);
        conn.passive = true;
        conn.mobility = Some(Mobility::offer(cx, key.peer));
        conn.learn_peer(cx, syn.seq, block);
        conn
    }

    pub(super) fn new(
        cx: &Cx,
        id: ConnId,
        key: Key,
        (nonce, iss): (u64, Seq),
        opening: Opening,
        state: State,
    ) -> Self {
        let mut timers = TimerTable::new();
        timers.set(Timer::Connect, cx.now + cx.config.connect_timeout);
        let safe_payload = cx.safe_payload(&key.peer);
        Connection {
            id,
            key,
            state,
            born: cx.now,
            passive: false,
            proven: false,
            visible: false,
            attached: false,
            over: false,
            reported: false,
            notes: Notes::default(),
            queries: 0,
            silent: 0,
            frozen: false,
            mobility: None,
            queued: Queued::default(),
            fate: None,
            timers,
            agreed: opening.offered,
            payload: opening.offered.min(safe_payload),
            safe_payload,
            opening,
            nonce,
            peer_nonce: 0,
            iss,
            peer_ack_delay: Duration::ZERO,
            send: SendSide::new(iss.plus(1)),
            recovery: Recovery::default(),
            recv: RecvSide::new(Seq(0), 0, safe_payload, 0),
            rtt: Rtt::default(),
            congestion: Aimd::new(cx.max_window().into(), false),
            window_limited: false,
            ack_requests: AckRequests::new(0),
            ecn: Ecn::new(cx.config.ecn),
            acks: Acks::default(),
            path_pending: false,
            path_tries: 0,
            probe: false,
            persist_tries: 0,
            blind_resets: TokenBucket::new(BLIND_RESETS.0, BLIND_RESETS.1),
            stats: Stats::default(),
        }
    }

    /// Applies the peer's set-up block. Three features are known (W-18, W-100, W-110,
    /// W-130).
    fn learn_peer(&mut self, cx: &Cx, irs: Seq, block: &SetUp<'_>) {
        self.peer_nonce = block.nonce;
        self.agree(self.opening.offered.min(block.max_payload)); // W-19
        self.learn_rails(block);
        self.ecn.in_force = self.ecn.offered && block.features & FEATURE_ECN != 0;
        self.congestion = Aimd::new(cx.max_window().into(), self.ecn.in_force);
        self.peer_ack_delay = Duration::from_micros(u64::from(block.max_ack_delay));
        self.recv = RecvSide::new(
            irs.plus(1),
            self.opening.credit,
            self.agreed,
            self.opening.capacity,
        );
        self.send
            .raise_edge(self.iss.plus(1).plus(block.credit.min(MAX_WINDOW)));
    }

    /// Returns the block for the next SYN or SYN+ACK, with the nonce it answers (W-21).
    pub(super) fn set_up_block(&self, max_ack_delay: Duration) -> SetUp<'_> {
        let mut features = 0;
        if let Some(mobility) = &self.mobility {
            features |= FEATURE_RESUME; // W-130
            if !mobility.own.is_empty() {
                features |= FEATURE_MOVES;
            }
        }
        if self.ecn.offered {
            features |= FEATURE_ECN; // W-110
        }
        SetUp {
            max_payload: self.opening.offered,
            features,
            nonce: self.nonce,
            peer_nonce: self.peer_nonce,
            credit: self.opening.credit,
            max_ack_delay: u16::try_from(max_ack_delay.as_micros()).unwrap_or(u16::MAX),
            key: &self.opening.job_key,
            rails: self
                .mobility
                .as_ref()
                .map_or(&[][..], |mobility| &*mobility.own),
        }
    }

    /// Returns the interval until a SYN sent now must be repeated (W-25). Randomised by half its
    /// length, so that peers refused together do not return together.
    pub(super) fn syn_interval(&self) -> Duration {
        let step = (SYN_INTERVAL * (1 << self.opening.tries.min(8))).min(SYN_INTERVAL_MAX);
        let dice = self.nonce.rotate_right(8 * self.opening.tries) as u8;
        step * 3 / 4 + step / 2 * u32::from(dice) / 256
    }

    /// Processes a SYN with a well-formed block for this connection.
    pub(crate) fn on_syn(
        &mut self,
        cx: &mut Cx,
        frame: &EspFrame<'_>,
        block: &SetUp<'_>,
    ) -> SynVerdict {
        let same = block.nonce == self.peer_nonce;
        match self.state {
            State::SynSent => self.on_crossing_syn(cx, frame, block),
            // The second attempt of a restarted peer; nothing is owed to the first one.
            State::SynReceived if !same && self.passive => SynVerdict::Fresh,
            State::SynReceived if !same => self.on_crossing_syn(cx, frame, block),
            State::SynReceived => {
                cx.counters.rx_drop_duplicate_setup += 1; // W-26
                self.opening.pending = true;
                SynVerdict::Done
            }
            State::TimeWait if !same => SynVerdict::Fresh, // W-55
            _ if same => {
                cx.counters.rx_drop_duplicate_setup += 1; // W-26
                self.acks.now = true;
                SynVerdict::Done
            }
            _ => {
                cx.counters.rx_drop_stale_setup += 1; // W-27
                self.challenge(cx);
                SynVerdict::Done
            }
        }
    }

    /// Processes a SYN that crossed ours (W-28).
    fn on_crossing_syn(
        &mut self,
        cx: &mut Cx,
        frame: &EspFrame<'_>,
        block: &SetUp<'_>,
    ) -> SynVerdict {
        if !crate::wire::keys_equal(&self.opening.job_key, block.key) {
            cx.counters.rx_drop_key += 1;
            return SynVerdict::BadKey;
        }
        self.learn_peer(cx, frame.seq, block);
        self.advance(cx, Input::PeerSyn);
        self.opening.pending = true;
        SynVerdict::Done
    }

    /// Processes a SYN+ACK with a well-formed block. Returns true when it must be answered with RST
    /// (W-29).
    pub(crate) fn on_syn_ack(
        &mut self,
        cx: &mut Cx,
        frame: &EspFrame<'_>,
        block: &SetUp<'_>,
    ) -> bool {
        let opening =
            self.state == State::SynSent || (self.state == State::SynReceived && !self.passive);
        let known = self.peer_nonce != 0 && self.peer_nonce != block.nonce;
        if block.peer_nonce != self.nonce || known {
            cx.counters.rx_drop_stale_setup += 1; // W-21
            return false;
        }
        if !opening {
            cx.counters.rx_drop_duplicate_setup += 1;
            self.acks.now = self.state != State::SynReceived;
            return false;
        }
        if frame.ack != self.iss.plus(1) {
            cx.counters.rx_drop_ack_forged += 1;
            return true; // W-29
        }
        if !crate::wire::keys_equal(&self.opening.job_key, block.key) {
            cx.counters.rx_drop_key += 1; // W-21
            return false;
        }
        if self.state == State::SynSent {
            self.learn_peer(cx, frame.seq, block);
        } else {
            self.send
                .raise_edge(self.iss.plus(1).plus(block.credit.min(MAX_WINDOW)));
        }
        self.establish(cx);
        self.acks.now = true;
        false
    }

    /// Returns true if a frame other than SYN acknowledges our SYN while the connection is half
    /// open.
    pub(super) fn acknowledges_syn(&self, frame: &EspFrame<'_>) -> bool {
        // A blind attacker would have to guess both numbers.
        let seq_ahead = frame.seq.ahead_of(self.recv.expected);
        frame.ack == self.iss.plus(1) && seq_ahead <= self.recv.credit()
    }

    /// Completes the set-up: both SYNs are acknowledged.
    pub(super) fn establish(&mut self, cx: &mut Cx) {
        if self.opening.tries == 1 {
            self.rtt.sample(cx.now.since(self.opening.sent_at));
        }
        self.advance(cx, Input::SynAcked);
        self.opening.pending = false;
        self.opening.job_key = Vec::new();
        self.timers.stop(Timer::Syn);
        self.timers.stop(Timer::Connect);
        self.heard(cx);
        self.path_pending = !self.path_verified();
        self.notes.established = true;
        cx.counters.connections_opened += 1;
    }
}
