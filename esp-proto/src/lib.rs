//! ESP and EDP: wire format and protocol rules, sans-IO.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod addr;
mod api;
mod time;

pub use addr::{FIRST_EPHEMERAL_PORT, FIRST_USER_PORT, MacAddr, ParseMacError, Port};
pub use api::*;
pub use time::{Duration, Instant};
