//! The byte transport between processes of one node: [`btl::Btl`] over shared memory, and one copy by cross-memory attach.
//!
//! # Where what is
//! | file | what |
//! |---|---|
//! | `layout.rs` | the memory of a process's two files, line by line; who writes what |
//! | `fifo/` | messages: one cache line each, a ring for medium ones, a pool of chunks for long ones |
//! | `board.rs` | posted receives that senders fill by themselves: "whichever side arrives later copies" (LiMIC, sections 4.3–4.5) |
//! | `distance.rs` | how far away a peer's core is, and so how long messages are best written |
//! | `share.rs` | a long message copied by both sides at once |
//! | `sleep.rs` | sleeping without a lost wake-up, and without a fence for each message |
//! | `card.rs`, `host.rs`, `attach.rs` | who a peer is, and how it is reached through `/proc` without names |
//! | `topology.rs`, `thresholds.rs` | which CPUs share what, and from which size on one copy is better than two |
//! | `regions.rs` | memory that peers were given keys for |
//! | `memory.rs`, `cma.rs` | mappings and system calls: all of `unsafe` but the signatures the contract asks for |
//! | `transport/` | [`ShmBtl`] itself; `parting.rs`: when a peer that is over uses this process's memory no more |
//!
//! # Trust
//! A process writes only its own data file; others see it read-only. What a peer says is read once, bounded and checked; nonsense
//! ends that peer ([`btl::PeerError::Violation`]) and nothing else. The exception is the file with the claims of posted receives,
//! which all may write; it is used only among processes that may write each other's memory anyway (cross-memory attach),
//! and a claim that nobody stands by is noticed.
//!
//! # Nothing left behind
//! Memory files and pipes have no name. Peers open them as `/proc/PID/fd/N`, which the kernel allows to whoever could trace the process.
//! All is gone with the last process that has them, however it ends.

// The models drive the protocols, not the transport around them.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod board;
mod distance;
mod fifo;
mod layout;
mod pool;
mod share;

#[cfg(not(loom))]
mod attach;
#[cfg(not(loom))]
mod card;
#[cfg(not(loom))]
mod cma;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod regions;
#[cfg(not(loom))]
mod thresholds;
#[cfg(not(loom))]
pub mod topology;
#[cfg(not(loom))]
mod transport;

#[cfg(all(test, loom))]
mod model;

#[cfg(not(loom))]
pub use config::{Copies, ShmConfig, ShmError};
#[cfg(not(loom))]
pub use thresholds::Thresholds;
#[cfg(not(loom))]
pub use transport::ShmBtl;

/// A peer wrote something impossible into its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({value:#x})")]
pub(crate) struct Scribble {
    what: &'static str,
    value: u64,
}
