//! Simulation of thousands of nodes: the protocol core itself on each, in a leaf-spine network.
//!
//! ```text
//!   workload ── Pattern ──► Rounds (programs) ── messages ──► World ── Stack ──► packets
//!                                                               ▲                  │
//!                                               virtual time ── Queue ◄── Fabric ◄─┘
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`workload`] | messages: incast, all to all, halo exchange, … |
//! | [`rounds`] | the programs that send it |
//! | [`run`] | one run and its figures |
//! | [`footprint`] | memory of a node and of a peer |
//! | [`bound`] | lower bounds of completion times |
//! | [`world`] | nodes, virtual time, events |
//! | [`fabric`] | switches: shared buffers, marks, paths |
//! | [`esp`], [`tcp`] | transports behind [`stack::Stack`]: the endpoint of `esp-proto`, models of TCP |
//! | [`traffic`], [`packet`], [`queue`], [`stats`], [`process`] | tables, arena, event queue, statistics |
//!
//! A run is a function of its seed. Two properties distinguish it from `esp-sim`, which looks for
//! mistakes: payload has no contents, and nothing but lack of room and dead links loses a frame.
#![forbid(unsafe_code)]

pub mod bound;
pub mod esp;
pub mod fabric;
pub mod footprint;
pub mod packet;
pub mod process;
pub mod queue;
pub mod rounds;
pub mod run;
pub mod stack;
pub mod stats;
pub mod tcp;
pub mod traffic;
pub mod workload;
pub mod world;
