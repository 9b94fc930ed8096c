//! The layer without ranks.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use btl::{Btl, Rank};

use crate::config::Config;
use crate::engine::{Engine, Peer, Peers, Protocol, Reported, Request, Served, State, Transports};
use crate::error::{Error, NotStarted, StartError};
use crate::ids::{ANY_TAG, Destination, PeerId, Selector};
use crate::memory::Memory;
use crate::p2p::P2p;
use crate::regions::Regions;
use crate::shared::{Shared, bell};
use crate::types::{RequestId, Stats, TransportAddress};

/// Maximum time that [`Endpoint::close`] takes to send queued messages: no launcher ends a peer
/// that does not receive them.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Point-to-point layer of a process that belongs to no job.
///
/// Each endpoint has a random *identity*. It numbers its peers from 1, in the order in which they
/// are added or connect; 0 is the endpoint itself. A peer is added by its identity and addresses
/// and reached by the first send to it. Peers that were not added are admitted when they connect,
/// up to 4096 of them.
///
/// Completed requests are reported by [`poll`](Endpoint::poll) and [`wait`](Endpoint::wait).
/// Matching, protocols, failures and threads are those of the layer of ranks, with one exception: a
/// receive from any peer does not fail with a peer, because others may still connect.
///
/// Clones refer to one endpoint.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
    identity: u64,
}

/// Independent space of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context(u32);

impl Context {
    /// All contexts.
    pub const ALL: [Context; 4] = [Context(0), Context(1), Context(2), Context(3)];

    /// Returns the index in [`ALL`](Context::ALL).
    #[must_use]
    pub fn place(self) -> usize {
        self.0 as usize
    }
}

/// Destination of a message.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Number of the peer.
    pub peer: Rank,
    /// Space of the tag.
    pub context: Context,
    /// Tag.
    pub tag: u64,
    /// Number that the receiver gets with the message.
    pub data: Option<u64>,
    /// The send completes when a receive has taken the message, not when the buffer may be reused.
    pub sync: bool,
}

/// Messages that a receive matches.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Number of the sender; `None`: any.
    pub peer: Option<Rank>,
    /// Space of the tag.
    pub context: Context,
    /// Tag.
    pub tag: u64,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
}

/// State of a send that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is complete, and will not be reported.
    Complete,
    /// Its completion will be reported.
    Pending(RequestId),
}

/// Kind of operation that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A send.
    Sent,
    /// A receive.
    Received,
    /// An access to a peer's memory.
    Accessed,
    /// An access of a peer to memory of this process, which has no request.
    Served {
        /// Key of the region.
        key: u64,
        /// It may have changed the memory.
        writes: bool,
        /// It was an atomic operation.
        atomic: bool,
    },
}

/// A completed request, or an access of a peer.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Number that the caller gave the request; 0 for an access of a peer.
    pub cookie: u64,
    /// Kind of operation.
    pub ended: Ended,
    /// Number of the sender of a received message, or of the peer of an access.
    pub peer: Option<Rank>,
    /// Context of the request.
    pub context: Context,
    /// Tag of the message.
    pub tag: u64,
    /// Number that the sender attached.
    pub data: Option<u64>,
    /// Length of the message, in bytes. If it exceeds the buffer, the buffer holds the beginning.
    pub length: usize,
    /// Error, if it failed.
    pub result: Result<(), Error>,
}

