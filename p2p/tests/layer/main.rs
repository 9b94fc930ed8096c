//! The point-to-point layer over transports inside the test.

mod accesses;
mod behaviour;
mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod distrust;
mod endpoints;
mod failures;
mod hostile;
mod lazy;
mod messages;
mod passed_on;
mod probes;
mod rails;
mod random;
