//! The byte-transport contract (BTL): what the point-to-point layer asks of a transport, and what it may rely on.
//!
//! This file can be read alone. A transport implements [`Btl`]; `conformance` (same crate) tests every promise made here.
//!
//! # Words
//! *Job*: `size` processes numbered by *rank*. *Peer*: another rank, or the own one. *Message*: a header and a body that
//! arrive together. *Region*: memory of a process that its peers may read or write by themselves.
//!
//! # Life cycle
//! 1. The transport is made by its own constructor and knows its rank.
//! 2. [`address`](Btl::address) gives the business card that the job's bootstrap hands to every peer.
//! 3. [`add_peer`](Btl::add_peer) is called with a peer's card, once for each peer, before anything is sent to it. It decides
//!    whether the peer can be reached, by a probe and not by a guess, and keeps the reason in words.
//! 4. [`send`](Tx::send), [`get`](Tx::get), [`put`](Tx::put), [`progress`](Btl::progress) in any order.
//!    [`drop_peer`](Btl::drop_peer) ends one peer before its time.
//! 5. [`flush`](Btl::flush) until everything is out, then [`close`](Btl::close). Afterwards every call answers `Closed`. Dropping
//!    closes without flushing.
//!
//! # Who owns a buffer when
//! - `send`: the caller, before and after. When `send` returns `Ok` the bytes have been copied (or are gone already).
//! - `get`, `put`, the body of `send_held`: the transport, from the call to its completion; nobody else may touch the local memory until then.
//! - [`Events::message`]: header and body belong to the transport and are valid during the call only.
//! - Posted receives ([`PostedReceives::post`]): the transport, until [`Events::received`] or a successful [`PostedReceives::withdraw`].
//!
//! # Promises
//! - *Order*: messages from one process to another arrive in the order of their `send` calls, each exactly once, or not at
//!   all after the peer's failure was reported. Nothing is promised between transports, nor between messages and `get`/`put`,
//!   except: a `send` issued after a `put` completed arrives after the put's bytes.
//! - *Completion*: every `get`, `put` or `send_held` that returned [`Started::Pending`] is followed by exactly one [`Events::completed`] with
//!   its token, also when the peer dies. One that returned [`Started::Done`] or an error is followed by none.
//! - *Never blocking*: no call waits for a peer. What cannot be taken now is [`SendError::Busy`]; it succeeds some `progress` later.
//! - *Progress rule*: nothing is delivered or completed but inside `progress`, on the thread that calls it. A transport may use
//!   threads of its own, or another process, but they call nobody back. Each call does bounded work.
//! - *Failure*: a peer that died or cannot be reached any more is reported once by [`Events::failed`], within a second of its
//!   death while `progress` is called; pending operations of that peer complete with an error before that. Other peers go on.
//!   Of a peer that lives (it broke the protocol, or was dropped) all this waits until it does not use this process's memory any more.
//! - *Hostile peers*: whatever a peer writes can fail that peer ([`PeerError::Violation`]), and nothing else.
//!
//! # Threads
//! A transport is `Send` and used by one thread at a time; its owner locks.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::held_sends::HeldSends;
use crate::noticed_puts::NoticedPuts;
use crate::pending_peers::PendingPeers;
use crate::posted_receives::{Envelope, PostedReceives};

/// A process of the job, counted from 0.
pub type Rank = u32;

/// Longest header of a message, in bytes.
pub const MAX_HEADER: usize = 64;
/// Longest business card, in bytes.
pub const MAX_ADDRESS: usize = 512;
/// Longest region key, in bytes.
pub const MAX_KEY: usize = 40;

/// What a transport can do, the same for all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// [`Tx::get`] works with peers whose [`PeerInfo::one_sided`] says so.
    pub get: bool,
    /// [`Tx::put`] works likewise.
    pub put: bool,
    /// [`PostedReceives`] work: receives are visible to the sender.
    pub posted_receives: bool,
    /// [`Btl::wait_fd`] gives a descriptor, so a caller can sleep.
    pub blocking: bool,
    /// [`HeldSends`] work, and are better than `send` for bodies of this many bytes or more.
    pub held_from: Option<usize>,
    /// Peer death is noticed (a transport inside one process cannot lose its peer).
    pub detects_death: bool,
    /// Longest time that the caller may sleep although nothing is pending: `progress` checks that
    /// peers live. `None`: any time. It may change; read it before each sleep.
    pub tick: Option<Duration>,
}

