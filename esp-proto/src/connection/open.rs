//! Set-up: SYN, SYN+ACK and the acknowledgement that completes it (section 3).

use super::asking::Asking;
use super::moving::Mobility;
use super::{Acks, Connection, Cx, Key, Notes, Path, Queued, Stats};
use crate::api::{ConnId, State};
use crate::recovery::Recovery;
use crate::recv::RecvSide;
use crate::rtt::Rtt;
use crate::send::SendSide;
use crate::seq::Seq;
use crate::state::Input;
use crate::time::{Duration, Instant};
use crate::timers::{Timer, TimerTable};
use crate::wire::{EspFrame, FEATURE_MOVES, MAX_WINDOW, SAFE_PAYLOAD, SetUp};
use alloc::vec::Vec;

/// First interval between SYNs; a LAN answers in a fraction of it.
const SYN_INTERVAL: Duration = Duration::from_millis(20);
/// Longest interval between SYNs.
const SYN_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// What is needed until the connection is established.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The job key; emptied afterwards.
    job_key: Vec<u8>,
    /// Largest payload told to the peer.
    offered: u16,
    /// Credit told to the peer.
    credit: u16,
    /// Bytes of the host's receive buffer.
    capacity: u32,
    /// A SYN or SYN+ACK must go out.
    pub(super) pending: bool,
    /// How often one went out.
    pub(super) tries: u32,
    /// When the last one did.
    pub(super) sent_at: Instant,
}

/// What a SYN means to a connection that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SynVerdict {
    /// It is dealt with.
    Done,
    /// This connection gives way to the new one.
    Fresh,
    /// The job keys differ: refuse.
    BadKey,
}

impl Connection {
    /// A connection of `connect`: sends SYN. `rx_capacity` is at least 64.
    pub(crate) fn active(
        cx: &Cx<'_>,
        id: ConnId,
        key: Key,
        secrets: (u64, Seq),
        rx_capacity: u32,
        job_key: Vec<u8>,
    ) -> Self {
        let offered = u16::try_from(rx_capacity)
            .unwrap_or(u16::MAX)
            .min(cx.max_payload);
        let credit = u16::try_from(rx_capacity / u32::from(offered.max(1)))
            .unwrap_or(u16::MAX)
            .min(MAX_WINDOW);
        let opening = Opening {
            job_key,
            offered,
            credit,
            capacity: rx_capacity,
            pending: true,
            tries: 0,
            sent_at: cx.now,
        };
        let mut conn = Connection::new(cx, id, key, secrets, opening, State::SynSent);
        conn.mobility = Mobility::offer(cx, key.peer);
        conn.visible = true;
        conn.attached = true;
        conn
    }

    /// A connection of a listener: answers a SYN. Its credit is 0 until `attach`.
    pub(crate) fn passive(
        cx: &Cx<'_>,
        id: ConnId,
        key: Key,
        secrets: (u64, Seq),
        syn: &EspFrame<'_>,
        block: &SetUp<'_>,
    ) -> Self {
        let opening = Opening {
            job_key: block.key.to_vec(),
            offered: cx.max_payload,
            credit: 0,
            capacity: 0,
            pending: true,
            tries: 0,
            sent_at: cx.now,
        };
        let mut conn = Connection::new(cx, id, key, secrets, opening, State::SynReceived);
        conn.passive = true;
        conn.mobility = Mobility::offer(cx, key.peer);
        conn.learn_peer(syn.seq, block);
        conn
    }

