//! Communicators: a context and its ranks.

use std::fmt;
use std::sync::Arc;

use btl::Rank;

use crate::envelope::{Destination, Selector};
use crate::error::Error;
use crate::group::Group;
use crate::ids::PeerId;
use crate::memory::{ReadMem, WriteMem};
use crate::owned::OwnedRequest;
use crate::scope::Scope;
use crate::shared::Shared;
use crate::types::{RequestId, Source, Status, Tag};

/// Communicator as in MPI: ranks whose messages are separate from those of other communicators. A
/// clone is the same communicator.
///
/// Calls take ranks of the communicator, from 0 on. Messages of one sender to one receiver that
/// match the same receive are received in the order they were sent.
#[derive(Clone)]
pub struct Comm {
    pub(crate) inner: Arc<Inner>,
}

/// State that the clones share.
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) group: Arc<Group>,
    /// Even; the next odd number is the context of the collectives.
    pub(crate) context: u32,
    /// Communicator of the collectives, with the same ranks; `None`: this is that one.
    hidden: Option<Comm>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.hidden.is_some() {
            self.shared.forget_context(self.context);
        }
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comm")
            .field("context", &self.inner.context)
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish()
    }
}

impl Comm {
    pub(crate) fn new(shared: Arc<Shared>, group: Arc<Group>, context: u32) -> Comm {
        let hidden = Inner {
            shared: Arc::clone(&shared),
            group: Arc::clone(&group),
            context: context + 1,
            hidden: None,
        };
        let hidden = Some(Comm {
            inner: Arc::new(hidden),
        });
        Comm {
            inner: Arc::new(Inner {
                shared,
                group,
                context,
                hidden,
            }),
        }
    }

    /// Returns the communicator for messages of collectives. Receives of the program do not match
    /// them.
    pub(crate) fn hidden(&self) -> &Comm {
        self.inner.hidden.as_ref().unwrap_or(self)
    }