/// A message that waits for a receive.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Name for [`Endpoint::recv_claimed`] and [`Endpoint::discard`], if it was claimed.
    pub claim: u64,
    /// Number of the sender.
    pub peer: Rank,
    /// Tag.
    pub tag: u64,
    /// Number that the sender attached.
    pub data: Option<u64>,
    /// Length, in bytes.
    pub length: usize,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = format_args!("{:#x}", self.identity);
        f.debug_struct("Endpoint")
            .field("identity", &identity)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Opens an endpoint over transports that admit unknown peers ([`btl::PendingPeers`]) and have
    /// the same identity. Its peers may access the memory that `regions` exposes; other endpoints
    /// may share `regions`.
    ///
    /// # Errors
    /// [`NotStarted`] returns the transports.
    pub fn open(
        transports: Vec<Box<dyn Btl>>,
        identity: u64,
        regions: Arc<Regions>,
        config: &Config,
    ) -> Result<Endpoint, NotStarted> {
        let transports = Transports::new(transports);
        let own = match crate::start::check(0, 1, transports.len(), config) {
            Ok(own) => own,
            Err(error) => {
                let transports = transports.into_btls();
                return Err(NotStarted { error, transports });
            }
        };
        let mut protocol = Protocol::new(own, Peers(vec![Peer::own()]), config.clone());
        protocol.open(identity, regions);
        let engine = Engine::new(protocol, transports);
        let shared = bell().and_then(|bell| Shared::new(engine, bell, config));
        let shared = shared.map_err(|what| NotStarted {
            error: StartError::System(what),
            transports: Vec::new(),
        })?;
        Ok(Endpoint {
            shared: Arc::new(shared),
            identity,
        })
    }

    /// Returns the identity.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Returns the addresses by which peers reach this endpoint.
    #[must_use]
    pub fn addresses(&self) -> Vec<TransportAddress> {
        let mut engine = self.shared.lock();
        let transports = engine.transports.iter_mut();
        let mut addresses: Vec<TransportAddress> = transports
            .map(|(_, transport)| TransportAddress {
                transport: transport.btl.name().to_owned(),
                address: transport.btl.address(),
            })
            .collect();
        addresses.retain(|address| !address.address.is_empty());
        addresses
    }

    /// Adds a peer and returns its number. A known identity keeps its number. Nothing is sent: the
    /// first send determines whether the addresses reach the peer.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too many peers.
    pub fn add_peer(&self, identity: u64, addresses: Vec<TransportAddress>) -> Result<Rank, Error> {
        let mut engine = self.shared.lock();
        engine
            .protocol
            .declare(identity, addresses)
            .map(PeerId::rank)
    }

    /// Returns the identity of a peer.
    #[must_use]
    pub fn identity_of(&self, peer: Rank) -> Option<u64> {
        self.shared.lock().protocol.open.as_ref()?.identity_of(peer)
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().protocol.stats()
    }

    /// Starts to send `length` bytes.
    ///
    /// # Safety
    /// `at` must be valid for reads of `length` bytes, and the bytes must not change, until the
    /// send is complete: this call returns [`Sent::Complete`] or an error, the completion is
    /// reported, or the endpoint is closed.
    ///
    /// # Errors
    /// `InvalidRank`, `PeerFailed`, `Closed`.
    #[inline]
    pub unsafe fn send(
        &self,
        at: *const u8,
        length: usize,
        to: &Target,
        cookie: u64,
    ) -> Result<Sent, Error> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Memory::to_read(at, length) };
        let mut engine = self.shared.lock();
        let destination = Destination {
            context: to.context.0,
            peer: peer(&engine, to.peer)?,
            tag: to.tag,
            data: to.data,
        };
        // SAFETY: the promise of `Memory::to_read` holds during this call.
        if !to.sync && engine.send_fast(destination, unsafe { memory.bytes() }) {
            return Ok(Sent::Complete);
        }
        let mut request = Request::send(memory, destination, to.sync);
        request.cookie = Some(cookie);
        engine
            .submit(destination, request)
            .map(|key| Sent::Pending(RequestId(key)))
    }

    /// Sends a short message if that is possible at once. Returns false if it is not, or if the
    /// peer is not known.
    #[inline]
    #[must_use]
    pub fn try_send(&self, body: &[u8], to: &Target) -> bool {
        let mut engine = self.shared.lock();
        let Ok(peer) = peer(&engine, to.peer) else {
            return false;
        };
        let destination = Destination {
            context: to.context.0,
            peer,
            tag: to.tag,
            data: to.data,
        };
        !to.sync && engine.send_fast(destination, body)
    }

    /// Starts to receive at most `length` bytes.
    ///
    /// # Safety
    /// `at` must be valid for writes of `length` bytes, and the bytes must not be accessed by
    /// others, until the completion is reported, this call returns an error, or the endpoint is
    /// closed.
    ///
    /// # Errors
    /// `InvalidRank`, `PeerFailed`, `Closed`.
    pub unsafe fn recv(
        &self,
        at: *mut u8,
        length: usize,
        from: &Pattern,
        cookie: u64,
    ) -> Result<RequestId, Error> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Memory::to_write(at, length) };
        let mut engine = self.shared.lock();
        let selector = selector(&engine, from)?;
        let mut request = Request::receive(memory, &selector, false);
        request.cookie = Some(cookie);
        engine.receive(request).map(RequestId)
    }

    /// Looks for a message that such a receive would match, after a poll. `claims`: removes it from
    /// the matching, so that only [`recv_claimed`](Endpoint::recv_claimed) receives it.
    ///
    /// # Errors
    /// As [`recv`](Endpoint::recv).
    pub fn peek(&self, from: &Pattern, claims: bool) -> Result<Option<Arrived>, Error> {
        let selector = selector(&self.shared.lock(), from)?;
        let look = |engine: &mut Engine| {
            let found = engine.protocol.find(&selector, claims);
            let (claim, status) = match found {
                Ok(found) => found?,
                Err(error) => return Some(Err(error)),
            };
            let label = engine.protocol.unexpected.get(claim)?.label();
            Some(Ok(Arrived {
                claim,
                peer: status.source,
                tag: label.tag,
                data: label.data,
                length: status.length,
            }))
        };
        self.shared.attempt(None, look).transpose()
    }

    /// Starts to receive a message that [`peek`](Endpoint::peek) has claimed.
    ///
    /// # Safety
    /// As [`recv`](Endpoint::recv).
    ///
    /// # Errors
    /// As [`recv`](Endpoint::recv); `UnknownRequest`.
    pub unsafe fn recv_claimed(
        &self,
        at: *mut u8,
        length: usize,
        (context, claim): (Context, u64),
        cookie: u64,
    ) -> Result<RequestId, Error> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { Memory::to_write(at, length) };
        let selector = Selector {
            context: context.0,
            source: None,
            tag: 0,
            ignore: ANY_TAG,
        };
        let mut request = Request::receive(memory, &selector, false);
        request.cookie = Some(cookie);
        let mut engine = self.shared.lock();
        engine.receive_taken(request, claim).map(RequestId)
    }

    /// Discards a message that [`peek`](Endpoint::peek) has claimed.
    pub fn discard(&self, claim: u64) {
        let mut engine = self.shared.lock();
        engine.protocol.discard(claim);
        engine.do_work();
    }

    /// Cancels a receive without a message or a send that is still queued. Returns true if its
    /// report says `Cancelled`, false if it is too late.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn cancel(&self, request: RequestId) -> Result<bool, Error> {
        let mut engine = self.shared.lock();
        let cancelled = engine.cancel(request.0)?;
        engine.do_work();
        Ok(cancelled)
    }

    /// Returns true if the request is complete or unknown.
    #[must_use]
    pub fn is_complete(&self, request: RequestId) -> bool {
        let engine = self.shared.lock();
        let state = engine.protocol.requests.get(request.0);
        state.is_none_or(|request| request.state == State::Complete)
    }

    /// Polls the transports, then passes completed requests and accesses of peers to `report`, with
    /// the endpoint's lock held. Returns the number of events and reports.
    pub fn poll(&self, mut report: impl FnMut(Completion)) -> usize {
        let mut engine = self.shared.lock();
        let mut count = 0;
        if !engine.protocol.closed {
            count += engine.poll(None);
        }
        while let Some(completion) = next(&mut engine.protocol) {
            report(completion);
            count += 1;
        }
        count
    }

    /// Polls until `done` returns true or the deadline has passed. Returns the last result of
    /// `done`. `report` is called as by [`poll`](Endpoint::poll).
    pub fn wait(
        &self,
        deadline: Option<Instant>,
        mut report: impl FnMut(Completion),
        done: impl Fn() -> bool,
    ) -> bool {
        let ready = |engine: &mut Engine| {
            while let Some(completion) = next(&mut engine.protocol) {
                report(completion);
            }
            (done() || engine.protocol.closed).then_some(())
        };
        let lock = self.shared.lock();
        self.shared.wait_before(lock, None, deadline, ready);
        done()
    }

    /// Returns copies of the descriptors that are readable when [`arm`](Endpoint::arm) has
    /// requested a wake-up and there is an event; `None` if a transport has none.
    #[must_use]
    pub fn wait_fds(&self) -> Option<Vec<OwnedFd>> {
        self.shared.wait_fds()
    }

    /// Requests a wake-up by the next event. The next [`poll`](Endpoint::poll) of any thread
    /// cancels it. Returns how long the caller may sleep; `None`: poll again first.
    #[must_use]
    pub fn arm(&self) -> Option<Duration> {
        self.shared.arm()
    }

    /// Sleeps until an event of a transport or of another thread, at most for this time. May return
    /// early.
    pub fn sleep(&self, limit: Duration) {
        self.shared.sleep_for(limit);
    }

    /// Makes all threads in [`wait`](Endpoint::wait) call `done` again.
    pub fn wake(&self) {
        self.shared.wake_all();
    }

    /// Sends all queued messages, then closes the transports. Requests that are not complete are
    /// reported with `Closed`.
    ///
    /// # Errors
    /// `Unflushed` after 10 seconds; the transports are closed nevertheless.
    pub fn close(&self) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        P2p { shared }.close(Some(Instant::now() + CLOSE_LIMIT))
    }
}

