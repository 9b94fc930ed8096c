//! Receives, probes, cancelling, and messages of this rank to itself.

use crate::ids::{PeerId, Selector};

use super::incoming::Origin;
use super::protocol::Protocol;
use super::request::{Request, RequestOutcome, State};
use super::transports::Engine;
use crate::error::Error;
use crate::matching::unexpected::{Arrival, Arrived};
use crate::slab::place_of;
use crate::types::{Status, narrow};

/// Maximum length of a message to this rank itself that is copied at once, in bytes.
const OWN_EAGER: usize = 64 << 10;

impl Engine {
    /// Posts a receive, or delivers a waiting message to it.
    #[inline]
    pub(crate) fn receive(&mut self, request: Request) -> Result<u64, Error> {
        let selector = request.selector();
        let protocol = &mut self.protocol;
        protocol.check_context(selector.context)?;
        let found = protocol.unexpected.find(&selector);
        if found.is_none() {
            protocol.check_source(&selector)?;
        }
        let key = protocol.requests.insert(request);
        match found {
            Some(entry) => {
                let source = protocol.unexpected.get(entry).map(|arrived| arrived.source);
                protocol.receive_waiting(key, entry);
                // A program that always finds its messages here already does not poll otherwise,
                // and its senders would wait for credit.
                let hint = source.and_then(|source| self.protocol.peers[source].primary());
                self.poll(hint);
            }
            None => {
                protocol.posted.post(place_of(key), &selector);
            }
        }
        Ok(key)
    }

    /// Receives a message that a probe removed from the matching.
    pub(crate) fn receive_taken(&mut self, request: Request, entry: u64) -> Result<u64, Error> {
        let protocol = &mut self.protocol;
        protocol.check_context(request.context)?;
        let arrived = protocol.unexpected.get(entry);
        let arrived = arrived.ok_or(Error::UnknownRequest)?;
        // The bytes of a long message are with its sender.
        if !matches!(arrived.arrival, Arrival::Eager { .. })
            && let Err(error) = protocol.check_alive(arrived.source)
        {
            protocol.discard(entry);
            return Err(error);
        }
        let key = protocol.requests.insert(request);
        protocol.receive_waiting(key, entry);
        self.do_work();
        Ok(key)
    }

    /// Sends a message to this rank itself.
    pub(super) fn send_to_self(&mut self, key: u64) {
        let protocol = &mut self.protocol;
        let request = protocol.requests[key];
        protocol.stats.self_sent += 1;
        let (own, label) = (protocol.own, request.label());
        // SAFETY: the send `key` is not complete.
        let body = unsafe { request.memory.bytes() };
        if let Some(receive) = protocol.match_posted(own, label) {
            protocol.deliver(receive, own, label, body);
            protocol.end(key, RequestOutcome::Done);
            return;
        }
        let room = protocol.stats.unexpected_bytes < protocol.limit / 2;
        if body.len() <= OWN_EAGER && !request.sync && room {
            let body = protocol.unexpected.copy(body);
            protocol.keep(own, label, Arrival::Eager { body, sync: None });
            protocol.end(key, RequestOutcome::Done);
        } else {
            protocol.requests[key].state = State::Waiting;
            let arrival = Arrival::Own {
                length: body.len(),
                send: key,
            };
            protocol.keep(own, label, arrival);
        }
    }

    /// Cancels a request that has not been matched. Returns false if it is too late.
    pub(crate) fn cancel(&mut self, key: u64) -> Result<bool, Error> {
        if self.protocol.is_complete(key)? {
            return Ok(false);
        }
        let request = self.protocol.requests[key];
        match (request.state, request.peer) {
            (State::Posted, _) => self.protocol.unpost(key, &request),
            (State::Queued, Some(peer)) if request.access == 0 => {
                self.protocol.peers[peer]
                    .queue
                    .retain(|queued| *queued != key);
            }
            _ => return Ok(false),
        }
        self.protocol.end(key, RequestOutcome::Cancelled);
        Ok(true)
    }
}

impl Protocol {
    /// Removes a posted receive from the matching.
    pub(super) fn unpost(&mut self, key: u64, request: &Request) {
        self.posted.remove(place_of(key), &request.selector());
    }

    /// Delivers a waiting message to a receive.
    fn receive_waiting(&mut self, key: u64, entry: u64) {
        let Some(arrived) = self.unexpected.remove(entry) else {
            debug_assert!(false, "message {entry:#x} was found but does not exist");
            return;
        };
        let label = arrived.label();
        let Arrived { source, cost, .. } = arrived;
        match arrived.arrival {
            Arrival::Eager { body, sync } => {
                self.deliver(key, source, label, &body);
                self.unexpected.recycle(body);
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
                self.start_receive(key, from, label, (length, remote, region));
            }
            Arrival::Own { send, .. } => {
                // SAFETY: the request `send` is not complete.
                let body = unsafe { self.requests[send].memory.bytes() };
                self.deliver(key, source, label, body);
                self.end(send, RequestOutcome::Done);
            }
        }
        self.release(source, cost);
        self.check_skew();
    }

    /// Discards a message as if it had been received.
    pub(crate) fn discard(&mut self, entry: u64) {
        if self.closed {
            return;
        }
        let Some(arrived) = self.unexpected.remove(entry) else {
            return;
        };
        let source = arrived.source;
        match arrived.arrival {
            Arrival::Eager { body, sync } => {
                self.unexpected.recycle(body);
                self.send_fin(source, sync);
            }
            Arrival::Rts { remote, .. } => self.send_fin(source, Some(remote)),
            Arrival::Own { send, .. } => self.end(send, RequestOutcome::Done),
        }
        self.release(source, arrived.cost);
        self.check_skew();
    }

    /// Returns the oldest message that matches, with its description. With `takes`, removes it from
    /// the matching, but keeps it. Fails if there is none and no live peer could send it.
    pub(crate) fn find(
        &mut self,
        selector: &Selector,
        takes: bool,
    ) -> Result<Option<(u64, Status)>, Error> {
        self.check_context(selector.context)?;
        let found = self.unexpected.find(selector);
        let Some((entry, arrived)) = found.and_then(|key| Some((key, self.unexpected.get(key)?)))
        else {
            return self.check_source(selector).map(|()| None);
        };
        let status = Status {
            source: self.local_rank(arrived.context, arrived.source),
            tag: narrow(arrived.tag),
            length: arrived.length(),
        };
        if takes {
            self.unexpected.take(entry);
        }
        Ok(Some((entry, status)))
    }

    /// Fails if no live peer could send a matching message. Uses the peer that the selector names.
    #[inline]
    pub(crate) fn check_source(&mut self, selector: &Selector) -> Result<(), Error> {
        match selector.source {
            Some(peer) => {
                self.use_peer(peer);
                self.check_alive(peer)
            }
            None if self.stats.failed_peers == 0 => Ok(()),
            None => self.check_any_alive(selector.context),
        }
    }

    /// Returns true if a failed peer might have sent the message of this any-source receive.
    pub(super) fn may_have_meant(&self, request: &Request, peer: PeerId, left: bool) -> bool {
        if request.peer.is_some() || self.open.is_some() {
            return false;
        }
        if self.contexts.is_freed(request.context) {
            // Its members are not known any more.
            return !left;
        }
        // A peer that left gracefully matters only if no other is alive.
        self.contexts.is_member(request.context, peer)
            && (!left || self.check_any_alive(request.context).is_err())
    }
}
