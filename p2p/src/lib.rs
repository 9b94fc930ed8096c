//! The point-to-point layer: messages by rank, tag and context over the byte transports that reach
//! each peer.
//!
//! ```no_run
//! # fn transports() -> Vec<Box<dyn p2p::Btl>> { Vec::new() }
//! # fn addresses_of(_: u32) -> Result<Vec<p2p::TransportAddress>, String> { Ok(Vec::new()) }
//! # fn publish(_: Vec<p2p::TransportAddress>) {}
//! use p2p::{Config, P2p, Setup, Source, Tag};
//!
//! let setup = Setup { rank: 0, size: 2, transports: transports(), config: Config::default() };
//! // The job's bootstrap exchanges the addresses of all ranks.
//! publish(P2p::addresses(&setup));
//! let layer = P2p::start(setup, addresses_of)?;
//! let comm = layer.world();
//! comm.send(b"hello", 1, 42)?;
//! let mut buffer = [0; 100];
//! let status = comm.recv(&mut buffer, Source::Any, Tag::Any)?;
//! println!("{} bytes from {}", status.length, status.source);
//! layer.finalize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A library that has no ranks, such as libfabric, uses an [`Endpoint`]: peers are added at run
//! time, tags have 64 bits and a mask, and requests are reported in the order of their completion.
//! Its peers may access memory that it exposes ([`Regions`]).
//!
//! # Protocols
//! The protocol of a message depends on its length, on the transport ([`PeerInfo`]) and on the
//! receiver:
//!
//! | message | protocol | copies by this layer | send completes |
//! |---|---|---|---|
//! | up to `eager` | eager | 0, or 1 without a posted receive | at once |
//! | up to `eager_skewed`, receiver is late | eager | 0, or 1 without a posted receive | at once |
//! | from `one_sided_from`, transport can get | RTS, the receiver gets, FIN | 0 | at FIN |
//! | from `one_sided_from`, transport can put | RTS, CTS, the sender puts, FIN | 0 | when put |
//! | other | RTS, CTS, fragments over all rails | 1 at the receiver | when sent |
//! | to this rank itself | copied | 1 or 2 | at once; above 64 KiB when received |
//!
//! If a transport refuses a `get` or `put`, the message is sent in fragments. The headers are
//! specified in `docs/p2p.md` and implemented in [`wire`].
//!
//! # Rules
//! - *Order* is that of MPI. Envelopes carry a sequence number for each pair of ranks and take one
//!   rail.
//! - *Matching* takes constant time, however many messages or receives wait
//!   (`cargo run --release -p p2p --example matchbench`).
//! - *Memory* for messages without a receive is bounded by [`Config::unexpected_bytes`]: senders
//!   spend credit, then send RTS only, then wait. A peer that sends without credit is closed.
//! - *Progress* is made inside calls of any thread ([`P2p::progress`]). A waiting thread spins,
//!   then yields, then sleeps on the transports' descriptors.
//! - *Failure*: a peer fails with any of its rails. Requests that name it end with
//!   [`Error::PeerFailed`]; posted any-source receives do so once, unless the peer left gracefully.
//!   A peer that violates the protocol is closed and gets the reason.
//! - *Threads*: every call may be made from any thread at any time. One lock is taken, once for a
//!   short message.
//! - *Panics*: a transport that panics while memory is lent to requests aborts the process.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod access;
mod atomics;
mod collectives;
mod comm;
mod config;
mod endpoint;
mod engine;
mod error;
mod group;
mod ids;
mod matching;
mod memory;
mod mutual;
mod owned;
mod p2p;
mod probes;
mod regions;
mod scope;
mod shared;
mod slab;
mod start;
#[cfg(test)]
mod testing;
mod types;
pub mod wire;

pub use access::{Atomic, MAX_ATOMIC, Remote};
pub use atomics::{AtomicOp, AtomicType};
pub use btl::{Btl, PeerError, PeerInfo, Rank};
pub use collectives::{Algorithm, Block, Collective, Number, Op, Reduction};
pub use comm::{Comm, Message};
pub use config::{Config, Tuning};
pub use endpoint::{Arrived, Completion, Context, Ended, Endpoint, Pattern, Sent, Target};
pub use error::{Error, NotStarted, StartError};
pub use memory::Datum;
pub use mutual::reach_digest;
pub use owned::OwnedRequest;
pub use p2p::P2p;
pub use regions::{Exposure, Refusal, Regions};
pub use scope::{Pending, Scope};
pub use start::{NOT_TRIED, REACH_BYTES, Reach};
pub use types::{
    AddressBook, PathReport, RailReport, RequestId, Setup, Source, Stats, Status, Tag,
    TransportAddress,
};
