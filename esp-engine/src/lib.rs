//! Event loop that drives ESP endpoints over network interfaces and shared-memory rings.
//!
//! ```no_run
//! use esp_engine::{Command, Engine, EngineConfig, LinkConfig};
//!
//! let config = EngineConfig {
//!     links: netif::Interface::list().into_iter().map(LinkConfig::Ethernet).collect(),
//!     ..EngineConfig::default()
//! };
//! let (engine, handle) = Engine::new(config, Box::new(|event| println!("{event:?}")))?;
//! let thread = std::thread::spawn(move || engine.run());
//! handle.send(Command::Shutdown { reply: Box::new(|()| {}) })?;
//! let _ = thread.join();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!  program                    engine thread                                  wire
//!  TxProducer ──ring──▶ TxConsumer ──▶ Endpoint::written
//!                                      Endpoint::poll_transmit ──▶ SendBatch ──▶
//!  RxConsumer ◀──ring── RxProducer ◀── Sink::deliver ◀── Endpoint::handle_frame ◀── RecvBatch
//! ```
//!
//! [`Engine::run`] is one loop on a thread of its own. Each iteration receives a batch of frames,
//! executes commands, reads the programs' doorbells, runs timers and sends. Every step is bounded,
//! so that no program or peer can starve the others. The payload of a segment is sent from the
//! program's ring and stays there until it is acknowledged; this path does not allocate.
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
mod udp;

#[cfg(not(loom))]
pub use clock::Clock;
#[cfg(not(loom))]
pub use command::{
    Arrival, ClientId, Command, ConnHandle, EngineEvent, HoldError, LinkId, LinkSnapshot,
    ListenerId, Orphan, OwnedConnection, Reply, Slot, Snapshot,
};
#[cfg(not(loom))]
pub use config::{CONTENDED_TIME, EngineConfig, EngineError, IdleConfig, LinkConfig, YIELD_HOGGED};
#[cfg(not(loom))]
pub use engine::{ConnPath, Engine, LINGER, LeasedLink, LeasedSocket, ORPHAN_TIMEOUT, random};
#[cfg(not(loom))]
pub use handle::{EngineGone, EngineHandle};
#[cfg(not(loom))]
pub use netif::RingShape;
#[cfg(not(loom))]
pub use udp::{UdpAddresses, UdpLink};
