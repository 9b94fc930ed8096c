//! What can go wrong, and whose fault it was.

use btl::{PeerError, Rank};

/// A call or a request failed.
///
/// `InvalidRank`, `InvalidTag`, `InvalidContext`, `InvalidArgument`, `FreedRequest` and `AlreadyWaited` are the caller's fault, and nothing was done.
/// `Truncated` is an error of one request alone. `PeerFailed` is the peer's, for ever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A rank that the communicator does not have.
    #[error("rank {rank} in a communicator of {size}")]
    InvalidRank {
        /// The rank asked for.
        rank: Rank,
        /// Ranks there are.
        size: u32,
    },
    /// A tag below 0.
    #[error("tag {tag}: tags are 0 or more")]
    InvalidTag {
        /// The tag.
        tag: i32,
    },
    /// The communicator's context is not known here any more.
    #[error("context {context} is not one of this process")]
    InvalidContext {
        /// The context.
        context: u32,
    },
    /// Lengths or places that do not fit together.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// The message was longer than the buffer, which holds its beginning. The rest is dropped.
    #[error("{length} bytes came from rank {source_rank} with tag {tag}, into a buffer of {room}")]
    Truncated {
        /// Who sent it (rank in the communicator).
        source_rank: Rank,
        /// Its tag.
        tag: i32,
        /// Bytes that were sent.
        length: usize,
        /// Bytes there was room for.
        room: usize,
    },
    /// A peer that the request names, or that an any-source receive might have meant, is gone. The buffer's content is undefined.
    #[error("rank {peer} of the job failed: {error}")]
    PeerFailed {
        /// Who (rank in the job, not in the communicator).
        peer: Rank,
        /// How.
        error: PeerError,
    },
    /// A request that was freed, or never was.
    #[error("a request that was freed or never existed")]
    FreedRequest,
    /// A request that was already waited for, or tested with success.
    #[error("a request that was already waited for")]
    AlreadyWaited,
    /// The request was cancelled before anything of it happened.
    #[error("cancelled")]
    Cancelled,
    /// After [`P2p::finalize`](crate::P2p::finalize).
    #[error("the layer is closed")]
    Closed,
    /// What was sent could not be handed on within [`Config::finalize_limit`](crate::Config::finalize_limit).
    #[error("{0} sends were still not out when the time for finalizing was over")]
    Unflushed(usize),
    /// The system refused something that sleeping or a thread of our own needs.
    #[error("{0}")]
    System(String),
}

/// A job cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Rank, size or configuration make no sense.
    #[error("{0}")]
    Invalid(String),
    /// The bootstrap had no cards for a peer.
    #[error("no business cards of rank {peer}: {reason}")]
    NoCards {
        /// Whose.
        peer: Rank,
        /// The bootstrap's words.
        reason: String,
    },
    /// The processes could not tell each other what they reach.
    #[error("agreeing on transports: {0}")]
    NoAgreement(String),
    /// No transport reaches a peer; one line for each that tried.
    #[error("rank {peer} cannot be reached:\n{reasons}")]
    Unreachable {
        /// Who.
        peer: Rank,
        /// All reasons, a line for each transport.
        reasons: String,
    },
    /// The system refused an event descriptor or a thread.
    #[error("{0}")]
    System(String),
}

/// The start failed; what was brought along comes back.
///
/// Peers that start at the same time may still be looking at this process's transports (shared memory lives in it). Who keeps them
/// until all have said how it went lets the others find the true cause, and not that somebody is gone.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotStarted {
    /// Why.
    pub error: StartError,
    /// The transports of the [`Setup`](crate::Setup), in its order.
    pub transports: Vec<Box<dyn btl::Btl>>,
}
