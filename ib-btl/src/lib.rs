//! The byte transport over InfiniBand and RoCE: [`btl::Btl`] by verbs, after VIA-RPI (LAM/MPI) and
//! MPICH2-CH3 over VAPI.
//!
//! # Files
//! | file | content |
//! |---|---|
//! | `transport/` | [`IbBtl`]: connections, messages, one-sided operations |
//! | `wire.rs` | addresses, requests for a connection, immediates, region keys |
//! | `credit.rs` | flow control by blocks |
//! | `cache.rs` | the pin-down cache |
//! | `nic.rs` | the interface to an adapter |
//! | `raw/` | unsafe code: libibverbs by `dlopen`, memory that devices write, userfaultfd, a fabric for tests |
//!
//! # Protocols
//! *Tiny* and *short* messages ([`Tx::send`](btl::Tx::send)) are copied into registered blocks and
//! written by one RDMA write with immediate into the peer's blocks for this process: envelope and
//! body together, one block or a few in a row. `send` gives the memory back at once, so a short
//! message is copied at the sender, too; [`send_held`](btl::Tx::send_held), if
//! [`IbConfig::held_from`] is said, keeps it and registers, as VIA-RPI did. *Long* ones are
//! announced by the layer above, which answers with a region's key; they move by
//! [`put`](btl::Tx::put), the end by [`put_last`](btl::Tx::put_last), whose immediate tells the
//! receiver (or by [`get`](btl::Tx::get), if [`IbConfig::reads`]), from and to the program's memory
//! without a copy.
//!
//! # Connections
//! A card names a queue pair for datagrams. Both sides tell each other in datagrams, repeated until
//! answered, the queue pair and the ring for this peer. A silent peer is probed by empty writes,
//! which its interface answers: a process that died has no queue pair any more.
//!
//! # Trust
//! Header, lengths, and short bodies are copied out of the blocks before they are looked at, long
//! bodies where they belong; a wrong immediate, length or credit fails that peer
//! ([`btl::PeerError::Violation`]). Peers are given keys of this job's messages' memory only; with
//! the cache a key covers whole pages and may outlive the message, as in every such cache:
//! processes of a job trust each other that far.

#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod cache;
mod config;
mod credit;
mod error;
pub mod nic;
mod raw;
mod transport;
mod wire;

pub use cache::CacheStats;
pub use config::IbConfig;
pub use error::IbError;
pub use raw::verbs::ports;
pub use transport::{IbBtl, Stats};

/// A fabric inside one process, for tests without hardware. Requires the feature `testing`.
#[cfg(any(test, feature = "testing"))]
pub mod fake {
    pub use crate::raw::fabric::{Fabric, FabricNic};
}
