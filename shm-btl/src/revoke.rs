//! Ending a connection while the peer may be copying; `transport/teardown.rs` has the drawing.

use crate::layout::{END_BROKEN, PairHead};
use shmem::sync::{Ordering, fence};

/// Ends the connection to a peer, which then delivers nothing that it copies from this process's
/// memory. `mine` is the process's own words for the peer.
pub(crate) fn revoke(mine: &PairHead) {
    mine.end.0.store(END_BROKEN, Ordering::Release);
    // SYNC POINT revoke: comes before this process uses the memory for something else.
    fence(Ordering::SeqCst);
}

/// Returns true if the owner of these words has ended the connection to this process. Call it after
/// a copy of the owner's memory.
pub(crate) fn is_revoked(theirs: &PairHead) -> bool {
    // SYNC POINT revoke
    fence(Ordering::SeqCst);
    theirs.end.0.load(Ordering::Acquire) == END_BROKEN
}
