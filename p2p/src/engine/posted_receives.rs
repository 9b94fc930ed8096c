//! Posted-receive copy (LiMIC, section 4.3): a receive is published to its senders, and the side
//! that arrives later copies.
//!
//! A receive may be published only if no older unpublished receive could match a message for it.

use btl::{PostedDelivery, PostedReceive};

use super::outgoing::Attempt;
use super::request::{Request, RequestOutcome};
use super::transports::Engine;
use crate::ids::{PeerId, Selector};
use crate::memory::Memory;
use crate::types::narrow;

impl Engine {
    /// Copies a long message into a receive that the peer has published. Returns `Blocked` if there
    /// is none.
    pub(super) fn send_to_posted(&mut self, peer: PeerId, key: u64, request: &Request) -> Attempt {
        let state = &self.protocol.peers[peer];
        // A send with a transfer was tried before; only its RTS found no room.
        let possible = self.protocol.config.posted_receives
            && request.length >= state.one_sided_from
            && request.transfer == 0;
        let Some(primary) = state.primary().filter(|_| possible) else {
            return Attempt::Blocked;
        };
        let envelope = btl::Envelope {
            context: request.context,
            tag: narrow(request.tag),
        };
        let (at, btl) = (request.memory.at(0), &mut self.transports[primary].btl);
        // SAFETY: the memory is readable until the request is complete; it is not complete yet.
        match unsafe { btl.send_to_posted(peer.rank(), envelope, at, request.length) } {
            Ok(PostedDelivery::Delivered) => {
                self.protocol.end(key, RequestOutcome::Done);
                Attempt::Sent
            }
            Ok(PostedDelivery::NotPosted) | Err(_) => Attempt::Blocked,
        }
    }

    /// Publishes a receive to the peers that it selects. Returns false if it stays private, as all
    /// receives do while a private one is posted.
    pub(super) fn publish(&mut self, key: u64, memory: Memory, selector: &Selector) -> bool {
        let protocol = &self.protocol;
        if memory.len() < protocol.publish_from || protocol.private != 0 {
            return false;
        }
        let id = match selector.source {
            // All possible senders must see it, so there must be only one transport.
            None => self
                .transports
                .ids()
                .next()
                .filter(|_| self.transports.len() == 1),
            Some(peer) => {
                let state = &protocol.peers[peer];
                let fits = memory.len() >= state.one_sided_from && state.rails.len() == 1;
                state.primary().filter(|_| fits)
            }
        };
        let Some(id) = id else {
            return false;
        };
        let receive = PostedReceive {
            source: selector.source.map(PeerId::rank),
            context: selector.context,
            tag: (selector.ignore == 0).then_some(narrow(selector.tag)),
            buffer: memory.at(0),
            length: memory.len(),
            token: key,
        };
        // SAFETY: the memory is writable and not used by others until the request is complete,
        // which is not before the event or a successful withdrawal.
        let post = unsafe { self.transports[id].btl.post(&receive) };
        self.protocol.requests[key].post = post.map(|post| (id, post));
        post.is_some()
    }
}
