//! `mca_btl_esp.so`: a BTL component of Open MPI 4.1, 5.0 and 6.0 that carries messages over
//! ESP.
//!
//! `docs/open-mpi.md` is its manual. The shim in C (`shim/`) contains the code that needs the
//! macros, inline functions and layouts of Open MPI's headers; everything else is here.
//!
//! | module | contents |
//! |---|---|
//! | [`component`] | the symbol that Open MPI looks up |
//! | [`entry`] | functions called by the shim |
//! | [`ffi`] | functions of the shim |
//! | [`parameters`] | MCA parameters, and the transports made from them |
//! | [`modex`] | the entry that a process publishes for its peers |
//! | [`peers`] | reachability of peers, and its report to the user |
//! | [`runtime`] | state of the component; sending, progress, loss of peers, finalization |
//! | [`rail`] | one interface with one carrier: its transport, progress and incoming messages |
//! | [`endpoint`] | peers as reached through one rail and through one module |
//! | [`queued`] | sends that wait for room or a connection |
//! | [`onesided`] | put, get and atomic operations as messages |
//! | [`memory`] | raw memory of fragments, regions and atomic operations |
//! | [`header`] | header of a message between two components |
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod component;
mod endpoint;
mod entry;
mod ffi;
mod header;
mod idle;
mod memory;
mod modex;
mod onesided;
mod parameters;
mod peers;
mod queued;
mod rail;
mod runtime;
