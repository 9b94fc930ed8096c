//! What goes out: envelopes in order, messages about messages, fragments.

use btl::{PeerError, Rank, SendError};

use super::peer::{Control, HEADER_ROOM, REORDER};
use super::pressure::cost;
use super::{Core, Engine, Memory, Outcome, Request, State};
use crate::error::Error;
use crate::matching::unexpected::RegionKey;
use crate::wire::{self, ASK, ASK_SEEN, Header, Sequenced};

/// Answers that may wait for one peer. One that behaves never makes so many: each belongs to an envelope that it has sent, and of those
/// two windows of credit pay for 8192 before it has taken the answers to older ones.
const CONTROL: usize = 64 << 10;
/// Fragments to one peer in one turn.
const FRAGMENTS: usize = 16;
/// Envelopes to one peer in one turn.
const ENVELOPES: usize = 64;

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Went {
    Out,
    /// No room, or no credit.
    Not,
    /// The peer failed; its requests end.
    Failed,
}

impl Engine {
    /// Has a message about messages sent.
    pub(crate) fn control(&mut self, rank: Rank, header: Header) {
        self.control_with(rank, header, RegionKey::NONE, None);
    }

    pub(crate) fn control_with(&mut self, rank: Rank, header: Header, key: RegionKey, transport: Option<u8>) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        if !peer.alive || peer.own {
            return;
        }
        if peer.control.len() >= CONTROL {
            let reason = format!("it takes none of the {CONTROL} answers that wait for it");
            return self.fail(rank, PeerError::Lost(reason.clone()), Some(reason));
        }
        peer.control.push_back(Control { header: header.encode(), key, transport });
        self.activate(rank);
    }
}

impl Core {
    /// The common send: an ordinary message to a peer for which nothing waits. False: not this way.
    #[inline]
    pub(crate) fn send_fast(&mut self, rank: Rank, context: u32, tag: i32, body: &[u8]) -> bool {
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else { return false };
        let price = cost(body.len());
        if !peer.fast || body.len() > peer.eager_now || !peer.account.can_pay(price) {
            return false;
        }
        let flags = if peer.account.asks(price) { ASK } else { 0 };
        let header = wire::eager(flags, peer.next_out, context, tag);
        let Some(transport) = self.transports.get_mut(usize::from(peer.transport)) else { return false };
        // What is not taken for whatever reason is looked at by the other way.
        if transport.btl.send(rank, &header, body).is_err() {
            return false;
        }
        peer.account.pay(price);
        peer.next_out = peer.next_out.wrapping_add(1);
        self.engine.stats.eager_sent += 1;
        true
    }

    /// Starts any send.
    pub(crate) fn submit(&mut self, request: Request) -> Result<u64, Error> {
        self.engine.check_context(request.context)?;
        self.engine.is_alive(request.peer)?;
        let rank = request.peer;
        let key = self.engine.requests.insert(request);
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else { return Ok(key) };
        if peer.own {
            self.send_to_self(key);
            self.work_off();
            return Ok(key);
        }
        peer.queue.push_back(key);
        let first = peer.queue.len() == 1;
        self.engine.activate(rank);
        if first {
            self.work_off();
        }
        Ok(key)
    }

    /// Gives a peer a turn: what is older and what others wait for first.
    pub(crate) fn drive(&mut self, rank: Rank) -> usize {
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else { return 0 };
        peer.active = false;
        let done = self.drive_control(rank) + self.drive_queue(rank) + self.drive_streams(rank);
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else { return done };
        if peer.alive && !peer.idle() {
            self.engine.activate(rank);
        } else {
            peer.refresh();
        }
        done
    }

    fn drive_control(&mut self, rank: Rank) -> usize {
        let mut done = 0;
        loop {
            let Some(peer) = self.engine.peers.get_mut(rank as usize) else { return done };
            if !peer.alive {
                return done;
            }
            let Some(Control { header, key, transport }) = peer.control.front() else { return done };
            let transport = usize::from(transport.unwrap_or(peer.transport));
            let Some(transport) = self.transports.get_mut(transport) else { return done };
            match transport.btl.send(rank, header.bytes(), key.bytes()) {
                Ok(()) => {
                    peer.control.pop_front();
                    done += 1;
                }
                Err(error) => {
                    self.refused(rank, error);
                    return done;
                }
            }
        }
    }

    fn drive_queue(&mut self, rank: Rank) -> usize {
        let mut done = 0;
        while done < ENVELOPES {
            let Some(peer) = self.engine.peers.get(rank as usize) else { return done };
            let Some(&key) = peer.queue.front() else { return done };
            if !peer.alive || self.start(rank, key) != Went::Out {
                return done;
            }
            if let Some(peer) = self.engine.peers.get_mut(rank as usize) {
                peer.queue.pop_front();
            }
            done += 1;
        }
        done
    }

