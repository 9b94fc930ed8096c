//! The sender's memory of a message whose RTS is under way is registered meanwhile: the answer will
//! most likely be a put.

use btl::Rank;

use super::{Core, Engine};
use crate::memory::ReadMem;

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
