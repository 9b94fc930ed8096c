//! What happened so far, as numbers.

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages sent to other ranks.
    pub sent: u64,
    /// Messages received from other ranks.
    pub received: u64,
    /// Times that a send ring was full.
    pub full: u64,
    /// Connections made (confirmed), by either side.
    pub connected: u64,
    /// Attempts that came to nothing.
    pub failed_attempts: u64,
    /// Attempts that gave way to the peer's, or the peer's to ours.
    pub yielded: u64,
    /// Streams refused: of another job.
    pub refused_job: u64,
    /// Streams refused: a rank that is none, is not this one, or is not who its card says.
    pub refused_rank: u64,
    /// Streams refused: their rank has a connection, or was given up.
    pub refused_state: u64,
    /// Streams ended: what came was no introduction.
    pub malformed: u64,
    /// Streams ended: too many had not introduced themselves.
    pub evicted: u64,
    /// Peers that broke the framing.
    pub violations: u64,
}
