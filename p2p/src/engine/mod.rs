//! The state of one process's layer, and what changes it. One thread at a time; [`crate::shared`] locks.
//!
//! [`Engine`] is what transports' callbacks may touch. [`Core`] is the engine with the transports: a callback cannot use them, so it leaves
//! [`Work`] that [`Core::turn`] does right after.

mod ahead;
mod announced;
mod choice;
mod direct;
mod failure;
mod incoming;
mod lanes;
mod meter;
mod outgoing;
mod peer;
mod pressure;
mod rails;
mod receive;
mod request;
mod skew;
mod transfer;

use std::collections::VecDeque;
use std::sync::Arc;

use btl::{Btl, Capabilities, Rank};

use announced::{Operation, Transfer};
pub(crate) use direct::Found;
pub(crate) use peer::{Lane, Peer};
pub(crate) use pressure::{eager_limit, limit, window};
pub(crate) use rails::MOST;
pub(crate) use request::{ANY, Memory, Outcome, Request, State};
use skew::Skew;

use crate::config::Config;
use crate::error::Error;
use crate::group::Group;
use crate::matching::posted::Posted;
use crate::matching::unexpected::Unexpected;
use crate::slab::{Gone, Slab};
use crate::types::{Stats, Status};

/// Note in the slab of requests: the answer was given.
const WAITED: u8 = 1;
/// Or nobody wanted it.
const FREED: u8 = 2;

/// What a callback leaves to be done with the transports.
#[derive(Debug)]
pub(crate) enum Work {
    /// Takes a transfer further.
    Step(u64),
    /// Ends the requests of a failed peer; with a reason, tells it.
    Failed(Rank, Option<String>),
    /// Takes a peer out of a transport that it has lost itself.
    DropLane(Rank, usize),
}

/// A transport.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) btl: Box<dyn Btl>,
    pub(crate) capabilities: Capabilities,
}

/// Everything but the transports.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) peers: Vec<Peer>,
    pub(crate) requests: Slab<Request>,
    pub(crate) posted: Posted,
    pub(crate) unexpected: Unexpected,
    pub(crate) stats: Stats,
    pub(crate) size: u32,
    pub(crate) own: Rank,
    pub(crate) config: Config,
    begun: std::time::Instant,
    /// A blocking receive that spins, and the number of the last one that was posted after all.
    direct: Option<direct::Direct>,
    demoted: u64,
    /// Requests that ended so far: who waits compares.
    pub(crate) ended: u64,
    pub(crate) closed: bool,
    transfers: Slab<Transfer>,
    operations: Slab<Operation>,
    work: VecDeque<Work>,
    /// Transfers whose next step found no room.
    again: Vec<u64>,
    /// Regions that nobody needs any more: transport, handle.
    released: Vec<(u8, u64)>,
    /// Peers that failed and may still reach memory of this process.
    dropping: Vec<Rank>,
    /// Lanes that only the peer has lost.
    dropping_lanes: Vec<(Rank, usize)>,
    /// Peers with something to send.
    active: Vec<Rank>,
    spare: Vec<Rank>,
    /// Receives that the peers do not see: from any source, and named ones.
    private_any: usize,
    private_named: usize,
    /// Receives of this length on are worth showing to everybody.
    show_any_from: usize,
    /// Receives of this length on are worth a closer look whether they can be shown.
    show_from: usize,
    skew: Skew,
    /// Limit of memory for unexpected messages, and how many peers are being held back for it.
    limit: usize,
    held_back: usize,
    /// Communicators but the world: even context and members, sorted.
    contexts: Vec<(u32, Arc<Group>)>,
    next_context: u32,
    /// Buffers of requests that nobody waits for.
    pub(crate) kept: Vec<(u64, Vec<u8>)>,
    /// Such buffers whose region is about to be given back.
    buried: Vec<Vec<u8>>,
}

/// The engine and the transports.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) transports: Vec<Transport>,
    turns: u32,
}

