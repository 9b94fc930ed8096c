//! Receives, probes, and messages to the own rank.

use std::io::IoSlice;

use btl::{HeldSends, NoticedPuts, PostedReceives, Rank, SendError, Tx, Withdrawn};

use super::incoming::From;
use super::{Core, Engine, Memory, Outcome, Request, State};
use crate::error::Error;
use crate::matching::unexpected::{Arrival, Arrived};
use crate::memory::WriteMem;
use crate::shared::Wanted;
use crate::slab::place_of;
use crate::types::Status;

/// Bytes to the own rank that are copied rather than left with the sender.
const OWN_EAGER: usize = 64 << 10;

/// Stands for the transport where there is none.
struct NoTransport;

impl Tx for NoTransport {
    fn send(&mut self, peer: Rank, _: &[u8], _: &[IoSlice<'_>]) -> Result<(), SendError> {
        Err(SendError::NoPeer(peer))
    }
}

impl PostedReceives for NoTransport {}

impl HeldSends for NoTransport {}

impl NoticedPuts for NoTransport {}

impl Core {
    /// Posts a receive, or gives it a message that waits.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        memory: WriteMem,
        wanted: Wanted,
        lent: bool,
    ) -> Result<u64, Error> {
        let engine = &mut self.engine;
        engine.check_context(wanted.context)?;
        let found = engine.unexpected.find(&wanted);
        if found.is_none() {
            engine.can_come(&wanted)?;
        }
        let key = engine.requests.insert(Request {
            lent,
            ..Request::receive(memory, &wanted)
        });
        match found {
            Some(entry) => {
                let source = engine
                    .unexpected
                    .get(entry)
                    .map_or(engine.own, |arrived| arrived.source);
                engine.receive_waiting(key, entry);
                // Who finds everything here already makes no turns, and the senders would wait for credit and room until he does: the later
                // a receiver is, the more so.
                let hint = engine
                    .peers
                    .get(source as usize)
                    .filter(|peer| !peer.own)
                    .map(|peer| peer.transport);
                self.turn(hint);
            }
            None => self.post(key, memory, &wanted),
        }
        Ok(key)
    }

    #[inline]
    fn post(&mut self, key: u64, memory: WriteMem, wanted: &Wanted) {
        let engine = &mut self.engine;
        engine.posted.post(place_of(key), wanted);
        if memory.len() >= engine.show_from
            && engine.private_any == 0
            && self.show(key, memory, wanted)
        {
            return;
        }
        self.engine.count_private(wanted.source);
    }

    /// Receives a message that a probe took out.
    pub(crate) fn receive_taken(&mut self, request: Request, entry: u64) -> Result<u64, Error> {
        let engine = &mut self.engine;
        engine.check_context(request.context)?;
        let Some(arrived) = engine.unexpected.get(entry) else {
            return Err(Error::FreedRequest);
        };
        let source = arrived.source;
        if !matches!(arrived.arrival, Arrival::Eager { .. }) {
            engine.is_alive(source)?;
        }
        let key = engine.requests.insert(request);
        engine.receive_waiting(key, entry);
        self.work_off();
        Ok(key)
    }

    /// A message to the own rank.
    pub(crate) fn send_to_self(&mut self, key: u64) {
        let Some(request) = self.engine.requests.get(key).copied() else {
            return;
        };
        let Memory::Read(memory) = request.memory else {
            return;
        };
        self.engine.stats.self_sent += 1;
        let own = self.engine.own;
        let receive = match self.transports.first_mut() {
            Some(transport) => {
                self.engine
                    .claim(&mut *transport.btl, request.context, own, request.tag)
            }
            None => self
                .engine
                .claim(&mut NoTransport, request.context, own, request.tag),
        };
        let engine = &mut self.engine;
        if let Some(receive) = receive {
            // SAFETY: the send `key` is not over.
            engine.deliver(receive, own, request.tag, unsafe { memory.bytes() });
            engine.end(key, Outcome::Done);
            return;
        }
        let room = engine.stats.unexpected_bytes < engine.limit / 2;
        if memory.len() <= OWN_EAGER && !request.sync && room {
            // SAFETY: as above.
            let body = engine.unexpected.pool.copy(unsafe { memory.bytes() });
            engine.keep(
                own,
                request.context,
                request.tag,
                Arrival::Eager { body, sync: None },
            );
            engine.end(key, Outcome::Done);
        } else {
            if let Some(request) = engine.requests.get_mut(key) {
                request.state = State::Waiting;
            }
            let arrival = Arrival::Own {
                length: memory.len(),
                send: key,
            };
            engine.keep(own, request.context, request.tag, arrival);
        }
    }

