//! Receives, probes, cancelling, and messages to the own rank.

use crate::envelope::Selector;
use crate::ids::PeerId;
use btl::Withdrawn;

use super::incoming::Origin;
use super::protocol::Protocol;
use super::request::{Memory, Outcome, Request, State};
use super::transports::Engine;
use crate::error::Error;
use crate::matching::unexpected::{Arrival, Arrived};
use crate::memory::WriteMem;
use crate::slab::place_of;
use crate::types::Status;

/// Longest message to the own rank that is copied at once, in bytes.
const OWN_EAGER: usize = 64 << 10;

impl Engine {
    /// Posts a receive, or gives it a message that waits.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        memory: WriteMem,
        selector: Selector,
        lent: bool,
    ) -> Result<u64, Error> {
        let protocol = &mut self.protocol;
        protocol.check_context(selector.context)?;
        let found = protocol.unexpected.find(&selector);
        if found.is_none() {
            protocol.check_source(&selector)?;
        }
        let key = protocol.requests.insert(Request {
            lent,
            ..Request::receive(memory, &selector)
        });
        match found {
            Some(entry) => {
                let source = protocol.unexpected.get(entry).map(|arrived| arrived.source);
                protocol.receive_waiting(key, entry);
                // A program that finds all its messages here already does not poll otherwise, and
                // its senders would wait for credit.
                let hint = source.and_then(|source| self.protocol.peers[source].primary());
                self.poll(hint);
            }
            None => {
                protocol.posted.post(place_of(key), &selector);
                if !self.publish(key, memory, &selector) {
                    self.protocol.count_private(selector.source);
                }
            }
        }
        Ok(key)
    }

    /// Receives a message that a probe removed from the matching.
    pub(crate) fn receive_taken(&mut self, request: Request, entry: u64) -> Result<u64, Error> {
        let protocol = &mut self.protocol;
        protocol.check_context(request.context)?;
        let Some(arrived) = protocol.unexpected.get(entry) else {
            return Err(Error::FreedRequest);
        };
        if !matches!(arrived.arrival, Arrival::Eager { .. }) {
            protocol.check_alive(arrived.source)?;
        }
        let key = protocol.requests.insert(request);
        protocol.receive_waiting(key, entry);
        self.do_work();
        Ok(key)
    }

    /// Sends a message to the own rank.
    pub(super) fn send_to_self(&mut self, key: u64) {
        let request = self.protocol.requests.get(key).copied();
        let Some((request, Memory::Read(memory))) =
            request.map(|request| (request, request.memory))
        else {
            debug_assert!(false, "{key:#x} is no send");
            return;
        };
        let protocol = &mut self.protocol;
        protocol.stats.self_sent += 1;
        let (own, context, tag) = (protocol.own, request.context, request.tag);
        // A receive that may be from the own rank is published only if there is one transport.
        let receive = match self.transports.iter_mut().next() {
            Some((transport, first)) => {
                let from = Origin {
                    transport,
                    peer: own,
                };
                protocol.match_posted(&mut *first.btl, from, context, tag)
            }
            None => protocol.match_private(context, own, tag),
        };
        if let Some(receive) = receive {
            // SAFETY: the send `key` is not over.
            protocol.deliver(receive, own, tag, unsafe { memory.bytes() });
            protocol.end(key, Outcome::Done);
            return;
        }
        let room = protocol.stats.unexpected_bytes < protocol.limit / 2;
        if memory.len() <= OWN_EAGER && !request.sync && room {
            // SAFETY: as above.
            let body = protocol.unexpected.pool.copy(unsafe { memory.bytes() });
            protocol.keep(own, context, tag, Arrival::Eager { body, sync: None });
            protocol.end(key, Outcome::Done);
        } else {
            protocol.set_state(key, State::Waiting);
            let arrival = Arrival::Own {
                length: memory.len(),
                send: key,
            };
            protocol.keep(own, context, tag, arrival);
        }
    }

    /// Cancels a request that has not been matched. Returns false if it is too late.
    pub(crate) fn cancel(&mut self, key: u64) -> Result<bool, Error> {
        if self.protocol.is_over(key)? {
            return Ok(false);
        }
        let Some(request) = self.protocol.requests.get(key).copied() else {
            return Ok(false);
        };
        match (request.state, request.peer) {
            (State::Posted, _) => {
                if !self.withdraw(key, &request) {
                    return Ok(false);
                }
            }
            (State::Queued, Some(peer)) => {
                self.protocol.peers[peer]
                    .queue
                    .retain(|queued| *queued != key);
            }
            _ => return Ok(false),
        }
        self.protocol.end(key, Outcome::Cancelled);
        Ok(true)
    }

    /// Removes a posted receive from the matching. Returns false if a peer is filling it.
    pub(super) fn withdraw(&mut self, key: u64, request: &Request) -> bool {
        let selector = request.selector();
        self.protocol.posted.remove(place_of(key), &selector);
        let Some((transport, post)) = request.post else {
            self.protocol.uncount_private(selector.source);
            return true;
        };
        let withdrawn = self.transports[transport].btl.withdraw(post);
        if let Some(request) = self.protocol.requests.get_mut(key) {
            match withdrawn {
                Withdrawn::Yes => request.post = None,
                Withdrawn::Taken => request.state = State::Claimed,
            }
        }
        withdrawn == Withdrawn::Yes
    }
}

