//! Drives ESP endpoints over network interfaces, and carries bytes between programs and wire.
//!
//! ```text
//!  program                    engine thread                                  wire
//!  TxProducer ──ring──▶ TxConsumer ──▶ Endpoint::written
//!                                      Endpoint::poll_transmit ──▶ SendBatch ──▶
//!  RxConsumer ◀──ring── RxProducer ◀── Sink::deliver ◀── Endpoint::handle_frame ◀── RecvBatch
//! ```
//!
//! [`Engine::run`] is one loop on a thread of its own: receive a batch of frames, take commands,
//! look at the doorbells of the programs, run timers, send. Each step is bounded, so no program or
//! peer can keep the loop from the others. The payload of a segment is sent out of the program's
//! ring and stays there until acknowledged; nothing on this path allocates.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod command;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod handle;
pub mod shm;

#[cfg(not(loom))]
pub use clock::Clock;
#[cfg(not(loom))]
pub use command::{
    Arrival, ClientId, Command, ConnHandle, EngineEvent, HoldError, LinkId, LinkSnapshot,
    ListenerId, Orphan, OwnedConnection, Reply, Slot, Snapshot,
};
#[cfg(not(loom))]
pub use config::{CONTENDED_TIME, EngineConfig, EngineError, IdleConfig, YIELD_HOGGED};
#[cfg(not(loom))]
pub use engine::{Engine, LINGER, LeasedLink, LeasedSocket, ORPHAN_TIMEOUT, Place};
#[cfg(not(loom))]
pub use handle::{EngineGone, EngineHandle};
#[cfg(not(loom))]
pub use netif::RingShape;
