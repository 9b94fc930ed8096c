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
//! handle.send(Command::Shutdown { keep: false, reply: Box::new(|()| {}) })?;
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
//! [`Engine::run`] is one loop on a thread of its own. Every step of an iteration is bounded, so
//! that no program or peer can starve the others. The payload of a segment is sent from the
//! program's ring and stays there until it is acknowledged; this path does not allocate.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod shm;

// The models are of `shm` alone.
#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod command;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod crypto;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod engine_set;
#[cfg(not(loom))]
mod exit;
#[cfg(not(loom))]
mod handle;
#[cfg(not(loom))]
mod key_file;
#[cfg(not(loom))]
mod udp;

#[cfg(not(loom))]
pub use {
    clock::Clock,
    command::{
        Arrival, ClientId, Command, ConnHandle, EngineEvent, HoldError, LinkCondition, LinkId,
        LinkSnapshot, ListenerId, Orphan, OwnedConnection, Reply, Slot, Snapshot,
    },
    config::{CONTENDED_TIME, CONTENDED_YIELD, EngineConfig, EngineError, IdleConfig, LinkConfig},
    crypto::{Aead, AeadKey, hardware_suite, key_id},
    engine::{ConnPath, Engine, LINGER, LeasedLink, LeasedSocket, frame_mtu, random},
    engine_set::{AssignError, EngineSet, MAX_ENGINES, Member},
    exit::at_exit,
    handle::{EngineGone, EngineHandle},
    key_file::{KeyFileError, read_key},
    netif::RingShape,
    udp::{UdpAddresses, UdpLink},
};
