//! Memory that is about to be written by RDMA is looked up before it is needed, so that nobody waits for that: the sender's while its
//! announcement is under way, the receiver's while it waits for one.
//!
//! The sender's is registered: the answer will most likely say "put". For a receive only what is known already is looked up, and only
//! behind a long message of the same peer: perhaps nothing long will come.

use btl::Rank;

use super::announced::Transfer;
use super::{Core, Engine, Memory, State};
use crate::memory::ReadMem;

/// Receives that are looked up behind a long message.
const BEHIND: u8 = 4;
/// Receives that wait to be looked up.
const MOST: usize = 16;

impl Engine {
    /// Transports are known: those to whose peers an announcement is answered by a region. `puts`: for each.
    pub(crate) fn set_ahead(&mut self, puts: &[bool]) {
        if !self.config.put {
            return;
        }
        for peer in &mut self.peers {
            let lane = peer.one_sided.and_then(|at| peer.lanes.get(at));
            if lane.is_some_and(|lane| puts.get(usize::from(lane.transport)) == Some(&true)) {
                peer.ahead_from = peer.one_sided_from;
            }
        }
    }

    /// A long message of the peer came.
    pub(super) fn expect_long(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank as usize) {
            peer.ahead_left = BEHIND;
        }
    }

    /// Whether such a receive is one to look up ahead.
    #[inline]
    pub(super) fn is_ahead(&self, source: Option<Rank>, length: usize) -> bool {
        let peer = source.and_then(|rank| self.peers.get(rank as usize));
        peer.is_some_and(|peer| length >= peer.ahead_from && peer.ahead_left > 0)
    }

    /// A receive was posted.
    #[inline]
    pub(super) fn note_ahead(&mut self, key: u64, source: Option<Rank>, length: usize) {
        if self.is_ahead(source, length) && self.ahead.len() < MOST {
            self.ahead.push(key);
        }
    }

    /// What was looked up is not needed any more.
    pub(super) fn forget_ahead(&mut self, number: u64) {
        if let Some(ahead) = self
            .transfers
            .get_mut(number)
            .and_then(|transfer| transfer.ahead.take())
        {
            self.released.push(ahead);
        }
    }
}

impl Core {
    /// There is nothing else to do.
    #[cold]
    pub(super) fn look_ahead(&mut self) {
        let Some(key) = self.engine.ahead.pop() else {
            return;
        };
        let Some(request) = self.engine.requests.get_mut(key) else {
            return;
        };
        let Memory::Write(memory) = request.memory else {
            return;
        };
        if request.state != State::Posted || request.transfer != 0 {
            return;
        }
        let rank = request.peer;
        let Some(peer) = self.engine.peers.get_mut(rank as usize) else {
            return;
        };
        let lane = peer.one_sided.and_then(|at| peer.lanes.get(at));
        let Some(number) = lane
            .filter(|_| peer.alive && peer.ahead_left > 0)
            .map(|lane| lane.transport)
        else {
            return;
        };
        peer.ahead_left -= 1;
        let Some(transport) = self.transports.get_mut(usize::from(number)) else {
            return;
        };
        // SAFETY: writable and nobody else's until the request is over, and given back before anybody hears that it is.
        let handle = unsafe { transport.btl.register_ahead(memory.at(0), memory.len()) };
        if let Some(handle) = handle {
            let transfer = Transfer {
                ahead: Some((number, handle)),
                ..Transfer::new(key, rank, number)
            };
            request.transfer = self.engine.transfers.insert(transfer);
            self.engine.stats.ahead += 1;
        }
    }

    /// Registers the memory of a message whose announcement is under way.
    pub(super) fn register_ahead(&mut self, rank: Rank, number: u64, memory: ReadMem) {
        let Some(peer) = self.engine.peers.get(rank as usize) else {
            return;
        };
        let Some(lane) = peer.one_sided.and_then(|at| peer.lanes.get(at)) else {
            return;
        };
        let (transport, from) = (lane.transport, peer.ahead_from);
        let Some(transfer) = self.engine.transfers.get_mut(number) else {
            return;
        };
        if memory.len() < from || transfer.ahead.is_some() {
            return;
        }
        if let Some(btl) = self.transports.get_mut(usize::from(transport)) {
            // SAFETY: valid until the request is over, and given back before anybody hears that it is. Nobody gets the key.
            let region = unsafe { btl.btl.register(memory.at(0).cast_mut(), memory.len()) };
            transfer.ahead = region.ok().map(|region| (transport, region.handle));
        }
    }
}
