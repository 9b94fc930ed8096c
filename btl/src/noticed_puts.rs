//! Extension: a put whose completion the target learns without a further message (RDMA write with
//! immediate data).
//!
//! The owner of a region deposits a notice. The last put into the region delivers it. A transport
//! without this writes `impl NoticedPuts for MyBtl {}`; then the initiator sends a message after
//! its put has completed.

use crate::values::{Rank, Region, RegisterError, SendError, Started};

/// Puts that notify the target of their completion. Not supported by default.
pub trait NoticedPuts {
    /// Registers memory as [`Btl::register`](crate::Btl::register) does, with a notice of at most
    /// [`MAX_HEADER`](crate::MAX_HEADER) bytes for one `peer`.
    ///
    /// When `peer` has written its last bytes by [`put_last`](NoticedPuts::put_last),
    /// [`Events::message`](crate::Events::message) delivers the notice as a header without a body,
    /// once. The peer chooses the moment: trust the notice no more than a message from that peer.
    ///
    /// A transport may register the memory without the notice; then `put_last` to this region
    /// returns [`SendError::Unsupported`].
    ///
    /// # Safety
    /// As for [`Btl::register`](crate::Btl::register).
    ///
    /// # Errors
    /// [`RegisterError::Unsupported`]: use [`Btl::register`](crate::Btl::register). Otherwise see
    /// [`RegisterError`].
    unsafe fn register_noticed(
        &mut self,
        memory: *mut u8,
        length: usize,
        peer: Rank,
        notice: &[u8],
    ) -> Result<Region, RegisterError> {
        let _ = (memory, length, peer, notice);
        Err(RegisterError::Unsupported)
    }

    /// Writes like [`Tx::put`](crate::Tx::put), for the last bytes of a region. When these bytes
    /// and those of every earlier `put` to this region are in place, the owner gets the region's
    /// notice, after all messages that were sent to it before.
    ///
    /// # Safety
    /// As for [`Tx::put`](crate::Tx::put).
    ///
    /// # Errors
    /// [`SendError::Unsupported`], including for a region without a notice: use `put`, and send a
    /// message when it has completed. Otherwise see [`SendError`].
    unsafe fn put_last(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        let _ = (peer, local, length, key, offset, token);
        Err(SendError::Unsupported)
    }
}