    fn new(
        cx: &Cx<'_>,
        id: ConnId,
        key: Key,
        (nonce, iss): (u64, Seq),
        opening: Opening,
        state: State,
    ) -> Self {
        let mut timers = TimerTable::new();
        timers.set(Timer::Connect, cx.now + cx.config.connect_timeout);
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
            told: false,
            notes: Notes::default(),
            queries: 0,
            silent: 0,
            frozen: false,
            mobility: None,
            queued: Queued::default(),
            fate: None,
            timers,
            agreed: opening.offered,
            payload: opening.offered.min(SAFE_PAYLOAD),
            opening,
            nonce,
            peer_nonce: 0,
            iss,
            peer_ack_delay: Duration::ZERO,
            send: SendSide::new(iss.plus(1)),
            recovery: Recovery::new(),
            recv: RecvSide::new(Seq(0), 0, SAFE_PAYLOAD, 0),
            rtt: Rtt::new(),
            congestion: cx
                .config
                .congestion
                .build(u32::from(cx.config.max_window.clamp(1, MAX_WINDOW))),
            window_limited: false,
            asking: Asking::default(),
            acks: Acks::default(),
            path: Path::default(),
            probe: false,
            persist_tries: 0,
            stats: Stats::default(),
        }
    }

    /// Takes over what the peer's set-up block says. Of its features only one is known (W-18, W-100).
    fn learn_peer(&mut self, irs: Seq, block: &SetUp<'_>) {
        self.peer_nonce = block.nonce;
        self.agreed = self.opening.offered.min(block.max_payload); // W-19
        self.payload = self.agreed.min(SAFE_PAYLOAD); // W-53
        self.learn_rails(block);
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

    /// The block that goes with the next SYN or SYN+ACK, and the nonce it answers (W-21).
    pub(super) fn set_up_block(&self, max_ack_delay: Duration) -> SetUp<'_> {
        SetUp {
            max_payload: self.opening.offered,
            features: if self.mobility.is_some() {
                FEATURE_MOVES
            } else {
                0
            },
            nonce: self.nonce,
            peer_nonce: self.peer_nonce,
            credit: self.opening.credit,
            max_ack_delay: u16::try_from(max_ack_delay.as_micros()).unwrap_or(u16::MAX),
            key: &self.opening.job_key,
            rails: self
                .mobility
                .as_ref()
                .map_or(&[][..], |mobility| mobility.rails()),
        }
    }

    /// When the SYN that goes out now must be repeated (W-25). Spread by half its length, lest many that were
    /// turned away together come back together.
    pub(super) fn syn_interval(&self) -> Duration {
        let step = (SYN_INTERVAL * (1 << self.opening.tries.min(8))).min(SYN_INTERVAL_MAX);
        let dice = self.nonce.rotate_right(8 * self.opening.tries) as u8;
        step * 3 / 4 + step / 2 * u32::from(dice) / 256
    }

    /// A SYN with a well-formed block for this connection.
    pub(crate) fn on_syn(
        &mut self,
        cx: &mut Cx<'_>,
        frame: &EspFrame<'_>,
        block: &SetUp<'_>,
    ) -> SynVerdict {
        let same = block.nonce == self.peer_nonce;
        match self.state {
            State::SynSent => self.on_crossing_syn(cx, frame, block),
            // A second attempt of a peer that was restarted; nothing was promised to the first.
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

    /// W-28.
    fn on_crossing_syn(
        &mut self,
        cx: &mut Cx<'_>,
        frame: &EspFrame<'_>,
        block: &SetUp<'_>,
    ) -> SynVerdict {
        if !crate::wire::keys_equal(&self.opening.job_key, block.key) {
            cx.counters.rx_drop_key += 1;
            return SynVerdict::BadKey;
        }
        self.learn_peer(frame.seq, block);
        self.advance(cx, Input::PeerSyn);
        self.opening.pending = true;
        SynVerdict::Done
    }

    /// A SYN+ACK with a well-formed block for this connection. True when it must be answered with RST (W-29).
    pub(crate) fn on_syn_ack(
        &mut self,
        cx: &mut Cx<'_>,
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
            self.learn_peer(frame.seq, block);
        } else {
            self.send
                .raise_edge(self.iss.plus(1).plus(block.credit.min(MAX_WINDOW)));
        }
        self.establish(cx);
        self.acks.now = true;
        false
    }

    /// Any other frame while half open: is it an acceptable acknowledgement of our SYN?
    pub(super) fn acknowledges_syn(&self, frame: &EspFrame<'_>) -> bool {
        // A blind station would have to guess both numbers.
        let seq_ahead = frame.seq.ahead_of(self.recv.expected());
        frame.ack == self.iss.plus(1) && seq_ahead <= self.recv.credit()
    }

    /// Both SYNs are acknowledged.
    pub(super) fn establish(&mut self, cx: &mut Cx<'_>) {
        if self.opening.tries == 1 {
            self.rtt.sample(cx.now.since(self.opening.sent_at));
        }
        self.advance(cx, Input::SynAcked);
        self.opening.pending = false;
        self.opening.job_key = Vec::new();
        self.timers.stop(Timer::Syn);
        self.timers.stop(Timer::Connect);
        self.heard(cx);
        self.path.verified = self.agreed <= SAFE_PAYLOAD;
        self.path.pending = !self.path.verified;
        self.notes.established = true;
        cx.counters.connections_opened += 1;
    }
}
