//! Destinations of messages, and what receives select.

use crate::ids::PeerId;

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
