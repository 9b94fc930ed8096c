//! The C interface: `libesp.so`, `libesp.a`, `esp.h`.
//!
//! The header (`include/esp.h`) is the documentation of the functions; it is written by hand, and a
//! test compiles it as C and as C++. Arguments are checked in `ffi/`, the only place with `unsafe`
//! code; the work is done by the crates `job` and `p2p`, and that of streams by `esp-client`.
//!
//! No panic reaches C: each function catches it and returns `ESP_ERR_INTERNAL`. The release profile
//! of this workspace aborts on panic instead, so that a broken process does not continue.
//!
//! Installing: `cargo xtask install-c --prefix DIR`.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod code;
mod ffi;
mod state;
mod streams;
