//! Matching of posted receives and unexpected messages.
//!
//! Both are kept in one table for each combination of wildcards. A message compares the oldest
//! receive of at most four tables; a receive takes the oldest message of one. The cost does not
//! depend on their number.

pub(crate) mod lists;
pub(crate) mod posted;
pub(crate) mod unexpected;

#[cfg(test)]
mod tests;

use lists::Key;

use crate::ids::{PeerId, Selector};

/// Kinds of receives: bit 0 any source, bit 1 any tag.
pub(crate) const CLASSES: usize = 4;

#[inline]
pub(crate) fn class(selector: &Selector) -> usize {
    usize::from(selector.source.is_none()) | usize::from(selector.tag.is_none()) << 1
}

/// Returns the key of a message in the table of a class.
#[inline]
pub(crate) fn key_in(class: usize, context: u32, source: PeerId, tag: i32) -> Key {
    Key {
        context,
        source: if class & 1 == 0 { source.rank() } else { 0 },
        tag: if class & 2 == 0 { tag } else { 0 },
    }
}

#[inline]
pub(crate) fn key_of(selector: &Selector) -> Key {
    Key {
        context: selector.context,
        source: selector.source.map_or(0, PeerId::rank),
        tag: selector.tag.unwrap_or(0),
    }
}
