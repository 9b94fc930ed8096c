//! Transport between processes of one node: [`btl::Btl`] over shared memory, with one copy by
//! cross-memory attach.
//!
//! ```no_run
//! use btl::{Btl, Tx};
//! use shm_btl::{ShmBtl, ShmConfig};
//!
//! // Rank 0 of a job of two. The addresses are exchanged by the launcher.
//! let mut shm = ShmBtl::new(ShmConfig::new(0, 2, "my-job"))?;
//! let mine: Vec<u8> = shm.address();
//! let theirs: Vec<u8> = exchange(&mine);
//! let info = shm.add_peer(1, &theirs)?;
//! println!("{}", info.reason);
//! shm.send(1, b"header", &[std::io::IoSlice::new(b"body")])?;
//! # fn exchange(_: &[u8]) -> Vec<u8> { Vec::new() }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Long messages
//! If its length reaches the threshold of the CPUs' cache relation ([`Thresholds`]), a message is
//! copied once, by the kernel (a `get`); at 48 KiB or more the sender concurrently copies a part of
//! it. Below the threshold, or where the system allows no cross-memory attach, it is copied twice,
//! through chunks of shared memory. The sender does not wait for a late receiver: it may copy to a
//! chunk and continue (`eager_skewed`), up to the maximum length of a message of this transport.
//!
//! # Trust
//! A process writes only its own data file; others map it read-only. A value that a peer wrote is
//! read once, bounded and checked; an impossible one ends that peer ([`btl::PeerError::Violation`])
//! and affects no other. The exception is the file with the requests for connections to an open
//! transport, which all peers write: it can only lead to files, which are checked.
//!
//! # Open transports
//! [`ShmConfig::open`] is for processes that belong to no job: peers have identities in place of
//! ranks, and may connect before they are added ([`btl::PendingPeers`]).
//!
//! # Cleaning up
//! Memory files and pipes have no name. Peers open them as `/proc/PID/fd/N`, which the kernel
//! allows to processes that may trace the owner. They disappear with the last process that has them
//! open, however it ends.

// The models drive the protocols, not the transport around them.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod coop;
mod distance;
mod fifo;
mod layout;
mod pool;
mod revoke;

#[cfg(not(loom))]
mod address;
#[cfg(not(loom))]
mod attach;
#[cfg(not(loom))]
mod cma;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
pub mod topology;
#[cfg(not(loom))]
mod transport;

#[cfg(all(test, loom))]
mod model;

#[cfg(not(loom))]
pub use address::OpenAddress;
#[cfg(not(loom))]
pub use config::{ShmConfig, ShmError};
#[cfg(not(loom))]
pub use topology::Thresholds;
#[cfg(not(loom))]
pub use transport::ShmBtl;

/// A peer wrote an impossible value into its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({value:#x})")]
pub(crate) struct Corruption {
    what: &'static str,
    value: u64,
}
