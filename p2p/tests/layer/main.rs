//! The point-to-point layer over transports inside the test.

mod accesses;
mod behaviour;
mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod distrust;
mod endpoints;
mod failures;
mod messages;
mod rails;
mod random;