    /// Returns the own rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.inner.group.mine
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.group.size()
    }

    /// Returns the number of the context, which is the same on all ranks. For logs.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.inner.context
    }

    /// Returns the rank in the job ([`P2p::world`](crate::P2p::world)) of a rank here.
    ///
    /// # Errors
    /// `InvalidRank`.
    pub fn world_rank(&self, rank: Rank) -> Result<Rank, Error> {
        self.peer(rank).map(PeerId::rank)
    }

    #[inline]
    fn peer(&self, rank: Rank) -> Result<PeerId, Error> {
        self.inner.group.peer(rank).ok_or(Error::InvalidRank {
            rank,
            size: self.size(),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    #[inline]
    pub(crate) fn destination(&self, dst: Rank, tag: i32) -> Result<Destination, Error> {
        if tag < 0 {
            return Err(Error::InvalidTag { tag });
        }
        Ok(Destination {
            context: self.inner.context,
            peer: self.peer(dst)?,
            tag,
        })
    }

    #[inline]
    pub(crate) fn selector(&self, src: Source, tag: Tag) -> Result<Selector, Error> {
        let source = match src {
            Source::Any => None,
            Source::Rank(rank) => Some(self.peer(rank)?),
        };
        let tag = match tag {
            Tag::Any => None,
            Tag::Is(tag) if tag < 0 => return Err(Error::InvalidTag { tag }),
            Tag::Is(tag) => Some(tag),
        };
        Ok(Selector {
            context: self.inner.context,
            source,
            tag,
        })
    }

    /// Sends a message and returns when the buffer may be used again (MPI standard send). The
    /// message may not have been received by then.
    ///
    /// # Errors
    /// `InvalidRank`, `InvalidTag`, `PeerFailed`, `Closed`.
    #[inline]
    pub fn send(&self, buffer: &[u8], dst: Rank, tag: i32) -> Result<(), Error> {
        let destination = self.destination(dst, tag)?;
        self.inner.shared.send(destination, buffer, false)
    }

    /// Sends a message and returns when a receive has taken it (MPI synchronous send).
    ///
    /// # Errors
    /// As [`send`](Comm::send).
    pub fn ssend(&self, buffer: &[u8], dst: Rank, tag: i32) -> Result<(), Error> {
        let destination = self.destination(dst, tag)?;
        self.inner.shared.send(destination, buffer, true)
    }

    /// Receives the oldest message that matches, or waits for one.
    ///
    /// # Errors
    /// `InvalidRank`, `InvalidTag`, `Truncated`, `PeerFailed`, `Closed`.
    #[inline]
    pub fn recv(
        &self,
        buffer: &mut [u8],
        src: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Status, Error> {
        let selector = self.selector(src.into(), tag.into())?;
        self.inner.shared.recv(selector, buffer)
    }

    /// Sends and receives at the same time, so that two ranks may call it with each other.
    ///
    /// # Errors
    /// As [`send`](Comm::send) and [`recv`](Comm::recv); both are over in any case.
    pub fn sendrecv(
        &self,
        out: &[u8],
        dst: Rank,
        send_tag: i32,
        buffer: &mut [u8],
        src: impl Into<Source>,
        recv_tag: impl Into<Tag>,
    ) -> Result<Status, Error> {
        let destination = self.destination(dst, send_tag)?;
        let selector = self.selector(src.into(), recv_tag.into())?;
        self.inner
            .shared
            .sendrecv(destination, out, selector, buffer)
    }

    /// Waits for a message that such a receive would match, without receiving it.
    ///
    /// # Errors
    /// As [`recv`](Comm::recv), but for `Truncated`.
    pub fn probe(&self, src: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status, Error> {
        let selector = self.selector(src.into(), tag.into())?;
        self.inner.shared.probe(selector)
    }

    /// Like [`probe`](Comm::probe), without waiting.
    ///
    /// # Errors
    /// As [`probe`](Comm::probe).
    pub fn iprobe(
        &self,
        src: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Status>, Error> {
        let selector = self.selector(src.into(), tag.into())?;
        self.inner.shared.iprobe(selector)
    }

    /// Waits for a message that such a receive would match, and removes it from the matching: only
    /// the returned [`Message`] can receive it.
    ///
    /// # Errors
    /// As [`probe`](Comm::probe).
    pub fn mprobe(&self, src: impl Into<Source>, tag: impl Into<Tag>) -> Result<Message, Error> {
        let selector = self.selector(src.into(), tag.into())?;
        let (taken, status) = self.inner.shared.mprobe(selector)?;
        Ok(Message {
            comm: self.clone(),
            taken: Some(taken),
            status,
        })
    }

    /// Like [`mprobe`](Comm::mprobe), without waiting.
    ///
    /// # Errors
    /// As [`probe`](Comm::probe).
    pub fn improbe(
        &self,
        src: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<Option<Message>, Error> {
        let selector = self.selector(src.into(), tag.into())?;
        let found = self.inner.shared.improbe(selector)?;
        Ok(found.map(|(taken, status)| Message {
            comm: self.clone(),
            taken: Some(taken),
            status,
        }))
    }

    /// Runs sends and receives concurrently on borrowed buffers, like [`std::thread::scope`].
    /// Returns when all are over; after an error or a panic it first cancels those that can be
    /// cancelled.
    ///
    /// ```no_run
    /// # fn f(comm: &p2p::Comm) -> Result<(), p2p::Error> {
    /// let out = [1u8; 100];
    /// let mut buffer = [0u8; 100];
    /// comm.scope(|s| {
    ///     let receive = s.irecv(&mut buffer, p2p::Source::Any, 7)?;
    ///     s.isend(&out, 0, 7)?;
    ///     receive.wait()?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of the function, or else the first error of a request that it has not waited for.
    pub fn scope<'env, R>(
        &self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        crate::scope::run(self, f)
    }

    /// Starts to send a buffer that the request owns.
    ///
    /// # Errors
    /// As [`send`](Comm::send).
    pub fn isend_owned(&self, buffer: Vec<u8>, dst: Rank, tag: i32) -> Result<OwnedRequest, Error> {
        let destination = self.destination(dst, tag)?;
        OwnedRequest::send(self, buffer, destination)
    }

    /// Starts to receive into a buffer that the request owns. Its length, not its capacity, limits
    /// the message.
    ///
    /// # Errors
    /// As [`recv`](Comm::recv).
    pub fn irecv_owned(
        &self,
        buffer: Vec<u8>,
        src: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<OwnedRequest, Error> {
        let selector = self.selector(src.into(), tag.into())?;
        OwnedRequest::recv(self, buffer, selector)
    }

    pub(crate) fn isend_mem(
        &self,
        memory: ReadMem,
        dst: Rank,
        tag: i32,
        lent: bool,
    ) -> Result<RequestId, Error> {
        self.inner
            .shared
            .isend(self.destination(dst, tag)?, memory, false, lent)
    }

    pub(crate) fn issend_mem(
        &self,
        memory: ReadMem,
        dst: Rank,
        tag: i32,
        lent: bool,
    ) -> Result<RequestId, Error> {
        self.inner
            .shared
            .isend(self.destination(dst, tag)?, memory, true, lent)
    }

    pub(crate) fn irecv_mem(
        &self,
        memory: WriteMem,
        src: Source,
        tag: Tag,
        lent: bool,
    ) -> Result<RequestId, Error> {
        self.inner
            .shared
            .irecv(self.selector(src, tag)?, memory, lent)
    }
}

/// Message removed from the matching by [`Comm::mprobe`]. If it is dropped, it is discarded.
#[derive(Debug)]
pub struct Message {
    comm: Comm,
    taken: Option<u64>,
    status: Status,
}

impl Message {
    /// Returns the sender, tag and length.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives the message.
    ///
    /// # Errors
    /// `Truncated`, `PeerFailed`, `Closed`.
    pub fn recv(mut self, buffer: &mut [u8]) -> Result<Status, Error> {
        let Some(taken) = self.taken.take() else {
            return Err(Error::FreedRequest);
        };
        self.comm
            .inner
            .shared
            .recv_taken(self.comm.inner.context, taken, buffer)
    }

    /// Starts to receive the message into a buffer that the request owns.
    ///
    /// # Errors
    /// As [`recv`](Message::recv).
    pub fn irecv_owned(mut self, buffer: Vec<u8>) -> Result<OwnedRequest, Error> {
        let Some(taken) = self.taken.take() else {
            return Err(Error::FreedRequest);
        };
        OwnedRequest::recv_taken(&self.comm, buffer, taken)
    }

    pub(crate) fn irecv_mem(mut self, memory: WriteMem) -> Result<RequestId, Error> {
        let Some(taken) = self.taken.take() else {
            return Err(Error::FreedRequest);
        };
        self.comm
            .inner
            .shared
            .irecv_taken(self.comm.inner.context, taken, memory, false)
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.comm.inner.shared.discard(taken);
        }
    }
}
