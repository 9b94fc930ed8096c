//! Sending: envelopes in order over the primary rail, control messages, fragments over all rails.

use crate::ids::{Destination, PeerId};
use std::io::IoSlice;

use btl::{Btl, PeerError, SendError, Started};

use super::account::cost;
use super::peer::Control;
use super::protocol::Protocol;
use super::request::{Request, RequestOutcome, State};
use super::transfer::{Method, Transfer};
use super::transports::Engine;
use crate::error::Error;
use crate::matching::unexpected::RegionKey;
use crate::wire::{self, ASK, Header, Sequenced};

/// Number of control messages that may always be queued for one peer; see [`control_max`].
const CONTROL_MAX: usize = 64 << 10;
/// Maximum number of fragments sent to one peer in one poll.
const FRAGMENTS: usize = 16;
/// Maximum number of envelopes sent to one peer in one poll.
const ENVELOPES: usize = 64;

/// Result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Sent,
    /// No room, no credit, or the transport is about to report that the peer failed.
    Blocked,
    /// The peer failed; its requests end.
    Failed,
}

/// Returns the maximum number of control messages queued for one peer.
///
/// Each answers an envelope of the peer. While the peer reads nothing, this process may answer all
/// of its messages that waited for a receive, which `limit` bounds, and those for which it still
/// has credit: two windows pay for 8192 envelopes.
fn control_max(limit: usize) -> usize {
    CONTROL_MAX.max(limit / cost(0))
}

impl Protocol {
    /// Queues a control message.
    pub(super) fn control(&mut self, peer: PeerId, header: Header) {
        self.control_with(peer, header, RegionKey::NONE);
    }

    /// Queues a control message whose body is a key.
    pub(super) fn control_with(&mut self, peer: PeerId, header: Header, key: RegionKey) {
        let max = control_max(self.limit);
        let state = &mut self.peers[peer];
        if !state.alive || state.own {
            return;
        }
        if state.control.len() >= max {
            let reason = format!("it accepts none of the {max} answers queued for it");
            return self.fail(peer, PeerError::Lost(reason.clone()), Some(reason));
        }
        state.control.push_back(Control {
            header: header.encode(),
            key,
        });
        self.activate(peer);
    }
}

impl Engine {
    /// Sends a short message to a peer for which nothing is queued. Returns false if that is not
    /// possible now; [`submit`](Engine::submit) then determines why.
    #[inline]
    pub(crate) fn send_fast(&mut self, to: Destination, body: &[u8]) -> bool {
        let peer = &mut self.protocol.peers[to.peer];
        let price = cost(body.len());
        if !peer.fast || body.len() > peer.copied_now || !peer.account.can_pay(price) {
            return false;
        }
        let Some(primary) = peer.primary() else {
            return false;
        };
        let flags = if peer.account.asks(price) { ASK } else { 0 };
        let btl = &mut self.transports[primary].btl;
        let mut send = |header: &[u8]| {
            btl.send(to.peer.rank(), header, &[IoSlice::new(body)])
                .is_ok()
        };
        let sent = match u32::try_from(to.tag) {
            Ok(tag) if tag <= wire::NARROW && to.data.is_none() => {
                send(&wire::eager(flags, peer.next_out, to.context, tag))
            }
            _ => {
                let sequenced = Sequenced {
                    flags,
                    sequence: peer.next_out,
                    context: to.context,
                    tag: to.tag,
                    data: to.data,
                };
                send(Header::Eager(sequenced, None).encode().bytes())
            }
        };
        if !sent {
            return false;
        }
        peer.account.pay(price);
        peer.next_out = peer.next_out.wrapping_add(1);
        self.protocol.stats.eager_sent += 1;
        true
    }

    /// Starts any send. Returns the request.
    pub(crate) fn submit(&mut self, to: Destination, request: Request) -> Result<u64, Error> {
        self.protocol.check_context(to.context)?;
        if self.protocol.open.is_some() {
            self.reach(to.peer);
        }
        self.protocol.use_peer(to.peer);
        self.protocol.check_alive(to.peer)?;
        let key = self.protocol.requests.insert(request);
        let peer = &mut self.protocol.peers[to.peer];
        if peer.own {
            self.send_to_self(key);
            self.do_work();
            return Ok(key);
        }
        peer.queue.push_back(key);
        let first = peer.queue.len() == 1;
        self.protocol.activate(to.peer);
        if first {
            self.do_work();
        }
        Ok(key)
    }