    /// Sends the envelope of a queued send.
    fn start(&mut self, rank: Rank, key: u64) -> Went {
        let Some(request) = self.engine.requests.get(key).copied() else { return Went::Out };
        let Memory::Read(memory) = request.memory else { return Went::Out };
        let Some(peer) = self.engine.peers.get(rank as usize) else { return Went::Out };
        if memory.len() <= peer.eager_now {
            let went = self.send_envelope(rank, memory.len(), None, memory.bytes(), |envelope| {
                Header::Eager(envelope, request.sync.then_some(key)).with(request.context, request.tag)
            });
            if went == Went::Out {
                self.engine.stats.eager_sent += 1;
                if request.sync {
                    self.set_state(key, State::Waiting);
                } else {
                    self.engine.end(key, Outcome::Done);
                }
            }
            return went;
        }
        match self.try_matched(rank, key, &request, memory) {
            Went::Not => self.announce(rank, key, &request, memory),
            went => went,
        }
    }

    /// Sends an envelope over the lane it must take, or the best that has room.
    pub(crate) fn send_envelope(
        &mut self,
        rank: Rank,
        length: usize,
        only: Option<usize>,
        body: &[u8],
        header: impl Fn(Sequenced) -> Header,
    ) -> Went {
        let stripe_from = self.engine.config.stripe_from;
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else { return Went::Failed };
        let price = cost(length);
        let mixed = peer.mixed();
        if !peer.account.can_pay(price) || (mixed && peer.unseen >= REORDER - 1) {
            return Went::Not;
        }
        let mut flags = if peer.account.asks(price) { ASK } else { 0 };
        if mixed && peer.next_out % (REORDER / 4) == 0 {
            flags |= ASK_SEEN;
        }
        let header = header(Sequenced { flags, sequence: peer.next_out, context: 0, tag: 0 }).encode();
        let start = if body.len() >= stripe_from { peer.turn } else { 0 };
        for at in 0..peer.lanes.len() {
            let at = only.unwrap_or((start + at) % peer.lanes.len());
            let Some(lane) = peer.lanes.get(at) else { break };
            let Some(transport) = self.transports.get_mut(usize::from(lane.transport)) else { break };
            match transport.btl.send(rank, header.bytes(), body) {
                Ok(()) => {
                    peer.account.pay(price);
                    peer.next_out = peer.next_out.wrapping_add(1);
                    peer.unseen = peer.unseen.wrapping_add(1);
                    peer.turn = at + 1;
                    return Went::Out;
                }
                Err(SendError::Busy) if only.is_none() => {}
                Err(error) => return self.refused(rank, error),
            }
        }
        Went::Not
    }

    /// A transport did not take something.
    pub(crate) fn refused(&mut self, rank: Rank, error: SendError) -> Went {
        let error = match error {
            SendError::Busy => return Went::Not,
            SendError::Failed { error, .. } => error,
            SendError::Closed if self.engine.closed => return Went::Not,
            other => PeerError::Lost(format!("its transport refuses to send: {other}")),
        };
        self.engine.fail(rank, error, None);
        Went::Failed
    }

    pub(crate) fn set_state(&mut self, key: u64, state: State) {
        if let Some(request) = self.engine.requests.get_mut(key) {
            request.state = state;
        }
    }

    /// Sends fragments over all lanes that have room, the faster ones taking more by themselves.
    fn drive_streams(&mut self, rank: Rank) -> usize {
        let mut done = 0;
        let mut full = 0;
        while done < FRAGMENTS {
            let cap = self.engine.config.fragment.unwrap_or(usize::MAX);
            let Some(peer) = self.engine.peers.get_mut(rank as usize) else { return done };
            let (Some(&front), true) = (peer.streams.front(), peer.alive) else { return done };
            let Some(transfer) = self.engine.transfers.get_mut(front) else {
                peer.streams.pop_front();
                continue;
            };
            if peer.lanes.is_empty() || full >= peer.lanes.len() {
                return done;
            }
            peer.turn = (peer.turn + 1) % peer.lanes.len();
            let Some(lane) = peer.lanes.get(peer.turn) else { return done };
            let Some(transport) = self.transports.get_mut(usize::from(lane.transport)) else { return done };
            let Some(request) = self.engine.requests.get(transfer.request) else { return done };
            let most = lane.max_send.min(cap.max(HEADER_ROOM + 1)) - HEADER_ROOM;
            let length = most.min(transfer.wanted - transfer.issued);
            let header =
                Header::Fragment { target: transfer.remote, offset: transfer.issued as u64 }.encode();
            match transport.btl.send(rank, header.bytes(), request.part(transfer.issued, length)) {
                Ok(()) => {
                    full = 0;
                    done += 1;
                    transfer.issued += length;
                    self.engine.stats.fragments_sent += 1;
                    if transfer.issued == transfer.wanted {
                        let key = transfer.request;
                        peer.streams.pop_front();
                        self.engine.end(key, Outcome::Done);
                    }
                }
                Err(SendError::Busy) => full += 1,
                Err(error) => {
                    self.refused(rank, error);
                    return done;
                }
            }
        }
        done
    }
}
