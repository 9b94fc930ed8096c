//! Counters of the transport.

/// Counters of a transport since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Established connections, opened by either side.
    pub connected: u64,
    /// Connections ended by RELEASE of either side.
    pub released: u64,
    /// Failed attempts to connect.
    pub failed_attempts: u64,
    /// Attempts of either side that ended with YIELD.
    pub yielded: u64,
    /// Streams refused: of another job.
    pub refused_job: u64,
    /// Streams refused: the rank is invalid, or its address differs.
    pub refused_rank: u64,
    /// Streams ended: the first record was not HELLO.
    pub malformed: u64,
    /// Streams ended: too many were pending.
    pub evicted: u64,
    /// Peers that violated the protocol.
    pub violations: u64,
}
