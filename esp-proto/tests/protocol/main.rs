//! Two endpoints in virtual time: one module for each behaviour.

#[path = "../common/mod.rs"]
mod common;

mod acks;
mod close;
mod counters;
mod ecn;
mod edp;
mod fair;
mod flow;
mod forged;
mod handshake;
mod incarnation;
mod limits;
mod liveness;
mod local;
mod loss;
mod operations;
mod path;
mod rails;
mod resume;
mod stream;
mod sweep;
mod udp;
mod vectors;
mod windows;
mod wrap;