impl Protocol {
    /// Removes the oldest posted receive that matches, in a process without transports.
    fn match_private(&mut self, context: u32, peer: PeerId, tag: i32) -> Option<u64> {
        let place = self.posted.find(context, peer, tag)?;
        let key = self.requests.key_at(place)?;
        let selector = self.requests.get(key)?.selector();
        self.posted.remove(place, &selector);
        self.uncount_private(selector.source);
        Some(key)
    }

    /// Gives a receive a message that waits.
    fn receive_waiting(&mut self, key: u64, entry: u64) {
        let Some(arrived) = self.unexpected.remove(entry) else {
            debug_assert!(false, "message {entry:#x} was found and does not exist");
            return;
        };
        let Arrived {
            source, tag, cost, ..
        } = arrived;
        match arrived.arrival {
            Arrival::Eager { body, sync } => {
                self.deliver(key, source, tag, &body);
                self.unexpected.pool.give_back(body);
                self.send_fin(source, sync);
            }
            Arrival::Rts {
                length,
                remote,
                key: region,
                transport,
            } => {
                let from = Origin {
                    transport,
                    peer: source,
                };
                self.start_receive(key, from, tag, (length, remote, region));
            }
            Arrival::Own { send, .. } => {
                let memory = self.requests.get(send).map(|request| request.memory);
                if let Some(Memory::Read(memory)) = memory {
                    // SAFETY: the request `send` is not over.
                    self.deliver(key, source, tag, unsafe { memory.bytes() });
                    self.end(send, Outcome::Done);
                }
            }
        }
        self.release(source, cost);
        self.check_skew();
    }

    /// Discards a message as if it had been received.
    pub(crate) fn discard(&mut self, entry: u64) {
        let Some(arrived) = self.unexpected.remove(entry) else {
            return;
        };
        let source = arrived.source;
        match arrived.arrival {
            Arrival::Eager { body, sync } => {
                self.unexpected.pool.give_back(body);
                self.send_fin(source, sync);
            }
            Arrival::Rts { remote, .. } => self.send_fin(source, Some(remote)),
            Arrival::Own { send, .. } => self.end(send, Outcome::Done),
        }
        self.stats.discarded += 1;
        self.release(source, arrived.cost);
        self.check_skew();
    }

    /// Returns what a probe reports of a message.
    pub(crate) fn status_of(&self, entry: u64) -> Option<Status> {
        let arrived = self.unexpected.get(entry)?;
        Some(Status {
            source: self.local_rank(arrived.context, arrived.source),
            tag: arrived.tag,
            length: arrived.length(),
        })
    }

    /// Fails if no peer is alive that could send a matching message.
    #[inline]
    pub(crate) fn check_source(&self, selector: &Selector) -> Result<(), Error> {
        match selector.source {
            Some(peer) => self.check_alive(peer),
            None if self.stats.failed_peers == 0 => Ok(()),
            None => self.check_any_alive(selector.context),
        }
    }

    /// Returns true if a failed peer might have sent what this any-source receive waits for.
    pub(super) fn may_have_meant(&self, request: &Request, peer: PeerId, left: bool) -> bool {
        // A peer that left in order matters only if no other is alive.
        request.peer.is_none()
            && self.contexts.is_member(request.context, peer)
            && (!left || self.check_any_alive(request.context).is_err())
    }
}
