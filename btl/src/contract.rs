//! The byte-transport contract: what a layer of message passing requires of a transport, and what
//! it may rely on. `btl-conformance` tests every promise made here.
//!
//! # Terms
//! A *job* has `size` processes, numbered by *rank*. A *peer* is another rank, or this process
//! itself. A *message* is a header and a body, which arrive together. A *region* is memory of a
//! process that peers may read or write. The *owner* of a transport is the code that calls it.
//!
//! # Life cycle
//! 1. A constructor specific to the transport creates it, for one rank of one job.
//! 2. [`address`](Btl::address) returns what peers need to reach this process. The job's bootstrap
//!    distributes it.
//! 3. [`add_peer`](Btl::add_peer) takes a peer's address, once for each peer, before anything is
//!    sent to it. It establishes whether the peer can be reached.
//! 4. [`send`](Tx::send), [`get`](Tx::get), [`put`](Tx::put) and [`progress`](Btl::progress) follow
//!    in any order. [`drop_peer`](Btl::drop_peer) ends one peer early.
//! 5. [`flush`](Btl::flush) is called until it returns true, then [`close`](Btl::close). Every
//!    later call reports `Closed`. Dropping a transport closes it without a flush.
//!
//! # Ownership of memory
//! - `send`: the caller owns header and body. When `send` returns `Ok`, the transport has accepted
//!   the bytes and the caller may reuse the memory.
//! - `get`, `put`: the transport owns the local memory from the call to the completion. Until then
//!   no other code may access it (`put`: may change it).
//! - [`Events::message`]: the transport owns header and body; they are valid during the call.
//! - Regions: shared with the peers from [`register`](Btl::register) to
//!   [`deregister`](Btl::deregister).
//!
//! # Promises
//! - *Order*: messages of one process to another arrive in the order of their `send` calls, each
//!   exactly once, or not at all if the peer's failure is reported. There is no order between
//!   transports, nor between messages and `get` or `put`, with one exception: a message sent after
//!   a `put` has completed arrives after the bytes of that `put`.
//! - *Completion*: a `get` or `put` that returned [`Started::Pending`] is followed by exactly one
//!   [`Events::completed`] with its token, even if the peer dies. One that returned
//!   [`Started::Done`] or an error is followed by none.
//! - *No blocking*: no call waits for a peer, with two bounded exceptions: `add_peer` and `close`.
//!   If an operation cannot be accepted now, it returns [`SendError::Busy`] and can be tried again
//!   after some calls of `progress`.
//! - *Accepted means sent*: messages that `send` has accepted leave this process without further
//!   calls.
//! - *Progress*: events are reported inside of `progress` only, on the thread that calls it. A
//!   transport may use threads or processes of its own, but these call no event handler. Each call
//!   of `progress` does a bounded amount of work.
//! - *Failure*: a peer that died or became unreachable is reported once by [`Events::failed`], at
//!   most a second after its death while `progress` is called; in jobs of more than 64 processes,
//!   peers without a connection may take longer. Before that, its pending operations complete with
//!   an error. Other peers are not affected. If the peer is alive (it violated the protocol, or was
//!   dropped), these events wait until it cannot access this process's memory any more. Operations
//!   may return [`SendError::Failed`] earlier than that: messages that the peer sent before still
//!   follow, and the owner gives up the peer only at the event.
//! - *Hostile peers*: whatever a peer writes can fail that peer ([`PeerError::Violation`]) and has
//!   no other effect.
//!
//! # Threads
//! A transport is `Send` and is used by one thread at a time. Its owner locks, or uses
//! [`SharedTransport`](crate::SharedTransport).
//!
//! # Extensions
//! [`HeldSends`], [`NoticedPuts`] and [`PendingPeers`] have default implementations that support
//! nothing. A transport without them writes `impl HeldSends for MyBtl {}` and so on.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::held_sends::HeldSends;
use crate::noticed_puts::NoticedPuts;
use crate::pending_peers::PendingPeers;
use crate::values::{
    PeerError, Probe, Rank, Region, RegisterError, SendError, Started, Unreachable,
};

