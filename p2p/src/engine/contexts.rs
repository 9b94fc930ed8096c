//! Contexts of communicators.

use crate::ids::PeerId;
use std::sync::Arc;

use crate::group::Group;

/// Highest context of a job's world: 0 for the program's messages, 1 for its collectives.
const WORLD: u32 = 1;
/// Highest context of an endpoint, whose contexts include every peer.
pub(crate) const ENDPOINT: u32 = 3;

/// The contexts of this process: those shared with all peers, and the communicators of a job.
#[derive(Debug)]
pub(crate) struct Contexts {
    /// Highest context that includes all peers.
    common: u32,
    /// Even context and members, sorted by context.
    entries: Vec<(u32, Arc<Group>)>,
    next: u32,
}

impl Contexts {
    /// Creates the contexts of an endpoint (`open`) or of a job.
    pub(crate) fn new(open: bool) -> Contexts {
        let common = if open { ENDPOINT } else { WORLD };
        Contexts {
            common,
            entries: Vec::new(),
            next: common + 1,
        }
    }

    /// Returns true if the context includes all peers.
    #[inline]
    pub(crate) fn is_common(&self, context: u32) -> bool {
        context <= self.common
    }

    /// Returns true if the communicator was freed, or never existed.
    #[inline]
    pub(crate) fn is_freed(&self, context: u32) -> bool {
        !self.is_common(context) && self.group(context).is_none()
    }

    fn find(&self, context: u32) -> Result<usize, usize> {
        self.entries
            .binary_search_by_key(&(context & !1), |entry| entry.0)
    }

    /// Returns the members of a communicator other than the world.
    pub(crate) fn group(&self, context: u32) -> Option<&Arc<Group>> {
        self.entries
            .get(self.find(context).ok()?)
            .map(|entry| &entry.1)
    }

    /// Returns true if the communicator exists and the peer is a member.
    #[inline]
    pub(crate) fn is_member(&self, context: u32, peer: PeerId) -> bool {
        self.is_common(context)
            || self
                .group(context)
                .is_some_and(|group| group.local_rank(peer).is_some())
    }

    /// Returns true if the number was given out or agreed on before.
    pub(crate) fn was_used(&self, context: u32) -> bool {
        context < self.next
    }

    /// Returns the lowest number that no communicator of this process had, and marks it as used.
    pub(crate) fn propose(&mut self) -> u32 {
        let context = self.next;
        self.next = context.saturating_add(2);
        context
    }

    /// Takes a context that all members agreed on. Returns false if it is not free here: it must
    /// have been proposed here, or be higher than all previous ones.
    pub(crate) fn reserve(&mut self, context: u32, proposed: u32, group: &Arc<Group>) -> bool {
        if !context.is_multiple_of(2) || context < proposed || context > u32::MAX - 3 {
            return false;
        }
        if context != proposed && context < self.next {
            return false;
        }
        match self.find(context) {
            Ok(_) => false,
            Err(at) => {
                self.entries.insert(at, (context, Arc::clone(group)));
                self.next = self.next.max(context + 2);
                true
            }
        }
    }

    /// Removes a communicator.
    pub(crate) fn remove(&mut self, context: u32) {
        if let Ok(at) = self.find(context) {
            self.entries.remove(at);
        }
    }
}
