//! From which size on one copy is better than two, by what two processes' CPUs share (hybrid paper, section 4.1).

use crate::topology::Relation;

/// Bytes from which on a message is better copied once by the kernel than twice through shared memory. Below, the system call
/// costs more than the second copy.
///
/// The defaults lie far above the paper's: a call with its page look-ups costs one to two microseconds and its copy half the bandwidth
/// with today's mitigations, while two copies within a shared cache hardly cost more than one (measured: docs/performance.md). `esplab tune`
/// measures a machine's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The CPUs share a cache (second level or further out).
    pub shared_cache: usize,
    /// One socket, no shared cache.
    pub same_socket: usize,
    /// Two sockets.
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
    /// The one for a relation. An unknown one counts as one socket.
    #[must_use]
    pub fn of(&self, relation: Relation) -> usize {
        match relation {
            Relation::SharedCache => self.shared_cache,
            Relation::SameSocket | Relation::Unknown => self.same_socket,
            Relation::OtherSocket => self.other_socket,
        }
    }
}
