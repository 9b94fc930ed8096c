//! Raw Ethernet access from userspace: AF_PACKET sockets with batched sends and receives, port
//! filters, link properties and their changes, pcap traces.
//!
//! The crate transports frames and does not interpret them. All packet-socket code of the project,
//! and its `unsafe` code, is here.
//!
//! | task | type |
//! |---|---|
//! | find an interface, its address and MTU | [`Interface`] |
//! | send and receive frames of one EtherType | [`PacketSocket`] with [`RecvBatch`] and [`SendBatch`] |
//! | query receive rings and interrupt delays | [`Interface::ring_size`], [`Interface::coalescing`] |
//! | watch for MTU changes and unplugged cables | [`LinkMonitor`], [`PacketSocket::link_state`] |
//! | parse a frame's Ethernet header | [`parse_ethernet`] |
//! | see all frames of an interface, with times | [`CaptureSocket`] |
//! | write frames to a file for Wireshark | [`PcapWriter`] |
//! | receive frames without a system call | [`RecvRing`] |
//! | let the kernel drop frames outside a set of ports | [`Filter`] |
//! | send and receive many UDP datagrams in one call | [`UdpSocket`] with [`UdpRecvBatch`] and [`SendBatch`] |
//! | close descriptors that other users have passed | [`Closer`] |
//! | share an interface among many sockets at the cost of one | [`FanoutGroup`] |
//!
//! A packet socket needs `CAP_NET_RAW` only when it is opened; [`OpenError::NoPermission`] says how
//! to grant it.
//!
//! # Example
//!
//! Sends a broadcast frame and receives the frames that have arrived:
//!
//! ```no_run
//! use netif::{Interface, PacketSocket, RecvBatch, SendBatch, SocketOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let interface = Interface::by_name("eth0")?;
//! let socket = PacketSocket::open(&interface, 0x88b5, &SocketOptions::default())?;
//!
//! let mut out = SendBatch::new(1);
//! if let Some(head) = out.head() {
//!     head[..6].copy_from_slice(&[0xff; 6]);
//!     head[6..12].copy_from_slice(&interface.mac.octets());
//!     head[12..14].copy_from_slice(&[0x88, 0xb5]);
//!     out.push_inline(60);
//! }
//! socket.send_batch(&mut out)?;
//!
//! let mut received = RecvBatch::new(32, 1514);
//! socket.recv_batch(&mut received)?;
//! for frame in received.frames() {
//!     println!("{:x?}", frame.bytes);
//! }
//! # Ok(())
//! # }
//! ```
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod arena;
mod batch;
mod capture;
mod closing;
mod ethtool;
mod fanout;
mod filter;
mod frame;
mod interface;
mod link;
mod pcap;
mod ring;
mod socket;
mod udp;

pub use batch::{FrameKind, HEAD_LEN, RawFrame, RecvBatch, SendBatch};
pub use capture::{CaptureSocket, CapturedFrame};
pub use closing::{Closer, is_memory, refuse_descriptors};
pub use ethtool::{Coalescing, RingSize};
pub use fanout::{FanoutGroup, MAX_MEMBERS, Routes};
pub use filter::{Filter, FilterTooLong};
pub use frame::{EthFrame, parse_ethernet};
pub use interface::{Interface, InterfaceError, LinkState, LocalAddress, addresses};
pub use link::LinkMonitor;
pub use pcap::PcapWriter;
pub use pnet::ipnetwork::IpNetwork;
pub use pnet::util::MacAddr;
pub use ring::{RecvRing, RingShape, Slot};
pub use socket::{
    OpenError, PacketSocket, SocketOptions, Statistics, WINDOW_BYTES, granted_buffers, peer_groups,
};
pub use udp::{Datagram, UdpOpenError, UdpOptions, UdpRecvBatch, UdpSocket};