impl From<Reported> for Completion {
    fn from(reported: Reported) -> Completion {
        Completion {
            cookie: reported.cookie,
            ended: match (reported.accesses, reported.sends) {
                (true, _) => Ended::Accessed,
                (false, true) => Ended::Sent,
                (false, false) => Ended::Received,
            },
            peer: reported.peer.map(PeerId::rank),
            context: Context(reported.context),
            tag: reported.tag,
            data: reported.data,
            length: reported.length,
            result: reported.result,
        }
    }
}

impl From<Served> for Completion {
    fn from(served: Served) -> Completion {
        let Served {
            key,
            writes,
            atomic,
            ..
        } = served;
        Completion {
            cookie: 0,
            ended: Ended::Served {
                key,
                writes,
                atomic,
            },
            peer: Some(served.peer.rank()),
            context: Context(0),
            tag: 0,
            data: served.data,
            length: served.length,
            result: Ok(()),
        }
    }
}

/// Returns the next access or request to be reported.
#[inline]
fn next(protocol: &mut Protocol) -> Option<Completion> {
    let served = protocol.open.as_mut()?.served.pop_front();
    match served {
        Some(served) => Some(served.into()),
        None => protocol.next_report().map(Completion::from),
    }
}

#[inline]
pub(crate) fn peer(engine: &Engine, peer: Rank) -> Result<PeerId, Error> {
    let peers = &engine.protocol.peers;
    peers.id(peer).ok_or(Error::InvalidRank {
        rank: peer,
        size: peers.size(),
    })
}

fn selector(engine: &Engine, from: &Pattern) -> Result<Selector, Error> {
    Ok(Selector {
        context: from.context.0,
        source: from.peer.map(|source| peer(engine, source)).transpose()?,
        tag: from.tag & !from.ignore,
        ignore: from.ignore,
    })
}
