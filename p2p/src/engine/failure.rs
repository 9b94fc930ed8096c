//! The end of a peer, and of the layer.

use crate::ids::PeerId;
use std::io::IoSlice;

use btl::PeerError;

use super::protocol::Work;
use super::request::{RequestOutcome, State};
use super::transports::Engine;
use crate::matching::unexpected::{Arrival, Arrived};
use crate::wire::{Header, MAX_REASON};

impl Engine {
    /// Ends the requests of a failed peer, and any-source receives that the peer might have served.
    pub(super) fn end_requests_of(&mut self, peer: PeerId, reason: Option<String>) {
        if let Some(reason) = reason {
            self.send_bye(peer, &reason);
        }
        self.drop_peer(peer);
        let protocol = &mut self.protocol;
        let state = &mut protocol.peers[peer];
        state.control.clear();
        state.queue.clear();
        state.streams.clear();
        state.accesses = None;
        state.refresh();
        // A peer that is gone is assumed to have left: if one died, the launcher ends the job.
        let left = matches!(state.failed, Some(PeerError::Left | PeerError::Gone));
        if state.account.close() {
            protocol.held_back = protocol.held_back.saturating_sub(1);
        }
        let cannot_come = |arrived: &Arrived| {
            let rts = matches!(arrived.arrival, Arrival::Rts { .. });
            arrived.source == peer && !arrived.taken && rts
        };
        for entry in protocol.unexpected.keys(cannot_come) {
            if let Some(arrived) = protocol.unexpected.remove(entry) {
                protocol.release(peer, arrived.cost);
            }
        }
        protocol.forget_stranger(peer);
        for key in protocol.requests.keys().collect::<Vec<_>>() {
            self.end_request_of(key, peer, left);
        }
    }

    fn end_request_of(&mut self, key: u64, peer: PeerId, left: bool) {
        // A freed request may have ended in the meantime.
        let Some(request) = self.protocol.requests.get(key).copied() else {
            return;
        };
        let named = request.peer == Some(peer);
        match request.state {
            State::Posted => {
                let concerned = named || self.protocol.may_have_meant(&request, peer, left);
                if concerned {
                    self.protocol.unpost(key, &request);
                    self.protocol.end(key, RequestOutcome::Failed(peer));
                }
            }
            State::Queued if named => self.protocol.end(key, RequestOutcome::Failed(peer)),
            State::Waiting | State::Moving if named => {
                let Some(transfer) = self.protocol.transfers.get_mut(request.transfer) else {
                    return self.protocol.end(key, RequestOutcome::Failed(peer));
                };
                // The transport still uses the memory, or the peer may.
                transfer.doomed = true;
                let state = &mut self.protocol.peers[peer];
                if !state.quiet {
                    state.doomed.push(request.transfer);
                }
                self.step(request.transfer);
            }
            _ => {}
        }
    }

    /// Removes memory of this process from a failed peer's reach; repeated until that is done.
    pub(super) fn drop_peer(&mut self, peer: PeerId) {
        let mut quiet = true;
        // Including transports that are not rails of the peer, because it may be connected there.
        for (_, transport) in self.transports.iter_mut() {
            quiet &= transport.btl.drop_peer(peer.rank());
        }
        if quiet {
            let state = &mut self.protocol.peers[peer];
            state.quiet = true;
            let doomed = std::mem::take(&mut state.doomed);
            self.protocol
                .work
                .extend(doomed.into_iter().map(Work::Step));
        } else {
            self.protocol.dropping.push(peer);
        }
    }

    /// Sends BYE. Without room the peer only loses the connection.
    fn send_bye(&mut self, peer: PeerId, reason: &str) {
        let Some(primary) = self.protocol.peers[peer].primary() else {
            return;
        };
        let mut end = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let body = reason.get(..end).unwrap_or_default().as_bytes();
        let header = Header::Bye.encode();
        let btl = &mut self.transports[primary].btl;
        let _ = btl.send(peer.rank(), header.bytes(), &[IoSlice::new(body)]);
    }

    /// Returns true if everything was passed to the transports and they have sent it.
    pub(crate) fn is_flushed(&mut self) -> bool {
        let empty = self.protocol.unsent() == 0 && !self.protocol.has_work();
        self.transports
            .iter_mut()
            .fold(empty, |all, (_, transport)| transport.btl.flush() && all)
    }

    /// Closes all transports and ends all requests.
    pub(crate) fn close(&mut self) {
        self.protocol.closed = true;
        self.lazy = None;
        for (_, transport) in self.transports.iter_mut() {
            transport.btl.close();
        }
        for key in self.protocol.requests.keys().collect::<Vec<_>>() {
            if self.protocol.requests[key].state != State::Complete {
                self.protocol.end(key, RequestOutcome::Closed);
            }
        }
        self.protocol.clear_queues();
    }
}
