//! All `unsafe` code of this crate: the verbs, memory that devices write, userfaultfd. The
//! interface is safe except for the few calls that take memory by its address.
#![allow(unsafe_code)]

pub(crate) mod ffi;
mod library;
pub(crate) mod memory;
mod post;
pub(crate) mod verbs;
pub(crate) mod watch;
