//! Set-up: SYN, SYN+ACK and the acknowledgement that completes it (section 3).

use super::ack_requests::AckRequests;
use super::ecn::Ecn;
use super::moves::Mobility;
use super::{Acks, Connection, Cx, Key, Notes, Queued, Stats};
use crate::api::{Buffers, ConnId, Head, Payload, State, Transmit};
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
use crate::wire::{
    EspFrame, FEATURE_COOKIES, FEATURE_ECN, FEATURE_MOVES, FEATURE_RESUME, FLAG_ACK, FLAG_SYN,
    MAX_WINDOW, SetUp, keys_equal, tail_of,
};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// First interval between SYNs; a LAN answers well within it.
const SYN_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum interval between SYNs.
const MAX_SYN_INTERVAL: Duration = Duration::from_millis(500);

/// State needed until the connection is established.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    /// Job key.
    job_key: Vec<u8>,
    /// Maximum payload announced to the peer.
    offered: u16,
    /// Credit announced to the peer.
    credit: u16,
    /// Size of the host's receive buffer in bytes.
    capacity: u32,
    /// Cookie that the peer wants to see in the SYN (W-150); 0: none.
    cookie: u64,
    /// A SYN or SYN+ACK is to be sent.
    pending: bool,
    /// Number of SYNs sent.
    tries: u32,
    /// Time of the last SYN.
    sent_at: Instant,
}

