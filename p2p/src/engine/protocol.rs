//! The protocol state, and the life cycle of requests.

use crate::ids::{PeerId, TransportId};
use std::collections::VecDeque;

use super::access::Access;
use super::account::limit;
use super::admission::Open;
use super::contexts::Contexts;
use super::direct::Direct;
use super::peer::Peers;
use super::request::{Request, RequestOutcome, State};
use super::skew::Skew;
use super::transfer::Transfer;
use crate::config::Config;
use crate::error::Error;
use crate::matching::posted::Posted;
use crate::matching::unexpected::{Arrived, Unexpected};
use crate::slab::Slab;
use crate::types::{Stats, Status, narrow};

/// Work that a callback defers because it needs the transports.
#[derive(Debug)]
pub(crate) enum Work {
    /// Advances a transfer.
    Step(u64),
    /// Begins to reach a peer that is used now.
    Reach(PeerId),
    /// Ends the requests of a failed peer. With a reason, sends it BYE.
    Failed(PeerId, Option<String>),
}

/// The whole state except the transports.
#[derive(Debug)]
pub(crate) struct Protocol {
    pub(crate) peers: Peers,
    pub(crate) requests: Slab<Request>,
    pub(crate) posted: Posted,
    pub(crate) unexpected: Unexpected,
    pub(crate) stats: Stats,
    pub(crate) own: PeerId,
    pub(crate) config: Config,
    pub(crate) contexts: Contexts,
    /// Blocking receive that polls without a request.
    pub(super) direct: Option<Direct>,
    /// Request that the last direct receive became.
    pub(super) demoted: u64,
    /// Number of requests that ended. Waiting threads compare it.
    pub(crate) ended: u64,
    pub(crate) closed: bool,
    /// Peers are endpoints, not ranks of a job.
    pub(crate) open: Option<Box<Open>>,
    /// Completed requests of an endpoint that were not reported.
    pub(crate) reports: VecDeque<u64>,
    pub(super) transfers: Slab<Transfer>,
    pub(super) accesses: Slab<Access>,
    pub(super) work: VecDeque<Work>,
    /// Transfers whose next step found no room.
    pub(super) again: Vec<u64>,
    /// Registrations to be released.
    pub(super) released: Vec<(TransportId, u64)>,
    /// Failed peers that may still access memory of this process.
    pub(super) dropping: Vec<PeerId>,
    /// Peers with something to send.
    pub(super) active: VecDeque<PeerId>,
    /// Number of peers that are being reached.
    pub(super) reaching: usize,
    pub(super) skew: Skew,
    /// Limit for unexpected messages in bytes, and the number of peers held back for it.
    pub(super) limit: usize,
    pub(super) held_back: usize,
    /// Buffers of dropped requests that are not complete, by request.
    pub(crate) kept: Vec<(u64, Vec<u8>)>,
}

