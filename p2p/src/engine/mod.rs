//! The state of one process's layer and the protocols that change it. One thread at a time uses it;
//! [`crate::shared`] holds the lock.
//!
//! [`Protocol`] is the state that callbacks of transports may change. [`Engine`] is that state with
//! the transports. A callback cannot use the transports, so it queues [`protocol::Work`], which
//! [`Engine::poll`] does right after.

mod access;
mod account;
mod admission;
mod contexts;
mod direct;
mod failure;
mod incoming;
mod lazy;
mod outgoing;
mod peer;
mod protocol;
mod receive;
mod rendezvous;
mod request;
mod serve;
mod skew;
mod transfer;
mod transports;

pub(crate) use access::{Access, VALUES};
pub(crate) use account::{eager_limit, window};
pub(crate) use admission::{Reported, Served};
pub(crate) use direct::Found;
pub(crate) use peer::{Contact, MAX_RAILS, Peer, Peers, Rail, is_much_faster};
pub(crate) use protocol::Protocol;
pub(crate) use request::{Request, State};
pub(crate) use transports::{Engine, Transport, Transports};
