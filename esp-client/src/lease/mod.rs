//! Leased ports: streams whose engine runs in this program, over packet sockets that the daemon
//! opened for it.
//!
//! For connections a client leases ranges of free ports, at first one for each interface. A
//! listener leases its own port, and stays registered at the daemon, where programs of the same
//! node connect to it. On a node with several interfaces each lease has *standbys*: sockets for the
//! same ports on the other interfaces, to which its connections move when its interface fails.
//!
//! From bottom to top: [`log`], [`engine`], [`parked`] and [`wait`] are the engine, [`registry`]
//! has the connections reported to the daemon, [`leases`] all leases of a client, [`sockets`]
//! streams, listeners and datagram sockets. [`adopt`] renews leases at the next daemon,
//! [`progress`] is the thread that polls the engine while the program does not, and [`end`]
//! delivers the last bytes before the engine ends.

mod adopt;
mod end;
mod engine;
mod leases;
mod log;
mod parked;
mod progress;
mod registry;
mod sockets;
mod wait;

pub(crate) use leases::Leases;
pub(crate) use parked::Event;
pub(crate) use sockets::{
    FIRST_LEASED_SLOT, LeasedListener, LeasedSlot, LeasedSocketParts, candidates,
};
