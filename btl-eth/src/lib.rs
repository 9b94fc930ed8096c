//! Byte transport over Ethernet: the contract of the crate `btl` over ESP streams.
//!
//! - **Reachability**: before a peer counts as reachable, each pair of interfaces is probed with a
//!   short and a full-sized EDP echo. The answers choose the pair and are explained in
//!   [`btl::PeerInfo::reason`]. A node is probed once for all its ranks.
//! - **Connections** are opened by the first message. Until one is established, `send` returns
//!   `Busy`. A process with more than [`EthConfig::max_connections`] ends the least recently used
//!   one; the next message opens it again. `peer.rs` describes both.
//! - **Messages** are records in a stream, see [`record`]. A message is written whole or not at
//!   all, and read in place: the receive ring is mapped twice, so each message is one slice.
//! - **Polling**: the engine sets an event bit for each stream that became readable, so idle peers
//!   cost nothing. Peers that were active recently are polled directly.
//! - **Sleeping**: one descriptor for all streams, new connections and the end of the daemon.
//! - **End of a peer**: one that leaves gracefully sends GOODBYE last. A stream that ends without
//!   it or RELEASE is a death. Peers without a connection are checked periodically, see
//!   `liveness.rs`.
//!
//! `get`, `put` and the extension for held sends are not supported.
//!
//! ```no_run
//! use btl::{Btl, Tx};
//! use btl_eth::{EthBtl, EthConfig};
//!
//! # fn exchange(address: Vec<u8>) -> Vec<u8> { address }
//! let mut transport = EthBtl::new(EthConfig::new(0, 2, "my job"))?;
//! let address_of_rank_1 = exchange(transport.address());
//! transport.add_peer(1, &address_of_rank_1)?;
//! let sent = transport.send(1, b"header", &[]); // `Busy` until the connection is established
//! # let _ = sent;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod address;
mod channel;
mod config;
mod connect;
mod counters;
mod keys;
mod liveness;
mod open;
mod own;
mod peer;
mod pending;
mod probe;
mod receive;
pub mod record;
mod release;
mod send;
mod transport;

pub use config::{CONNECTIONS_VARIABLE, Carrier, EthConfig, EthError};
pub use counters::Counters;
pub use esp_client::Path;
pub use transport::EthBtl;
