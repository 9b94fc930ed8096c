//! Ending a connection while the peer may be copying; `transport/teardown.rs` has the drawing.

use crate::layout::{END_BROKEN, PairHead};
use shmem::sync::{Ordering, fence};

/// Ends the connection to a peer: the peer starts no further copy into this process's memory, and
/// delivers nothing that it copies from there. `mine` is the process's own words for the peer.
pub(crate) fn revoke(mine: &PairHead) {
    mine.writing.0.end.store(END_BROKEN, Ordering::Release);
    // SYNC POINT revoke: comes before the check whether the peer is copying, and before this
    // process uses the memory for something else.
    fence(Ordering::SeqCst);
}

/// Returns true if the owner of these words has ended the connection to this process. Call it after
/// `copying` was set, which the owner reads after ending the connection, or after a copy of the
/// owner's memory.
pub(crate) fn is_revoked(theirs: &PairHead) -> bool {
    // SYNC POINT revoke
    fence(Ordering::SeqCst);
    theirs.writing.0.end.load(Ordering::Acquire) == END_BROKEN
}

/// Clears `copying`: the copy has ended.
pub(crate) fn end_copy(mine: &PairHead) {
    mine.writing.0.copying.store(0, Ordering::Release);
}
