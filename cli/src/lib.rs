//! `esping` and `espstat`, and the parts they share with `esplab`: output, names, units, signals.
//!
//! Each program has four modules: *flags* (what was typed, by clap), *plan* (what was meant,
//! checked), the work itself, and *report* (text, or one JSON object per line, from the same
//! structs).
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod esping;
pub mod espstat;
pub mod names;
pub mod out;
pub mod signal;
pub mod units;
