//! The control connection to the daemon: a handshake, then requests and replies in any order, and
//! the thread that reads replies and events.

mod call;
mod connection;
mod handshake;

pub(crate) use call::{Answer, Call, ReplyCell};
pub(crate) use connection::{ReplyNotice, Session};
pub(crate) use handshake::{DAEMON_TIMEOUT, Welcome};
