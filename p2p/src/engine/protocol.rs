//! The protocol state, and the life of requests.

use crate::ids::{PeerId, TransportId};
use std::collections::VecDeque;

use super::account::limit;
use super::contexts::Contexts;
use super::direct::Direct;
use super::peers::Peers;
use super::request::{Outcome, Request, State};
use super::skew::Skew;
use super::transfer::{Operation, Transfer};
use crate::config::Config;
use crate::error::Error;
use crate::group::Group;
use crate::matching::posted::Posted;
use crate::matching::unexpected::Unexpected;
use crate::slab::{Gone, Slab};
use crate::types::{Stats, Status};

/// Note in the slab of requests: the result was returned.
const WAITED: u8 = 1;
/// Note in the slab of requests: the program had freed it.
const FREED: u8 = 2;

/// Work that a callback leaves to be done with the transports.
#[derive(Debug)]
pub(crate) enum Work {
    /// Advances a transfer.
    Step(u64),
    /// Ends the requests of a failed peer. With a reason, sends it BYE.
    Failed(PeerId, Option<String>),
}

/// All state but the transports.
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
    pub(super) transfers: Slab<Transfer>,
    pub(super) operations: Slab<Operation>,
    pub(super) work: VecDeque<Work>,
    /// Transfers whose next step found no room.
    pub(super) again: Vec<u64>,
    /// Registrations to take back.
    pub(super) released: Vec<(TransportId, u64)>,
    /// Failed peers that may still reach memory of this process.
    pub(super) dropping: Vec<PeerId>,
    /// Peers with something to send.
    pub(super) active: Vec<PeerId>,
    pub(super) spare: Vec<PeerId>,
    /// Numbers of unpublished receives: from any source, and named ones.
    pub(super) private_any: usize,
    pub(super) private_named: usize,
    /// Receives of this length or more may be published, to one peer or to all.
    pub(super) publish_from: usize,
    pub(super) publish_any_from: usize,
    pub(super) skew: Skew,
    /// Limit for unexpected messages in bytes, and the number of peers held back for it.
    pub(super) limit: usize,
    pub(super) held_back: usize,
    /// Buffers of freed requests, by request.
    pub(crate) kept: Vec<(u64, Vec<u8>)>,
    /// Buffers of freed requests whose registration is about to be taken back.
    pub(super) buried: Vec<Vec<u8>>,
}

impl Protocol {
    /// `posted_receives`: a transport supports them.
    pub(crate) fn new(
        own: PeerId,
        peers: Peers,
        posted_receives: bool,
        config: Config,
    ) -> Protocol {
        let size = peers.size();
        let others = peers.iter().filter(|(_, peer)| !peer.own);
        let publish_from = others.map(|(_, peer)| peer.one_sided_from).min();
        let publish_from = publish_from
            .filter(|_| config.posted_receives && posted_receives)
            .unwrap_or(usize::MAX);
        Protocol {
            limit: limit(config.unexpected_bytes, size),
            publish_from,
            publish_any_from: publish_from,
            peers,
            requests: Slab::with_capacity(256),
            posted: Posted::new(),
            unexpected: Unexpected::new(),
            stats: Stats::default(),
            own,
            config,
            contexts: Contexts::new(),
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
            active: Vec::with_capacity(size as usize),
            spare: Vec::with_capacity(size as usize),
            private_any: 0,
            private_named: 0,
            skew: Skew::default(),
            held_back: 0,
            kept: Vec::new(),
            buried: Vec::new(),
        }
    }

    /// Returns true while a request, or a direct receive, uses memory of the program.
    pub(crate) fn lends_memory(&self) -> bool {
        self.requests.len() != 0 || self.direct.is_some()
    }

    /// Returns true if there is work that no event will announce: do not sleep.
    pub(crate) fn must_poll(&self) -> bool {
        self.has_work() || !self.dropping.is_empty()
    }

    /// Returns true if there is something to send or to advance.
    pub(super) fn has_work(&self) -> bool {
        !self.active.is_empty() || !self.work.is_empty() || !self.again.is_empty()
    }

