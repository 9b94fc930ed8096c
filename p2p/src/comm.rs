//! Communicators: a context and its ranks.

use std::fmt;
use std::sync::Arc;

use btl::Rank;

use crate::collectives::Placement;
use crate::engine::{Engine, Request, State};
use crate::error::Error;
use crate::group::Group;
use crate::ids::{ANY_TAG, Destination, PeerId, Selector};
use crate::memory::Memory;
use crate::owned::OwnedRequest;
use crate::p2p::P2p;
use crate::scope::Scope;
use crate::types::{RequestId, Source, Status, Tag};

/// Communicator as in MPI: ranks whose messages are separate from those of other communicators.
/// Clones refer to one communicator.
///
/// Calls take ranks of the communicator, which start at 0. Messages from one sender to one receiver
/// that match one receive are received in the order they were sent.
#[derive(Clone)]
pub struct Comm {
    pub(crate) inner: Arc<Inner>,
}

/// State shared by the clones.
pub(crate) struct Inner {
    pub(crate) layer: P2p,
    pub(crate) group: Arc<Group>,
    /// Context, an even number; the next odd number is the context of the collectives.
    pub(crate) context: u32,
    /// Communicator of the collectives, with equal ranks; `None` for that communicator itself.
    hidden: Option<Comm>,
    /// Nodes of the ranks, if collectives have two levels.
    placement: Option<Placement>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.hidden.is_some() {
            let mut engine = self.layer.shared.lock();
            engine.protocol.forget_context(self.context);
            engine.do_work();
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
    pub(crate) fn new(layer: &P2p, group: &Arc<Group>, context: u32) -> Comm {
        let comm = |context, hidden, placement| Comm {
            inner: Arc::new(Inner {
                layer: layer.clone(),
                group: Arc::clone(group),
                context,
                hidden,
                placement,
            }),
        };
        let placement = Placement::of(group, &layer.shared.nodes);
        comm(context, Some(comm(context + 1, None, None)), placement)
    }

    /// Returns the communicator for messages of collectives. Receives of the program do not match
    /// them.
    pub(crate) fn hidden(&self) -> &Comm {
        self.inner.hidden.as_ref().unwrap_or(self)
    }

    /// Returns this process's rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.inner.group.mine
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.group.size()
    }

    /// Returns the number of the context, which is equal on all ranks. For logs.
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

    /// Returns the nodes of the ranks, if collectives have two levels.
    pub(crate) fn placement(&self) -> Option<&Placement> {
        self.inner.placement.as_ref()
    }

    pub(crate) fn layer(&self) -> &P2p {
        &self.inner.layer
    }

    #[inline]
    pub(crate) fn destination(&self, dst: Rank, tag: i32) -> Result<Destination, Error> {
        Ok(Destination {
            context: self.inner.context,
            tag: checked(tag)?,
            data: None,
            peer: self.peer(dst)?,
        })
    }

    #[inline]
    pub(crate) fn selector(&self, src: Source, tag: Tag) -> Result<Selector, Error> {
        let source = match src {
            Source::Any => None,
            Source::Rank(rank) => Some(self.peer(rank)?),
        };
        let (tag, ignore) = match tag {
            Tag::Any => (0, ANY_TAG),
            Tag::Is(tag) => (checked(tag)?, 0),
        };
        Ok(Selector {
            context: self.inner.context,
            source,
            tag,
            ignore,
        })
    }

    /// Sends a message and returns when the buffer may be used again (MPI standard send). The
    /// message may not have been received by then.
    ///
    /// # Errors
    /// `InvalidRank`, `InvalidTag`, `PeerFailed`, `Closed`.
    #[inline]
    pub fn send(&self, buffer: &[u8], dst: Rank, tag: i32) -> Result<(), Error> {
        let to = self.destination(dst, tag)?;
        // A closed transport refuses. The context exists, because this communicator has it.
        if self.layer().shared.lock().send_fast(to, buffer) {
            return Ok(());
        }
        self.send_slow(buffer, to, false)
    }

    /// Sends a message and returns when a receive has matched it (MPI synchronous send).
    ///
    /// # Errors
    /// As [`send`](Comm::send).
    pub fn ssend(&self, buffer: &[u8], dst: Rank, tag: i32) -> Result<(), Error> {
        self.send_slow(buffer, self.destination(dst, tag)?, true)
    }

    #[cold]
    fn send_slow(&self, buffer: &[u8], to: Destination, sync: bool) -> Result<(), Error> {
        let shared = &self.layer().shared;
        // SAFETY: borrowed during this call, which returns when the request is complete.
        let memory = unsafe { Memory::to_read(buffer.as_ptr(), buffer.len()) };
        let mut engine = shared.lock();
        let mut request = Request::send(memory, to, sync);
        request.lent = true;
        let key = engine.submit(to, request)?;
        shared.finish(engine, key).map(|_| ())
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
        let shared = &self.layer().shared;
        // SAFETY: borrowed during this call, which returns when the request is complete.
        let memory = unsafe { Memory::to_write(buffer.as_mut_ptr(), buffer.len()) };
        let mut engine = shared.lock();
        if engine.protocol.receive_direct(memory, selector)? {
            return shared.wait_direct(engine, selector.source);
        }
        let key = engine.receive(Request::receive(memory, &selector, true))?;
        shared.finish(engine, key)
    }