impl Engine {
    pub(crate) fn new(own: Rank, peers: Vec<Peer>, matched: bool, config: Config) -> Engine {
        let size = u32::try_from(peers.len()).unwrap_or(u32::MAX);
        Engine {
            limit: limit(config.unexpected_bytes, size),
            show_from: if !config.matched || !matched {
                usize::MAX
            } else {
                peers
                    .iter()
                    .map(|p| p.one_sided_from)
                    .min()
                    .unwrap_or(usize::MAX)
            },
            show_any_from: peers
                .iter()
                .filter(|p| !p.own)
                .map(|p| p.one_sided_from)
                .min()
                .unwrap_or(usize::MAX),
            peers,
            requests: Slab::with_capacity(256),
            posted: Posted::new(),
            unexpected: Unexpected::new(),
            stats: Stats::default(),
            size,
            own,
            config,
            begun: std::time::Instant::now(),
            direct: None,
            demoted: 0,
            ended: 0,
            closed: false,
            transfers: Slab::with_capacity(16),
            operations: Slab::with_capacity(16),
            work: VecDeque::with_capacity(64),
            again: Vec::new(),
            released: Vec::new(),
            dropping: Vec::new(),
            dropping_lanes: Vec::new(),
            active: Vec::with_capacity(size as usize),
            spare: Vec::with_capacity(size as usize),
            private_any: 0,
            private_named: 0,
            skew: Skew::default(),
            held_back: 0,
            contexts: Vec::new(),
            next_context: 2,
            kept: Vec::new(),
            buried: Vec::new(),
        }
    }

    /// Returns true while a request, or a direct receive, uses memory of the program.
    pub(crate) fn lends_memory(&self) -> bool {
        self.requests.len() != 0 || self.direct.is_some()
    }

    /// There is something to send or to move that no event will announce: do not sleep.
    pub(crate) fn is_restless(&self) -> bool {
        self.has_work() || !self.dropping.is_empty() || !self.dropping_lanes.is_empty()
    }

    /// There is something to send or to move.
    fn has_work(&self) -> bool {
        !self.active.is_empty() || !self.work.is_empty() || !self.again.is_empty()
    }

    /// Sends not yet out, for finalizing.
    pub(crate) fn unsent(&self) -> usize {
        let waiting = |peer: &Peer| {
            let again = peer.resend.len() + peer.notes.len() + usize::from(peer.holds());
            peer.control.len() + peer.queue.len() + peer.streams.len() + again
        };
        self.peers
            .iter()
            .filter(|peer| peer.alive)
            .map(waiting)
            .sum()
    }

    /// Has the peer a turn to send in the next round.
    pub(crate) fn activate(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        peer.fast = false;
        if !std::mem::replace(&mut peer.active, true) {
            self.active.push(rank);
        }
    }

    /// Ends a request.
    #[inline]
    pub(crate) fn end(&mut self, key: u64, outcome: Outcome) {
        let Some(request) = self.requests.get_mut(key) else {
            return;
        };
        request.state = State::Over;
        request.outcome = outcome;
        self.ended += 1;
        if request.transfer != 0 || request.detached {
            self.end_more(key);
        }
    }

    #[cold]
    fn end_more(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(key) else {
            return;
        };
        let (transfer, detached) = (std::mem::take(&mut request.transfer), request.detached);
        if let Some(transfer) = self.transfers.remove(transfer, 0) {
            self.released
                .extend(transfer.region.into_iter().chain(transfer.ahead));
        }
        if detached {
            self.requests.remove(key, FREED);
            if let Some(at) = self.kept.iter().position(|kept| kept.0 == key) {
                self.buried.push(self.kept.swap_remove(at).1);
            }
            if self.released.is_empty() {
                self.buried.clear();
            }
        }
    }

