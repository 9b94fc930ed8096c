//! Messages: sent into the peer's blocks, received from this process's blocks.

use btl::{Events, MAX_HEADER, PeerError, Rank, SendError};

use super::{
    BATCH, BATCHES, CONTROL, Flight, INDEX, IbBtl, MESSAGE, OPERATION, Peer, Pool, REPOST, SGES,
    State, UNSIGNALED, find, id, post_shared,
};
use crate::nic::{Completion, GOOD, PostMode, Sge, Verb};
use crate::wire::{Arrival, Kind, PREFIX, classify, immediate, prefix, read_prefix};
use crate::{BLOCK, MESSAGE_BLOCKS};

/// Minimum length of a body that is delivered in place. Only shorter ones are interpreted more than
/// once.
const IN_PLACE: usize = 1024;

/// Lists the non-empty parts for an inline request. Returns their number.
fn gather(parts: [&[u8]; 3], sges: &mut [Sge; SGES]) -> usize {
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    let mut count = 0;
    for (sge, part) in sges.iter_mut().zip(parts) {
        *sge = Sge {
            address: part.as_ptr().expose_provenance() as u64,
            length: part.len() as u32,
            lkey: 0,
        };
        count += 1;
    }
    count
}

/// Returns the number of blocks that a message takes at the peer, if it can be sent now. `copied`
/// is the number of its bytes that are copied to blocks of the pool.
pub(super) fn room(
    peer: &Peer,
    pool: &Pool,
    depth: usize,
    (header, body): (usize, usize),
    copied: usize,
) -> Result<usize, SendError> {
    let too_long = |length, limit| Err(SendError::TooLong { length, limit });
    if header > MAX_HEADER {
        return too_long(header, MAX_HEADER);
    }
    let (length, limit) = (header.saturating_add(body), peer.address.max_message());
    if length > limit {
        return too_long(length, limit);
    }
    let count = (PREFIX + length).div_ceil(BLOCK);
    let free = peer.state == State::Connected
        && peer.credits.has(count)
        && pool.free.len() >= copied.div_ceil(BLOCK)
        && peer.posted + CONTROL < depth;
    if free {
        Ok(count)
    } else {
        Err(SendError::Busy)
    }
}

impl IbBtl {
    /// Sends a message. `held` is the operation and address of a body that is not copied.
    #[allow(unsafe_code)]
    pub(super) fn send_message(
        &mut self,
        rank: Rank,
        header: &[u8],
        body: &[u8],
        held: Option<(u32, Sge)>,
    ) -> Result<(), SendError> {
        let (depth, own, now) = (self.depth(), self.config.rank, self.timers);
        let (nic, peer, pool) = self.usable(rank)?;
        let lengths = (header.len(), body.len());
        let length = PREFIX + header.len() + body.len();
        let carried = held.is_none() && length <= nic.about().inline;
        let copied = match held {
            _ if carried => 0,
            Some(_) => PREFIX + header.len(),
            None => length,
        };
        let count = room(peer, pool, depth, lengths, copied)?;
        let Some(theirs) = peer.theirs else {
            return Err(SendError::Busy);
        };
        let mut sges = [Sge::default(); SGES];
        let front = prefix(header.len(), body.len());
        let mut flight = Flight::default();
        let pieces = if carried {
            gather([&front, header, body], &mut sges)
        } else {
            let copied = if held.is_some() { &[] } else { body };
            flight = pool.fill([&front, header, copied], &mut sges);
            if let Some((index, sge)) = held {
                flight.held = Some(index);
                sges[flight.count] = sge;
            }
            flight.count + usize::from(held.is_some())
        };
        let freed = peer.receive_credits.unreturned();
        let word = immediate(Kind::Message, freed, own);
        let first = peer.credits.take(count);
        let (verb, to) = if peer.address.blocks == 0 {
            (Verb::Send(word), (0, 0))
        } else {
            // The peer announced this ring. Its interface refuses unregistered memory.
            let at = theirs.ring.wrapping_add((first * BLOCK) as u64);
            (Verb::Write(Some(word)), (at, theirs.ring_key))
        };
        let signaled = !carried || peer.unsignaled + 1 >= UNSIGNALED;
        let sequence = peer.next_sequence(signaled);
        let (number, local) = (id(rank, MESSAGE, sequence), &sges[..pieces]);
        let mode = if carried {
            PostMode::Inline { signaled }
        } else {
            PostMode::Registered
        };
        // SAFETY: bytes of the caller and of this function, which an inline request copies. Others
        // are registered: blocks return to the pool at completion, and so does a held body.
        let result = unsafe { nic.post(peer.queue, number, verb, local, to, mode) };
        if let Err(error) = result {
            pool.give(&flight);
            let error = PeerError::Lost(error.to_string());
            self.fail(rank, error.clone());
            return Err(SendError::Failed { peer: rank, error });
        }
        peer.receive_credits.returned(freed);
        peer.spoke = now;
        (flight.theirs, flight.sequence) = (count, sequence);
        peer.flights.push_back(flight);
        Ok(())
    }

