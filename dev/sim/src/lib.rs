//! Deterministic simulation of ESP endpoints over impaired links.
//!
//! ```text
//!    programs (plan, host)                      programs
//!        │ written, consumed, …                     │
//!    Endpoint ── frames ──► Checker ──► Link ──► switch ──► Link ──► Endpoint
//!        ▲                     [Layer]           [Forger]      [Layer]  │
//!        └──────────────── virtual time, one event queue ◄─────────────┘
//! ```
//!
//! A [`World`] is built from one seed, nodes, links and plans, and runs on virtual time. While it
//! runs it asserts the invariants: every byte arrives once, in order and unchanged; every
//! connection makes progress or ends; every frame obeys `docs/wire-format.md`, judged by an
//! independent parser ([`check`]); endpoints become idle. Where packets are protected
//! ([`secure`]), a [`forger`] sees and forges frames, and nothing is taken that was not sent.
//!
//! [`scenario`] generates a world from a seed alone; [`runner`] runs thousands of them and prints
//! the seed of one that fails, which `ESP_SIM_SEED` replays and `ESP_SIM_TRACE=1` shows frame by
//! frame. [`tables`] measures goodput and fairness in virtual time, so that the numbers are exact
//! and a change of behaviour is visible in review.
#![forbid(unsafe_code)]

pub mod carrier;
pub mod check;
mod drive;
pub mod forger;
pub mod host;
pub mod link;
mod lose;
pub mod net;
pub mod pattern;
pub mod plan;
pub mod queue;
mod rails;
pub mod rng;
pub mod runner;
pub mod scenario;
pub mod secure;
pub mod tables;
pub mod trace;
mod watch;
mod world;

pub use carrier::Carrier;
pub use world::{Action, Flow, HostModel, NodeConfig, SideStatus, World};