    /// The result of a request that is over, which it ends; `None`: not over.
    #[inline]
    pub(crate) fn take(&mut self, key: u64) -> Option<Result<Status, Error>> {
        let Some(request) = self.requests.get(key) else {
            return Some(Err(self.gone(key)));
        };
        if request.detached {
            return Some(Err(Error::FreedRequest));
        }
        if request.state != State::Over {
            return None;
        }
        let result = self.result(request);
        self.requests.clear(key, WAITED);
        Some(result)
    }

    pub(crate) fn gone(&self, key: u64) -> Error {
        match self.requests.gone(key) {
            Gone::Noted(WAITED) => Error::AlreadyWaited,
            _ => Error::FreedRequest,
        }
    }

    /// Is it over, or why can nobody ask?
    pub(crate) fn is_over(&self, key: u64) -> Result<bool, Error> {
        match self.requests.get(key) {
            None => Err(self.gone(key)),
            Some(request) if request.detached => Err(Error::FreedRequest),
            Some(request) => Ok(request.state == State::Over),
        }
    }

    /// What the program is told of a request that is over.
    #[inline]
    pub(crate) fn result(&self, request: &Request) -> Result<Status, Error> {
        match request.outcome {
            Outcome::Done if request.is_send() => {
                let source = self.local_rank(request.context, self.own);
                Ok(Status {
                    source,
                    tag: request.tag,
                    length: request.length,
                })
            }
            Outcome::Done => {
                let source = self.local_rank(request.context, request.peer);
                let (tag, length, room) = (request.tag, request.length, request.room());
                if length > room {
                    return Err(Error::Truncated {
                        source_rank: source,
                        tag,
                        length,
                        room,
                    });
                }
                Ok(Status {
                    source,
                    tag,
                    length,
                })
            }
            Outcome::Cancelled => Err(Error::Cancelled),
            Outcome::Failed(peer) => Err(self.peer_error(peer)),
            Outcome::Closed => Err(Error::Closed),
        }
    }

    pub(crate) fn peer_error(&self, rank: Rank) -> Error {
        match self.peers.get(rank as usize) {
            Some(peer) => peer.error(rank),
            None => Error::InvalidRank {
                rank,
                size: self.size,
            },
        }
    }

    /// Rank in the communicator of this context; of one that is gone, the rank in the job.
    #[inline]
    pub(crate) fn local_rank(&self, context: u32, world: Rank) -> Rank {
        if context <= 1 {
            return world;
        }
        self.group(context)
            .and_then(|group| group.local_rank(world))
            .unwrap_or(world)
    }

    /// The members of a communicator other than the world.
    pub(crate) fn group(&self, context: u32) -> Option<&Arc<Group>> {
        let at = self
            .contexts
            .binary_search_by_key(&(context & !1), |entry| entry.0)
            .ok()?;
        self.contexts.get(at).map(|entry| &entry.1)
    }

    /// Whether calls may use this context.
    #[inline]
    pub(crate) fn check_context(&self, context: u32) -> Result<(), Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        if context > 1 && self.group(context).is_none() {
            return Err(Error::InvalidContext { context });
        }
        Ok(())
    }

    /// Least number that no communicator of this process had; it is not given out again.
    pub(crate) fn propose_context(&mut self) -> u32 {
        let context = self.next_context;
        self.next_context = context.saturating_add(2);
        context
    }

    /// Takes a context that all members agreed on, if it is free here: its number was proposed here or is higher than all before.
    pub(crate) fn reserve_context(
        &mut self,
        context: u32,
        proposed: u32,
        group: &Arc<Group>,
    ) -> bool {
        if !context.is_multiple_of(2) || context < proposed || context > u32::MAX - 3 {
            return false;
        }
        if context != proposed && context < self.next_context {
            return false;
        }
        match self
            .contexts
            .binary_search_by_key(&context, |entry| entry.0)
        {
            Ok(_) => false,
            Err(at) => {
                self.contexts.insert(at, (context, Arc::clone(group)));
                self.next_context = self.next_context.max(context + 2);
                true
            }
        }
    }

    /// After closing: nothing moves any more.
    fn give_up_everything(&mut self) {
        self.work.clear();
        self.again.clear();
        self.released.clear();
        self.dropping.clear();
        self.dropping_lanes.clear();
        self.active.clear();
        self.buried.clear();
        self.kept.clear();
    }

    /// Nobody here uses the communicator any more. What waits for it is thrown away.
    pub(crate) fn forget_context(&mut self, context: u32) {
        if context <= 1 {
            return;
        }
        if let Ok(at) = self
            .contexts
            .binary_search_by_key(&context, |entry| entry.0)
        {
            self.contexts.remove(at);
        }
        for half in [context, context + 1] {
            for key in self.unexpected.in_context(half) {
                self.throw_away(key);
            }
        }
    }
}

