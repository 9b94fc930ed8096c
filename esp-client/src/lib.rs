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
//! Each type uses a [`Client`], the program's connection to the node's daemon. The first call that
//! needs it opens it; all share it. Payload bytes do not pass through its socket but through memory
//! shared with the daemon's engine ([`esp_engine::shm`]).
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod addr;
#[cfg(feature = "tokio")]
pub mod aio;
mod begun;
mod call;
mod client;
pub mod control;
mod core;
mod edp;
mod error;
pub mod io;
mod lease;
mod listener;
mod poller;
mod route;
mod session;
mod stream;

pub use addr::{EspAddr, ToEspAddr, resolve};
pub use begun::Begun;
pub use client::{Client, DEFAULT_SOCKET, SOCKET_VARIABLE, socket_path};
pub use edp::{
    DEFAULT_EDP_RING, DatagramInfo, EdpBuilder, EdpSocket, NODE_PORT, NodeInfo, monotonic_nanos,
};
pub use error::{EspError, PeerName};
pub use esp_engine::shm::Spin;
pub use esp_proto::{EdpKind, MacAddr};
pub use lease::{PATH_VARIABLE, Path};
pub use listener::{DEFAULT_BACKLOG, EspListener, Incoming, ListenerBuilder};
pub use poller::Poller;
pub use route::{Route, RouteReason};
pub use stream::{DEFAULT_RING, EspStream, Interest, MAX_KEY, ReadHalf, StreamBuilder, WriteHalf};
