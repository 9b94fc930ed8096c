//! Client library for ESP: byte streams ([`EspStream`], [`EspListener`]) and datagrams
//! ([`EdpSocket`]) over raw Ethernet.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! let mut stream = esp_client::EspStream::connect("node7:5000")?;
//! stream.write_all(b"hello")?;
//! let mut answer = [0; 64];
//! let n = stream.read(&mut answer)?;
//! # std::io::Result::Ok(())
//! ```
//!
//! The types behave like those of std: they block by default and have time-outs, `set_nonblocking`
//! and `try_` calls. With the feature `tokio` the module `aio` has asynchronous versions. The
//! example `echo` is a complete server and client.
//!
//! Differences from std: a stream has no descriptor of its own to wait for, and so no `AsFd`; a
//! [`Poller`] has one for many streams. There is no `try_clone`: `&EspStream` reads and writes, so
//! share an `Arc<EspStream>` between threads. Errors are [`std::io::Error`]s. Their `Display` is a
//! sentence for users. Their `Debug`, which Rust prints if `main` returns an error, is not: print
//! the error with `Display` and return an [`ExitCode`](std::process::ExitCode), as the examples do.
//! Async streams use the daemon, never a lease.
//!
//! Each type uses a [`Client`], the program's connection to the node's daemon. The first call that
//! needs it opens it, and all types share it. Payload bytes do not pass through its socket but
//! through memory shared with the daemon's engine ([`esp_engine::shm`]).
//!
//! # Files
//!
//! From bottom to top; a file imports only those above it in this list.
//!
//! | file | content |
//! |---|---|
//! | `control/` | messages of the control protocol, and their framing (`codec`) |
//! | `error`, `path`, `key` | errors, the setting "lease or daemon", keys of programs without a daemon |
//! | `sync`, `options` | locks and wakers, builder options |
//! | `session/` | the control connection: handshake, requests and replies, its thread |
//! | `lease/` | leased ports: the embedded engine, the registry of connections, the progress thread |
//! | `client` | [`Client`]: one session and its leases |
//! | `socket` | what streams and datagram sockets have in common: rings, engine, waits |
//! | `edp` | [`EdpSocket`] and [`NodeInfo`] |
//! | `route` | choice of the interface to a peer, measured by EDP echoes |
//! | `announced`, `addr` | names that nodes announce; addresses and names |
//! | `stream` | [`EspStream`], its builder, reads and writes |
//! | `listener`, `poller` | [`EspListener`]; [`Poller`], events of many streams for one thread |
//! | `aio/` | the asynchronous types |
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod addr;
#[cfg(feature = "tokio")]
pub mod aio;
mod announced;
mod client;
pub mod control;
mod edp;
mod error;
mod lease;
mod listener;
mod options;
mod path;
mod peer_timeout;
mod poller;
mod protection;
mod route;
mod session;
mod socket;
mod stream;
mod sync;

pub use addr::{EspAddr, ToEspAddr, ethers_path, resolve, resolve_udp};
pub use client::{Client, DEFAULT_SOCKET, SOCKET_VARIABLE, socket_path, udp_interfaces};
pub use edp::{
    DEFAULT_EDP_RING, DatagramInfo, EdpBuilder, EdpSocket, NODE_PORT, NodeInfo, monotonic_nanos,
};
pub use error::{EspError, PeerName};
pub use esp_engine::shm::{Spin, Wake as Interest};
pub use esp_proto::EdpKind;
pub use esp_proto::secure::{Key as PacketKey, KeyId, SecureCounters};
pub use esp_proto::{MacAddr, NodeAddr};
pub use listener::{DEFAULT_BACKLOG, EspListener, ListenerBuilder};
pub use options::{DEFAULT_RING, MAX_KEY};
pub use path::{PATH_VARIABLE, Path};
pub use peer_timeout::{PEER_TIMEOUT_VARIABLE, peer_timeout};
pub use poller::Poller;
pub use protection::{
    AUTH_VARIABLE, Auth, CHECKSUM_VARIABLE, KEY_VARIABLE, MAX_KEYS, Protection, key_files,
};
pub use stream::{Connecting, EspStream, StreamBuilder};