    /// Sends the queued messages of a peer: answers first, then envelopes, then fragments. Returns
    /// the number of messages.
    pub(super) fn send_queued(&mut self, peer: PeerId) -> usize {
        self.protocol.peers[peer].active = false;
        let mut done = self.send_control(peer) + self.send_envelopes(peer);
        if self.protocol.peers[peer].accesses.is_some() {
            done += self.send_results(peer) + self.send_accesses(peer);
        }
        done += self.send_fragments(peer);
        let state = &mut self.protocol.peers[peer];
        if state.alive && !state.idle() {
            self.protocol.activate(peer);
        } else {
            state.refresh();
        }
        done
    }

    fn send_control(&mut self, peer: PeerId) -> usize {
        let mut done = 0;
        let state = &mut self.protocol.peers[peer];
        let Some(primary) = state.primary().filter(|_| state.alive) else {
            return done;
        };
        let btl = &mut self.transports[primary].btl;
        while let Some(Control { header, key }) = state.control.front() {
            match btl.send(peer.rank(), header.bytes(), &[IoSlice::new(key.bytes())]) {
                // A failed peer needs no answers, but messages that it sent may still arrive.
                Ok(()) | Err(SendError::Failed { .. }) => {}
                Err(error) => {
                    self.refused(peer, error);
                    return done;
                }
            }
            state.control.pop_front();
            done += 1;
        }
        done
    }

    fn send_envelopes(&mut self, peer: PeerId) -> usize {
        let mut done = 0;
        while done < ENVELOPES {
            let state = &self.protocol.peers[peer];
            let Some(&key) = state.queue.front().filter(|_| state.alive) else {
                return done;
            };
            if self.start_send(peer, key) != Attempt::Sent {
                return done;
            }
            self.protocol.peers[peer].queue.pop_front();
            done += 1;
        }
        done
    }

    /// Sends the envelope of a queued send: EAGER or RTS.
    fn start_send(&mut self, peer: PeerId, key: u64) -> Attempt {
        let request = self.protocol.requests[key];
        if request.length <= self.protocol.peers[peer].eager_now {
            return self.send_eager(peer, key, &request);
        }
        self.send_rts(peer, key, &request)
    }

    /// Sends EAGER; long ones from the program's memory if the transport supports it (VIA-RPI).
    fn send_eager(&mut self, peer: PeerId, key: u64, request: &Request) -> Attempt {
        let (memory, rank) = (request.memory, peer.rank());
        // SAFETY: the request is not complete, and the slice is used in this call only.
        let body = unsafe { memory.bytes() };
        let state = &self.protocol.peers[peer];
        let held = !request.sync && body.len() >= state.held_from;
        let transfer = state.primary().filter(|_| held).map(|primary| Transfer {
            method: Method::Held,
            open: true,
            ..Transfer::new(key, peer, primary)
        });
        let token = transfer.map(|transfer| self.protocol.transfers.insert(transfer));
        let mut pending = false;
        let send = |btl: &mut dyn Btl, header: &[u8]| {
            if let Some(token) = token {
                // SAFETY: valid and unchanged until the request is complete, which is not before
                // the completion of this send.
                match unsafe { btl.send_held(rank, header, memory.at(0), body.len(), token) } {
                    Err(SendError::Unsupported) => {}
                    result => return result.map(|started| pending = started == Started::Pending),
                }
            }
            btl.send(rank, header, &[IoSlice::new(body)])
        };
        let header = |sequenced| Header::Eager(sequenced, request.sync.then_some(key));
        let attempt = self.send_envelope(peer, request, body.len(), header, send);
        if let Some(token) = token.filter(|_| !pending) {
            self.protocol.transfers.remove(token);
        }
        if attempt != Attempt::Sent {
            return attempt;
        }
        self.protocol.stats.eager_sent += 1;
        if let Some(token) = token.filter(|_| pending) {
            self.protocol.stats.held_sent += 1;
            let request = &mut self.protocol.requests[key];
            (request.transfer, request.state) = (token, State::Moving);
        } else if request.sync {
            self.protocol.requests[key].state = State::Waiting;
        } else {
            self.protocol.end(key, RequestOutcome::Done);
        }
        attempt
    }

