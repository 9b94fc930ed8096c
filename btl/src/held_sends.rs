//! Extension: short messages that are sent from the caller's memory (VIA-RPI).
//!
//! The transport does not copy the body, which must stay in place until the network interface has
//! read it. A transport without this writes `impl HeldSends for MyBtl {}`.

use crate::values::{Rank, SendError, Started};

/// Sends that keep the caller's body. [`Capabilities::held_from`](crate::Capabilities::held_from)
/// says whether, and for which lengths, a transport supports them; by default it does not.
pub trait HeldSends {
    /// Sends a message in order with those of [`Tx::send`](crate::Tx::send), without copying the
    /// body.
    ///
    /// [`Started::Pending`]: the body belongs to the transport until
    /// [`Events::completed`](crate::Events::completed) with `token`, which follows even if the peer
    /// dies. [`Started::Done`]: the body was copied.
    ///
    /// # Safety
    /// `body` must be valid for reads of `length` bytes, and must not change, until completion.
    ///
    /// # Errors
    /// See [`SendError`]. After an error nothing was sent.
    unsafe fn send_held(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: *const u8,
        length: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        let _ = (peer, header, body, length, token);
        Err(SendError::Unsupported)
    }
}
