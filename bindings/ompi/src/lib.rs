//! `mca_btl_esp.so`: a BTL component of Open MPI 4.1 that carries messages over ESP.
//!
//! docs/open-mpi.md tells who calls whom. In short: `shim/` is what must be C (macros, inline functions and layouts of Open MPI's
//! headers); here stands the rest.
//!
//! | module | what |
//! |---|---|
//! | [`component`] | the symbol that Open MPI looks for |
//! | [`ffi`] | what the shim calls, and what of the shim is called |
//! | [`turn`] | one thread at a time has the transport, and nobody waits for it |
//! | [`core`](mod@core) | sending, progress, the end of peers |
//! | [`rail`] | one interface: its transport and what waits for it |
//! | [`peers`] | how they are reached, and what is said about it |
//! | [`patience`] | when a rank that looks in vain offers its processor to others |
//! | [`queues`] | what could not be sent at once |
//! | [`leaving`] | what was taken and has not left |
//! | [`onesided`] | put, get and atomic operations made of messages |
//! | [`memory`] | raw memory: of fragments, of regions, of atomic operations |
//! | [`wire`] | the header of a message between two components |
//! | [`blob`] | what a process publishes for its peers |
//! | [`setup`] | parameters, and the transport made of them |
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod blob;
mod component;
mod core;
mod ffi;
mod leaving;
mod memory;
mod onesided;
mod patience;
mod peers;
mod queues;
mod rail;
mod setup;
mod turn;
mod wire;