    /// Sends an envelope whose cost is that of an eager message of `length` bytes.
    pub(super) fn send_envelope(
        &mut self,
        peer: PeerId,
        request: &Request,
        length: usize,
        header: impl FnOnce(Sequenced) -> Header,
        send: impl FnOnce(&mut dyn Btl, &[u8]) -> Result<(), SendError>,
    ) -> Attempt {
        let state = &mut self.protocol.peers[peer];
        let price = cost(length);
        let Some(primary) = state.primary().filter(|_| state.account.can_pay(price)) else {
            return Attempt::Blocked;
        };
        let flags = if state.account.asks(price) { ASK } else { 0 };
        let header = header(Sequenced {
            flags,
            sequence: state.next_out,
            context: request.context,
            tag: request.tag,
            data: request.data,
        })
        .encode();
        match send(&mut *self.transports[primary].btl, header.bytes()) {
            Ok(()) => {
                state.account.pay(price);
                state.next_out = state.next_out.wrapping_add(1);
                Attempt::Sent
            }
            Err(error) => self.refused(peer, error),
        }
    }

    /// Handles an error of a transport. `Busy` leaves the message queued, and so does `Failed`: the
    /// event that ends the peer follows its messages, which may not have arrived yet. Other errors
    /// fail the peer.
    pub(super) fn refused(&mut self, peer: PeerId, error: SendError) -> Attempt {
        match error {
            SendError::Busy | SendError::Failed { .. } => Attempt::Blocked,
            SendError::Closed if self.protocol.closed => Attempt::Blocked,
            other => {
                let error = PeerError::Lost(format!("its transport refuses to send: {other}"));
                self.protocol.fail(peer, error, None);
                Attempt::Failed
            }
        }
    }

    /// Sends fragments of the oldest message, each rail its share.
    fn send_fragments(&mut self, peer: PeerId) -> usize {
        let mut done = 0;
        // Rails without room, one bit each.
        let mut full = 0u32;
        while done < FRAGMENTS {
            let state = &mut self.protocol.peers[peer];
            let Some(&front) = state.streams.front().filter(|_| state.alive) else {
                return done;
            };
            let Some(transfer) = self.protocol.transfers.get_mut(front) else {
                state.streams.pop_front();
                continue;
            };
            let count = state.rails.len();
            let next = (0..count)
                .map(|step| (state.next_rail + step) % count)
                .find(|at| full & 1 << at == 0 && transfer.shares[*at] != 0);
            let Some(at) = next else {
                return done;
            };
            let rail = &mut state.rails[at];
            let length = rail.fragment().min(transfer.shares[at]);
            let offset = transfer.issued;
            let header = Header::Fragment {
                target: transfer.remote,
                offset: offset as u64,
            }
            .encode();
            let key = transfer.request;
            // SAFETY: the request is not complete, and the slice is used in this call only.
            let body = unsafe { self.protocol.requests[key].memory.bytes() };
            let body = &body[offset..offset + length];
            let btl = &mut self.transports[rail.transport].btl;
            match btl.send(peer.rank(), header.bytes(), &[IoSlice::new(body)]) {
                Ok(()) => {
                    done += 1;
                    transfer.issued += length;
                    transfer.shares[at] -= length;
                    rail.sent += length as u64;
                    state.next_rail = at + 1;
                    self.protocol.stats.fragments_sent += 1;
                    if transfer.issued == transfer.wanted {
                        state.streams.pop_front();
                        self.protocol.end(key, RequestOutcome::Done);
                    }
                }
                Err(SendError::Busy) => full |= 1 << at,
                Err(error) => {
                    self.refused(peer, error);
                    return done;
                }
            }
        }
        done
    }
}
