//! Raw Ethernet access from userspace: AF_PACKET sockets with batched sends and receives, port filters, link
//! properties and events, a pcap tap.
//!
//! This crate moves frames; it does not know what is in them. It is the only place of the project that talks to
//! packet sockets, so everything `unsafe` about them is here.
//!
//! | to | use |
//! |---|---|
//! | find an interface, its address and MTU | [`Interface`] |
//! | send and receive frames of one EtherType | [`PacketSocket`] with [`RecvBatch`] and [`SendBatch`] |
//! | hear of MTU changes and unplugged cables | [`LinkMonitor`] |
//! | take a frame's Ethernet header apart, or print it | [`parse_ethernet`], [`Dump`] |
//! | write frames to a file that Wireshark opens | [`PcapWriter`] |
//! | look for frames without a system call | [`RecvRing`] |
//! | receive payload straight into a buffer of the caller | [`ScatterBatch`] |
//! | let the kernel drop what is not for a set of ports | [`Filter`] |
//! | share an interface among many sockets at the cost of one | [`FanoutGroup`] |
//!
//! A packet socket needs `CAP_NET_RAW` when it is opened and never afterwards; [`OpenError::NoPermission`] says how
//! to grant it.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod arena;
mod batch;
mod fanout;
mod filter;
mod frame;
mod interface;
mod link;
mod pcap;
mod ring;
mod socket;

pub use batch::{
    FrameKind, Frames, HEAD_LEN, RawFrame, RecvBatch, ScatterBatch, ScatteredFrame, SendBatch,
};
pub use fanout::{FanoutGroup, MAX_MEMBERS, Routes};
pub use filter::{Filter, FilterTooLong, Instruction, MAX_INSTRUCTIONS};
pub use frame::{Dump, EthFrame, ParseError, parse_ethernet};
pub use interface::{Interface, InterfaceError};
pub use link::{LinkEvent, LinkMonitor};
pub use pcap::{PcapOptions, PcapWriter};
pub use pnet::util::MacAddr;
pub use ring::{RecvRing, RingShape, Slot};
pub use socket::{OpenError, PacketSocket, SocketOptions, Statistics, WINDOW_BYTES, peer_groups};
