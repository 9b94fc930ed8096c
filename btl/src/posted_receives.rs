//! Extension: receives that the sender can fill directly (LiMIC, section 4.3).
//!
//! A receiver publishes its posted receives. A sender that finds one for its message copies the
//! bytes into it, so that a message takes one copy and no request for permission. A transport
//! without this writes `impl PostedReceives for MyBtl {}`.

use crate::values::{Rank, SendError};

/// Context and tag of a message, by which receives select it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Communication context; never a wildcard.
    pub context: u32,
    /// Tag that the user chose.
    pub tag: i32,
}

/// A receive that peers may fill directly.
#[derive(Clone, Copy, Debug)]
pub struct PostedReceive {
    /// Rank that may fill it; `None`: any rank.
    pub source: Option<Rank>,
    /// Communication context.
    pub context: u32,
    /// Tag to match; `None`: any tag that is not negative.
    pub tag: Option<i32>,
    /// Start of the memory to fill.
    pub buffer: *mut u8,
    /// Length of that memory, in bytes.
    pub length: usize,
    /// Value that [`Events::received`](crate::Events::received) passes back.
    pub token: u64,
}

/// Identifier of a posted receive within its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostId(pub u64);

/// Result of [`PostedReceives::withdraw`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// The receive and its memory belong to the caller again; no event follows.
    Yes,
    /// A peer is filling it; [`Events::received`](crate::Events::received) follows.
    Taken,
}

/// Result of [`PostedReceives::send_to_posted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostedDelivery {
    /// The bytes are in the receiver's buffer. The operation is complete.
    Delivered,
    /// No posted receive is known to match this message. Nothing was sent.
    NotPosted,
}

/// Posted receives. [`Capabilities::posted_receives`](crate::Capabilities::posted_receives) says
/// whether a transport supports them; by default it does not.
pub trait PostedReceives {
    /// Publishes a receive to the peers that may fill it. `None`: not possible now (no room, or not
    /// supported); the message then arrives by [`Events::message`](crate::Events::message).
    ///
    /// A sender takes the oldest posted receive that matches. The caller therefore posts a receive
    /// only if no older receive that it did not post could match the same message.
    ///
    /// The memory belongs to the transport until
    /// [`Events::received`](crate::Events::received) or [`Withdrawn::Yes`].
    ///
    /// # Safety
    /// `receive.buffer` must be valid for writes of `receive.length` bytes, and no other code may
    /// access it, until then.
    unsafe fn post(&mut self, receive: &PostedReceive) -> Option<PostId> {
        let _ = receive;
        None
    }

    /// Withdraws a posted receive, to cancel it or because a message that arrived otherwise matches
    /// it. Unknown ids return [`Withdrawn::Yes`].
    ///
    /// [`Events::message`](crate::Events::message) may call it. A message counts as seen, for
    /// [`send_to_posted`](PostedReceives::send_to_posted), when its callback returns: a receive
    /// that is withdrawn later could be filled by a newer message before that.
    fn withdraw(&mut self, post: PostId) -> Withdrawn {
        let _ = post;
        Withdrawn::Yes
    }

    /// Copies a message into the oldest receive of `peer` that matches it, provided that `peer` has
    /// seen every message sent to it before (an older message might match the same receive).
    ///
    /// A message longer than the receive fills it and is [`PostedDelivery::Delivered`]; the
    /// receiver learns the full length.
    ///
    /// # Safety
    /// `local` must be valid for reads of `length` bytes during the call.
    ///
    /// # Errors
    /// See [`SendError`]. After an error nothing was sent.
    unsafe fn send_to_posted(
        &mut self,
        peer: Rank,
        envelope: Envelope,
        local: *const u8,
        length: usize,
    ) -> Result<PostedDelivery, SendError> {
        let _ = (peer, envelope, local, length);
        Err(SendError::Unsupported)
    }
}
