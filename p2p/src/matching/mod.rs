//! Who gets which message: posted receives, and messages that came before their receive.
//!
//! Both are kept by what is known of them, in one table for each kind of wildcard, so that no search walks over others: a message looks at
//! the oldest receive in at most four tables, a receive at the oldest message in one. Cost does not depend on how many there are.

pub(crate) mod lists;
pub(crate) mod pool;
pub(crate) mod posted;
pub(crate) mod unexpected;

#[cfg(test)]
mod tests;

use lists::Key;

use crate::envelope::Selector;
use crate::ids::PeerId;

/// Kinds of receives: bit 0 any source, bit 1 any tag.
pub(crate) const CLASSES: usize = 4;

#[inline]
pub(crate) fn class(selector: &Selector) -> usize {
    usize::from(selector.source.is_none()) | usize::from(selector.tag.is_none()) << 1
}

/// What a message looks like to receives of a class.
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
