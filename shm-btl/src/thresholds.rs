//! Sizes from which one copy is faster than two, by the caches that two processes' CPUs share
//! (hybrid paper, section 4.1).

use crate::topology::Relation;

/// Bytes from which on a message is copied once by the kernel instead of twice through shared
/// memory. Below, the system call costs more than the second copy.
///
/// The defaults lie far above the paper's: a call with its page look-ups costs one to two
/// microseconds, and its copy reaches half the bandwidth with today's mitigations, while two copies
/// within a shared cache cost little more than one (docs/performance.md). `esplab tune` measures
/// the values of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// For CPUs that share a cache (second level or further out).
    pub shared_cache: usize,
    /// For CPUs of one socket without a shared cache.
    pub same_socket: usize,
    /// For CPUs of two sockets.
    pub other_socket: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            shared_cache: 128 * 1024,
            same_socket: 32 * 1024,
            other_socket: 16 * 1024,
        }
    }
}

impl Thresholds {
    /// Returns the threshold of a relation. An unknown relation counts as one socket.
    #[must_use]
    pub fn of(&self, relation: Relation) -> usize {
        match relation {
            Relation::SharedCache => self.shared_cache,
            Relation::SameSocket | Relation::Unknown => self.same_socket,
            Relation::OtherSocket => self.other_socket,
        }
    }
}