    /// Takes and handles completions, in bounded batches.
    pub(super) fn take_completions(&mut self, events: &mut dyn Events) -> usize {
        let mut done = 0;
        for _ in 0..BATCHES {
            let mut batch = std::mem::take(&mut self.batch);
            if !self.stash.is_empty() {
                let stashed = self.stash.len().min(BATCH);
                batch.extend(self.stash.drain(..stashed));
            }
            if batch.is_empty()
                && let Some(nic) = &mut self.nic
                && let Err(error) = nic.poll(BATCH, &mut batch)
            {
                // The device is unusable.
                for rank in 0..self.config.size {
                    self.fail(rank, PeerError::Lost(error.to_string()));
                }
            }
            let count = batch.len();
            self.taken = self.taken.saturating_add(count);
            for completion in batch.drain(..) {
                done += self.take(completion, events);
            }
            self.batch = batch;
            let empty = count < BATCH && self.stash.is_empty();
            // Once earlier arrivals are delivered, failures can be reported, even while others keep
            // sending.
            let enough = |this: &IbBtl| this.stash.is_empty() && this.taken > this.max_waiting();
            if self.failing && (empty || enough(self)) {
                done += self.report_failed(events);
            }
            if empty {
                break;
            }
        }
        done
    }

    fn take(&mut self, completion: Completion, events: &mut dyn Events) -> usize {
        match completion {
            Completion::Datagram { from, bytes } => {
                self.datagram(from, &bytes);
                1
            }
            Completion::Done { id, status } => self.request_done(id, status, events),
            Completion::Arrived {
                connection,
                status,
                immediate,
                shared,
            } => {
                let rank = self.rank_of(connection);
                let done = match (rank, immediate) {
                    (None, _) => {
                        self.stats.strays += u64::from(status == GOOD);
                        0
                    }
                    (Some(rank), Some(word)) if status == GOOD => {
                        self.arrived(rank, word, shared, events)
                    }
                    (Some(rank), _) if status == GOOD => {
                        self.fail(
                            rank,
                            PeerError::Violation("sends without an immediate".into()),
                        );
                        0
                    }
                    (Some(rank), _) => {
                        self.fail_by(rank, status);
                        0
                    }
                };
                if let (Some((index, _)), Some((memory, keys)), Some(nic)) =
                    (shared, &self.shared, &mut self.nic)
                {
                    // If there is no room, one block is lost.
                    let _ = post_shared(&mut **nic, &self.config, (memory, keys.lkey), index);
                }
                done
            }
        }
    }

    /// Handles the completion of a work request.
    fn request_done(&mut self, number: u64, status: u32, events: &mut dyn Events) -> usize {
        let (connection, low) = ((number >> 32) as u32, number as u32);
        let Some(rank) = self.rank_of(connection) else {
            return 0;
        };
        let Some(peer) = find(&mut self.peers, rank) else {
            return 0;
        };
        let shared = peer.address.blocks == 0;
        let mut held = std::mem::take(&mut self.held);
        peer.complete(low, |credits, flight| {
            self.pool.give(flight);
            held.extend(flight.held);
            if shared {
                let _ = credits.give(flight.theirs);
            }
        });
        // Completions make room in the queue. With shared blocks they return the credits, too.
        let waits = !peer.unposted.is_empty();
        if status != GOOD {
            self.fail_by(rank, status);
        } else if waits {
            self.issue(rank);
        }
        let mut done = 0;
        // Operations of a failed connection are reported with its failure.
        for index in held.drain(..).filter(|_| status == GOOD) {
            done += self.operation_done(index, events);
        }
        self.held = held;
        if low & !INDEX == OPERATION {
            done += self.piece_done(rank, low & INDEX, status, events);
        }
        done
    }

    /// Handles an arrival.
    fn arrived(
        &mut self,
        rank: Rank,
        word: u32,
        shared: Option<(u32, u32)>,
        events: &mut dyn Events,
    ) -> usize {
        let arrival = match classify(word, rank) {
            Ok(sound) => sound,
            Err(wrong) => {
                self.fail(rank, PeerError::Violation(wrong));
                return 0;
            }
        };
        let Some(peer) = find(&mut self.peers, rank) else {
            return 0;
        };
        // After a violation or the peer's end nothing is accepted.
        if matches!(
            peer.state,
            State::Failing(PeerError::Violation(_) | PeerError::Left)
        ) {
            return 0;
        }
        // A peer that sends has received this side's part.
        if matches!(peer.state, State::Connecting { .. }) {
            peer.state = State::Connected;
        }
        if let (Some(nic), None) = (&mut self.nic, shared) {
            peer.used += 1;
            if peer.used >= REPOST {
                // A stopped queue takes no receives.
                let _ = nic.expect(peer.queue, std::mem::take(&mut peer.used));
            }
        }
        let (kind, freed) = match arrival {
            Arrival::Of(kind, freed) => (kind, freed),
            Arrival::Written(notice) => {
                return self.noticed(rank, notice, shared.is_some(), events);
            }
        };
        if freed > 0 {
            if peer.address.blocks == 0 || !peer.credits.give(freed) {
                let wrong = format!("returns credits for {freed} blocks that it did not use");
                self.fail(rank, PeerError::Violation(wrong));
                return 0;
            }
            if !peer.unposted.is_empty() {
                self.issue(rank);
            }
        }
        match kind {
            Kind::Credit => 0,
            Kind::Leave => {
                self.fail(rank, PeerError::Left);
                0
            }
            Kind::Message => self.message(rank, shared, events),
        }
    }

