//! Checked numbers of peers and transports.

use btl::Rank;

/// A rank of the job that was checked to be less than the job's size.
///
/// The table of peers has an entry for each, so looking one up cannot fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerId(u32);

impl PeerId {
    /// Checks a rank that comes from outside.
    #[inline]
    pub(crate) fn new(rank: Rank, size: u32) -> Option<PeerId> {
        (rank < size).then_some(PeerId(rank))
    }

    /// Returns the rank in the job.
    #[inline]
    pub(crate) fn rank(self) -> Rank {
        self.0
    }
}

/// Number of a transport of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransportId(u8);

impl TransportId {
    /// Iterates over the ids of `count` transports, at most 255.
    pub(crate) fn all(count: usize) -> impl Iterator<Item = TransportId> + use<> {
        (0..u8::MAX).map(TransportId).take(count)
    }

    /// Returns the place in the [`Setup`](crate::Setup).
    #[inline]
    pub(crate) fn place(self) -> usize {
        usize::from(self.0)
    }
}
