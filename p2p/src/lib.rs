//! The point-to-point layer over byte transports.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

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

pub use btl::{Btl, Path, PeerError, Rank};
pub use collectives::{Block, Number, Op, Reduction};
pub use comm::{Comm, Message};
pub use config::Config;
pub use error::{Error, StartError};
pub use memory::Datum;
pub use owned::OwnedRequest;
pub use p2p::P2p;
pub use scope::{Pending, Scope};
pub use types::{Card, PathReport, RequestId, Setup, Source, Stats, Status, Tag};
