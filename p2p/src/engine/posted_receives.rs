//! Posted-receive copy (LiMIC, section 4.3): a receive is published to its senders, and whichever
//! side comes later copies.
//!
//! A receive may be published only if no older unpublished receive could match the same message.

use crate::envelope::Selector;
use crate::ids::PeerId;
use btl::{PostedDelivery, PostedReceive, SendError};

use super::outgoing::Attempt;
use super::protocol::Protocol;
use super::request::{Outcome, Request};
use super::transports::Engine;
use crate::memory::{ReadMem, WriteMem};

impl Protocol {
    /// Counts a receive that is not published.
    #[inline]
    pub(super) fn count_private(&mut self, source: Option<PeerId>) {
        match source {
            None => self.private_any += 1,
            Some(peer) => {
                self.private_named += 1;
                self.peers[peer].private += 1;
            }
        }
    }

    /// Reverses [`count_private`](Protocol::count_private).
    #[inline]
    pub(super) fn uncount_private(&mut self, source: Option<PeerId>) {
        match source {
            None => self.private_any -= 1,
            Some(peer) => {
                self.private_named -= 1;
                self.peers[peer].private -= 1;
            }
        }
    }
}

impl Engine {
    /// Copies a long message into a receive that the peer has published. `Blocked`: there is none.
    pub(super) fn send_to_posted(
        &mut self,
        peer: PeerId,
        key: u64,
        request: &Request,
        memory: ReadMem,
    ) -> Attempt {
        let state = &self.protocol.peers[peer];
        // A send with a transfer was tried before; only its RTS found no room.
        let possible = self.protocol.config.posted_receives
            && memory.len() >= state.one_sided_from
            && request.transfer == 0;
        let Some(primary) = state.primary().filter(|_| possible) else {
            return Attempt::Blocked;
        };
        let transport = &mut self.transports[primary];
        if !transport.capabilities.posted_receives {
            return Attempt::Blocked;
        }
        let envelope = btl::Envelope {
            context: request.context,
            tag: request.tag,
        };
        let (at, length) = (memory.at(0), memory.len());
        // SAFETY: the memory is readable until the request is over, and it is not over.
        match unsafe {
            transport
                .btl
                .send_to_posted(peer.rank(), envelope, at, length)
        } {
            Ok(PostedDelivery::Delivered) => {
                self.protocol.stats.posted_sent += 1;
                self.protocol.end(key, Outcome::Done);
                Attempt::Sent
            }
            Err(SendError::Failed { error, .. }) => {
                self.protocol.fail(peer, error, None);
                Attempt::Failed
            }
            Ok(PostedDelivery::NotPosted) | Err(_) => Attempt::Blocked,
        }
    }

    /// Publishes a receive to the peers that it selects. Returns false if it stays private.
    pub(super) fn publish(&mut self, key: u64, memory: WriteMem, selector: &Selector) -> bool {
        let protocol = &self.protocol;
        if memory.len() < protocol.publish_from || protocol.private_any != 0 {
            return false;
        }
        let id = match selector.source {
            // All possible senders must see it, so there must be one transport only.
            None if self.transports.len() == 1
                && protocol.private_named == 0
                && memory.len() >= protocol.publish_any_from =>
            {
                self.transports.ids().next()
            }
            None => None,
            Some(peer) => {
                let state = &protocol.peers[peer];
                let short = memory.len() < state.one_sided_from;
                let private = short || state.private != 0 || state.rails.len() > 1;
                state.primary().filter(|_| !private)
            }
        };
        let Some(id) = id.filter(|id| self.transports[*id].capabilities.posted_receives) else {
            return false;
        };
        let receive = PostedReceive {
            source: selector.source.map(PeerId::rank),
            context: selector.context,
            tag: selector.tag,
            buffer: memory.at(0),
            length: memory.len(),
            token: key,
        };
        // SAFETY: the memory is writable and not used by others until the request is over, which is
        // not before the event or a successful withdrawal.
        let Some(post) = (unsafe { self.transports[id].btl.post(&receive) }) else {
            return false;
        };
        if let Some(request) = self.protocol.requests.get_mut(key) {
            request.post = Some((id, post));
        }
        true
    }
}
