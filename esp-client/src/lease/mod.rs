//! Leased ports: streams whose engine runs in this program, over packet sockets that the daemon
//! opened for it.
//!
//! For connections a client leases ranges of free ports, at first one for each interface. A
//! listener leases its own port, and stays registered at the daemon, where programs of the same
//! node connect to it. On a node with several interfaces each lease has *standbys*: sockets for the
//! same ports on the other interfaces, to which its connections move when its interface fails.
//!
//! From bottom to top: [`events`] and [`embedded`] are the engine, [`ports`] one lease,
//! [`registry`] the connections that the daemon knows, [`leases`] all leases of a client,
//! [`stream`] and [`open`] streams and listeners. [`adopt`] renews leases at the next daemon,
//! [`progress`] is the thread that polls the engine while the program does not.

mod adopt;
mod datagrams;
mod embedded;
mod events;
mod leases;
mod open;
mod ports;
mod progress;
mod registry;
mod stream;

pub(crate) use datagrams::{LeasedDatagrams, OpenedDatagrams};
pub(crate) use embedded::EmbeddedEngine;
pub(crate) use leases::Leases;
pub(crate) use ports::FIRST_LEASED_SLOT;
pub(crate) use stream::{LeasedListener, LeasedStream, Opened};