/// How a peer is reached: figures for choosing between transports, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerInfo {
    /// One-way latency of a short message, in nanoseconds; measured where that is cheap, else the transport's typical figure.
    pub latency_ns: u32,
    /// Bandwidth of long messages, in MB/s (10^6 bytes a second).
    pub bandwidth: u32,
    /// Among transports that reach a peer only those of the highest exclusivity are used. 0–65535; shared memory 1000, InfiniBand
    /// 500, Ethernet 100.
    pub exclusivity: u32,
    /// Messages (header and body) up to this many bytes are best sent at once, without asking first.
    pub eager: usize,
    /// Like `eager`, while the receiver is known to be late (skew): copying through the transport's memory frees the sender.
    pub eager_skewed: usize,
    /// Longest message (header and body) that [`Tx::send`] takes. At least 1024 + [`MAX_HEADER`].
    pub max_send: usize,
    /// `get`, `put` and matched sends work with this peer.
    pub one_sided: bool,
    /// Bodies from this many bytes on are best moved by `get`, `put` or a matched send rather than by `send`.
    pub one_sided_from: usize,
    /// In words for people: which interface or mechanism, which probe said so, what was refused and why.
    pub reason: String,
}

/// A peer cannot be reached by this transport. Not an error of the job: another transport may reach it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unreachable {
    /// In words: what was tried, what to do.
    pub reason: String,
}

/// Why an operation was not taken. Nothing of it was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room now; try again after `progress`.
    #[error("no room now")]
    Busy,
    /// Longer than [`PeerInfo::max_send`] (for `send`), [`MAX_HEADER`] (its header), or the region (for `get` and `put`).
    #[error("{length} bytes where at most {limit} are possible")]
    TooLong {
        /// Bytes asked for.
        length: usize,
        /// Bytes possible.
        limit: usize,
    },
    /// Never added, or `add_peer` said unreachable.
    #[error("rank {0} was not added to this transport")]
    NoPeer(Rank),
    /// The peer failed; [`Events::failed`] has said so or is about to.
    #[error("rank {peer}: {error}")]
    Failed {
        /// Who.
        peer: Rank,
        /// How.
        error: PeerError,
    },
    /// The transport cannot do this at all, see [`Capabilities`] and [`PeerInfo::one_sided`].
    #[error("this transport cannot do that")]
    Unsupported,
    /// A key that is not one of this transport's.
    #[error("a region key that this transport did not make")]
    BadKey,
    /// After [`Btl::close`].
    #[error("the transport is closed")]
    Closed,
}

/// How a peer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Its process ended.
    #[error("its process ended")]
    Died,
    /// It closed its transport in order; only what is still sent to it fails.
    #[error("it left the job")]
    Left,
    /// The way to it is gone: link, daemon, timeout.
    #[error("lost: {0}")]
    Lost(String),
    /// It wrote something impossible.
    #[error("it broke the protocol: {0}")]
    Violation(String),
}

/// What became of a `get`, `put` or `send_held` that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// Complete: the bytes are there, no event follows.
    Done,
    /// [`Events::completed`] follows with the token.
    Pending,
}

/// Memory that peers may read or write by `get` and `put`. Deregister it before its memory goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// For [`Btl::deregister`].
    pub handle: u64,
    /// What a peer needs; goes to it inside a message. At most [`MAX_KEY`] bytes.
    pub key: Vec<u8>,
}

/// Registration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The transport has no one-sided operations.
    #[error("this transport has no one-sided operations")]
    Unsupported,
    /// The system refused; says how to raise the limit.
    #[error("{0}")]
    Refused(String),
    /// After [`Btl::close`].
    #[error("the transport is closed")]
    Closed,
}

/// The sending half, also handed to callbacks so that they can send.
pub trait Tx: PostedReceives + HeldSends + NoticedPuts {
    /// Sends a message of at most [`PeerInfo::max_send`] bytes. Zero bytes of body, and of header, are a message too.
    ///
    /// # Errors
    /// See [`SendError`]. With one, nothing was sent.
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError>;

