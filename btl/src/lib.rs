//! The contract between a message-passing layer and its byte transports (BTLs).
//!
//! # Example
//! A handler counts messages; the caller makes progress until one has arrived:
//!
//! ```
//! use btl::{Btl, Events, PeerError, Rank, Tx};
//!
//! #[derive(Default)]
//! struct Counter {
//!     messages: usize,
//! }
//!
//! impl Events for Counter {
//!     fn message(&mut self, _: &mut dyn Tx, peer: Rank, header: &[u8], body: &[u8]) {
//!         println!("rank {peer} sent {} + {} bytes", header.len(), body.len());
//!         self.messages += 1;
//!     }
//!
//!     fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
//!
//!     fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
//!         eprintln!("rank {peer}: {error}");
//!     }
//! }
//!
//! fn wait_for_message(transport: &mut dyn Btl) {
//!     let mut counter = Counter::default();
//!     while counter.messages == 0 {
//!         transport.progress(&mut counter);
//!     }
//! }
//! ```
//!
//! # Contents
//! [`contract`] holds the traits and rules that every transport follows: [`Btl`], [`Tx`] and
//! [`Events`]. Extensions with default implementations are [`HeldSends`], [`NoticedPuts`] and
//! [`PendingPeers`]. [`SharedTransport`] lets several threads use a transport.
//!
//! # Writing a transport
//! `dev/conformance/examples/minimal_transport.rs` is a complete transport within one process. To
//! write another one:
//!
//! 1. Write a test that runs the conformance suite (crate `btl-conformance`) over a constructor
//!    that does nothing yet. A transport whose ranks can be threads implements `suite::Harness`,
//!    any other `suite::ProcessHarness`. `BTL_CASE=figures` runs the first case alone; `order`,
//!    `limits` and `busy` follow.
//! 2. Define the address: a magic number, a version, the job, the rank, and what is needed to reach
//!    it. [`add_peer`](Btl::add_peer) checks all of that, probes the peer, and reports the result
//!    in [`PeerInfo::reason`] or [`Unreachable`].
//! 3. Implement [`Tx::send`]. That alone makes a transport. Bound every queue and return
//!    [`SendError::Busy`] at the bound. Check errors in the order that [`Tx`] gives.
//! 4. Keep every event for [`progress`](Btl::progress), and report a bounded number there. Remove
//!    an event from its queue before calling the handler, which may send and so re-enter the queue.
//! 5. Report a peer's end last: first its messages, then the completions of its operations, then
//!    [`failed`](Events::failed), once. The error is [`PeerError::Left`] for a peer that announced
//!    its end, `Gone` for one that ended while there was no connection to it, and `Died`, or `Lost`
//!    with the reason, after a closed socket or silence.
//! 6. [`flush`](Btl::flush) returns true when the process may exit. There must still be room for
//!    the announcement of the end then.
//! 7. To sleep without losing a wake-up, [`arm`](Btl::arm) publishes the request, then checks for
//!    events once more. The side that produces an event checks for the request afterwards. Both
//!    need a full fence in between.
//! 8. Add `get`, `put` and the extensions one by one, each with its capability. Check a key before
//!    using it: length, magic, owner, bounds without overflow.
//! 9. Run the transport under `btl_conformance::faulty`, and the point-to-point layer above both.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod contract;
mod gather;
mod held_sends;
mod noticed_puts;
mod pending_peers;
mod shared;
mod values;

pub use contract::*;
pub use gather::{contiguous, gathered_len};
pub use held_sends::HeldSends;
pub use noticed_puts::NoticedPuts;
pub use pending_peers::PendingPeers;
pub use shared::{QueuedSend, SharedTransport};
pub use values::*;
