//! The endpoint: all connections and EDP ports of one interface.

mod answers;
mod calls;
mod cookies;
mod edp;
mod held_ports;
mod listen;
mod moves;
mod receive;
mod resume;
mod table;
mod transmit;
mod unattached;

use crate::addr::{NodeAddr, Port};
use crate::api::{
    CloseReason, ConnId, ConnInfo, EndpointConfig, Event, Progress, ResetReason, State,
};
use crate::connection::{Connection, Cx, Key};
use crate::counters::Counters;
use crate::recv::Pool;
use crate::time::Instant;
use crate::timers::DeadlineHeap;
use crate::token_bucket::TokenBucket;
use crate::turns::TurnQueue;
use crate::wire::{MAX_NAME, Reset, max_payload};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use answers::AnswerLimits;
use cookies::Cookies;
use core::ops::Range;
use edp::BROADCAST_ECHO_RATE;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use listen::Listener;
pub use listen::ListenerInfo;
pub(crate) use moves::{MoveFrame, MoveRequest};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use table::Table;
use transmit::{Control, ControlBody, Spent};
use unattached::Unattached;

/// Maximum number of connections whose deadlines one call of `handle_timeout` processes; the
/// remaining ones stay due.
const TIMEOUT_BATCH: usize = 1024;
/// Average rate per second and burst of resets sent for unknown connections. A restarted node
/// answers this many peers a second.
const RESET_RATE: (u32, u32) = (10_000, 256);
/// Average rate per second and burst of challenge ACKs.
const CHALLENGE_RATE: (u32, u32) = (1_000, 64);

/// All ESP connections and EDP ports of one interface, without I/O.
///
/// # How to drive it
///
/// There are four kinds of methods: `handle_*` (input), application calls (`listen` …
/// `shutdown_all`), `poll_*` (output) and getters. After every `handle_*` and every application
/// call, or after a batch of them,
///
/// 1. drain [`poll_progress`](Self::poll_progress) until `None`,
/// 2. drain [`poll_event`](Self::poll_event) until `None`,
/// 3. drain [`poll_transmit`](Self::poll_transmit) until `None` (or until the host cannot send
///    more; the rest waits), and
/// 4. ask [`poll_timeout`](Self::poll_timeout) and call [`handle_timeout`](Self::handle_timeout) at
///    that instant.
///
/// Another order of 1 to 3 is safe: `Closed` is held back until the connection's final progress has
/// been polled, and `poll_timeout` is due immediately while it is.
///
/// Batching reduces acknowledgements: one frame acknowledges all data received between two drains.
///
/// # Cost
///
/// The cost of a frame does not depend on the number of connections: one hash lookup, no scan.
/// Nothing is allocated for a frame that arrives in order, nor for one that is sent.
pub struct Endpoint {
    cx: Cx,
    incarnation: u64,
    rng: ChaCha8Rng,
    table: Table,
    listeners: HashMap<Port, Listener, FixedState>,
    edp_ports: BTreeSet<Port>,
    /// Move requests that concern other endpoints of the node.
    moves: VecDeque<MoveRequest>,
    /// Connections that have moved to another endpoint, and the times until which their late frames
    /// are dropped without a reset (W-108). A peer adds at most as many as it has addresses.
    moved_keys: HashMap<Key, Instant, FixedState>,
    /// Frames of unknown connections are not answered before this (W-136).
    adopts_until: Instant,
    /// Ports served by another engine of this node.
    held: BTreeSet<Port>,
    edp_sequence: u16,
    /// Connections that no program has accepted.
    unattached: Unattached,
    /// Frames that belong to no connection.
    control: VecDeque<Control>,
    /// Connections with a frame that must not wait for data.
    urgent: TurnQueue<ConnId>,
    /// Connections with data or a due acknowledgement, served round-robin: owners in turn, and the
    /// connections of each in turn.
    ready: TurnQueue<ConnId>,
    /// Frames sent by the first of them, and in the turn of its owner.
    spent: Spent,
    progress: VecDeque<Touched>,
    /// Number of `Touched::Final` entries in `progress`.
    finals: usize,
    events: VecDeque<Event>,
    /// `Closed` events, which must follow the final progress.
    closed: VecDeque<Event>,
    deadlines: DeadlineHeap,
    resets: TokenBucket,
    /// Answers to echo requests by broadcast (W-79).
    broadcast_echoes: TokenBucket,
    answers: AnswerLimits,
    cookies: Cookies,
}

