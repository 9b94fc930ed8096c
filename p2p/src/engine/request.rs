//! One send or receive.

use btl::{PostId, Rank};

use crate::memory::{ReadMem, WriteMem};
use crate::shared::Wanted;

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A receive without a message.
    Posted,
    /// A receive that was shown to the peers, and that one of them fills by itself.
    Claimed,
    /// A send that has not gone out.
    Queued,
    /// A send that went out; the receiver has to answer.
    Waiting,
    /// Bytes are moved.
    Moving,
    /// The result is there.
    Over,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Cancelled,
    /// This peer failed.
    Failed(Rank),
    Closed,
}

/// A peer that is nobody in particular.
pub(crate) const ANY: u32 = u32::MAX;

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
    /// Nobody waits for it any more.
    pub(crate) detached: bool,
    /// Its memory is lent by safe code, which must see its end.
    pub(crate) lent: bool,
    /// Where it goes; whom a receive names, or `ANY`; once it has a message: who sent that. Rank in the job.
    pub(crate) peer: Rank,
    pub(crate) context: u32,
    /// What was asked for; -1: any. Once it has a message: its tag.
    pub(crate) tag: i32,
    /// The message's length.
    pub(crate) length: usize,
    /// Shown to the peers: by this transport, under this name.
    pub(crate) post: Option<(u8, PostId)>,
    /// Number of its transfer, or 0.
    pub(crate) transfer: u64,
}

impl Request {
    #[inline]
    pub(crate) fn send(memory: ReadMem, peer: Rank, context: u32, tag: i32, sync: bool) -> Request {
        Request {
            memory: Memory::Read(memory),
            state: State::Queued,
            outcome: Outcome::Done,
            sync,
            detached: false,
            lent: false,
            peer,
            context,
            tag,
            length: memory.len(),
            post: None,
            transfer: 0,
        }
    }

    #[inline]
    pub(crate) fn receive(memory: WriteMem, wanted: &Wanted) -> Request {
        Request {
            memory: Memory::Write(memory),
            state: State::Posted,
            outcome: Outcome::Done,
            sync: false,
            detached: false,
            lent: false,
            peer: wanted.source.unwrap_or(ANY),
            context: wanted.context,
            tag: wanted.tag.unwrap_or(-1),
            length: 0,
            post: None,
            transfer: 0,
        }
    }

    pub(crate) fn is_send(&self) -> bool {
        matches!(self.memory, Memory::Read(_))
    }

    /// What a posted receive asks for.
    #[inline]
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted {
            context: self.context,
            source: (self.peer != ANY).then_some(self.peer),
            tag: (self.tag >= 0).then_some(self.tag),
        }
    }

    /// Room of a receive.
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
