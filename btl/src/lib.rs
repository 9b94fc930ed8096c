//! What lies between the point-to-point layer and the transports. The contract is [`contract`]; read that.
//!
//! | module | what |
//! |---|---|
//! | [`contract`] | the rules, as traits and types |
//! | [`conformance`] | the suite that every transport instantiates |
//! | [`faulty`] | wraps a transport and makes every fault that the contract allows, by one seed |
//! | [`loopback`] | the transport of a job inside one process, with limits to choose and ranks to kill |

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod conformance;
pub mod contract;
pub mod faulty;
pub mod loopback;
mod rng;

pub use contract::*;