    /// Sends and receives concurrently, so that two ranks may call it with each other.
    ///
    /// # Errors
    /// As [`send`](Comm::send) and [`recv`](Comm::recv); both are complete in any case.
    pub fn sendrecv(
        &self,
        out: &[u8],
        dst: Rank,
        send_tag: i32,
        buffer: &mut [u8],
        src: impl Into<Source>,
        recv_tag: impl Into<Tag>,
    ) -> Result<Status, Error> {
        self.destination(dst, send_tag)?;
        let selector = self.selector(src.into(), recv_tag.into())?;
        let shared = &self.layer().shared;
        // SAFETY: borrowed during this call, which returns when the request is complete.
        let memory = unsafe { Memory::to_write(buffer.as_mut_ptr(), buffer.len()) };
        let request = Request::receive(memory, &selector, true);
        let receive = shared.lock().receive(request)?;
        let sent = self.send(out, dst, send_tag);
        if sent.is_err() {
            // The peer may now never send the message.
            let _ = shared.lock().cancel(receive);
        }
        let received = shared.finish(shared.lock(), receive);
        sent.and(received)
    }

    /// Waits for a message that a receive with these arguments would match, without receiving it.
    ///
    /// # Errors
    /// As [`recv`](Comm::recv), except `Truncated`.
    pub fn probe(&self, src: impl Into<Source>, tag: impl Into<Tag>) -> Result<Status, Error> {
        let selector = self.selector(src.into(), tag.into())?;
        self.look_until(selector, false).map(|found| found.1)
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
        Ok(self.look(selector, false)?.map(|found| found.1))
    }

    /// Waits for a message that a receive with these arguments would match, and removes it from the
    /// matching: only the returned [`Message`] can receive it.
    ///
    /// # Errors
    /// As [`probe`](Comm::probe).
    pub fn mprobe(&self, src: impl Into<Source>, tag: impl Into<Tag>) -> Result<Message, Error> {
        let selector = self.selector(src.into(), tag.into())?;
        let found = self.look_until(selector, true)?;
        Ok(Message::new(self, found))
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
        let found = self.look(selector, true)?;
        Ok(found.map(|found| Message::new(self, found)))
    }

    /// Searches for a message. With `takes`, removes it from the matching.
    fn look(&self, selector: Selector, takes: bool) -> Result<Option<(u64, Status)>, Error> {
        let find = |engine: &mut Engine| engine.protocol.find(&selector, takes).transpose();
        self.layer().shared.attempt(None, find).transpose()
    }

    /// Waits for a message.
    fn look_until(&self, selector: Selector, takes: bool) -> Result<(u64, Status), Error> {
        let find = |engine: &mut Engine| engine.protocol.find(&selector, takes).transpose();
        let shared = &self.layer().shared;
        shared.wait_until(shared.lock(), None, find)
    }

