//! The control connection to the daemon: a handshake, then requests and replies in any order, and
//! the thread that reads replies and events.

mod call;
mod connection;
mod handshake;
mod next;

pub(crate) use call::{Answer, Call, ReplyCell};
pub(crate) use connection::{Held, ReplyNotice, Session, Socket as HeldSocket};
pub(crate) use handshake::{DAEMON_TIMEOUT, Welcome};
