//! One send or receive.

use crate::ids::{Destination, Label, PeerId, Selector};
use crate::memory::Memory;
use crate::regions::Refusal;

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Receive without a message.
    Posted,
    /// Send whose envelope was not sent.
    Queued,
    /// Send whose envelope was sent; the receiver must answer.
    Waiting,
    /// Bytes are moving.
    Moving,
    /// The result is available.
    Complete,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Done,
    Cancelled,
    /// This peer failed.
    Failed(PeerId),
    Closed,
    /// The peer refused an access to its memory.
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) memory: Memory,
    pub(crate) state: State,
    pub(crate) outcome: RequestOutcome,
    /// Synchronous send.
    pub(crate) sync: bool,
    /// The program has freed it.
    pub(crate) detached: bool,
    /// Safe code lent the memory and must wait for the completion.
    pub(crate) lent: bool,
    /// Destination of a send. Source that a receive selects (`None`: any), then the message's
    /// source.
    pub(crate) peer: Option<PeerId>,
    pub(crate) context: u32,
    /// Tag that a receive selects, then the message's tag.
    pub(crate) tag: u64,
    /// Bits of the tag that a receive does not compare.
    pub(crate) ignore: u64,
    /// Number passed from the sender to the receiver.
    pub(crate) data: Option<u64>,
    /// Id given by the owner of an endpoint, by which the completion is reported.
    pub(crate) cookie: Option<u64>,
    /// Length of the message, in bytes.
    pub(crate) length: usize,
    /// Number of its transfer, or 0.
    pub(crate) transfer: u64,
    /// Number of its access to a peer's memory, or 0.
    pub(crate) access: u64,
}

impl Request {
    #[inline]
    pub(crate) fn send(memory: Memory, to: Destination, sync: bool) -> Request {
        let selector = Selector {
            context: to.context,
            source: Some(to.peer),
            tag: to.tag,
            ignore: 0,
        };
        Request {
            state: State::Queued,
            sync,
            length: memory.len(),
            data: to.data,
            ..Request::receive(memory, &selector, false)
        }
    }

    #[inline]
    pub(crate) fn receive(memory: Memory, selector: &Selector, lent: bool) -> Request {
        Request {
            memory,
            state: State::Posted,
            outcome: RequestOutcome::Done,
            sync: false,
            detached: false,
            lent,
            peer: selector.source,
            context: selector.context,
            tag: selector.tag,
            ignore: selector.ignore,
            data: None,
            cookie: None,
            length: 0,
            transfer: 0,
            access: 0,
        }
    }

    /// Creates the request of an access: memory to read from is written to the peer.
    pub(crate) fn access(memory: Memory, peer: PeerId, access: u64) -> Request {
        let selector = Selector {
            context: 0,
            source: Some(peer),
            tag: 0,
            ignore: 0,
        };
        Request {
            state: State::Queued,
            length: memory.len(),
            access,
            ..Request::receive(memory, &selector, false)
        }
    }

    pub(crate) fn is_send(&self) -> bool {
        !self.memory.is_writable()
    }

    /// Returns the label for the envelope of a send.
    pub(crate) fn label(&self) -> Label {
        Label {
            context: self.context,
            tag: self.tag,
            data: self.data,
        }
    }

    /// Returns the selector of a posted receive.
    #[inline]
    pub(crate) fn selector(&self) -> Selector {
        Selector {
            context: self.context,
            source: self.peer,
            tag: self.tag,
            ignore: self.ignore,
        }
    }
}
