//! The client at a daemon inside the test.

mod aio;
mod codec;
mod edp;
mod faults;
mod listener;
mod next;
mod poller;
mod stream;
#[path = "../support/mod.rs"]
mod support;