/// An entry of the progress queue.
#[derive(Debug)]
enum Touched {
    Live(ConnId),
    Final(Progress),
}

impl core::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Endpoint")
            .field("addr", &self.cx.own)
            .field("mtu", &self.cx.mtu)
            .field("connections", &self.table.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Creates an endpoint for the interface with this address and MTU (bytes after the EtherType).
    ///
    /// `seed` must be unpredictable to other stations: nonces, initial sequence numbers (W-16) and
    /// the hash of the connection table derive from it. `incarnation` is reported in INFO_REPLY and
    /// should differ at every start.
    pub fn new(
        mut config: EndpointConfig,
        addr: impl Into<NodeAddr>,
        mtu: u32,
        seed: [u8; 32],
        incarnation: u64,
    ) -> Endpoint {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let hasher = FixedState::with_seed(rng.next_u64());
        let cut = (0..=MAX_NAME)
            .rev()
            .find(|at| config.node_name.is_char_boundary(*at))
            .unwrap_or(0);
        config.node_name.truncate(cut);
        Endpoint {
            incarnation,
            rng,
            table: Table::new(config.max_connections, hasher.clone()),
            unattached: Unattached::new(config.max_connections),
            moved_keys: HashMap::with_hasher(hasher.clone()),
            answers: AnswerLimits::new(hasher.clone()),
            cookies: Cookies::new(seed),
            listeners: HashMap::with_hasher(hasher),
            moves: VecDeque::new(),
            edp_ports: BTreeSet::new(),
            adopts_until: Instant::ZERO,
            held: BTreeSet::new(),
            edp_sequence: 0,
            control: VecDeque::new(),
            urgent: TurnQueue::default(),
            ready: TurnQueue::default(),
            spent: Spent::default(),
            progress: VecDeque::new(),
            finals: 0,
            events: VecDeque::new(),
            closed: VecDeque::new(),
            deadlines: DeadlineHeap::default(),
            resets: TokenBucket::new(RESET_RATE.0, RESET_RATE.1),
            broadcast_echoes: TokenBucket::new(BROADCAST_ECHO_RATE.0, BROADCAST_ECHO_RATE.1),
            cx: Cx {
                now: Instant::ZERO,
                config,
                counters: Counters::default(),
                pool: Pool::default(),
                challenges: TokenBucket::new(CHALLENGE_RATE.0, CHALLENGE_RATE.1),
                own: addr.into(),
                mtu,
                max_payload: max_payload(mtu),
                rails: Vec::new(),
            },
        }
    }

    /// Processes expired deadlines. Early and repeated calls have no effect. Processes at most 1024
    /// connections; when more are due, `poll_timeout` stays in the past and the next call
    /// continues.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock(now);
        for _ in 0..TIMEOUT_BATCH {
            match self.next_deadline() {
                Some((at, slot)) if at <= self.cx.now => {
                    self.with(slot, |conn, cx| conn.on_timeout(cx));
                }
                _ => return,
            }
        }
    }

    /// Returns the earliest deadline of a connection and its slot.
    fn next_deadline(&mut self) -> Option<(Instant, u32)> {
        loop {
            let (at, slot) = self.deadlines.peek()?;
            match self.table.at(slot).and_then(|conn| conn.timers.next()) {
                None => self.deadlines.remove(slot),
                Some(real) if real > at => self.deadlines.defer(slot, real),
                Some(_) => return Some((at, slot)),
            }
        }
    }

    /// Returns the next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if self.finals > 0 {
            return None;
        }
        let event = self.closed.pop_front()?;
        if let Event::Closed { conn, .. } = event {
            match self.table.get_mut(conn) {
                Some(waiting) => waiting.reported = true, // TIME-WAIT keeps the slot
                None => self.table.release(conn.slot),
            }
        }
        Some(event)
    }

    /// Returns true while bytes of the connection wait for the windows.
    pub fn has_unsent(&self, conn: ConnId) -> bool {
        self.table.get(conn).is_some_and(Connection::has_unsent)
    }

    /// Returns true while bytes of any connection wait for the windows.
    pub fn any_unsent(&self) -> bool {
        self.table.iter().any(Connection::has_unsent)
    }

    /// Returns the progress of the next connection that has made some since it was last polled.
    pub fn poll_progress(&mut self) -> Option<Progress> {
        loop {
            match self.progress.pop_front()? {
                Touched::Final(progress) => {
                    self.finals -= 1;
                    return Some(progress);
                }
                Touched::Live(id) => {
                    if let Some(conn) = self.table.get_mut(id) {
                        conn.queued.progress = false;
                        return Some(conn.progress());
                    }
                }
            }
        }
    }

    /// Returns the instant at which `handle_timeout` must be called, if nothing else happens
    /// before.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        if !self.closed.is_empty() {
            return Some(self.cx.now);
        }
        self.next_deadline().map(|(at, _)| at)
    }

    /// Returns a snapshot of a connection, including one in TIME-WAIT whose `Closed` was already
    /// reported.
    pub fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        self.table.get(conn).map(|c| c.info(&self.cx))
    }

    /// Returns the nonce with which the connection's peer accepts a reset (W-57); 0 while it is
    /// unknown or when there is no such connection.
    pub fn peer_nonce(&self, conn: ConnId) -> u64 {
        self.table
            .get(conn)
            .and_then(Connection::reset_fields)
            .map_or(0, |(_, _, nonce)| nonce)
    }

    /// Returns the address of the connection's peer; `None` if there is no such connection.
    pub fn peer_of(&self, conn: ConnId) -> Option<NodeAddr> {
        self.table.get(conn).map(|c| c.key.peer)
    }

    /// Returns all connections by slot, including half-open ones and those in TIME-WAIT.
    pub fn connections(&self) -> impl Iterator<Item = (ConnId, ConnInfo)> + '_ {
        self.connections_in(0..self.slots())
    }

    /// Returns the connections in these slots, which are below [`slots`](Self::slots), so that a
    /// host can go through a large table in steps.
    pub fn connections_in(
        &self,
        slots: Range<u32>,
    ) -> impl Iterator<Item = (ConnId, ConnInfo)> + '_ {
        let found = self.table.range(slots);
        found.map(|conn| (conn.id, conn.info(&self.cx)))
    }

    /// Returns the highest slot that a connection ever had, plus one.
    pub fn slots(&self) -> u32 {
        self.table.slots()
    }

    /// Returns all listeners with their queue lengths, in no particular order.
    pub fn listeners(&self) -> impl Iterator<Item = (Port, ListenerInfo)> + '_ {
        self.listeners
            .iter()
            .map(|(port, listener)| (*port, listener.info))
    }

    /// Returns the counters since the endpoint was created.
    pub fn counters(&self) -> &Counters {
        &self.cx.counters
    }

    /// Returns the endpoint's own address.
    pub fn addr(&self) -> NodeAddr {
        self.cx.own
    }

    /// Returns the interface's MTU.
    pub fn mtu(&self) -> u32 {
        self.cx.mtu
    }

    /// Returns the endpoint's parameters.
    pub fn config(&self) -> &EndpointConfig {
        &self.cx.config
    }

    fn clock(&mut self, now: Instant) {
        self.cx.now = self.cx.now.max(now);
    }

    /// Draws an unpredictable nonce and initial sequence number (W-16).
    fn secrets(&mut self) -> (u64, crate::seq::Seq) {
        let nonce = self.rng.next_u64().max(1);
        let [a, b, ..] = self.rng.next_u32().to_be_bytes();
        (nonce, crate::seq::Seq(u16::from_be_bytes([a, b])))
    }

    /// Runs `act` on a connection and then processes its notes.
    fn with<R>(&mut self, slot: u32, act: impl FnOnce(&mut Connection, &mut Cx) -> R) -> Option<R> {
        let conn = self.table.at_mut(slot)?;
        let result = act(conn, &mut self.cx);
        conn.refresh(&self.cx);
        self.settle(slot);
        Some(result)
    }

    /// Runs `act` on a connection, unless it has ended.
    fn with_id<R>(
        &mut self,
        id: ConnId,
        act: impl FnOnce(&mut Connection, &mut Cx) -> R,
    ) -> Option<R> {
        self.table.get(id)?;
        self.with(id.slot, act)
    }

    /// Enters a connection in the queues that its notes call for.
    fn settle(&mut self, slot: u32) {
        let Some(conn) = self.table.at_mut(slot) else {
            return;
        };
        let notes = core::mem::take(&mut conn.notes);
        let (id, key) = (conn.id, conn.key);
        if notes.established {
            self.announce(slot);
        }
        if notes.ask_paths {
            self.moves.push_back(MoveRequest::Ask(id));
        }
        if notes.ask_node {
            self.push_query(key);
        }
        let Some(conn) = self.table.at_mut(slot) else {
            return;
        };
        if notes.peer_finished && conn.visible {
            self.events.push_back(Event::PeerFinished(id));
        }
        if notes.progress && conn.visible && !conn.over && !conn.queued.progress {
            conn.queued.progress = true;
            self.progress.push_back(Touched::Live(id));
        }
        if let Some((reason, reset)) = conn.fate {
            return self.finish(slot, reason, reset);
        }
        if conn.state == State::TimeWait && !conn.over {
            conn.over = true;
            let last = conn.progress();
            self.report_closed(last, CloseReason::Finished);
        }
        let Some(conn) = self.table.at_mut(slot) else {
            return;
        };
        if !conn.queued.urgent && conn.wants_urgent() {
            conn.queued.urgent = true;
            self.urgent.push(conn.owner, id);
        }
        if !conn.queued.ready && conn.wants_data(self.cx.config.max_window) {
            conn.queued.ready = true;
            self.ready.push(conn.owner, id);
        }
        if let Some(at) = conn.timers.next() {
            self.deadlines.schedule(slot, at);
        }
    }

    fn report_closed(&mut self, last: Progress, reason: CloseReason) {
        // The host may not have polled the `Incoming` of a connection without progress.
        if last.acked > 0 || last.delivered > 0 {
            self.progress.push_back(Touched::Final(last));
            self.finals += 1;
        }
        self.closed.push_back(Event::Closed {
            conn: last.conn,
            reason,
        });
    }

    /// Removes a connection, and reports its end to the host and, by `reset`, to the peer.
    fn finish(&mut self, slot: u32, reason: CloseReason, reset: Option<ResetReason>) {
        let Some(mut conn) = self.table.remove(slot) else {
            return;
        };
        self.deadlines.remove(slot);
        conn.release(&mut self.cx.pool);
        if let Some(reason) = reset
            && let Some((seq, ack, nonce)) = conn.reset_fields()
        {
            self.push_own(Control {
                key: conn.key,
                seq,
                ack: Some(ack),
                body: ControlBody::Reset(Reset { reason, nonce }),
            });
        }
        if matches!(reason, CloseReason::Reset(_)) {
            self.cx.counters.connections_reset += 1;
        }
        if conn.passive {
            self.leave_listener(&conn);
        }
        let reported = !conn.visible || conn.reported;
        if conn.visible && !conn.over {
            self.report_closed(conn.progress(), reason);
        } else if reported {
            self.table.release(slot);
        }
    }
}
