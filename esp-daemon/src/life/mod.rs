//! The daemon's place on the machine: its socket, its claim on the interfaces, its service manager.

pub mod interface;
pub mod notify;
pub mod socket;
