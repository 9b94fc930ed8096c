//! UDP sockets with segmentation offload: the carrier of ESP in UDP.
//!
//! A send passes up to 64 KiB to the kernel as one buffer, gathered from the caller's memory, which
//! the device (or the kernel, as late as possible) cuts into datagrams (`UDP_SEGMENT`). Received
//! datagrams of one sender arrive as one buffer (`UDP_GRO`) and are split without a copy.
//!
//! Reception and socket options are those of `quinn-udp`. Its send takes one contiguous buffer, so
//! payloads would be copied once more; [`UdpSocket::send_batch`] gathers instead.

mod closed;
mod holder;
mod open;
mod recv;
mod send;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;

use quinn_udp::UdpSocketState;
use socket2::Socket;

use crate::LinkState;
use crate::interface::state_by;

pub(crate) use send::{UNUSED, group};

pub use open::{UdpOpenError, UdpOptions};
pub use recv::{Datagram, UdpRecvBatch};

/// A UDP socket bound to one local address. Never blocks.
///
/// Its datagrams are not fragmented (don't-fragment is set, and the kernel's guess of the path MTU
/// is ignored, because the protocol probes the path itself), and are sent with the codepoint ECT(0)
/// of RFC 3168. ICMP errors never end it: anyone can forge them. Those that report a closed port
/// are kept ([`UdpSocket::closed_ports`]).
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    state: UdpSocketState,
    local: SocketAddr,
    /// The kernel accepts segmented buffers.
    segments: AtomicBool,
}

impl UdpSocket {
    /// Returns the bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the state of an interface of the socket's network namespace; `None` when it does not
    /// exist any more.
    ///
    /// # Errors
    /// Those of the system.
    pub fn link_state(&self, index: u32) -> io::Result<Option<LinkState>> {
        state_by(&self.socket, index)
    }

    /// Clears and returns the pending error of the socket.
    pub fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().ok().flatten()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
