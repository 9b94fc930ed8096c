//! The control connection to the daemon: a handshake, then requests and replies in any order, and
//! the thread that reads replies and events.

mod call;
mod connection;
mod handshake;
mod local;
mod notice;
mod reply;

pub(crate) use call::Call;
pub(crate) use connection::{Session, Wakeable};
pub(crate) use handshake::{DAEMON_TIMEOUT, Welcome};
pub(crate) use notice::ReplyNotice;
pub(crate) use reply::{Answer, ReplyCell};
