//! The bare AF_PACKET loop: an upper bound for this machine and interface, without a reliable
//! protocol on top.
//!
//! Benchmarks of ESP compare with it. It sends with `sendmmsg` past the queueing discipline,
//! payload from where it is, and acknowledges every 32 frames. A lost frame is sent again with all
//! after it, which keeps a run correct but is unfit as a protocol. Its header is as long as that of
//! ESP (11 bytes after the EtherType), so frames of both carry the same payload at the same MTU.
//!
//! # How to receive
//!
//! Measured with `examples/rawloop.rs` on a virtual machine of two cores: veth pair between two
//! namespaces, sender and receiver on a core each, both at real-time priority because other
//! programs were running, medians of seven alternating rounds, two runs. Relative to
//! [`Receive::Scatter`] with the same way of waiting (stream: payload per second, more is better;
//! half round trip of 1 byte: time, less is better):
//!
//! | | waiting | [`Copy`](Receive::Copy) | [`Ring`](Receive::Ring) |
//! |---|---|---|---|
//! | stream, MTU 1500 | block | 1.00 | 0.50 |
//! | | poll | 0.98–1.00 | 0.95 |
//! | stream, MTU 9000 | block | 1.05 | 0.56–0.58 |
//! | | poll | 1.01–1.04 | 0.97–1.00 |
//! | stream, MTU 65535 | block | 0.86–1.20 | 0.65–0.72 |
//! | | poll | 0.81–0.98 | 0.81–0.85 |
//! | half round trip | block | 1.00 | 0.95 |
//! | | poll | 0.99–1.00 | 0.75 |
//!
//! The sending core is the limit (on veth it also runs the receiver's part of the kernel), so an
//! additional copy on the receiving side costs nothing below the largest frames. A ring wakes a
//! blocked receiver for nearly each frame, whereas `recvmmsg` collects all frames that have arrived
//! by then; it pays only for a receiver that polls for small messages, since it reads memory
//! instead of asking the kernel. MTU 1500 / 9000 / 65535 gave 5.3 / 18 / 56 Gbit/s polling; the
//! half round trips were 23.5 µs blocking and 4.2 µs polling. System calls are expensive on that
//! machine; compare ratios only.
//!
//! # Use
//!
//! | call | runs on |
//! |---|---|
//! | [`serve`] | one node, until stopped: answers pings, receives streams |
//! | [`ping_pong`] | the other: time of each round trip |
//! | [`stream`] | the other: payload per second, one way |

mod client;
mod scatter;
mod server;
pub mod udp;
mod wire;

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use netif::{Interface, OpenError, PacketSocket, SocketOptions};

pub use client::{PingPong, Streamed, ping_pong, stream};
pub use scatter::{ScatterBatch, ScatteredFrame};
pub use server::{Served, serve};

/// Default EtherType of the loop's frames: that of the Ethernet configuration test, which has the
/// same purpose and no relation to ESP.
pub const ETHERTYPE: u16 = 0x9000;

/// Bytes before the payload: Ethernet header and 11 bytes of the loop's own.
pub const HEADER_LEN: usize = 25;

/// Number of frames sent, received and acknowledged together.
pub const BATCH: usize = 32;

/// Method of waiting for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Sleep in `poll` until the kernel wakes us.
    Block,
    /// Poll continuously; yields the core now and then, so that both sides can share one.
    Poll,
}

/// Method of receiving in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// `recvmmsg`, header and payload scattered, the payload directly into the buffer.
    Scatter,
    /// `recvmmsg` into frames, the payload copied from there.
    Copy,
    /// A ring shared with the kernel (`TPACKET_V2`), the payload copied from there.
    Ring,
}

/// Options of the loop; they must be equal on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// EtherType of the frames.
    pub ethertype: u16,
    /// Method of waiting.
    pub wait: Wait,
    /// Method of receiving in the server.
    pub receive: Receive,
    /// Maximum number of frames in flight, at least two batches.
    pub window: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ethertype: ETHERTYPE,
            wait: Wait::Block,
            receive: Receive::Scatter,
            window: 512,
        }
    }
}

/// Reason why a run ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawLoopError {
    /// The socket could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A system call failed.
    #[error("raw loop: {0}")]
    System(#[from] io::Error),
    /// The other side does not answer.
    #[error("raw loop: no answer from {peer} within {NO_ANSWER:?}")]
    NoAnswer {
        /// Its address.
        peer: netif::MacAddr,
    },
    /// An impossible size.
    #[error("raw loop: {0}")]
    Size(&'static str),
}

/// Silence after which the other side is considered dead.
const NO_ANSWER: Duration = Duration::from_secs(2);

/// Silence after which frames are retransmitted.
const AGAIN: Duration = Duration::from_millis(20);

/// Empty receives between two readings of the clock when polling.
const POLLS_PER_TURN: u32 = 1024;

fn open(interface: &Interface, options: &Options) -> Result<PacketSocket, OpenError> {
    PacketSocket::open(interface, options.ethertype, &SocketOptions::default())
}

/// Returns the largest payload at an interface's MTU.
pub fn payload_len(interface: &Interface) -> usize {
    (interface.mtu as usize + 14).saturating_sub(HEADER_LEN)
}

/// Calls `receive` until it has received something (true) or `time` has passed (false).
fn wait_for(
    socket: &PacketSocket,
    wait: Wait,
    time: Duration,
    mut receive: impl FnMut() -> io::Result<bool>,
) -> io::Result<bool> {
    if receive()? {
        return Ok(true);
    }
    let end = Instant::now() + time;
    loop {
        match wait {
            Wait::Poll => {
                for _ in 0..POLLS_PER_TURN {
                    if receive()? {
                        return Ok(true);
                    }
                    std::hint::spin_loop();
                }
                std::thread::yield_now();
            }
            Wait::Block => {
                let left = end.saturating_duration_since(Instant::now());
                let timeout = Timespec {
                    tv_sec: left.as_secs() as _,
                    tv_nsec: left.subsec_nanos().into(),
                };
                match poll(
                    &mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)],
                    Some(&timeout),
                ) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                if receive()? {
                    return Ok(true);
                }
            }
        }
        if Instant::now() >= end {
            return Ok(false);
        }
    }
}
