//! All that is `unsafe` in this crate: the verbs, memory that devices write, the fabric of tests,
//! userfaultfd. What is handed out is safe, but for the few calls that take memory by its address.
#![allow(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fabric;
pub(crate) mod ffi;
mod library;
pub(crate) mod memory;
mod post;
pub(crate) mod verbs;
pub(crate) mod watch;
