//! Extension: peers that have connected before they were added.
//!
//! An owner that adds peers on first use (Open MPI does) asks here which ranks wait for it. A
//! transport without connections writes `impl PendingPeers for MyBtl {}`.

use crate::values::Rank;

/// Admission of pending peers: ranks whose connection was accepted and that were not added yet.
/// Their messages wait until they are.
pub trait PendingPeers {
    /// Returns a rank that has connected and was not added, if there is one.
    fn pending_peer(&self) -> Option<Rank> {
        None
    }

    /// Closes the connection of a pending peer and tells it the `reason`. Other ranks are ignored.
    ///
    /// A peer that is neither added nor refused occupies its place until the transport is closed.
    fn refuse(&mut self, rank: Rank, reason: &str) {
        let _ = (rank, reason);
    }
}
