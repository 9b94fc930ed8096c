//! ESP and EDP: wire format and protocol rules, sans-IO.
//!
//! ```text
//!   frames ──► handle_frame ─┐                        ┌─► poll_transmit ──► frames
//!   clock ───► handle_timeout├─►   Endpoint           ├─► poll_event, poll_progress ──► host
//!   host ────► connect, …    ┘   (connections, EDP)   └─► poll_timeout ──► when to come back
//!                                      │
//!                                      └─► Sink: received bytes, while handle_frame runs
//! ```
//!
//! The crate does no I/O, reads no clock and draws no randomness of its own: frames, instants and one seed come in,
//! frames and deadlines go out. So a run is a pure function of its inputs and the simulator can replay it.
//! Payload is never stored for sending; received payload only while an earlier packet is missing.
//!
//! Start at [`Endpoint`]. The rules are those of `docs/wire-format.md`; the code cites them as `W-nn`.
//!
//! # Panics
//!
//! No frame, no argument and no order of calls makes this crate panic; the lints below keep it so.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_in_result,
        clippy::panic_in_result_fn
    )
)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod addr;
mod api;
pub mod congestion;
mod connection;
mod counters;
mod endpoint;
mod limit;
pub mod rails;
mod recovery;
mod recv;
mod rtt;
mod send;
mod seq;
mod state;
mod time;
mod timers;
pub mod wire;

pub use addr::{FIRST_EPHEMERAL_PORT, FIRST_USER_PORT, MacAddr, ParseMacError, Port};
pub use api::*;
pub use counters::Counters;
pub use endpoint::{Endpoint, ListenerInfo};
pub use seq::Seq;
pub use time::{Duration, Instant};
