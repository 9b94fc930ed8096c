//! What comes from transports.

use std::sync::Arc;

use btl::{Events, PeerError, Rank, Tx, Withdrawn};

use super::peer::{Early, REORDER};
use super::pressure::cost;
use super::{ANY, Engine, Outcome, State, Work};
use crate::group::Group;
use crate::matching::unexpected::{Arrival, RegionKey};
use crate::slab::place_of;
use crate::wire::{self, ASK, ASK_SEEN, Header, Sequenced};

/// The engine, as one transport calls it.
pub(crate) struct Handler<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) transport: u8,
}

/// Whose message it is.
#[derive(Clone, Copy)]
pub(crate) struct From {
    pub(crate) transport: u8,
    pub(crate) rank: Rank,
}

impl Events for Handler<'_> {
    #[inline]
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
        let from = From {
            transport: self.transport,
            rank: peer,
        };
        let Some(mut state) = self.engine.peers.get_mut(peer as usize) else {
            return;
        };
        if state.mixed() {
            if let Some(note) = state.count(self.transport, body.len()) {
                self.engine.control(peer, note);
            }
            let Some(again) = self.engine.peers.get_mut(peer as usize) else {
                return;
            };
            state = again;
        }
        // The common case: an ordinary message, in order, that asks for nothing.
        if let Ok(&[wire::EAGER, 0, s0, s1, c0, c1, c2, c3, t0, t1, t2, t3]) =
            <&[u8; wire::EAGER_LENGTH]>::try_from(header)
        {
            let tag = i32::from_le_bytes([t0, t1, t2, t3]);
            let context = u32::from_le_bytes([c0, c1, c2, c3]);
            if state.next_in == u16::from_le_bytes([s0, s1])
                && tag >= 0
                && state.alive
                && state.early.is_empty()
                && (context <= 1 || is_member(&self.engine.contexts, context, peer))
                && state.account.hear(cost(body.len()), false)
            {
                state.next_in = state.next_in.wrapping_add(1);
                if self.engine.direct_takes(context, peer, tag, body) {
                    return;
                }
                self.engine.eager(tx, from, context, tag, body, None);
                return;
            }
        }
        self.engine.post_direct();
        if let Err(reason) = self.engine.any_message(tx, from, header, body) {
            self.engine.violation(peer, reason);
        }
    }

    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        self.engine.operation_over(token, result.is_ok());
    }

    fn received(
        &mut self,
        _: &mut dyn Tx,
        token: u64,
        peer: Rank,
        envelope: btl::Envelope,
        result: Result<usize, PeerError>,
    ) {
        let engine = &mut *self.engine;
        let Some(request) = engine.requests.get(token).copied() else {
            return;
        };
        let seen =
            request.post.is_some() && matches!(request.state, State::Posted | State::Claimed);
        if !seen {
            return;
        }
        if request.state == State::Posted {
            engine.posted.remove(place_of(token), &request.wanted());
        }
        // What a transport says, its peer has said.
        let wanted = request.wanted();
        let fits = wanted.context == envelope.context
            && wanted.source.is_none_or(|source| source == peer)
            && wanted
                .tag
                .map_or(envelope.tag >= 0, |tag| tag == envelope.tag)
            && (envelope.context <= 1 || is_member(&engine.contexts, envelope.context, peer));
        let Some(request) = engine.requests.get_mut(token) else {
            return;
        };
        request.post = None;
        request.peer = peer;
        request.tag = envelope.tag;
        match result {
            Ok(_) if !fits => {
                engine.end(token, Outcome::Failed(peer));
                engine.violation(
                    peer,
                    format!("filled a receive that does not want {envelope:?}"),
                );
            }
            Ok(length) => {
                request.length = length;
                engine.stats.matched_received += 1;
                engine.end(token, Outcome::Done);
            }
            Err(error) => {
                engine.end(token, Outcome::Failed(peer));
                engine.fail(peer, error, None);
            }
        }
    }

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        let Some(state) = self.engine.peers.get_mut(peer as usize) else {
            return;
        };
        // A transport that is not used for the peer knows nothing of how it fares on those that are.
        let Some(at) = state
            .lanes
            .iter()
            .position(|lane| lane.transport == self.transport)
        else {
            return;
        };
        // One that leaves says so on each of them, and behind its last message on each.
        if state.mixed() && state.alive && !matches!(error, PeerError::Violation(_)) {
            self.engine.lane_failed(peer, at, error);
        } else {
            self.engine.fail(peer, error, None);
        }
    }
}

