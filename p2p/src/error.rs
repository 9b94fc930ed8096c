//! Errors.

use btl::{PeerError, Rank};

use crate::regions::Refusal;

/// Error of a call or a request.
///
/// `InvalidRank`, `InvalidTag`, `InvalidContext`, `InvalidArgument` and `UnknownRequest` are errors
/// of the caller, and the call had no effect. `Truncated` is an error of one request. `PeerFailed`
/// is final: the peer does not return.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A rank that the communicator does not have.
    #[error("rank {rank} in a communicator of {size}")]
    InvalidRank {
        /// The requested rank.
        rank: Rank,
        /// Number of ranks in the communicator.
        size: u32,
    },
    /// Negative tag.
    #[error("tag {tag}: tags are 0 or more")]
    InvalidTag {
        /// The tag.
        tag: i32,
    },
    /// The communicator of this context was freed.
    #[error("context {context} is not one of this process")]
    InvalidContext {
        /// The context.
        context: u32,
    },
    /// Lengths or offsets that do not fit together.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// The message was longer than the buffer, which holds the beginning of it.
    #[error(
        "{length} bytes arrived from rank {source_rank} with tag {tag}, into a buffer of {room}"
    )]
    Truncated {
        /// Rank of the sender in the communicator.
        source_rank: Rank,
        /// Tag of the message.
        tag: i32,
        /// Length of the message, in bytes.
        length: usize,
        /// Length of the buffer, in bytes.
        room: usize,
    },
    /// A peer that the request names, or that might have sent the message of an any-source receive,
    /// failed. The content of the buffer is undefined.
    #[error("rank {peer} of the job failed: {error}")]
    PeerFailed {
        /// Rank of the peer in the job (not in the communicator).
        peer: Rank,
        /// Cause.
        error: PeerError,
    },
    /// The request was freed, its result was already returned, or it never existed.
    #[error("a request that was freed, already waited for, or never existed")]
    UnknownRequest,
    /// The request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A peer refused an access to its memory, which it did not touch.
    #[error("the peer refuses the access to its memory: {0}")]
    Refused(Refusal),
    /// After [`P2p::finalize`](crate::P2p::finalize).
    #[error("the layer is closed")]
    Closed,
    /// Messages were still queued when [`Endpoint::close`](crate::Endpoint::close) gave up.
    #[error("{0} sends were still queued at the time limit of closing")]
    Unflushed(usize),
}

/// Error of [`P2p::start`](crate::P2p::start).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Invalid rank, size or configuration.
    #[error("{0}")]
    Invalid(String),
    /// The bootstrap had no addresses of a peer.
    #[error("no addresses of rank {peer}: {reason}")]
    NoAddresses {
        /// The peer's rank.
        peer: Rank,
        /// Reason given by the bootstrap.
        reason: String,
    },
    /// The processes could not exchange the transports that reach each peer.
    #[error("the processes could not agree on transports: {0}")]
    NoAgreement(String),
    /// No transport reaches a peer.
    #[error("rank {peer} cannot be reached:\n{reasons}")]
    Unreachable {
        /// Rank of the peer.
        peer: Rank,
        /// Reasons, one line for each transport.
        reasons: String,
    },
    /// The system refused an event descriptor.
    #[error("{0}")]
    System(String),
}

/// Failed start, with the transports of the [`Setup`](crate::Setup).
///
/// Peers that are starting may still use the transports of this process, such as its shared memory.
/// Keep them until all have reported, so that the others find the actual cause and not the end of
/// this process.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotStarted {
    /// Cause.
    pub error: StartError,
    /// The transports of the [`Setup`](crate::Setup), in its order.
    pub transports: Vec<Box<dyn btl::Btl>>,
}
