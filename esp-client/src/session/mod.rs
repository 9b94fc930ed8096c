//! The control connection to the daemon: a handshake, then requests and replies in any order, and
//! the thread that reads replies and events.
//!
//! `connection` has the session, `handshake` opens a connection, `call` waits for replies, `reader`
//! is the thread, `listeners` keeps the program's listeners, `posts` sends requests without a
//! reply, and `next` brings everything to the next daemon.

mod call;
mod connection;
mod handshake;
mod listeners;
mod next;
mod posts;
mod reader;

pub(crate) use call::{Answer, Call, ReplyCell};
pub(crate) use connection::{Held, PolledEvents, ReplyNotice, Session, Socket as HeldSocket};
pub(crate) use handshake::{DAEMON_TIMEOUT, Welcome};
