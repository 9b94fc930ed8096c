//! The point-to-point layer over byte transports.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod collectives;
mod comm;
mod config;
mod error;
mod group;
mod memory;
mod owned;
mod p2p;
mod raw;
mod scope;
mod shared;
mod types;

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
