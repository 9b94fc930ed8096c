//! The control protocol between a program and its node's daemon.
//!
//! Both directions of a Unix stream socket use the same framing ([`codec`]): a `u32` little-endian
//! length (at most [`MAX_MESSAGE`]; requests at most [`MAX_REQUEST`]), then that many bytes of
//! JSON: an [`Envelope`] around a [`Request`] or a [`Reply`]. Each request is answered by exactly
//! one reply with the same id, in any order. Descriptors travel with the first byte of the reply
//! that names them (SCM_RIGHTS), in the order that the reply's documentation gives.
//!
//! When the socket closes, the daemon releases everything the program had.

mod address;
pub mod codec;
mod messages;
mod status;

pub use messages::*;
pub use status::*;
