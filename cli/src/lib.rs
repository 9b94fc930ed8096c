//! The programs `esp`, `esping`, `espstat`, `esptop`, `espcat` and `esperf`, and modules that
//! `esplab` shares with them.
//!
//! Each program has a module per step: *flags* (the command line, by clap), *plan* (the checked
//! request), *run* (the work) and *report* (text for users or one JSON object per line, from the
//! same structs).
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod ends;
pub mod esp;
pub mod espcat;
pub mod esperf;
pub mod esping;
pub mod espstat;
pub mod esptop;
pub mod filter;
pub mod names;
pub mod out;
pub mod signal;
pub mod suggest;
pub mod table;
pub mod units;
pub mod version;
