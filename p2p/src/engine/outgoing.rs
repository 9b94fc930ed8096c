//! What goes out: envelopes in order, messages about messages, fragments.

use btl::{PeerError, Rank, SendError};
use std::io::IoSlice;

use super::lanes::Kept;
use super::peer::Peer;
use super::peer::{Control, REORDER};
use super::pressure::cost;
use super::rails::Plan;
use super::{Core, Engine, Memory, Outcome, Request, State};
use crate::error::Error;
use crate::matching::unexpected::RegionKey;
use crate::wire::{self, ASK, ASK_SEEN, Encoded, Header, Sequenced};

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

    pub(crate) fn control_with(
        &mut self,
        rank: Rank,
        header: Header,
        key: RegionKey,
        transport: Option<u8>,
    ) {
        let Some(peer) = self.peers.get_mut(rank as usize) else {
            return;
        };
        if !peer.alive || peer.own {
            return;
        }
        if peer.control.len() >= CONTROL {
            let reason = format!("it takes none of the {CONTROL} answers that wait for it");
            return self.fail(rank, PeerError::Lost(reason.clone()), Some(reason));
        }
        peer.control.push_back(Control {
            header: header.encode(),
            key,
            transport,
        });
        self.activate(rank);
    }
}

impl Core {
    /// The common send: an ordinary message to a peer for which nothing waits. False: not this way.
    #[inline]
    pub(crate) fn send_fast(&mut self, rank: Rank, context: u32, tag: i32, body: &[u8]) -> bool {
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return false;
        };
        let price = cost(body.len());
        if !peer.fast || body.len() > peer.copied_now || !peer.account.can_pay(price) {
            return false;
        }
        let mut flags = if peer.account.asks(price) { ASK } else { 0 };
        let mixed = peer.mixed();
        if mixed {
            // What has to look at several lanes goes the other way.
            if body.len() >= self.engine.config.stripe_from || peer.unseen >= REORDER - 1 {
                return false;
            }
            flags |= peer.asks_seen();
        }
        let header = wire::eager(flags, peer.next_out, context, tag);
        let Some(transport) = self.transports.get_mut(usize::from(peer.transport)) else {
            return false;
        };
        // What is not taken for whatever reason is looked at by the other way.
        if transport
            .btl
            .send(rank, &header, &[IoSlice::new(body)])
            .is_err()
        {
            return false;
        }
        peer.account.pay(price);
        peer.next_out = peer.next_out.wrapping_add(1);
        self.engine.stats.eager_sent += 1;
        if mixed && let Some(at) = peer.best() {
            peer.unseen = peer.unseen.wrapping_add(1);
            let body = self.engine.unexpected.pool.copy(body);
            peer.keep(
                at,
                body.len(),
                Kept::Message {
                    header: Encoded::of(&header),
                    body,
                },
            );
        }
        true
    }

    /// Starts any send.
    pub(crate) fn submit(&mut self, request: Request) -> Result<u64, Error> {
        self.engine.check_context(request.context)?;
        self.engine.is_alive(request.peer)?;
        let rank = request.peer;
        let key = self.engine.requests.insert(request);
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return Ok(key);
        };
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
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return 0;
        };
        peer.active = false;
        let mut done = 0;
        if peer.mixed() && peer.keeps_too_much() {
            self.engine
                .violation(rank, "confirms nothing of what it is sent".into());
            return 1;
        }
        if !peer.mixed() || self.drive_lanes(rank, &mut done) {
            done += self.drive_control(rank) + self.drive_queue(rank) + self.drive_streams(rank);
        }
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return done;
        };
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
            let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
                return done;
            };
            if !peer.alive {
                return done;
            }
            let Some(Control {
                header,
                key,
                transport,
            }) = peer.control.front()
            else {
                return done;
            };
            let wanted = transport.and_then(|wanted| {
                peer.lanes
                    .iter()
                    .position(|l| l.alive && l.transport == wanted)
            });
            let Some(at) = wanted.or_else(|| peer.best()) else {
                return done;
            };
            let Some(number) = peer.lanes.get(at).map(|lane| lane.transport) else {
                return done;
            };
            let mut message = (*header, *key);
            if transport.is_some_and(|wanted| wanted != number) {
                message = without_key(message);
            }
            let Some(transport) = self.transports.get_mut(usize::from(number)) else {
                return done;
            };
            let (header, key) = message;
            match transport
                .btl
                .send(rank, header.bytes(), &[IoSlice::new(key.bytes())])
            {
                Ok(()) => {
                    peer.control.pop_front();
                    if peer.mixed() {
                        let body = self.engine.unexpected.pool.copy(key.bytes());
                        peer.keep(at, body.len(), Kept::Message { header, body });
                    }
                    done += 1;
                }
                Err(error) => {
                    self.lane_refused(rank, at, error);
                    return done;
                }
            }
        }
    }

    fn drive_queue(&mut self, rank: Rank) -> usize {
        let mut done = 0;
        while done < ENVELOPES {
            let Some(peer) = self.engine.peers.get(rank as usize) else {
                return done;
            };
            let Some(&key) = peer.queue.front() else {
                return done;
            };
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
        let Some(request) = self.engine.requests.get(key).copied() else {
            return Went::Out;
        };
        let Memory::Read(memory) = request.memory else {
            return Went::Out;
        };
        let Some(peer) = self.engine.peers.get(rank as usize) else {
            return Went::Out;
        };
        if memory.len() <= peer.eager_now {
            if let Some(went) = self.send_held(rank, key, &request, memory) {
                return went;
            }
            // SAFETY: the request is not over, and the slice is used in this call.
            let body = unsafe { memory.bytes() };
            let went = self.send_envelope(rank, memory.len(), None, body, |envelope| {
                Header::Eager(envelope, request.sync.then_some(key))
                    .with(request.context, request.tag)
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
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return Went::Failed;
        };
        let price = cost(length);
        let mixed = peer.mixed();
        if !peer.account.can_pay(price) || (mixed && peer.unseen >= REORDER - 1) {
            return Went::Not;
        }
        let mut flags = if peer.account.asks(price) { ASK } else { 0 };
        if mixed {
            flags |= peer.asks_seen();
        }
        let header = header(Sequenced {
            flags,
            sequence: peer.next_out,
            context: 0,
            tag: 0,
        })
        .encode();
        // Short ones take the best lane, longer ones take turns where that was seen to help.
        let turns = body.len() >= stripe_from
            && peer.rails.as_ref().is_some_and(|rails| rails.helps_short());
        let (start, count) = if turns {
            (peer.turn, peer.lanes.len())
        } else {
            (peer.best().unwrap_or(0), 1)
        };
        for at in 0..count {
            let at = only.unwrap_or((start + at) % peer.lanes.len().max(1));
            if mixed && !peer.may_use(at) {
                continue;
            }
            let Some(lane) = peer.lanes.get(at) else {
                break;
            };
            let Some(transport) = self.transports.get_mut(usize::from(lane.transport)) else {
                break;
            };
            match transport
                .btl
                .send(rank, header.bytes(), &[IoSlice::new(body)])
            {
                Ok(()) => {
                    peer.account.pay(price);
                    peer.next_out = peer.next_out.wrapping_add(1);
                    peer.unseen = peer.unseen.wrapping_add(1);
                    peer.turn = at + 1;
                    if mixed {
                        let body = self.engine.unexpected.pool.copy(body);
                        peer.keep(at, body.len(), Kept::Message { header, body });
                    }
                    return Went::Out;
                }
                Err(SendError::Busy) if only.is_none() => {}
                Err(error) => return self.lane_refused(rank, at, error),
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

    /// Sends fragments, over several lanes each its share.
    fn drive_streams(&mut self, rank: Rank) -> usize {
        let mut done = 0;
        let mut full = 0;
        while done < FRAGMENTS {
            let cap = self.engine.config.fragment.unwrap_or(usize::MAX);
            let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
                return done;
            };
            let (Some(&front), true) = (peer.streams.front(), peer.alive) else {
                return done;
            };
            let Some(transfer) = self.engine.transfers.get_mut(front) else {
                peer.streams.pop_front();
                continue;
            };
            let left = transfer.wanted - transfer.issued;
            let Some(at) = peer.next_lane(transfer.plan.as_mut(), left, full) else {
                return done;
            };
            let Some(lane) = peer.lanes.get(at) else {
                return done;
            };
            let number = lane.transport;
            let Some(transport) = self.transports.get_mut(usize::from(number)) else {
                return done;
            };
            let Some(request) = self.engine.requests.get(transfer.request) else {
                return done;
            };
            let share = transfer
                .plan
                .and_then(|plan| plan.share.get(at).copied())
                .unwrap_or(left);
            let length = lane.fragment(cap).min(left).min(share);
            let (target, offset) = (transfer.remote, transfer.issued);
            let tell = transfer.plan.is_some();
            let header = Header::Fragment {
                target,
                offset: offset as u64,
                tell,
            }
            .encode();
            // SAFETY: the request is not over, and the slice is used in this call.
            let body = unsafe { request.part(offset, length) };
            match transport
                .btl
                .send(rank, header.bytes(), &[IoSlice::new(body)])
            {
                Ok(()) => {
                    done += 1;
                    transfer.issued += length;
                    self.engine.stats.fragments_sent += 1;
                    if let Some(share) = transfer
                        .plan
                        .as_mut()
                        .and_then(|plan| plan.share.get_mut(at))
                    {
                        *share -= length;
                        peer.turn = at + 1;
                        peer.keep(
                            at,
                            length,
                            Kept::Fragment {
                                transfer: front,
                                offset,
                                length,
                            },
                        );
                    }
                    if transfer.issued == transfer.wanted {
                        let key = transfer.request;
                        peer.streams.pop_front();
                        // Over several lanes the receiver says when all have come: until then some may have to be sent again.
                        if !tell {
                            self.engine.end(key, Outcome::Done);
                        }
                    }
                }
                Err(SendError::Busy) => full |= 1 << at.min(31),
                Err(error) => {
                    self.lane_refused(rank, at, error);
                    return done;
                }
            }
        }
        done
    }
}

impl Peer {
    /// Whether the next envelope asks to be told when it was seen.
    fn asks_seen(&self) -> u8 {
        if self.next_out.is_multiple_of(REORDER / 4) {
            ASK_SEEN
        } else {
            0
        }
    }

    /// The lane of the next fragment, but for those that are full (a bit each). `None`: all that have a share are.
    fn next_lane(&self, plan: Option<&mut Plan>, left: usize, full: u32) -> Option<usize> {
        let has_room = |at: &usize| full & 1 << (*at).min(31) == 0;
        let Some(plan) = plan else {
            return self.best().filter(has_room);
        };
        let count = self.lanes.len();
        let has_share = |at: &usize| {
            self.lanes.get(*at).is_some_and(|lane| lane.alive)
                && plan.share.get(*at).is_some_and(|share| *share != 0)
        };
        if !(0..count).any(|at| has_share(&at)) {
            // Those that had it are lost.
            let best = self.best()?;
            plan.share = Default::default();
            return match plan.share.get_mut(best) {
                Some(share) => {
                    *share = left;
                    Some(best).filter(has_room)
                }
                None => None,
            };
        }
        (0..count)
            .map(|step| (self.turn + step) % count)
            .filter(has_share)
            .find(has_room)
    }
}

/// A message about messages, as it goes over another lane than it was meant for.
fn without_key((header, key): (Encoded, RegionKey)) -> (Encoded, RegionKey) {
    match Header::decode(header.bytes()) {
        Ok(Header::Accept {
            request,
            target,
            length,
            put: true,
        }) => (
            Header::Accept {
                request,
                target,
                length,
                put: false,
            }
            .encode(),
            RegionKey::NONE,
        ),
        _ => (header, key),
    }
}