    /// Returns the number of queued messages.
    pub(crate) fn unsent(&self) -> usize {
        let alive = self.peers.iter().filter(|(_, peer)| peer.alive);
        alive
            .map(|(_, peer)| peer.control.len() + peer.queue.len() + peer.streams.len())
            .sum()
    }

    /// Puts a peer on the list of those with something to send.
    pub(crate) fn activate(&mut self, peer: PeerId) {
        let state = &mut self.peers[peer];
        state.fast = false;
        if !std::mem::replace(&mut state.active, true) {
            self.active.push(peer);
        }
    }

    /// Ends a request.
    #[inline]
    pub(crate) fn end(&mut self, key: u64, outcome: Outcome) {
        let Some(request) = self.requests.get_mut(key) else {
            debug_assert!(false, "request {key:#x} ended twice");
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
            self.released.extend(transfer.region);
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

    /// Forgets a request that is over, without returning its result.
    pub(crate) fn forget(&mut self, key: u64) {
        if let Some(request) = self.requests.get_mut(key) {
            request.detached = true;
            let outcome = request.outcome;
            self.end(key, outcome);
        }
    }

    /// Returns the result of a request and forgets the request; `None` if it is not over.
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

    fn gone(&self, key: u64) -> Error {
        match self.requests.gone(key) {
            Gone::Noted(WAITED) => Error::AlreadyWaited,
            _ => Error::FreedRequest,
        }
    }

    /// Returns true if the request is over.
    pub(crate) fn is_over(&self, key: u64) -> Result<bool, Error> {
        match self.requests.get(key) {
            None => Err(self.gone(key)),
            Some(request) if request.detached => Err(Error::FreedRequest),
            Some(request) => Ok(request.state == State::Over),
        }
    }

    /// Returns the result of a request that is over, as the program gets it.
    #[inline]
    fn result(&self, request: &Request) -> Result<Status, Error> {
        let (tag, length) = (request.tag, request.length);
        match request.outcome {
            Outcome::Done => {
                let peer = if request.is_send() {
                    self.own
                } else {
                    request.peer.unwrap_or(self.own)
                };
                let room = match request.is_send() {
                    true => length,
                    false => request.room(),
                };
                self.received(request.context, peer, tag, (length, room))
            }
            Outcome::Cancelled => Err(Error::Cancelled),
            Outcome::Failed(peer) => Err(self.peer_error(peer)),
            Outcome::Closed => Err(Error::Closed),
        }
    }

    /// Returns the result for a message of `length` bytes in a buffer with `room`.
    #[inline]
    pub(super) fn received(
        &self,
        context: u32,
        peer: PeerId,
        tag: i32,
        (length, room): (usize, usize),
    ) -> Result<Status, Error> {
        let source = self.local_rank(context, peer);
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
        if context <= 1 {
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
        if context > 1 && self.contexts.group(context).is_none() {
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
        let mut dead = None;
        let world = Group::world(self.peers.size(), self.own);
        let group = match context {
            0 | 1 => &world,
            _ => self.contexts.group(context).map_or(&world, |group| group),
        };
        for peer in group.peers().filter(|peer| *peer != self.own) {
            match self.check_alive(peer) {
                Ok(()) => return Ok(()),
                Err(error) => dead = Some(error),
            }
        }
        dead.map_or(Ok(()), Err)
    }

    /// Clears all queues after closing.
    pub(super) fn clear_queues(&mut self) {
        self.work.clear();
        self.again.clear();
        self.released.clear();
        self.dropping.clear();
        self.active.clear();
        self.buried.clear();
        self.kept.clear();
    }

    /// Frees a communicator and discards the messages that wait for it.
    pub(crate) fn forget_context(&mut self, context: u32) {
        if context <= 1 {
            return;
        }
        self.contexts.remove(context);
        for half in [context, context + 1] {
            for key in self.unexpected.in_context(half) {
                self.discard(key);
            }
        }
    }
}
