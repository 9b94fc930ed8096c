//! The byte transport over Ethernet: the contract of the crate `btl` over ESP streams.
//!
//! - **Reachability** is found out by EDP echo, a short and a full-sized one on each pair of interfaces, before a peer counts as
//!   reachable; the answers choose the pair, and stand in [`btl::PeerInfo::reason`]. A node is asked once for all its ranks.
//! - **Connections** are made by the first message. Until there is one, `send` says `Busy`: no message waits in this crate. The
//!   rules for two that connect at once stand in `peer.rs`.
//! - **Messages** are records in a stream: eight bytes in front, see [`frame`]. A message is written whole or not at all (`Busy`), and
//!   read where it lies: the receive ring is mapped twice, so every message is one slice, and callbacks get slices of it.
//! - **Who is looked at**: the engine says by an event bit which stream has news, so silent peers cost nothing. Those that spoke
//!   lately are looked at directly.
//! - **Sleeping**: one descriptor for all streams, connections to come and the daemon's end. The engine writes it itself.
//! - **The end**: a goodbye is the last record of a peer that leaves in order; a stream that ends without is a death. Peers without a
//!   connection are watched from time to time, see `watch.rs`.
//!
//! What is not possible: `get`, `put`, matched sends.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod card;
mod channel;
mod config;
mod counters;
pub mod frame;
mod lobby;
mod make;
mod peer;
mod probe;
mod receive;
mod send;
mod setup;
mod transport;
mod watch;

pub use config::{EthConfig, EthError};
pub use counters::Counters;
pub use esp_client::Path;
pub use send::Leaving;
pub use transport::EthBtl;