/// A communicator that is there, and the peer is in it.
#[inline]
fn is_member(contexts: &[(u32, Arc<Group>)], context: u32, peer: Rank) -> bool {
    let Ok(at) = contexts.binary_search_by_key(&(context & !1), |entry| entry.0) else {
        return false;
    };
    contexts
        .get(at)
        .is_some_and(|entry| entry.1.local_rank(peer).is_some())
}

impl Engine {
    /// Any message; an error closes the peer.
    fn any_message(
        &mut self,
        tx: &mut dyn Tx,
        from: From,
        header: &[u8],
        body: &[u8],
    ) -> Result<(), String> {
        let header = Header::decode(header).map_err(|malformed| malformed.to_string())?;
        let Some(peer) = self.peers.get_mut(from.rank as usize) else {
            return Ok(());
        };
        if !peer.alive {
            return Ok(());
        }
        let empty = body.is_empty();
        match header {
            Header::Eager(envelope, _) | Header::Announce(envelope, ..) => {
                self.sequenced(tx, from, envelope, header, body)
            }
            Header::Accept {
                request,
                target,
                length,
                put,
            } if put != empty => {
                let key =
                    RegionKey::of(body).ok_or_else(|| format!("a key of {} bytes", body.len()))?;
                self.accepted(from, request, target, length, put.then_some(key))
            }
            Header::Fragment {
                target,
                offset,
                tell,
            } if !empty => self.fragment(from, target, (offset, tell), body),
            Header::Done { request, written } if empty => self.done(from, request, written),
            Header::Credit { amount, announce } if empty => {
                self.credit(from.rank, amount, announce)
            }
            Header::Skew { late } if empty => {
                self.peer_skew(from.rank, late);
                Ok(())
            }
            Header::Seen { sequence } if empty && peer.mixed() => {
                let unseen = peer.next_out.wrapping_sub(sequence).wrapping_sub(1);
                if unseen > peer.unseen {
                    return Err(format!("has seen message {sequence}, which was not sent"));
                }
                peer.unseen = unseen;
                if !peer.queue.is_empty() {
                    self.activate(from.rank);
                }
                Ok(())
            }
            Header::Lane {
                card,
                received,
                gone,
            } if empty && peer.mixed() => self.lane_note(from, card, received, gone),
            Header::Bye => {
                let reason = String::from_utf8_lossy(
                    body.get(..body.len().min(wire::MAX_REASON))
                        .unwrap_or_default(),
                );
                let reason: String = reason
                    .chars()
                    .map(|c| if c.is_control() { ' ' } else { c })
                    .collect();
                self.fail(
                    from.rank,
                    PeerError::Lost(format!("it closed the connection: {reason}")),
                    None,
                );
                Ok(())
            }
            _ => Err(format!(
                "a body of {} bytes where {header:?} has none, or none where it has one",
                body.len()
            )),
        }
    }

