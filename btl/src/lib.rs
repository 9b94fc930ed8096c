//! What lies between the point-to-point layer and the transports. The contract is [`contract`]; read that.
//!
//! | module | what |
//! |---|---|
//! | [`contract`] | the rules, as traits and types |
//! | [`conformance`] | the suite that every transport instantiates; ranks are threads or processes |
//! | [`faulty`] | wraps a transport and makes every fault that the contract allows, by one seed |
//! | [`loopback`] | the transport of a job inside one process, with limits to choose and ranks to kill |
//!
//! # How to write a transport
//! 1. Begin with the suite: a test that instantiates [`conformance`] over a constructor that does nothing yet. A transport whose
//!    ranks can be threads implements [`conformance::Harness`], any other [`conformance::ProcessHarness`]. `BTL_CASE=figures` runs the
//!    first case alone; then come `order`, `limits`, `busy`, and the rest.
//! 2. The card: a magic number, a version, the job, the rank, and what is needed to reach it. Whoever reads it checks all of that,
//!    tries the way with a real probe, and says in [`PeerInfo::reason`] or [`Unreachable`] what it found.
//! 3. [`Tx::send`] alone makes a transport: say `Busy` at a bound, never block. Answer in this order: closed, peer unknown,
//!    peer failed, too long, no room. `tests/processes/socket.rs` of this crate is a whole one in 300 lines.
//! 4. Keep every event for `progress`, and there deliver a bounded number. Take an event out of your queues before you call
//!    back: the callback may send, and so come back to them.
//! 5. A peer's end comes last: first what it sent, then the completions of what was asked of it, then `failed`, once. A peer that
//!    says goodbye has `Left`; silence and a closed socket are `Died`, or `Lost` with the reason.
//! 6. `flush` says yes when the process may exit: also for the word of farewell, which must still find room then.
//! 7. To sleep without losing a wake-up, [`Btl::arm`] first publishes the wish, then looks once more, and says no if something
//!    is there. Who puts something down looks for the wish afterwards. Both need a full fence between.
//! 8. `get`, `put` and matched sends are each an own step, with a capability. A key is checked before it is used: length, magic, whose it
//!    is, bounds without overflow. Matched sends need to know what the receiver has seen: count a message as seen when its callback
//!    has returned.
//! 9. Then run it below [`faulty`], and the point-to-point layer above both.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod contract;
mod gather;
mod held_sends;
mod noticed_puts;
mod pending_peers;
mod posted_receives;
mod shared;

pub use contract::*;
pub use gather::{contiguous, gathered_len};
pub use held_sends::HeldSends;
pub use noticed_puts::NoticedPuts;
pub use pending_peers::PendingPeers;
pub use posted_receives::{
    Envelope, PostId, PostedDelivery, PostedReceive, PostedReceives, Withdrawn,
};
pub use shared::{QueuedSend, SharedTransport, Unavailable};