    /// Runs sends and receives concurrently on borrowed buffers, like [`std::thread::scope`].
    /// Returns when all are complete; after an error or a panic it first cancels those that can be
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
    /// The error of the function, otherwise the first error of a request that it has not waited
    /// for.
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
        // SAFETY: `OwnedRequest` keeps the memory of the vector until the request is complete.
        let memory = unsafe { Memory::to_read(buffer.as_ptr(), buffer.len()) };
        let id = self.isend_memory(memory, dst, tag, (false, true))?;
        Ok(OwnedRequest::new(self.layer(), id, buffer))
    }

    /// Starts to receive into a buffer that the request owns. Its length, not its capacity, limits
    /// the message.
    ///
    /// # Errors
    /// As [`recv`](Comm::recv).
    pub fn irecv_owned(
        &self,
        mut buffer: Vec<u8>,
        src: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> Result<OwnedRequest, Error> {
        // SAFETY: as in `isend_owned`.
        let memory = unsafe { Memory::to_write(buffer.as_mut_ptr(), buffer.len()) };
        let id = self.irecv_memory(memory, src.into(), tag.into(), true)?;
        Ok(OwnedRequest::new(self.layer(), id, buffer))
    }

    /// Starts to send `length` bytes, for bindings to other languages. Safe alternatives are
    /// [`scope`](Comm::scope) and [`isend_owned`](Comm::isend_owned).
    ///
    /// # Safety
    /// `at` must be valid for reads of `length` bytes, and the bytes must not change, until the
    /// request is complete: [`P2p::wait`](crate::P2p::wait) or a successful test has returned, or
    /// the layer is finalized. After [`P2p::free`](crate::P2p::free), this must hold until the
    /// layer is finalized.
    ///
    /// # Errors
    /// As [`send`](Comm::send).
    pub unsafe fn isend_raw(
        &self,
        at: *const u8,
        length: usize,
        dst: Rank,
        tag: i32,
    ) -> Result<RequestId, Error> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Memory::to_read(at, length) };
        self.isend_memory(memory, dst, tag, (false, false))
    }

    /// Like [`isend_raw`](Comm::isend_raw), but synchronous: it completes when a receive has
    /// matched the message.
    ///
    /// # Safety
    /// As [`isend_raw`](Comm::isend_raw).
    ///
    /// # Errors
    /// As [`send`](Comm::send).
    pub unsafe fn issend_raw(
        &self,
        at: *const u8,
        length: usize,
        dst: Rank,
        tag: i32,
    ) -> Result<RequestId, Error> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Memory::to_read(at, length) };
        self.isend_memory(memory, dst, tag, (true, false))
    }

    /// Starts to receive at most `length` bytes, for bindings to other languages.
    ///
    /// # Safety
    /// `at` must be valid for writes of `length` bytes, and the bytes must not be accessed by
    /// others, until the request is complete as for [`isend_raw`](Comm::isend_raw).
    ///
    /// # Errors
    /// As [`recv`](Comm::recv).
    pub unsafe fn irecv_raw(
        &self,
        at: *mut u8,
        length: usize,
        src: Source,
        tag: Tag,
    ) -> Result<RequestId, Error> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Memory::to_write(at, length) };
        self.irecv_memory(memory, src, tag, false)
    }

    /// Starts a send. `lent` states that safe code lends the memory and waits for the end.
    pub(crate) fn isend_memory(
        &self,
        memory: Memory,
        dst: Rank,
        tag: i32,
        (sync, lent): (bool, bool),
    ) -> Result<RequestId, Error> {
        let to = self.destination(dst, tag)?;
        let mut engine = self.layer().shared.lock();
        let mut request = Request::send(memory, to, sync);
        request.lent = lent;
        // SAFETY: the promise of `Memory::to_read` holds during this call.
        let body = unsafe { memory.bytes() };
        if !sync && engine.send_fast(to, body) {
            request.state = State::Complete;
            return Ok(RequestId(engine.protocol.requests.insert(request)));
        }
        engine.submit(to, request).map(RequestId)
    }

    /// Starts a receive. `lent` is as for sends.
    pub(crate) fn irecv_memory(
        &self,
        memory: Memory,
        src: Source,
        tag: Tag,
        lent: bool,
    ) -> Result<RequestId, Error> {
        let selector = self.selector(src, tag)?;
        let mut engine = self.layer().shared.lock();
        let request = Request::receive(memory, &selector, lent);
        engine.receive(request).map(RequestId)
    }
}

/// Returns a tag in the engine's form.
#[inline]
fn checked(tag: i32) -> Result<u64, Error> {
    u64::try_from(tag).map_err(|_| Error::InvalidTag { tag })
}

/// Message removed from the matching by [`Comm::mprobe`]. It is discarded when dropped.
#[derive(Debug)]
pub struct Message {
    comm: Comm,
    /// `None` once it was received.
    entry: Option<u64>,
    status: Status,
}

impl Message {
    fn new(comm: &Comm, (entry, status): (u64, Status)) -> Message {
        Message {
            comm: comm.clone(),
            entry: Some(entry),
            status,
        }
    }

    /// Returns the sender, tag and length.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives the message.
    ///
    /// # Errors
    /// `Truncated`, `PeerFailed`, `Closed`.
    pub fn recv(self, buffer: &mut [u8]) -> Result<Status, Error> {
        let layer = self.comm.layer().clone();
        // SAFETY: borrowed during this call, which returns when the request is complete.
        let memory = unsafe { Memory::to_write(buffer.as_mut_ptr(), buffer.len()) };
        let id = self.irecv_memory(memory, true)?;
        layer.wait(id)
    }

    /// Starts to receive the message into a buffer that the request owns.
    ///
    /// # Errors
    /// As [`recv`](Message::recv).
    pub fn irecv_owned(self, mut buffer: Vec<u8>) -> Result<OwnedRequest, Error> {
        let layer = self.comm.layer().clone();
        // SAFETY: `OwnedRequest` keeps the memory of the vector until the request is complete.
        let memory = unsafe { Memory::to_write(buffer.as_mut_ptr(), buffer.len()) };
        let id = self.irecv_memory(memory, true)?;
        Ok(OwnedRequest::new(&layer, id, buffer))
    }

    fn irecv_memory(mut self, memory: Memory, lent: bool) -> Result<RequestId, Error> {
        let selector = self.comm.selector(Source::Any, Tag::Any)?;
        let entry = self.entry.take().ok_or(Error::UnknownRequest)?;
        let request = Request::receive(memory, &selector, lent);
        let mut engine = self.comm.layer().shared.lock();
        let key = engine.receive_taken(request, entry)?;
        Ok(RequestId(key))
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let mut engine = self.comm.layer().shared.lock();
            engine.protocol.discard(entry);
            engine.do_work();
        }
    }
}
