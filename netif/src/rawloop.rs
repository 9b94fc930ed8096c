//! The bare AF_PACKET loop: what this machine and interface can do at best, without a reliable protocol on top.
//!
//! Benchmarks of ESP compare with it. It sends with `sendmmsg` past the queueing discipline, payload from where it
//! lies, and acknowledges every 32 frames; a lost frame is sent again with all behind it, which keeps a run correct
//! but is no use as a protocol. Its header is as long as that of ESP (11 bytes behind the EtherType), so that frames of
//! both carry the same payload at the same MTU.
//!
//! | call | runs on |
//! |---|---|
//! | [`serve`] | one node, until told to stop: answers pings, takes streams |
//! | [`ping_pong`] | the other: time of each round trip |
//! | [`stream`] | the other: payload per second, one way |

mod client;
mod ring;
mod server;
mod wire;

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{Interface, OpenError, PacketSocket, SocketOptions};

pub use client::{PingPong, Streamed, ping_pong, stream};
pub use server::{Served, serve};

/// EtherType of the loop's frames unless told otherwise: that of the Ethernet configuration test, whose purpose is the
/// same and which shares nothing with ESP.
pub const ETHERTYPE: u16 = 0x9000;

/// Bytes in front of the payload: Ethernet header and 11 bytes of the loop's own.
pub const HEADER_LEN: usize = 25;

/// Frames sent, received and acknowledged at once.
pub const BATCH: usize = 32;

/// How to wait for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Sleep in `poll` until the kernel wakes us.
    Block,
    /// Ask again and again; gives the core away now and then, so that both sides can share one.
    Poll,
}

/// How the server receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// `recvmmsg`, header and payload scattered, the payload straight into the buffer.
    Scatter,
    /// A ring shared with the kernel (`TPACKET_V2`), the payload copied from there.
    Ring,
}

/// How to run the loop; both sides take the same.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// EtherType of the frames.
    pub ethertype: u16,
    /// How to wait.
    pub wait: Wait,
    /// How the server receives.
    pub receive: Receive,
    /// Frames under way at most, at least two batches.
    pub window: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { ethertype: ETHERTYPE, wait: Wait::Block, receive: Receive::Scatter, window: 512 }
    }
}

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawLoopError {
    /// No socket.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system refused something on the way.
    #[error("raw loop: {0}")]
    System(#[from] io::Error),
    /// The other side does not answer.
    #[error("raw loop: no answer from {peer} within {NO_ANSWER:?}")]
    NoAnswer {
        /// Its address.
        peer: crate::MacAddr,
    },
    /// A size that cannot be.
    #[error("raw loop: {0}")]
    Size(&'static str),
}

/// Silence after which the other side is given up.
const NO_ANSWER: Duration = Duration::from_secs(2);

/// Silence after which frames are sent again.
const AGAIN: Duration = Duration::from_millis(20);

/// Empty receives between two looks at the clock when polling.
const POLLS_PER_TURN: u32 = 1024;

fn open(interface: &Interface, options: &Options) -> Result<PacketSocket, OpenError> {
    PacketSocket::open(interface, options.ethertype, &SocketOptions::default())
}

/// Largest payload at an interface's MTU.
pub fn payload_len(interface: &Interface) -> usize {
    (interface.mtu as usize + 14).saturating_sub(HEADER_LEN)
}

/// Calls `receive` until it has received something (true) or `time` is over (false).
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
                let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
                match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)], Some(&timeout)) {
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