    /// Reads `length` bytes at `offset` of a peer's region into local memory.
    ///
    /// # Safety
    /// `local` is writable for `length` bytes, and stays so, untouched by others, until completion.
    ///
    /// # Errors
    /// See [`SendError`].
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
    /// # Safety
    /// `local` is readable for `length` bytes, and stays so and unchanged until completion.
    ///
    /// # Errors
    /// See [`SendError`].
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

/// Who is told. Every method is called inside [`Btl::progress`] only.
pub trait Events {
    /// A message came. `tx` is the same transport: the callee may send.
    fn message(&mut self, tx: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]);

    /// A pending `get`, `put` or `send_held` is over.
    fn completed(&mut self, tx: &mut dyn Tx, token: u64, result: Result<(), PeerError>);

    /// A posted receive was filled by `peer`: `length` bytes were sent to it (more than its room: truncated). An error: the peer
    /// died while it copied; the buffer's content is undefined.
    fn received(
        &mut self,
        tx: &mut dyn Tx,
        token: u64,
        peer: Rank,
        envelope: Envelope,
        result: Result<usize, PeerError>,
    ) {
        let _ = (tx, token, peer, envelope, result);
    }

    /// A peer is gone, for good. Once for each peer.
    fn failed(&mut self, tx: &mut dyn Tx, peer: Rank, error: PeerError);
}

/// A byte transport.
pub trait Btl: Tx + PendingPeers + Send + fmt::Debug {
    /// Short and stable, as in options and reports: `eth`, `shm`, `ib`, `loopback`.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The card that makes this process reachable, at most [`MAX_ADDRESS`] bytes; empty when it can reach nobody.
    fn address(&self) -> Vec<u8>;

    /// Makes a peer usable. Untrusted input: a card of another version, job or transport is unreachable, with the reason.
    ///
    /// May take a moment (probe), but is bounded by a second. A connection may be made later, by the first message. An unreachable
    /// peer may be tried again with another card. What a peer sends before it is added here waits until it is, or comes at once.
    ///
    /// # Errors
    /// The reason why this peer cannot be reached this way.
    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable>;

    /// Delivers what came, completes what is complete, moves what waits. Returns how many events it delivered or steps it made; 0
    /// means that there was nothing to do.
    fn progress(&mut self, events: &mut dyn Events) -> usize;

    /// Makes memory readable and writable for peers.
    ///
    /// # Safety
    /// The memory stays valid until [`deregister`](Btl::deregister); peers may read and write it until then.
    ///
    /// # Errors
    /// See [`RegisterError`].
    unsafe fn register(&mut self, memory: *mut u8, length: usize) -> Result<Region, RegisterError> {
        let _ = (memory, length);
        Err(RegisterError::Unsupported)
    }

    /// Takes a registration back. Unknown handles are ignored.
    fn deregister(&mut self, handle: u64) {
        let _ = handle;
    }

    /// A descriptor that becomes readable when an event is there, after [`arm`](Btl::arm) said that none was. Room after `Busy`
    /// is no event: who holds something back naps instead.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Before sleeping: asks to be woken by the next event. False: there is one already (or soon), do not sleep. `progress` takes
    /// the wish back.
    fn arm(&mut self) -> bool {
        false
    }

    /// The caller has done with a peer that may still live, and wants the memory back that the peer may reach by this transport: registered
    /// regions, posted receives, what it `get`s from it. What the peer sent is not delivered any more, or only until
    /// [`Events::failed`]; calls for it answer `Failed`; pending operations and receives it has taken end as after any failure,
    /// then `failed` follows with [`PeerError::Lost`], unless it was told before. The peer, if it behaves, sees this process as lost too,
    /// and before that, if it can be done, gets the messages that were sent to it.
    ///
    /// True: by this transport the peer neither reads nor writes any memory of this process any more, also not what is registered or
    /// posted later. False: it may be in the middle of that; ask again after `progress`. Unknown peers and those that failed
    /// are out of reach already, for the default everybody: it suits doubles in tests that give nobody memory.
    fn drop_peer(&mut self, peer: Rank) -> bool {
        let _ = peer;
        true
    }

    /// Has everything sent been handed on as far as this process must care (it may exit without loss)? Call `progress` between.
    fn flush(&mut self) -> bool;

    /// Gives everything back. Peers see [`PeerError::Left`]. What is pending or posted gets no event any more, and its memory is
    /// the caller's again. Messages that are not flushed may be lost.
    fn close(&mut self);
}
