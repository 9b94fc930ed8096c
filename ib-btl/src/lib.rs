//! Byte transport over InfiniBand and RoCE: [`btl::Btl`] by verbs, after VIA-RPI (LAM/MPI) and
//! MPICH2-CH3 over VAPI. `docs/infiniband.md` is the manual.
//!
//! # Example
//! ```no_run
//! use btl::Btl;
//! use ib_btl::{IbBtl, IbConfig};
//!
//! // Rank 0 of 2, over the first active port.
//! let mut transport = IbBtl::new(IbConfig::new(0, 2, b"secret of the job"))?;
//! let address = transport.address(); // for the other rank
//! # Ok::<(), ib_btl::IbError>(())
//! ```
//!
//! # Protocols
//! *Tiny* and *short* messages ([`Tx::send`](btl::Tx::send)) are copied into registered blocks. One
//! RDMA write with immediate carries envelope and body into one or a few consecutive blocks of the
//! peer. With [`IbConfig::held_from`], [`send_held`](btl::HeldSends::send_held) registers the body
//! of a short message instead of copying it.
//!
//! *Long* messages are announced by the layer above, which answers with a region's key. They move
//! by [`put`](btl::Tx::put) without a copy; the immediate of
//! [`put_last`](btl::NoticedPuts::put_last) reports the end to the receiver. With
//! [`IbConfig::reads`] the receiver uses [`get`](btl::Tx::get) instead.
//!
//! # Connections
//! An address names a queue pair for datagrams. Both sides send each other their queue pair and
//! ring in datagrams, repeated until answered. A silent peer is probed by empty writes, which its
//! interface answers as long as the process lives.
//!
//! # Trust
//! Headers, lengths and short bodies are copied out of the blocks before they are interpreted. A
//! wrong immediate, length or credit fails that peer ([`btl::PeerError::Violation`]). Keys cover
//! memory of this job's messages only; with the cache a key covers whole pages and may outlive its
//! message, so processes of a job trust each other that far.

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
pub use config::{BLOCK, IbConfig, MESSAGE_BLOCKS};
pub use error::IbError;
pub use raw::verbs::ports;
pub use transport::{IbBtl, Stats};

#[cfg(test)]
#[path = "../../dev/fake-verbs/src/fabric/mod.rs"]
// Copies lent memory; public and used completely in its own crate only.
#[allow(unsafe_code, unreachable_pub, dead_code)]
mod fabric;
