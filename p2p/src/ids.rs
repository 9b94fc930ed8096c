//! Checked numbers of peers and transports, and what selects messages by them.

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

/// Destination of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) context: u32,
    pub(crate) peer: PeerId,
    pub(crate) tag: i32,
}

/// Messages that a receive or probe matches. `None` is a wildcard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) context: u32,
    pub(crate) source: Option<PeerId>,
    pub(crate) tag: Option<i32>,
}

impl Selector {
    /// Returns true if a message of this context, source and tag matches.
    #[inline]
    pub(crate) fn matches(&self, context: u32, source: PeerId, tag: i32) -> bool {
        self.context == context
            && self.source.is_none_or(|wanted| wanted == source)
            && self.tag.is_none_or(|wanted| wanted == tag)
    }
}
