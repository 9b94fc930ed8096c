//! Two endpoints in virtual time: one module for each behaviour.

#[path = "../common/mod.rs"]
mod common;
mod stream;