    /// Cancels what can be cancelled.
    pub(crate) fn cancel(&mut self, key: u64) -> Result<bool, Error> {
        if self.engine.is_over(key)? {
            return Ok(false);
        }
        let Some(request) = self.engine.requests.get(key).copied() else {
            return Ok(false);
        };
        match request.state {
            State::Posted => {
                if !self.take_back(key, &request) {
                    return Ok(false);
                }
                self.engine.end(key, Outcome::Cancelled);
                Ok(true)
            }
            State::Queued => {
                let Some(peer) = self.engine.peers.get_mut(request.peer as usize) else {
                    return Ok(false);
                };
                peer.queue.retain(|queued| *queued != key);
                self.engine.end(key, Outcome::Cancelled);
                Ok(true)
            }
            State::Claimed | State::Waiting | State::Moving | State::Over => Ok(false),
        }
    }

    /// Takes a posted receive out of the matching. False: a peer is filling it, its end will be told.
    pub(crate) fn take_back(&mut self, key: u64, request: &Request) -> bool {
        let wanted = request.wanted();
        self.engine.posted.remove(place_of(key), &wanted);
        let Some((transport, post)) = request.post else {
            self.engine.uncount_private(wanted.source);
            return true;
        };
        let transport = self.transports.get_mut(usize::from(transport));
        let withdrawn = transport.map_or(Withdrawn::Yes, |transport| transport.btl.withdraw(post));
        if let Some(request) = self.engine.requests.get_mut(key) {
            match withdrawn {
                Withdrawn::Yes => request.post = None,
                Withdrawn::Taken => request.state = State::Claimed,
            }
        }
        withdrawn == Withdrawn::Yes
    }
}

impl Engine {
    /// A receive that the peers do not see.
    #[inline]
    pub(crate) fn count_private(&mut self, source: Option<Rank>) {
        match source {
            None => self.private_any += 1,
            Some(rank) => {
                self.private_named += 1;
                if let Some(peer) = self.peers.get_mut(rank as usize) {
                    peer.private += 1;
                }
            }
        }
    }

    /// Gives a receive a message that waits.
    pub(crate) fn receive_waiting(&mut self, key: u64, entry: u64) {
        let Some(Arrived {
            source,
            tag,
            arrival,
            cost,
            ..
        }) = self.unexpected.remove(entry)
        else {
            return;
        };
        match arrival {
            Arrival::Eager { body, sync } => {
                self.deliver(key, source, tag, &body);
                self.unexpected.pool.give_back(body);
                self.confirm(source, sync);
            }
            Arrival::Announced {
                length,
                remote,
                key: region,
                lane,
            } => {
                let from = From {
                    transport: lane,
                    rank: source,
                };
                self.begin_receive(key, from, tag, length, remote, region);
            }
            Arrival::Own { send, .. } => {
                if let Some(Memory::Read(memory)) =
                    self.requests.get(send).map(|request| request.memory)
                {
                    // SAFETY: the request `send` is not over.
                    self.deliver(key, source, tag, unsafe { memory.bytes() });
                    self.end(send, Outcome::Done);
                }
            }
        }
        self.release(source, cost);
        self.look_at_skew();
    }

    /// Throws a message away as if it had been received.
    pub(crate) fn throw_away(&mut self, entry: u64) {
        let Some(Arrived {
            source,
            arrival,
            cost,
            ..
        }) = self.unexpected.remove(entry)
        else {
            return;
        };
        match arrival {
            Arrival::Eager { body, sync } => {
                self.unexpected.pool.give_back(body);
                self.confirm(source, sync);
            }
            Arrival::Announced { remote, .. } => self.confirm(source, Some(remote)),
            Arrival::Own { send, .. } => self.end(send, Outcome::Done),
        }
        self.stats.discarded += 1;
        self.release(source, cost);
        self.look_at_skew();
    }

    /// What a probe says of a message.
    pub(crate) fn status_of(&self, entry: u64) -> Option<Status> {
        let arrived = self.unexpected.get(entry)?;
        let source = self.local_rank(arrived.context, arrived.source);
        Some(Status {
            source,
            tag: arrived.tag,
            length: arrived.length(),
        })
    }

    /// An error when nobody is left from whom such a message could come.
    #[inline]
    pub(crate) fn can_come(&self, wanted: &Wanted) -> Result<(), Error> {
        match wanted.source {
            Some(rank) => self.is_alive(rank),
            None if self.stats.failed_peers == 0 => Ok(()),
            None => self.somebody_lives(wanted.context),
        }
    }

    #[inline]
    pub(crate) fn is_alive(&self, rank: Rank) -> Result<(), Error> {
        match self.peers.get(rank as usize) {
            Some(peer) if peer.alive => Ok(()),
            _ => Err(self.peer_error(rank)),
        }
    }

    #[cold]
    pub(crate) fn somebody_lives(&self, context: u32) -> Result<(), Error> {
        let mut dead = None;
        let world = crate::group::Group::world(self.size, self.own);
        let group = if context <= 1 {
            &world
        } else {
            self.group(context).map_or(&world, |group| group)
        };
        for rank in group.world_ranks().filter(|rank| *rank != self.own) {
            match self.is_alive(rank) {
                Ok(()) => return Ok(()),
                Err(error) => dead = Some(error),
            }
        }
        dead.map_or(Ok(()), Err)
    }
}
