//! `esping`, `espstat` and `esplab`: what people see of the stack.
//!
//! Each program is built in four steps, each a module of its own: *flags* (what was typed, by
//! clap), *plan* (what was meant, checked), *run* (the work) and *report* (text for people or one
//! JSON object per line, from the same structs). The measuring part ([`mod@bench`]) and the virtual
//! cluster ([`lab`]) are libraries that tests use too.
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
