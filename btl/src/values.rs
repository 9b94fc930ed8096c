//! Ranks, results and errors of the contract.

/// Number of a process within its job, from 0.
pub type Rank = u32;

/// A peer that this transport does not reach. Another transport may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unreachable {
    /// Explanation for the user: what was tried, and what can be done.
    pub reason: String,
}

/// Progress of the probe of a peer ([`Btl::probe`](crate::Btl::probe)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// No answer has arrived yet. `add_peer` may wait for one.
    Awaited,
    /// The peer has answered, and `add_peer` does not wait.
    Reached,
    /// Waiting longer changes nothing: `add_peer` succeeds or returns the reason at once.
    Settled,
}

/// Reason why an operation was not accepted. It had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no room now. Try again after `progress`.
    #[error("no room now")]
    Busy,
    /// The length exceeds [`PeerInfo::max_send`](crate::PeerInfo::max_send) (message),
    /// [`MAX_HEADER`](crate::MAX_HEADER) (header) or the region (`get`, `put`).
    #[error("{length} bytes exceed the limit of {limit}")]
    TooLong {
        /// Requested length, in bytes.
        length: usize,
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The rank was never added, or `add_peer` reported it unreachable.
    #[error("rank {0} was not added to this transport")]
    NoPeer(Rank),
    /// The peer failed. [`Events::failed`](crate::Events::failed) has reported it or is about to,
    /// after the messages of the peer that have not been delivered yet.
    #[error("rank {peer}: {error}")]
    Failed {
        /// Rank of the peer.
        peer: Rank,
        /// Its failure.
        error: PeerError,
    },
    /// The transport does not support the operation; see [`Capabilities`](crate::Capabilities) and
    /// [`PeerInfo::one_sided`](crate::PeerInfo::one_sided).
    #[error("this transport does not support the operation")]
    Unsupported,
    /// The key was not made by this transport of that peer.
    #[error("the region key was not made by this transport")]
    BadKey,
    /// The transport was closed.
    #[error("the transport is closed")]
    Closed,
}

/// Failure of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Its process ended.
    #[error("its process ended")]
    Died,
    /// It closed its transport gracefully. Messages that are still sent to it fail.
    #[error("it left the job")]
    Left,
    /// It no longer exists, and there was no connection to it, so it is unknown how it ended: it
    /// may have left the job gracefully.
    #[error("it no longer exists: its process ended or left the job")]
    Gone,
    /// The connection is lost: link down, daemon ended, timeout, or dropped by either side.
    #[error("lost: {0}")]
    Lost(String),
    /// It violated the protocol.
    #[error("it violated the protocol: {0}")]
    Violation(String),
}

/// Result of an operation that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// It is complete. No event follows.
    Done,
    /// [`Events::completed`](crate::Events::completed) follows with its token.
    Pending,
}

/// Memory that peers may access by `get` and `put`, until it is deregistered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Identifies the registration for [`Btl::deregister`](crate::Btl::deregister).
    pub handle: u64,
    /// Identifies the region for peers; the owner sends it in a message. At most
    /// [`MAX_KEY`](crate::MAX_KEY) bytes.
    pub key: Vec<u8>,
}

/// Reason why memory was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The transport has no one-sided operations.
    #[error("this transport has no one-sided operations")]
    Unsupported,
    /// The system refused; the text says how to raise the limit.
    #[error("{0}")]
    Refused(String),
    /// The transport was closed.
    #[error("the transport is closed")]
    Closed,
}