    /// Restores the order of envelopes.
    fn sequenced(
        &mut self,
        tx: &mut dyn Tx,
        from: From,
        envelope: Sequenced,
        header: Header,
        body: &[u8],
    ) -> Result<(), String> {
        // An announcement's body is a key, which the allowance for bookkeeping covers.
        let price = cost(if matches!(header, Header::Eager(..)) {
            body.len()
        } else {
            0
        });
        let Some(peer) = self.peers.get_mut(from.rank as usize) else {
            return Ok(());
        };
        let ahead = envelope.sequence.wrapping_sub(peer.next_in);
        let possible = if peer.mixed() {
            ahead < REORDER && !peer.early.contains_key(&envelope.sequence)
        } else {
            ahead == 0
        };
        if !possible {
            return Err(format!(
                "message {} where {} is next",
                envelope.sequence, peer.next_in
            ));
        }
        if !matches!(header, Header::Eager(..)) && body.len() > btl::MAX_KEY {
            return Err(format!("a key of {} bytes", body.len()));
        }
        let known = envelope.context < self.next_context;
        if !known {
            return Err(format!(
                "context {}, which does not exist",
                envelope.context
            ));
        }
        // With several lanes the question may overtake what it asks for, so there it counts when its turn comes.
        if ahead != 0 {
            peer.early_cost += price;
            if !peer.account.is_possible(peer.early_cost) {
                return Err("sends without credit".to_owned());
            }
            let body = self.unexpected.pool.copy(body);
            let early = Early {
                header,
                body,
                transport: from.transport,
                cost: price,
            };
            peer.early.insert(envelope.sequence, early);
            self.stats.reordered += 1;
            self.charge(from.rank, price);
            return Ok(());
        }
        self.in_turn(tx, from, header, body, price)?;
        loop {
            let Some(peer) = self.peers.get_mut(from.rank as usize) else {
                return Ok(());
            };
            let Some(early) = peer.early.remove(&peer.next_in) else {
                return Ok(());
            };
            peer.early_cost = peer.early_cost.saturating_sub(early.cost);
            let from = From {
                transport: early.transport,
                ..from
            };
            let result = self.in_turn(tx, from, early.header, &early.body, early.cost);
            self.release(from.rank, early.cost);
            self.unexpected.pool.give_back(early.body);
            result?;
        }
    }

    /// The next envelope.
    fn in_turn(
        &mut self,
        tx: &mut dyn Tx,
        from: From,
        header: Header,
        body: &[u8],
        price: usize,
    ) -> Result<(), String> {
        let (Header::Eager(envelope, _) | Header::Announce(envelope, ..)) = header else {
            return Ok(());
        };
        let Some(peer) = self.peers.get_mut(from.rank as usize) else {
            return Ok(());
        };
        let asks = envelope.flags & ASK != 0;
        if !peer.account.hear(price, asks) {
            return Err("sends without credit".to_owned());
        }
        peer.next_in = peer.next_in.wrapping_add(1);
        if envelope.flags & ASK_SEEN != 0 {
            self.control(
                from.rank,
                Header::Seen {
                    sequence: envelope.sequence,
                },
            );
        }
        let (context, tag) = (envelope.context, envelope.tag);
        let group = self.group(context);
        let gone = context > 1 && group.is_none();
        if context > 1 && group.is_some_and(|group| group.local_rank(from.rank).is_none()) {
            return Err(format!("context {context}, of which it is no member"));
        }
        match header {
            Header::Eager(_, sync) if gone => {
                self.stats.discarded += 1;
                self.confirm(from.rank, sync);
            }
            Header::Eager(_, sync) => self.eager(tx, from, context, tag, body, sync),
            Header::Announce(_, _, remote) if gone => {
                self.stats.discarded += 1;
                self.confirm(from.rank, Some(remote));
            }
            Header::Announce(_, length, remote) => {
                let length =
                    usize::try_from(length).map_err(|_| format!("a length of {length}"))?;
                let key = RegionKey::of(body).unwrap_or(RegionKey::NONE);
                self.announced(tx, from, (context, tag), length, remote, key);
            }
            _ => {}
        }
        if asks {
            self.settle(from.rank);
        }
        Ok(())
    }

    /// A message with its bytes.
    #[inline]
    fn eager(
        &mut self,
        tx: &mut dyn Tx,
        from: From,
        context: u32,
        tag: i32,
        body: &[u8],
        sync: Option<u64>,
    ) {
        self.stats.eager_received += 1;
        if let Some(key) = self.claim(tx, context, from.rank, tag) {
            self.deliver(key, from.rank, tag, body);
            if sync.is_some() {
                self.confirm(from.rank, sync);
            }
        } else {
            let body = self.unexpected.pool.copy(body);
            self.keep(from.rank, context, tag, Arrival::Eager { body, sync });
        }
    }

