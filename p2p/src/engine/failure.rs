//! The end of a peer, and of the layer.

use btl::{PeerError, Rank};
use std::io::IoSlice;

use super::{ANY, Core, Outcome, State, Work};
use crate::matching::unexpected::Arrival;
use crate::wire::{Header, MAX_REASON};

impl Core {
    /// Ends all requests that name a failed peer, and any-source receives that might have meant it; others go on.
    pub(crate) fn end_requests_of(&mut self, rank: Rank, reason: Option<String>) {
        if let Some(reason) = reason {
            self.say_good_bye(rank, &reason);
        }
        self.drop_peer(rank);
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return;
        };
        peer.control.clear();
        peer.queue.clear();
        peer.streams.clear();
        peer.forget_kept(&mut self.engine.unexpected.pool);
        peer.refresh();
        let left = matches!(peer.failed, Some(PeerError::Left));
        let early = std::mem::take(&mut peer.early);
        peer.early_cost = 0;
        if peer.account.close() {
            self.engine.held_back = self.engine.held_back.saturating_sub(1);
        }
        for early in early.into_values() {
            self.engine.release(rank, early.cost);
            self.engine.unexpected.pool.give_back(early.body);
        }
        for entry in self.engine.unexpected.of(rank) {
            let waits = |entry: &crate::matching::unexpected::Arrived| {
                !entry.taken && matches!(entry.arrival, Arrival::Announced { .. })
            };
            if self.engine.unexpected.get(entry).is_some_and(waits)
                && let Some(entry) = self.engine.unexpected.remove(entry)
            {
                self.engine.release(rank, entry.cost);
            }
        }
        for key in self.engine.requests.keys().collect::<Vec<_>>() {
            self.end_if_of(key, rank, left);
        }
    }

    fn end_if_of(&mut self, key: u64, rank: Rank, left: bool) {
        let Some(request) = self.engine.requests.get(key).copied() else {
            return;
        };
        let named = request.peer == rank;
        match request.state {
            State::Posted => {
                // One that leaves in order hurts only who waits for it, or for anybody when nobody is left.
                let any = request.peer == ANY && {
                    let group = self.engine.group(request.context);
                    let member = request.context <= 1
                        || group.is_some_and(|group| group.local_rank(rank).is_some());
                    member && (!left || self.engine.somebody_lives(request.context).is_err())
                };
                if (named || any) && self.take_back(key, &request) {
                    self.engine.end(key, Outcome::Failed(rank));
                }
            }
            State::Queued if named => self.engine.end(key, Outcome::Failed(rank)),
            State::Waiting | State::Moving if named => {
                if let Some(transfer) = self.engine.transfers.get_mut(request.transfer) {
                    // The transport still uses the memory, or the peer may; they say when they do not.
                    transfer.doomed = true;
                    if let Some(peer) = self
                        .engine
                        .peers
                        .get_mut(rank as usize)
                        .filter(|peer| !peer.quiet)
                    {
                        peer.doomed.push(request.transfer);
                    }
                    self.step(request.transfer);
                } else {
                    self.engine.end(key, Outcome::Failed(rank));
                }
            }
            // A claimed receive is reported by its transport.
            _ => {}
        }
    }

    /// Takes memory out of a failed peer's reach; again and again until that is so.
    pub(super) fn drop_peer(&mut self, rank: Rank) {
        // Also where it was not used: it may be heard there.
        let mut quiet = true;
        for transport in &mut self.transports {
            quiet &= transport.btl.drop_peer(rank);
        }
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return;
        };
        if quiet {
            peer.quiet = true;
            let doomed = std::mem::take(&mut peer.doomed);
            self.engine.work.extend(doomed.into_iter().map(Work::Step));
        } else {
            self.engine.dropping.push(rank);
        }
    }

    /// Tells a peer that it was closed out. It may not arrive; then the peer hears nothing more and its transport notices.
    fn say_good_bye(&mut self, rank: Rank, reason: &str) {
        let Some(peer) = self.engine.peers.get(rank as usize) else {
            return;
        };
        let mut end = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let body = reason.get(..end).unwrap_or_default().as_bytes();
        if let Some(transport) = self.transports.get_mut(usize::from(peer.transport)) {
            let _ = transport
                .btl
                .send(rank, Header::Bye.encode().bytes(), &[IoSlice::new(body)]);
        }
    }

    /// Has everything been handed on?
    pub(crate) fn is_flushed(&mut self) -> bool {
        let quiet = self.engine.unsent() == 0 && !self.engine.has_work();
        self.transports
            .iter_mut()
            .fold(quiet, |all, transport| transport.btl.flush() && all)
    }

    /// Closes all transports and ends all requests.
    pub(crate) fn close(&mut self) {
        self.engine.closed = true;
        for transport in &mut self.transports {
            transport.btl.close();
        }
        for key in self.engine.requests.keys().collect::<Vec<_>>() {
            if self
                .engine
                .requests
                .get(key)
                .is_some_and(|request| request.state != State::Over)
            {
                self.engine.end(key, Outcome::Closed);
            }
        }
        self.engine.give_up_everything();
    }
}