/// Maximum length of a message's header, in bytes.
pub const MAX_HEADER: usize = 64;
/// Maximum length of an address, in bytes.
pub const MAX_ADDRESS: usize = 512;
/// Maximum length of a region's key, in bytes.
pub const MAX_KEY: usize = 40;

/// Features of a transport, independent of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// [`Tx::get`] is supported for peers with [`PeerInfo::one_sided`].
    pub get: bool,
    /// [`Tx::put`] is supported for peers with [`PeerInfo::one_sided`].
    pub put: bool,
    /// [`Btl::wait_fd`] returns a descriptor, so that the owner can sleep.
    pub blocking: bool,
    /// [`HeldSends`] are supported, and are faster than [`Tx::send`] for bodies of this many bytes
    /// or more.
    pub held_from: Option<usize>,
    /// The death of a peer is detected. A transport within one process cannot lose a peer.
    pub detects_death: bool,
    /// Maximum time that the owner may sleep between two calls of `progress`, which checks that
    /// peers are alive. `None`: unlimited. It may change; read it before each sleep.
    pub tick: Option<Duration>,
}

/// Properties of a peer that a transport reaches: figures for choosing among transports and
/// protocols.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerInfo {
    /// One-way latency of a short message, in nanoseconds. Measured where that is cheap, otherwise
    /// typical of the transport.
    pub latency_ns: u32,
    /// Bandwidth of long messages, in MB/s (10⁶ bytes per second).
    pub bandwidth: u32,
    /// Rank among transports, 0 to 65 535: of those that reach a peer, only those with the highest
    /// value are used. Shared memory has 1000, InfiniBand 500, Ethernet 100.
    pub exclusivity: u32,
    /// Maximum length (header and body) of messages that are best sent eagerly, in bytes.
    pub eager: usize,
    /// Replaces `eager` while the receiver is known to be late: the copy frees the sender.
    pub eager_skewed: usize,
    /// Maximum length (header and body) that [`Tx::send`] accepts, in bytes. At least 1024 +
    /// [`MAX_HEADER`].
    pub max_send: usize,
    /// `get` and `put` work with this peer.
    pub one_sided: bool,
    /// Length from which bodies are best moved by `get` or `put`, in bytes.
    pub one_sided_from: usize,
    /// Explanation for the user: the interface or mechanism, the probe that chose it, and what was
    /// rejected for which reason.
    pub reason: String,
}

/// The sending half of a transport. Event handlers get it, so that they can send.
///
/// # Errors
/// All operations check in this order: [`SendError::Closed`], [`NoPeer`](SendError::NoPeer),
/// [`Failed`](SendError::Failed), [`TooLong`](SendError::TooLong) and
/// [`BadKey`](SendError::BadKey), [`Busy`](SendError::Busy). After an error nothing was sent.
pub trait Tx: HeldSends + NoticedPuts {
    /// Sends a message of at most [`PeerInfo::max_send`] bytes. The parts of `body` arrive as one
    /// body. Header and body may be empty.
    ///
    /// The message is complete for the caller when this returns `Ok`.
    ///
    /// # Errors
    /// See [`Tx`].
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError>;

    /// Reads `length` bytes at `offset` of a peer's region into local memory.
    ///
    /// # Safety
    /// `local` must be valid for writes of `length` bytes, and no other code may access it, until
    /// completion.
    ///
    /// # Errors
    /// See [`Tx`]; [`SendError::Unsupported`] by default.
    unsafe fn get(
        &mut self,
        peer: Rank,
        local: *mut u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        let _ = (peer, local, length, key, offset, token);
        Err(SendError::Unsupported)
    }

    /// Writes `length` local bytes to `offset` of a peer's region.
    ///
    /// Completion means that the bytes are in the peer's memory.
    ///
    /// # Safety
    /// `local` must be valid for reads of `length` bytes, and must not change, until completion.
    ///
    /// # Errors
    /// See [`Tx`]; [`SendError::Unsupported`] by default.
    unsafe fn put(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        let _ = (peer, local, length, key, offset, token);
        Err(SendError::Unsupported)
    }
}

