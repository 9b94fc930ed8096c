//! Public types without behaviour.

use std::fmt;

use btl::{Btl, PeerInfo, Rank};

use crate::config::Config;

/// Address of one transport. The job's bootstrap passes it to every peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportAddress {
    /// [`Btl::name`].
    pub transport: String,
    /// [`Btl::address`], at most [`btl::MAX_ADDRESS`] bytes.
    pub address: Vec<u8>,
}

/// Parameters of [`P2p::start`](crate::P2p::start).
#[derive(Debug)]
pub struct Setup {
    /// Rank of this process in the job.
    pub rank: Rank,
    /// Number of ranks in the job.
    pub size: u32,
    /// The transports, in any order. Messages to this rank itself need none.
    pub transports: Vec<Box<dyn Btl>>,
    /// Configuration.
    pub config: Config,
}

/// Addresses of the peers of a large job, which are looked up when the peers are used; see
/// [`P2p::start_lazily`](crate::P2p::start_lazily).
pub trait AddressBook: fmt::Debug + Send {
    /// Returns true if the peer is reached at the start, as the peers on this node must be: the
    /// shared-memory transport does not see processes that were not added. Both processes of a pair
    /// must return equal results.
    fn is_near(&self, peer: Rank) -> bool;

    /// Returns the addresses of a peer. It is called once for each peer, with the layer locked.
    ///
    /// # Errors
    /// The reason why there are no addresses, which fails the peer.
    fn addresses(&mut self, peer: Rank) -> Result<Vec<TransportAddress>, String>;

    /// Returns the reasons why a peer cannot be reached, to which it may add further ones, such as
    /// those of transports that this process lacks.
    fn explain(&self, reasons: String) -> String {
        reasons
    }

    /// Receives the results of all transports for a peer that is not near.
    fn reached(&mut self, paths: &[PathReport]) {
        let _ = paths;
    }
}

/// Source that a receive selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Any rank of the communicator.
    Any,
    /// This rank of the communicator.
    Rank(Rank),
}

impl From<Rank> for Source {
    fn from(rank: Rank) -> Source {
        Source::Rank(rank)
    }
}

/// Tag that a receive selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Any tag.
    Any,
    /// This tag; 0 or more.
    Is(i32),
}

impl From<i32> for Tag {
    fn from(tag: i32) -> Tag {
        Tag::Is(tag)
    }
}

/// Returns a tag in the form of ranks. Larger ones occur between endpoints only.
#[inline]
pub(crate) fn narrow(tag: u64) -> i32 {
    tag as i32
}

/// Description of a message that was received or probed. For sends: this process's rank, the tag,
/// and the length sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Rank of the sender in the communicator.
    pub source: Rank,
    /// Tag of the message.
    pub tag: i32,
    /// Length of the message, in bytes.
    pub length: usize,
}

/// Id of a request. It includes a generation, so a stale id never matches a newer request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// Returns the id as a number, for handles of other languages.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Creates an id from a number of [`to_bits`](RequestId::to_bits). Calls report an invalid one
    /// as an error.
    pub fn from_bits(bits: u64) -> RequestId {
        RequestId(bits)
    }
}

/// Counters since the start, and current levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Eager messages sent.
    pub eager_sent: u64,
    /// Eager messages sent from the program's memory, without a copy.
    pub held_sent: u64,
    /// Messages to this rank itself.
    pub self_sent: u64,
    /// Rendezvous messages received by `get`.
    pub by_get: u64,
    /// Rendezvous messages received by `put`.
    pub by_put: u64,
    /// Rendezvous messages received in fragments.
    pub by_fragments: u64,
    /// Times that a transport refused `get` or `put` and fragments were used instead.
    pub fallbacks: u64,
    /// Fragments sent.
    pub fragments_sent: u64,
    /// Accesses to the memory of peers that were sent.
    pub accesses_sent: u64,
    /// Messages that arrived before their receive.
    pub unexpected: u64,
    /// Number of unexpected messages that wait now.
    pub unexpected_now: usize,
    /// Memory used by unexpected messages now, in bytes, with an allowance for bookkeeping.
    pub unexpected_bytes: usize,
    /// Maximum of `unexpected_bytes`.
    pub unexpected_peak: usize,
    /// Times that this process asked a peer to send RTS only.
    pub pressed: u64,
    /// Times that a peer asked this process to send RTS only.
    pub pressed_by_peers: u64,
    /// Times that this process became late (skew).
    pub skew_on: u64,
    /// Times that this process was no longer late.
    pub skew_off: u64,
    /// Times that a peer reported that it is late.
    pub skewed_peers: u64,
    /// Peers that failed.
    pub failed_peers: u64,
    /// Times that a waiting thread slept.
    pub slept: u64,
}

/// Result of one transport for one peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PathReport {
    /// Rank of the peer in the job.
    pub peer: Rank,
    /// [`Btl::name`]; `self` for this rank itself.
    pub transport: String,
    /// The transport is a rail of the peer.
    pub used: bool,
    /// Figures of the transport, if it reaches the peer.
    pub path: Option<PeerInfo>,
    /// Reason why it is used or not.
    pub reason: String,
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.used { "used" } else { "not used" };
        write!(
            f,
            "rank {} by {}: {verdict}, {}",
            self.peer, self.transport, self.reason
        )?;
        let Some(path) = &self.path else {
            return Ok(());
        };
        write!(
            f,
            " [{} ns, {} MB/s, exclusivity {}, eager to {} B, one-sided {}; {}]",
            path.latency_ns,
            path.bandwidth,
            path.exclusivity,
            path.eager,
            if path.one_sided {
                format!("from {} B", path.one_sided_from)
            } else {
                "no".into()
            },
            path.reason.replace('\n', " ")
        )
    }
}

/// Traffic of one of several rails to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailReport {
    /// Rank of the peer in the job.
    pub peer: Rank,
    /// [`Btl::name`].
    pub transport: String,
    /// [`PeerInfo::reason`], which names the interface among other things.
    pub reason: String,
    /// Declared bandwidth, in MB/s (10^6 bytes per second). Long messages are striped in
    /// proportion.
    pub bandwidth: u32,
    /// Bytes of message fragments sent.
    pub sent: u64,
    /// Bytes of message bodies received.
    pub received: u64,
}

impl fmt::Display for RailReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = self.reason.split(": ").next().unwrap_or_default();
        write!(
            f,
            "rank {} by {} {interface}: {} B of fragments sent, {} B received",
            self.peer, self.transport, self.sent, self.received
        )
    }
}