impl Core {
    pub(crate) fn new(mut engine: Engine, transports: Vec<Transport>) -> Core {
        // Where a receiver can `get`, it offers nothing.
        let puts =
            |transport: &Transport| transport.capabilities.put && !transport.capabilities.get;
        engine.set_ahead(&transports.iter().map(puts).collect::<Vec<_>>());
        for peer in engine
            .peers
            .iter_mut()
            .filter(|peer| !peer.own && !peer.mixed())
        {
            let capabilities = transports
                .get(usize::from(peer.transport))
                .map(|t| t.capabilities);
            peer.held_from = capabilities
                .and_then(|can| can.held_from)
                .unwrap_or(usize::MAX);
            peer.refresh();
        }
        Core {
            engine,
            transports,
            turns: 0,
        }
    }

    /// One turn of everything; `hint`: the transport that matters most, others get fewer turns. Answers how many things happened.
    #[inline]
    pub(crate) fn turn(&mut self, hint: Option<u8>) -> usize {
        let mut events = 0;
        self.turns = self.turns.wrapping_add(1);
        let all = self.turns.is_multiple_of(8);
        for (number, transport) in (0u8..).zip(&mut self.transports) {
            if all || hint.is_none_or(|hint| hint == number) {
                let mut handler = incoming::Handler {
                    engine: &mut self.engine,
                    transport: number,
                };
                events += transport.btl.progress(&mut handler);
            }
        }
        if self.engine.skew.late && self.turns.is_multiple_of(64) {
            self.engine.look_at_skew();
        }
        if self.engine.is_restless() || !self.engine.released.is_empty() {
            events += self.work_off();
        }
        events
    }

    /// Does what callbacks left, and gives every peer with something to send a turn.
    pub(crate) fn work_off(&mut self) -> usize {
        let mut done = 0;
        for transfer in std::mem::take(&mut self.engine.again) {
            self.engine.work.push_back(Work::Step(transfer));
        }
        for rank in std::mem::take(&mut self.engine.dropping) {
            self.drop_peer(rank);
        }
        for (rank, at) in std::mem::take(&mut self.engine.dropping_lanes) {
            self.drop_lane(rank, at);
        }
        // What this work leaves is done, too, unless it waits for room (`again`).
        while let Some(work) = self.engine.work.pop_front() {
            match work {
                Work::Step(transfer) => done += self.step(transfer),
                Work::Failed(rank, reason) => {
                    self.end_requests_of(rank, reason);
                    done += 1;
                }
                Work::DropLane(rank, at) => self.drop_lane(rank, at),
            }
        }
        let mut active = std::mem::replace(
            &mut self.engine.active,
            std::mem::take(&mut self.engine.spare),
        );
        for rank in active.drain(..) {
            done += self.drive(rank);
        }
        self.engine.spare = active;
        for (transport, handle) in std::mem::take(&mut self.engine.released) {
            if let Some(transport) = self.transports.get_mut(usize::from(transport)) {
                transport.btl.deregister(handle);
            }
        }
        self.engine.buried.clear();
        done
    }
}
