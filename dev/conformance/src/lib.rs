//! Tests of transports: the conformance suite, a transport inside one process, and one that injects
//! faults.
//!
//! | module | what |
//! |---|---|
//! | [`suite`] | the cases that every transport runs, with threads or with processes as ranks |
//! | [`faulty`] | wraps a transport and injects every fault that the contract allows, from one seed |
//! | [`loopback`] | a transport for a job inside one process, with configurable limits and ranks that can be killed |

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod faulty;
mod forward;
pub mod loopback;
mod rng;
pub mod suite;

#[doc(hidden)]
pub use btl;
