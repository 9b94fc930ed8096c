//! Extension: peers that connect before they are added.
//!
//! A transport of a job knows them by rank. An *open* transport has no job: each process chooses a
//! random identity, and numbers its peers by itself in the order in which it adds them. It cannot
//! know who will connect, so a peer without a number is a *stranger* until its owner admits it.
//!
//! An owner that adds peers on first use (Open MPI does) asks here which ranks wait for it. A
//! transport without connections writes `impl PendingPeers for MyBtl {}`.

use crate::contract::PeerInfo;
use crate::values::{Rank, Unreachable};

/// Admission of pending peers: ranks whose connection was accepted but which were not added yet.
/// Their messages wait until they are.
pub trait PendingPeers {
    /// Returns the ranks that have connected but were not added.
    fn pending_peers(&self) -> Vec<Rank> {
        Vec::new()
    }

    /// Returns whether a pending peer has connected from this address, which is untrusted.
    fn is_pending_from(&self, rank: Rank, address: &[u8]) -> bool {
        let _ = (rank, address);
        false
    }

    /// Closes the connection of a pending peer and sends it the `reason`. Other ranks are ignored.
    ///
    /// A peer that is neither added nor refused occupies its place until the transport is closed.
    fn refuse(&mut self, rank: Rank, reason: &str) {
        let _ = (rank, reason);
    }

    /// Returns the identity of a stranger that has connected to this open transport, if there is
    /// one.
    fn stranger(&self) -> Option<u64> {
        None
    }

    /// Adds a stranger as `peer`, which is reached over the connection that it has opened. If
    /// `peer` was added before, its connection is accepted.
    ///
    /// # Errors
    /// [`Unreachable`]; the connection was refused.
    fn admit(&mut self, peer: Rank, stranger: u64) -> Result<PeerInfo, Unreachable> {
        let _ = (peer, stranger);
        Err(Unreachable {
            reason: "this transport is not open".into(),
        })
    }

    /// Closes the connection of a stranger and sends it the `reason`.
    fn refuse_stranger(&mut self, stranger: u64, reason: &str) {
        let _ = (stranger, reason);
    }
}