    /// Delivers the notice of a region that the peer has filled, once.
    fn noticed(&mut self, rank: Rank, number: u32, shared: bool, events: &mut dyn Events) -> usize {
        let notice = self.notices.get(&number).copied();
        let Some(notice) = notice.filter(|notice| notice.peer == rank) else {
            let wrong =
                format!("reports that it filled region {number}, which was not registered for it");
            self.fail(rank, PeerError::Violation(wrong));
            return 0;
        };
        self.notices.remove(&number);
        if let Some(peer) = self.peer_mut(rank).filter(|_| !shared) {
            peer.receive_credits.consumed(1);
        }
        let header = notice.header.get(..notice.length).unwrap_or_default();
        events.message(self, rank, header, &[]);
        self.return_credits(rank);
        1
    }

    #[allow(unsafe_code)]
    fn message(
        &mut self,
        rank: Rank,
        shared: Option<(u32, u32)>,
        events: &mut dyn Events,
    ) -> usize {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let Some(peer) = find(&mut self.peers, rank) else {
            return 0;
        };
        let (place, room) = match (shared, &peer.ring, &self.shared) {
            (Some((index, length)), _, Some((memory, _))) => (
                Some((memory, index as usize * BLOCK)),
                (length as usize).min(BLOCK),
            ),
            (None, Some((memory, _)), _) => (
                Some((memory, peer.receive_credits.next() * BLOCK)),
                MESSAGE_BLOCKS * BLOCK,
            ),
            _ => (None, 0),
        };
        let lengths = place.and_then(|(memory, at)| {
            let there = room >= PREFIX && memory.read(at, PREFIX, &mut bytes);
            let (header, body) =
                read_prefix(&bytes, room.saturating_sub(PREFIX)).filter(|_| there)?;
            bytes.clear();
            let (copied, rest) = if body < IN_PLACE {
                (header + body, 0)
            } else {
                (header, body)
            };
            let there = memory.read(at + PREFIX, copied, &mut bytes);
            Some((header, body, memory.view(at + PREFIX + copied, rest)?)).filter(|_| there)
        });
        let Some((header, length, place)) = lengths else {
            self.scratch = bytes;
            self.fail(
                rank,
                PeerError::Violation("a message with impossible lengths".into()),
            );
            return 0;
        };
        let (header, body) = bytes.split_at(header);
        let body = if length < IN_PLACE {
            body
        } else {
            // SAFETY: inside of the blocks, as checked. They are released when a failure is
            // reported or the transport closes, which a callback cannot do, and returned to the
            // peer below. A peer that writes there nevertheless changes its own message, as with
            // shared memory (`shm-btl`).
            unsafe { std::slice::from_raw_parts(place, length) }
        };
        events.message(self, rank, header, body);
        let taken = (PREFIX + header.len() + length).div_ceil(BLOCK);
        self.scratch = bytes;
        if let Some(peer) = self.peer_mut(rank).filter(|_| shared.is_none()) {
            peer.receive_credits.consumed(taken);
        }
        self.return_credits(rank);
        1
    }

    /// Returns credits if half of them are unreturned, now or when the queue has room.
    pub(super) fn return_credits(&mut self, rank: Rank) {
        let Some(peer) = self.peer(rank) else {
            return;
        };
        let owed = peer.receive_credits.unreturned();
        if !peer.receive_credits.is_due() || peer.state != State::Connected {
            return;
        }
        if !self.post_empty(rank, Some((Kind::Credit, owed))) {
            if !self.credit_returns.contains(&rank) {
                self.credit_returns.push(rank);
            }
        } else if let Some(peer) = self.peer_mut(rank) {
            peer.receive_credits.returned(owed);
        }
    }

    /// Returns true if all messages to a peer have arrived. Requests a completion if none is
    /// pending.
    pub(super) fn flush_peer(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peer(rank) else {
            return true;
        };
        if peer.flights.is_empty() || matches!(peer.state, State::Failing(_) | State::Ended(_)) {
            return true;
        }
        if peer.unsignaled > 0 {
            self.post_empty(rank, None);
        }
        false
    }
}
