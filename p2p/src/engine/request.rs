//! One send or receive.

use crate::envelope::{Destination, Selector};
use crate::ids::{PeerId, TransportId};
use btl::PostId;

use crate::memory::{ReadMem, WriteMem};

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Receive without a message.
    Posted,
    /// Published receive that a peer is filling.
    Claimed,
    /// Send whose envelope was not sent.
    Queued,
    /// Send whose envelope was sent; the receiver has to answer.
    Waiting,
    /// Bytes are moving.
    Moving,
    /// The result is there.
    Over,
}

/// End of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Cancelled,
    /// This peer failed.
    Failed(PeerId),
    Closed,
}

/// Memory of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    Read(ReadMem),
    Write(WriteMem),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) memory: Memory,
    pub(crate) state: State,
    pub(crate) outcome: Outcome,
    /// Synchronous send.
    pub(crate) sync: bool,
    /// The program has freed it.
    pub(crate) detached: bool,
    /// Safe code lent the memory and must wait for the end.
    pub(crate) lent: bool,
    /// Destination of a send. Source that a receive selects (`None`: any), then the message's
    /// source.
    pub(crate) peer: Option<PeerId>,
    pub(crate) context: u32,
    /// Tag that a receive selects (-1: any), then the message's tag.
    pub(crate) tag: i32,
    /// Length of the message, in bytes.
    pub(crate) length: usize,
    /// Published by this transport under this name.
    pub(crate) post: Option<(TransportId, PostId)>,
    /// Number of its transfer, or 0.
    pub(crate) transfer: u64,
}

impl Request {
    #[inline]
    pub(crate) fn send(memory: ReadMem, to: Destination, sync: bool) -> Request {
        Request {
            memory: Memory::Read(memory),
            state: State::Queued,
            outcome: Outcome::Done,
            sync,
            detached: false,
            lent: false,
            peer: Some(to.peer),
            context: to.context,
            tag: to.tag,
            length: memory.len(),
            post: None,
            transfer: 0,
        }
    }

    #[inline]
    pub(crate) fn receive(memory: WriteMem, selector: &Selector) -> Request {
        Request {
            memory: Memory::Write(memory),
            state: State::Posted,
            outcome: Outcome::Done,
            sync: false,
            detached: false,
            lent: false,
            peer: selector.source,
            context: selector.context,
            tag: selector.tag.unwrap_or(-1),
            length: 0,
            post: None,
            transfer: 0,
        }
    }

    pub(crate) fn is_send(&self) -> bool {
        matches!(self.memory, Memory::Read(_))
    }

    /// Returns what a posted receive selects.
    #[inline]
    pub(crate) fn selector(&self) -> Selector {
        Selector {
            context: self.context,
            source: self.peer,
            tag: (self.tag >= 0).then_some(self.tag),
        }
    }

    /// Returns the size of a receive's buffer.
    pub(crate) fn room(&self) -> usize {
        match self.memory {
            Memory::Write(memory) => memory.len(),
            Memory::Read(_) => 0,
        }
    }

    /// Copies into a receive's memory.
    #[inline]
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        if let Memory::Write(memory) = self.memory {
            memory.fill(offset, bytes);
        }
    }

    /// Returns the part `offset..offset + length` of a send's memory.
    ///
    /// # Safety
    /// The slice is used only until the request is over.
    pub(crate) unsafe fn part<'a>(&self, offset: usize, length: usize) -> &'a [u8] {
        match self.memory {
            // SAFETY: the caller promises the same.
            Memory::Read(memory) => unsafe { memory.part(offset, length) },
            Memory::Write(_) => &[],
        }
    }
}