impl Protocol {
    /// Creates the state.
    pub(crate) fn new(own: PeerId, peers: Peers, config: Config) -> Protocol {
        let size = peers.size();
        Protocol {
            limit: limit(config.unexpected_bytes, size),
            peers,
            requests: Slab::with_capacity(256),
            posted: Posted::new(),
            unexpected: Unexpected::new(),
            stats: Stats::default(),
            own,
            config,
            contexts: Contexts::new(false),
            direct: None,
            demoted: 0,
            ended: 0,
            closed: false,
            open: None,
            reports: VecDeque::new(),
            transfers: Slab::with_capacity(16),
            accesses: Slab::with_capacity(0),
            work: VecDeque::with_capacity(64),
            again: Vec::new(),
            released: Vec::new(),
            dropping: Vec::new(),
            active: VecDeque::with_capacity(size as usize),
            reaching: 0,
            skew: Skew::default(),
            held_back: 0,
            kept: Vec::new(),
        }
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            unexpected_now: self.unexpected.len(),
            ..self.stats
        }
    }

    /// Returns true while a request, or a direct receive, uses memory of the program.
    pub(crate) fn lends_memory(&self) -> bool {
        self.requests.len() != 0 || self.direct.is_some()
    }

    /// Returns the amount of pending work that no event announces, for which threads must not sleep
    /// long.
    pub(crate) fn polled(&self) -> usize {
        self.active.len() + self.work.len() + self.again.len() + self.dropping.len() + self.reaching
    }

    /// Returns true if there is such work.
    pub(crate) fn must_poll(&self) -> bool {
        self.polled() != 0
    }

    /// Returns true if there is something to send or to advance.
    pub(super) fn has_work(&self) -> bool {
        !self.active.is_empty() || !self.work.is_empty() || !self.again.is_empty()
    }

    /// Returns the number of queued messages.
    pub(crate) fn unsent(&self) -> usize {
        let alive = self.peers.iter().filter(|(_, peer)| peer.alive);
        alive.map(|(_, peer)| peer.unsent()).sum()
    }

    /// Puts a peer on the list of those with something to send.
    pub(crate) fn activate(&mut self, peer: PeerId) {
        let state = &mut self.peers[peer];
        state.fast = false;
        if !std::mem::replace(&mut state.active, true) {
            self.active.push_back(peer);
        }
    }

    /// Ends a request.
    #[inline]
    pub(crate) fn end(&mut self, key: u64, outcome: RequestOutcome) {
        let request = &mut self.requests[key];
        request.state = State::Complete;
        request.outcome = outcome;
        self.ended += 1;
        let (transfer, detached) = (std::mem::take(&mut request.transfer), request.detached);
        if request.access != 0 {
            self.accesses.remove(request.access);
        }
        if request.cookie.is_some() {
            self.reports.push_back(key);
        }
        if transfer != 0
            && let Some(transfer) = self.transfers.remove(transfer)
        {
            self.released.extend(transfer.region);
        }
        if detached {
            self.requests.remove(key);
        }
    }

    /// Drops the result of a request, now or on completion.
    pub(crate) fn detach(&mut self, key: u64) {
        if let Some(request) = self.requests.get_mut(key) {
            request.detached = true;
            if request.state == State::Complete {
                self.requests.remove(key);
            }
        }
    }

    /// Returns the result of a request and forgets the request; `None` if it is not complete.
    #[inline]
    pub(crate) fn take(&mut self, key: u64) -> Option<Result<Status, Error>> {
        let request = match self.requests.get(key) {
            Some(request) if !request.detached => request,
            _ => return Some(Err(Error::UnknownRequest)),
        };
        if request.state != State::Complete {
            return None;
        }
        let result = self.result(request);
        self.requests.remove(key);
        Some(result)
    }

    /// Returns true if the request is complete.
    pub(crate) fn is_complete(&self, key: u64) -> Result<bool, Error> {
        match self.requests.get(key) {
            Some(request) if !request.detached => Ok(request.state == State::Complete),
            _ => Err(Error::UnknownRequest),
        }
    }

    /// Returns the result of a completed request in the form that the program receives.
    #[inline]
    pub(super) fn result(&self, request: &Request) -> Result<Status, Error> {
        let (tag, length) = (request.tag, request.length);
        match request.outcome {
            RequestOutcome::Done => {
                let (peer, room) = if request.is_send() {
                    (self.own, length)
                } else {
                    (request.peer.unwrap_or(self.own), request.memory.len())
                };
                self.received(request.context, peer, tag, (length, room))
            }
            RequestOutcome::Cancelled => Err(Error::Cancelled),
            RequestOutcome::Failed(peer) => Err(self.peer_error(peer)),
            RequestOutcome::Closed => Err(Error::Closed),
            RequestOutcome::Refused(refusal) => Err(Error::Refused(refusal)),
        }
    }

    /// Returns the result for a message of `length` bytes in a buffer with `room` bytes.
    #[inline]
    pub(super) fn received(
        &self,
        context: u32,
        peer: PeerId,
        tag: u64,
        (length, room): (usize, usize),
    ) -> Result<Status, Error> {
        let source = self.local_rank(context, peer);
        if length > room {
            return Err(Error::Truncated {
                source_rank: source,
                tag: narrow(tag),
                length,
                room,
            });
        }
        Ok(Status {
            source,
            tag: narrow(tag),
            length,
        })
    }

    pub(crate) fn peer_error(&self, peer: PeerId) -> Error {
        let error = self.peers[peer].failed.clone();
        Error::PeerFailed {
            peer: peer.rank(),
            error: error.unwrap_or(btl::PeerError::Left),
        }
    }

    /// Returns the rank in the communicator of this context; the rank in the job if the
    /// communicator was freed.
    #[inline]
    pub(crate) fn local_rank(&self, context: u32, peer: PeerId) -> u32 {
        if self.contexts.is_common(context) {
            return peer.rank();
        }
        self.contexts
            .group(context)
            .and_then(|group| group.local_rank(peer))
            .unwrap_or(peer.rank())
    }

    /// Fails if calls may not use this context.
    #[inline]
    pub(crate) fn check_context(&self, context: u32) -> Result<(), Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        if !self.contexts.is_common(context) && self.contexts.group(context).is_none() {
            return Err(Error::InvalidContext { context });
        }
        Ok(())
    }

    /// Fails if the peer has failed.
    #[inline]
    pub(crate) fn check_alive(&self, peer: PeerId) -> Result<(), Error> {
        if self.peers[peer].alive {
            Ok(())
        } else {
            Err(self.peer_error(peer))
        }
    }

    /// Fails if every other member of the communicator has failed.
    #[cold]
    pub(crate) fn check_any_alive(&self, context: u32) -> Result<(), Error> {
        let mut dead = Ok(());
        if self.open.is_some() {
            // Other peers may still send.
            return dead;
        }
        for peer in self.peers.ids().filter(|peer| *peer != self.own) {
            if self.contexts.is_member(context, peer) {
                dead = self.check_alive(peer);
                if dead.is_ok() {
                    break;
                }
            }
        }
        dead
    }

    /// Clears all queues after closing.
    pub(super) fn clear_queues(&mut self) {
        for peer in self.peers.ids() {
            let state = &mut self.peers[peer];
            state.control.clear();
            state.queue.clear();
            state.streams.clear();
        }
        self.work.clear();
        self.again.clear();
        self.released.clear();
        self.dropping.clear();
        self.active.clear();
        self.kept.clear();
    }

    /// Frees a communicator and discards the messages that wait for it.
    pub(crate) fn forget_context(&mut self, context: u32) {
        if self.contexts.is_common(context) || self.closed {
            return;
        }
        self.contexts.remove(context);
        for half in [context, context + 1] {
            let waits = |entry: &Arrived| entry.context == half && !entry.taken;
            for key in self.unexpected.keys(waits) {
                self.discard(key);
            }
        }
    }
}
