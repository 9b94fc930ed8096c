//! ESP and EDP: wire format and protocol rules, sans-IO.
//!
//! ```text
//!   frames ──► handle_frame ─┐                        ┌─► poll_transmit ──► frames
//!   clock ───► handle_timeout├─►   Endpoint           ├─► poll_event, poll_progress ──► host
//!   host ────► connect, …    ┘   (connections, EDP)   └─► poll_timeout ──► when to come back
//!                                      │
//!                                      └─► Sink: received bytes, while handle_frame runs
//! ```
//!
//! The crate does no I/O, reads no clock and has no source of randomness: frames, instants and one
//! seed are inputs, frames and deadlines are outputs. A run is therefore a pure function of its
//! inputs, and the simulator can replay it. Payload is never copied for sending; received payload
//! is stored only while an earlier packet is missing.
//!
//! Start at [`Endpoint`]. The rules are those of `docs/wire-format.md`; the code cites them as
//! `W-nn`.
//!
//! # Example
//!
//! Two endpoints exchange frames in memory until they are connected:
//!
//! ```
//! use core::time::Duration;
//! use esp_proto::*;
//!
//! struct Discard;
//! impl Sink for Discard {
//!     fn deliver(&mut self, _: ConnId, _: u64, _: &[u8]) {}
//!     fn datagram(&mut self, _: Datagram<'_>) {}
//! }
//!
//! /// Carries all waiting frames from one endpoint to another.
//! fn transfer(now: Instant, from: &mut Endpoint, to: &mut Endpoint) {
//!     let mut head: Head = [0; HEAD_LEN];
//!     while let Some(frame) = from.poll_transmit(now, &mut head) {
//!         // A set-up frame has no payload of the program's: it is head and tail alone.
//!         let body = &head[12..PREFIX_LEN + frame.tail_len];
//!         let received = RxFrame { src: from.addr(), dst: frame.dst, body, looped: false, ce: false };
//!         to.handle_frame(now, received, &mut Discard);
//!     }
//! }
//!
//! let config = EndpointConfig::default();
//! let [a, b] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
//! let mut client = Endpoint::new(config.clone(), a, 1500, [1; 32], 1);
//! let mut server = Endpoint::new(config, b, 1500, [2; 32], 1);
//! let now = Instant::from_nanos(0) + Duration::from_secs(1);
//!
//! server.listen(5000, ListenOptions { backlog: 8, ..ListenOptions::default() }).unwrap();
//! let buffers = Buffers { rx: 65536, tx: 65536 };
//! let conn = client
//!     .connect(now, 40000, b.into(), 5000, ConnOptions { buffers, key: vec![] })
//!     .unwrap();
//! transfer(now, &mut client, &mut server); // SYN
//! transfer(now, &mut server, &mut client); // SYN+ACK
//! assert_eq!(client.poll_event(), Some(Event::Connected(conn)));
//! transfer(now, &mut client, &mut server); // acknowledgement
//! assert!(matches!(server.poll_event(), Some(Event::Incoming { port: 5000, .. })));
//! ```
//!
//! # Panics
//!
//! No frame, argument or order of calls makes this crate panic. The lints below enforce it.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_in_result,
        clippy::panic_in_result_fn
    )
)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod addr;
mod api;
mod congestion;
mod connection;
mod counters;
mod endpoint;
mod image;
pub mod rails;
mod recovery;
mod recv;
mod rtt;
pub mod secure;
mod send;
mod seq;
mod state;
mod time;
mod timers;
mod token_bucket;
mod turns;
pub mod wire;

pub use addr::{
    FIRST_EPHEMERAL_PORT, FIRST_USER_PORT, MacAddr, NodeAddr, ParseAddrError, ParseMacError, Port,
    UDP_PORT,
};
pub use api::*;
pub use counters::Counters;
pub use endpoint::{Endpoint, ListenerInfo};
pub use image::{ConnImage, Positions, ResumeError};
pub use seq::Seq;
pub use time::{Duration, Instant};
pub use turns::TurnQueue;
