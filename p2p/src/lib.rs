//! The point-to-point layer: messages by rank, tag and context over whatever byte transports reach the peer.
//!
//! ```no_run
//! # fn transports() -> Vec<Box<dyn p2p::Btl>> { Vec::new() }
//! # fn cards_of(_: u32) -> Result<Vec<p2p::Card>, String> { Ok(Vec::new()) }
//! # fn publish(_: Vec<p2p::Card>) {}
//! use p2p::{Config, P2p, Setup, Source, Tag};
//!
//! let setup = Setup { rank: 0, size: 2, transports: transports(), config: Config::default() };
//! publish(P2p::cards(&setup)); // by the job's bootstrap, which then knows those of all ranks
//! let layer = P2p::start(setup, cards_of)?;
//! let comm = layer.world();
//! comm.send(b"hello", 1, 42)?;
//! let mut buffer = [0; 100];
//! let status = comm.recv(&mut buffer, Source::Any, Tag::Any)?;
//! println!("{} bytes from {}", status.length, status.source);
//! layer.finalize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Protocols
//! By the length of a message, what its transport can do ([`btl::PeerInfo`]) and how its receiver is:
//!
//! | message | protocol | copies by this layer | its send is over |
//! |---|---|---|---|
//! | up to [`eager`](btl::PeerInfo::eager) | *eager*: header and bytes at once | none; one if no receive is posted | at once |
//! | up to [`eager_skewed`](btl::PeerInfo::eager_skewed), to a receiver that is late (hybrid paper, section 4.2) | *eager* | the same | at once |
//! | from [`one_sided_from`](btl::PeerInfo::one_sided_from), to a receive that its transport shows | *matched* ([`btl::PostedReceives::send_to_posted`]): the later side copies (LiMIC, section 4.3); only if [`Config::matched`] says so | none | at once |
//! | longer, transport can get | *announced*, the receiver gets, or from 48 KiB on has fragments sent where it has measured that they come faster ([`Config::adapt`]) | none | when got |
//! | longer, transport can put | *announced*, the receiver accepts, the sender puts | none | when put |
//! | others | *announced*, accepted, sent in fragments over all lanes | one, at the receiver | when sent |
//! | to the own rank | copied; above 64 KiB when the receive is there | one or two | at once, or when received |
//!
//! What a transport refuses after all (a `get` that the kernel forbids) goes in fragments. Headers byte by byte: `docs/p2p.md`; code: [`wire`].
//!
//! # Rules
//! - *Order*: MPI's. Envelopes carry a sequence number for each pair of ranks; those of a peer with several lanes (transports of the same exclusivity)
//!   are put in order again.
//! - *Matching* costs the same whatever waits (`cargo run --release -p p2p --example matchbench`).
//! - *Memory* for messages without a receive is bounded by [`Config::unexpected_bytes`]: senders run on credit, are told to announce
//!   instead, and in the end wait. One that does not is closed out.
//! - *Progress* is made inside calls only, of any thread, or by [`Config::progress_thread`]. Who waits spins, yields, then sleeps on the transports'
//!   descriptors.
//! - *Failure*: requests that name a failed peer end with [`Error::PeerFailed`]; any-source receives that are posted do so once, unless the
//!   peer left in order. Whoever breaks the protocol is closed out, alone, and told why.
//! - *Threads*: everything may be called from any thread at any time; one lock, taken once for a short message.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod background;
mod collectives;
mod comm;
mod config;
mod engine;
mod error;
mod group;
mod idle;
mod matching;
mod memory;
mod owned;
mod p2p;
mod raw;
mod scope;
mod shared;
mod slab;
mod start;
#[cfg(test)]
mod testing;
mod types;
mod waiting;
pub mod wire;

pub use btl::{Btl, PeerError, PeerInfo, Rank};
pub use collectives::{Block, Number, Op, Reduction};
pub use comm::{Comm, Message};
pub use config::Config;
pub use error::{Error, NotStarted, StartError};
pub use memory::Datum;
pub use owned::OwnedRequest;
pub use p2p::P2p;
pub use scope::{Pending, Scope};
pub use start::REACH_BYTES;
pub use types::{
    Card, PathReport, Rail, RailsReport, RequestId, Setup, Source, Stats, Status, Tag,
};