/// Returns the interval until a SYN sent now must be repeated (W-25), after `tries` others.
/// Randomised by half its length, so that peers refused together do not return together.
fn syn_interval(nonce: u64, tries: u32) -> Duration {
    let step = (SYN_INTERVAL * (1 << tries.min(8))).min(MAX_SYN_INTERVAL);
    let dice = nonce.rotate_right(8 * tries) as u8;
    step * 3 / 4 + step / 2 * u32::from(dice) / 256
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
    /// bytes; two payloads of the connection fit in it, unless it is smaller than 128.
    pub(crate) fn active(
        cx: &Cx,
        id: ConnId,
        key: Key,
        secrets: (u64, Seq),
        buffers: Buffers,
        job_key: Vec<u8>,
    ) -> Self {
        // A window of one packet would be closed by any byte that waits to be read.
        let offered = (buffers.rx / 2).max(64).min(cx.max_payload.into()) as u16;
        let opening = Opening {
            job_key,
            offered,
            credit: packets(buffers.rx.into(), offered),
            capacity: buffers.rx,
            pending: true,
            ..Opening::default()
        };
        let mut conn = Connection::new(cx, id, key, secrets, Some(opening), State::SynSent);
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
        let mut conn = Connection::new(cx, id, key, secrets, Some(opening), State::SynReceived);
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
        opening: Option<Opening>,
        state: State,
    ) -> Self {
        let mut timers = TimerTable::new();
        timers.set(Timer::Connect, cx.now + cx.config.connect_timeout);
        let safe_payload = cx.safe_payload(&key.peer);
        let offered = opening.as_ref().map_or(0, |opening| opening.offered);
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
            owner: 0,
            fate: None,
            timers,
            agreed: offered,
            payload: offered.min(safe_payload),
            safe_payload,
            opening: opening.map(Box::new),
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

    /// Applies the peer's set-up block (W-18) with its features (W-100, W-110, W-130), except
    /// cookies (W-150), which the endpoint handles.
    fn learn_peer(&mut self, cx: &Cx, irs: Seq, block: &SetUp<'_>) {
        let Some(opening) = &self.opening else {
            return;
        };
        let (offered, credit, capacity) = (opening.offered, opening.credit, opening.capacity);
        self.peer_nonce = block.nonce;
        self.agree(offered.min(block.max_payload)); // W-19
        self.learn_rails(block);
        self.ecn.in_force = self.ecn.offered && block.features & FEATURE_ECN != 0;
        self.congestion = Aimd::new(cx.max_window().into(), self.ecn.in_force);
        self.peer_ack_delay = Duration::from_micros(u64::from(block.max_ack_delay));
        self.recv = RecvSide::new(irs.plus(1), credit, self.agreed, capacity);
        self.send
            .raise_edge(self.iss.plus(1).plus(block.credit.min(MAX_WINDOW)));
    }

    /// Returns the block for the next SYN or SYN+ACK, with the nonce it answers (W-21), or the
    /// cookie (W-150).
    fn set_up_block<'a>(&'a self, opening: &'a Opening, max_ack_delay: Duration) -> SetUp<'a> {
        let mut features = match self.state {
            State::SynSent => FEATURE_COOKIES, // W-150
            _ => 0,
        };
        if let Some(mobility) = &self.mobility {
            if self.state == State::SynSent || mobility.resume {
                features |= FEATURE_RESUME; // W-130
            }
            if !mobility.own.is_empty() {
                features |= FEATURE_MOVES;
            }
        }
        if self.ecn.offered {
            features |= FEATURE_ECN; // W-110
        }
        SetUp {
            max_payload: opening.offered,
            features,
            nonce: self.nonce,
            peer_nonce: match self.state {
                State::SynSent => opening.cookie,
                _ => self.peer_nonce,
            },
            credit: opening.credit,
            max_ack_delay: u16::try_from(max_ack_delay.as_micros()).unwrap_or(u16::MAX),
            key: &opening.job_key,
            rails: self
                .mobility
                .as_ref()
                .map_or(&[][..], |mobility| &*mobility.own),
        }
    }

    /// Builds a SYN, or a SYN+ACK once the peer's SYN is known, if one is pending.
    pub(super) fn take_syn(&mut self, cx: &mut Cx, head: &mut Head) -> Option<Transmit> {
        let opening = self.opening.as_mut().filter(|opening| opening.pending)?;
        opening.pending = false;
        let interval = syn_interval(self.nonce, opening.tries);
        opening.tries += 1;
        opening.sent_at = cx.now;
        cx.counters.tx_syns += 1;
        self.timers.set(Timer::Syn, cx.now + interval);
        let opening = self.opening.as_ref()?;
        let block = self.set_up_block(opening, cx.config.max_ack_delay);
        let len = block.emit(tail_of(head));
        let flags = match self.state {
            State::SynSent => FLAG_SYN,
            _ => FLAG_SYN | FLAG_ACK,
        };
        Some(self.build(cx, head, (self.iss, flags), Payload::None, len))
    }

    /// Returns true if a SYN or SYN+ACK is to be sent.
    pub(super) fn syn_is_pending(&self) -> bool {
        (self.opening.as_ref()).is_some_and(|opening| opening.pending)
    }

    /// Requests transmission of a SYN or SYN+ACK while the connection is being opened.
    pub(super) fn request_syn(&mut self) {
        if let Some(opening) = &mut self.opening {
            opening.pending = true;
        }
    }

    /// Repeats the SYN with the cookie of a listener that keeps no state for it (W-150): the first
    /// time at once, then by the timer.
    pub(super) fn retry_with(&mut self, cookie: u64) {
        if let Some(opening) = &mut self.opening
            && self.state == State::SynSent
        {
            opening.pending |= opening.cookie == 0;
            opening.cookie = cookie;
        }
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
                self.request_syn();
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
        if !self.has_key(block.key) {
            cx.counters.rx_drop_key += 1;
            return SynVerdict::BadKey;
        }
        self.learn_peer(cx, frame.seq, block);
        self.advance(cx, Input::PeerSyn);
        self.request_syn();
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
        if !self.has_key(block.key) {
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

    /// Returns true if this is the job key of the connection, which is being opened.
    fn has_key(&self, key: &[u8]) -> bool {
        (self.opening.as_ref()).is_some_and(|own| keys_equal(&own.job_key, key))
    }

    /// Returns true if a frame other than SYN acknowledges our SYN while the connection is half
    /// open.
    pub(super) fn acknowledges_syn(&self, frame: &EspFrame<'_>) -> bool {
        // A blind attacker would have to guess both numbers.
        let seq_ahead = frame.seq.ahead_of(self.recv.expected);
        frame.ack == self.iss.plus(1) && seq_ahead <= self.recv.credit()
    }

    /// Returns true if a frame that acknowledges our SYN must be dropped, because the listener's
    /// accept queue is full (W-24). The repeated SYN+ACK will ask again.
    pub(crate) fn must_wait(&mut self, cx: &mut Cx, room_to_accept: bool) -> bool {
        if !self.passive || room_to_accept {
            return false;
        }
        cx.counters.rx_drop_backlog += 1;
        if self.is_unvalidated() {
            // Over UDP, the timer did not run yet (W-123).
            self.timers
                .set(Timer::Syn, cx.now + syn_interval(self.nonce, 0));
        }
        self.proven = true;
        true
    }

    /// Completes the set-up: both SYNs are acknowledged.
    pub(crate) fn establish(&mut self, cx: &mut Cx) {
        if let Some(opening) = self.opening.take()
            && opening.tries == 1
        {
            self.rtt.sample(cx.now.since(opening.sent_at));
        }
        self.advance(cx, Input::SynAcked);
        self.timers.stop(Timer::Syn);
        self.timers.stop(Timer::Connect);
        self.heard(cx);
        self.path_pending = !self.path_verified();
        self.notes.established = true;
        cx.counters.connections_opened += 1;
    }
}
