//! Requests of programs over the control socket, and their effects.

mod accepts;
mod ends;
mod limits;
mod ports;
mod requests;
mod status;
#[path = "../support/mod.rs"]
mod support;