/// Handles the events of a transport. Its methods are called inside of [`Btl::progress`] only. Each
/// gets the sending half of the transport that reports the event.
pub trait Events {
    /// Takes a message from `peer`. Header and body are valid during the call.
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]);

    /// Takes the completion of a pending operation. The local memory belongs to the caller again.
    fn completed(&mut self, tx: &mut dyn Tx, token: u64, result: Result<(), PeerError>);

    /// Takes the failure of a peer; once for each peer, after its messages and completions.
    fn failed(&mut self, tx: &mut dyn Tx, peer: Rank, error: PeerError);
}

/// A byte transport.
pub trait Btl: Tx + PendingPeers + Send + fmt::Debug {
    /// Returns the transport's name in options and reports: `eth`, `shm`, `ib`, `loopback`.
    fn name(&self) -> &'static str;

    /// Returns what the transport supports; by default nothing but messages.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Returns the address of this process, at most [`MAX_ADDRESS`] bytes. Empty: it reaches no
    /// peer.
    fn address(&self) -> Vec<u8>;

    /// Makes a peer usable.
    ///
    /// It takes at most a second. A connection may be established later, by the first message. An
    /// unreachable peer may be tried again with another address. What a peer sends before it is
    /// added is either kept until then or delivered at once.
    ///
    /// # Errors
    /// [`Unreachable`] with the reason. The address is untrusted input: one of another version, job
    /// or transport is unreachable.
    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable>;

    /// Starts to probe whether this address reaches a peer, for a later
    /// [`add_peer`](Btl::add_peer), or reports the progress of that probe. It does not wait, so an
    /// owner can probe all peers at once, and for longer than `add_peer` waits. The address is
    /// untrusted. The default suits transports whose `add_peer` waits for no answer.
    fn probe(&mut self, peer: Rank, address: &[u8]) -> Probe {
        let _ = (peer, address);
        Probe::Settled
    }

    /// Reports arrived messages and completed operations to `events`, and advances operations in
    /// progress. Returns the number of events and steps; 0 means that there was nothing to do.
    fn progress(&mut self, events: &mut dyn Events) -> usize;

    /// Registers memory, so that peers can access it by `get` and `put`. The same memory may be
    /// registered several times.
    ///
    /// # Safety
    /// The memory must stay valid for reads and writes until [`deregister`](Btl::deregister). Peers
    /// may read and write it at any time until then.
    ///
    /// # Errors
    /// See [`RegisterError`]; `Unsupported` by default.
    unsafe fn register(&mut self, memory: *mut u8, length: usize) -> Result<Region, RegisterError> {
        let _ = (memory, length);
        Err(RegisterError::Unsupported)
    }

    /// Ends a registration. Unknown handles are ignored.
    fn deregister(&mut self, handle: u64) {
        let _ = handle;
    }

    /// Returns a descriptor that becomes readable when there is an event after [`arm`](Btl::arm)
    /// returned true. New room after `Busy` is not an event: an owner with unsent messages must
    /// limit its sleep.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Requests a wake-up by the next event. Returns false if there is an event already: do not
    /// sleep. The next `progress` cancels the request.
    fn arm(&mut self) -> bool {
        false
    }

    /// Gives up a peer that may be alive, to regain the memory that it may access: regions, and the
    /// sources of its `get`s.
    ///
    /// Later operations on the peer return `Failed`. Pending operations complete as after any
    /// failure; then [`Events::failed`] reports [`PeerError::Lost`], unless the peer's failure was
    /// reported before. Messages sent before reach the peer if possible. A peer that follows the
    /// protocol sees this process as lost.
    ///
    /// Returns true when the peer cannot access memory of this process any more, not even memory
    /// that is registered later. Returns false while the peer may still access it: call again after
    /// `progress`. Unknown and failed peers return true. The default suits transports without
    /// one-sided operations.
    fn drop_peer(&mut self, peer: Rank) -> bool {
        let _ = peer;
        true
    }

    /// Returns whether this process may exit without losing a message that was sent. Call
    /// `progress` between two calls. Peers that failed do not count.
    fn flush(&mut self) -> bool;

    /// Releases everything. Peers see [`PeerError::Left`], those without a connection
    /// [`PeerError::Gone`]. Pending operations get no event, and their memory belongs to the caller
    /// again. Messages that were not flushed may be lost.
    fn close(&mut self);
}
