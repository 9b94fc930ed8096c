//! Matching of posted receives and unexpected messages.
//!
//! Both are kept in one table for each [`Class`], that is, for each combination of wildcards. A
//! message is compared with the oldest receive of each class; a receive takes the oldest message of
//! its own class. The cost does not depend on their number. MPI needs at most four classes. A
//! program that ignores bits of tags by a mask has two classes for each mask that is in use.

pub(crate) mod lists;
pub(crate) mod posted;
pub(crate) mod unexpected;

#[cfg(test)]
mod tests;

use lists::Key;

use crate::ids::{PeerId, Selector};

/// The wildcards of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    any_source: bool,
    /// Bits of the tag that are not compared.
    ignore: u64,
}

impl Class {
    /// The class of receives without wildcards.
    pub(crate) const EXACT: Class = Class {
        any_source: false,
        ignore: 0,
    };

    #[inline]
    pub(crate) fn of(selector: &Selector) -> Class {
        Class {
            any_source: selector.source.is_none(),
            ignore: selector.ignore,
        }
    }

    /// Returns the key of a message in the table of this class.
    #[inline]
    pub(crate) fn key(self, context: u32, source: PeerId, tag: u64) -> Key {
        Key {
            context,
            source: if self.any_source { 0 } else { source.rank() },
            tag: tag & !self.ignore,
        }
    }
}

/// Returns the key of a receive in the table of its class.
#[inline]
pub(crate) fn key_of(selector: &Selector) -> Key {
    debug_assert_eq!(selector.tag & selector.ignore, 0);
    Key {
        context: selector.context,
        source: selector.source.map_or(0, PeerId::rank),
        tag: selector.tag,
    }
}
