//! Checked numbers of peers and transports, and the selection of messages by them.

use btl::Rank;

/// A rank of the job that was checked to be less than the job's size.
///
/// The table of peers has an entry for each id, so a lookup cannot fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerId(u32);

impl PeerId {
    /// Checks a rank from an untrusted source.
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

    /// Returns the index in the [`Setup`](crate::Setup).
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
    pub(crate) tag: u64,
    /// Number passed to the receiver; `None` between ranks.
    pub(crate) data: Option<u64>,
}

/// Fields of an envelope that describe its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) context: u32,
    pub(crate) tag: u64,
    /// As in [`Destination`].
    pub(crate) data: Option<u64>,
}

/// [`Selector::ignore`] of a receive that matches any tag.
pub(crate) const ANY_TAG: u64 = u64::MAX;

/// Messages that a receive or probe matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) context: u32,
    /// `None`: any.
    pub(crate) source: Option<PeerId>,
    pub(crate) tag: u64,
    /// Bits of the tag that are not compared; they are 0 in `tag`.
    pub(crate) ignore: u64,
}

impl Selector {
    /// Returns true if a message of this context, source and tag matches.
    #[inline]
    pub(crate) fn matches(&self, context: u32, source: PeerId, tag: u64) -> bool {
        self.context == context
            && self.source.is_none_or(|wanted| wanted == source)
            && tag & !self.ignore == self.tag
    }
}
