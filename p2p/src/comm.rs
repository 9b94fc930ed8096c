//! Communicators: a context, and the ranks of it.

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

/// Ranks that talk among themselves, apart from all others (an MPI communicator). A clone is the same communicator.
///
/// Calls take ranks of the communicator, counted from 0. Messages of one sender to one receiver that fit the same receive are
/// taken in the order they were sent, whatever their length and the transport they took.
#[derive(Clone)]
pub struct Comm {
    pub(crate) inner: Arc<Inner>,
}

/// What the clones share.
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) group: Arc<Group>,
    /// Even; the next odd one is of the collectives.
    pub(crate) context: u32,
    /// The same ranks in the context of the collectives; `None`: this is that one.
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

    /// For messages of collectives, which no receive of the program ever sees.
    pub(crate) fn hidden(&self) -> &Comm {
        self.inner.hidden.as_ref().unwrap_or(self)
    }

    /// The own rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.inner.group.mine
    }

    /// Ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.group.size()
    }

    /// Number of the context, the same on all ranks. For messages to people.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.inner.context
    }

    /// Rank in the job (of [`P2p::world`](crate::P2p::world)) of a rank here.
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

    /// Sends, and returns when the buffer may be used again; not necessarily received by then (an MPI standard send).
    ///
    /// # Errors
    /// `InvalidRank`, `InvalidTag`, `PeerFailed`, `Closed`.
    #[inline]
    pub fn send(&self, buffer: &[u8], dst: Rank, tag: i32) -> Result<(), Error> {
        let destination = self.destination(dst, tag)?;
        self.inner.shared.send(destination, buffer, false)
    }

    /// Sends, and returns when a receive has taken it (an MPI synchronous send).
    ///
    /// # Errors
    /// As [`send`](Comm::send).
    pub fn ssend(&self, buffer: &[u8], dst: Rank, tag: i32) -> Result<(), Error> {
        let destination = self.destination(dst, tag)?;
        self.inner.shared.send(destination, buffer, true)
    }

    /// Receives the oldest message that fits, or waits for one.
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

    /// Sends and receives at once, so that two ranks may do it to each other.
    ///
    /// # Errors
    /// As [`send`](Comm::send) and [`recv`](Comm::recv); both are over either way.
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

    /// Waits until a message is there that such a receive would take, without taking it.
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

    /// Waits for a message that such a receive would take, and takes it out of the matching: only the answer can receive it.
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

    /// Room for sends and receives that run at the same time on borrowed buffers, like [`std::thread::scope`]. Leaving it waits for
    /// all of them; leaving it by an error or a panic first cancels what can be cancelled.
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
    /// What the function says, or else the first error of a request that it has not waited for.
    pub fn scope<'env, R>(
        &self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        crate::scope::run(self, f)
    }

    /// Starts to send a buffer that the request owns meanwhile.
    ///
    /// # Errors
    /// As [`send`](Comm::send).
    pub fn isend_owned(&self, buffer: Vec<u8>, dst: Rank, tag: i32) -> Result<OwnedRequest, Error> {
        let destination = self.destination(dst, tag)?;
        OwnedRequest::send(self, buffer, destination)
    }

    /// Starts to receive into a buffer that the request owns meanwhile: its length, not its capacity, is the room.
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

/// A message taken out of the matching by [`Comm::mprobe`]. Dropped without being received, it is thrown away.
#[derive(Debug)]
pub struct Message {
    comm: Comm,
    taken: Option<u64>,
    status: Status,
}

impl Message {
    /// Who sent it, its tag, its length.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives it.
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

    /// Starts to receive it into a buffer that the request owns meanwhile.
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