    fn announced(
        &mut self,
        tx: &mut dyn Tx,
        from: From,
        (context, tag): (u32, i32),
        length: usize,
        remote: u64,
        key: RegionKey,
    ) {
        self.stats.announcements += 1;
        match self.claim(tx, context, from.rank, tag) {
            Some(receive) => self.begin_receive(receive, from, tag, length, remote, key),
            None => {
                let arrival = Arrival::Announced {
                    length,
                    remote,
                    key,
                    lane: from.transport,
                };
                self.keep(from.rank, context, tag, arrival);
            }
        }
    }

    /// Keeps a message that no receive has asked for.
    pub(crate) fn keep(&mut self, rank: Rank, context: u32, tag: i32, arrival: Arrival) {
        let price = cost(if let Arrival::Eager { body, .. } = &arrival {
            body.len()
        } else {
            0
        });
        self.unexpected.add(context, rank, tag, arrival, price);
        self.charge(rank, price);
        self.stats.unexpected += 1;
        self.look_at_skew();
        if self.skew.late {
            self.tell_skew(rank);
        }
    }

    /// The oldest receive for such a message, taken out of the matching.
    #[inline]
    pub(crate) fn claim(
        &mut self,
        tx: &mut dyn Tx,
        context: u32,
        rank: Rank,
        tag: i32,
    ) -> Option<u64> {
        loop {
            let number = self.posted.find(context, rank, tag)?;
            let key = self.requests.key_at(number)?;
            let request = self.requests.get_mut(key)?;
            let wanted = request.wanted();
            let post = request.post;
            self.posted.remove(number, &wanted);
            let Some((_, post)) = post else {
                self.uncount_private(wanted.source);
                return Some(key);
            };
            // A receive is shown only by the one transport of those it may come from, so `tx` is the right one.
            match tx.withdraw(post) {
                Withdrawn::Yes => {
                    request.post = None;
                    return Some(key);
                }
                // Another peer is filling it (an any-source receive); this message goes to the next one.
                Withdrawn::Taken => request.state = State::Claimed,
            }
        }
    }

    #[inline]
    pub(crate) fn uncount_private(&mut self, source: Option<Rank>) {
        match source {
            None => self.private_any = self.private_any.saturating_sub(1),
            Some(rank) => {
                self.private_named = self.private_named.saturating_sub(1);
                if let Some(peer) = self.peers.get_mut(rank as usize) {
                    peer.private = peer.private.saturating_sub(1);
                }
            }
        }
    }

    /// A receive gets its message.
    #[inline]
    pub(crate) fn deliver(&mut self, key: u64, rank: Rank, tag: i32, body: &[u8]) {
        let Some(request) = self.requests.get_mut(key) else {
            return;
        };
        request.fill(0, body);
        request.peer = rank;
        request.tag = tag;
        request.length = body.len();
        self.end(key, Outcome::Done);
    }

    /// Tells the sender of a synchronous or announced message that it is received.
    pub(crate) fn confirm(&mut self, rank: Rank, request: Option<u64>) {
        if let Some(request) = request {
            self.control(
                rank,
                Header::Done {
                    request,
                    written: false,
                },
            );
        }
    }

    /// What a peer did that none does.
    #[cold]
    pub(crate) fn violation(&mut self, rank: Rank, reason: String) {
        self.fail(rank, PeerError::Violation(reason.clone()), Some(reason));
    }

    /// Marks a peer as failed; its requests end before this turn is over.
    #[cold]
    pub(crate) fn fail(&mut self, rank: Rank, error: PeerError, tell: Option<String>) {
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        if !peer.alive || peer.own || rank == ANY {
            return;
        }
        self.post_direct();
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        peer.alive = false;
        peer.failed = Some(error);
        peer.refresh();
        self.stats.failed_peers += 1;
        self.work.push_back(Work::Failed(rank, tell));
    }
}
