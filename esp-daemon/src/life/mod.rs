//! The daemon on its machine: socket, claims on interfaces, service manager.

pub mod interface;
pub mod notify;
pub mod socket;
