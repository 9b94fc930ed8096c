//! The carriers of a link: packet sockets for raw Ethernet, a UDP socket for ESP in UDP.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use esp_proto::{Duration, Instant, NodeAddr};
use netif::{
    IpNetwork, LinkState, PacketSocket, RawFrame, RecvBatch, RecvRing, SendBatch, UdpRecvBatch,
    UdpSocket,
};

use super::RX_BATCH;

/// Bytes of an Ethernet frame besides its payload, rounded up.
const FRAME_OVERHEAD: usize = 32;

/// A packet socket, and its receive ring.
pub(super) struct Source {
    pub(super) socket: PacketSocket,
    /// Ring that receives the frames, if any.
    pub(super) ring: Option<RecvRing>,
}

impl From<PacketSocket> for Source {
    fn from(socket: PacketSocket) -> Source {
        Source { socket, ring: None }
    }
}

impl Source {
    /// Takes one batch of frames. Returns their number.
    pub(super) fn receive(
        &mut self,
        batch: &mut RecvBatch,
        take: impl FnMut(RawFrame<'_>),
    ) -> io::Result<usize> {
        match &mut self.ring {
            Some(ring) => ring.receive(&self.socket, batch, RX_BATCH, take),
            None => {
                let count = self.socket.recv_batch(batch)?;
                batch.frames().for_each(take);
                Ok(count)
            }
        }
    }

    /// Clears the pending error of a socket with a ring and returns true if there was one. Such a
    /// socket is not read while its ring is empty, so the error would end each sleep at once.
    fn take_error(&self) -> bool {
        self.ring.is_some() && self.socket.take_error().is_some()
    }
}

/// The two sockets of raw Ethernet: for streams and for datagrams.
pub(super) type Sockets = (Source, Source);

/// Number of polls per receive call on a UDP socket that was empty at the last one.
const POLLS_PER_RECEIVE: u8 = 4;
/// Maximum time after an empty receive call for which polls skip the UDP socket.
const RECENT: Duration = Duration::from_micros(5);

/// Skips receive calls on a UDP socket that was empty at the last one. Receiving is a system call,
/// and a program that calls `MPI_Test` between pieces of work would pay for it each time.
#[derive(Default)]
pub(super) struct ReceiveBackoff {
    /// Time of the last receive call, if it found nothing.
    empty: Option<Instant>,
    /// Number of polls since then.
    polls: u8,
}

impl ReceiveBackoff {
    /// Counts a poll; returns true if it need not receive from the socket.
    fn skips(&mut self, now: Instant) -> bool {
        self.polls += 1;
        self.polls < POLLS_PER_RECEIVE && self.empty.is_some_and(|empty| now.since(empty) < RECENT)
    }

    fn record(&mut self, now: Instant, found: bool) {
        self.empty = (!found).then_some(now);
        self.polls = 0;
    }
}

/// Sockets of a link.
pub(super) enum Carrier {
    /// Raw Ethernet: one socket for each EtherType.
    Ethernet {
        esp: Source,
        edp: Source,
        rx: RecvBatch,
    },
    /// ESP in UDP. One socket receives both protocols.
    Udp {
        socket: UdpSocket,
        rx: UdpRecvBatch,
        backoff: ReceiveBackoff,
        /// Networks whose packets are accepted; none: all.
        sources: Vec<IpNetwork>,
    },
}

impl Carrier {
    /// Creates a carrier over packet sockets, for frames of this MTU.
    pub(super) fn ethernet((esp, edp): Sockets, mtu: u32) -> Carrier {
        Carrier::Ethernet {
            esp,
            edp,
            rx: rx_batch(mtu),
        }
    }

    /// Creates a carrier over a bound UDP socket.
    pub(super) fn udp(socket: UdpSocket, sources: Vec<IpNetwork>) -> Carrier {
        Carrier::Udp {
            socket,
            sources,
            rx: UdpRecvBatch::new(),
            backoff: ReceiveBackoff::default(),
        }
    }

    /// Counts a poll; returns true if it need not receive packets.
    pub(super) fn skips_receive(&mut self, now: Instant) -> bool {
        match self {
            Carrier::Ethernet { .. } => false,
            Carrier::Udp { backoff, .. } => backoff.skips(now),
        }
    }

    /// Records whether a poll found packets.
    pub(super) fn record(&mut self, now: Instant, found: bool) {
        if let Carrier::Udp { backoff, .. } = self {
            backoff.record(now, found);
        }
    }

    /// Replaces the packet sockets; has no effect on another carrier.
    pub(super) fn replace_sockets(&mut self, sockets: Sockets) {
        if let Carrier::Ethernet { esp, edp, .. } = self {
            (*esp, *edp) = sockets;
        }
    }

    /// Adapts the receive buffers to an MTU.
    pub(super) fn set_mtu(&mut self, mtu: u32) {
        if let Carrier::Ethernet { rx, .. } = self {
            *rx = rx_batch(mtu);
        }
    }

    /// Returns the packet sockets of raw Ethernet.
    pub(super) fn packet_sockets(&self) -> Option<[&PacketSocket; 2]> {
        match self {
            Carrier::Ethernet { esp, edp, .. } => Some([&esp.socket, &edp.socket]),
            Carrier::Udp { .. } => None,
        }
    }

    /// Returns the socket that receives streams.
    pub(super) fn stream_fd(&self) -> BorrowedFd<'_> {
        match self {
            Carrier::Ethernet { esp, .. } => esp.socket.as_fd(),
            Carrier::Udp { socket, .. } => socket.as_fd(),
        }
    }

    /// Returns the socket that receives datagrams, if it is a separate one.
    pub(super) fn datagram_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Carrier::Ethernet { edp, .. } => Some(edp.socket.as_fd()),
            Carrier::Udp { .. } => None,
        }
    }

    /// Returns the state of the link's interface; `None` if it no longer exists. Packet sockets
    /// know their interface; `index` is that of a UDP socket.
    pub(super) fn link_state(&self, index: u32) -> io::Result<Option<LinkState>> {
        match self {
            Carrier::Ethernet { esp, .. } => esp.socket.link_state(),
            Carrier::Udp { socket, .. } => socket.link_state(index),
        }
    }

    /// Passes the batch to the kernel; see [`PacketSocket::send_batch`].
    pub(super) fn send(&self, batch: &mut SendBatch) -> io::Result<usize> {
        match self {
            Carrier::Ethernet { esp, .. } => esp.socket.send_batch(batch),
            Carrier::Udp { socket, .. } => socket.send_batch(batch),
        }
    }

    /// Returns the number of packets of streams that were lost because the socket was full.
    pub(super) fn dropped(&self) -> u64 {
        match self {
            Carrier::Ethernet { esp, .. } => esp.socket.statistics().map_or(0, |s| s.dropped),
            Carrier::Udp { .. } => 0,
        }
    }

    /// Clears the pending errors of the sockets. Returns their number.
    pub(super) fn take_errors(&self) -> u64 {
        match self {
            Carrier::Ethernet { esp, edp, .. } => [esp, edp]
                .into_iter()
                .map(|source| u64::from(source.take_error()))
                .sum(),
            Carrier::Udp { socket, .. } => u64::from(socket.take_error().is_some()),
        }
    }
}

fn rx_batch(mtu: u32) -> RecvBatch {
    let frame = usize::try_from(mtu).unwrap_or(65535) + FRAME_OVERHEAD;
    RecvBatch::new(RX_BATCH, frame)
}

/// Returns the destination of a frame for [`SendBatch`].
pub(super) fn destination(dst: NodeAddr) -> Option<SocketAddr> {
    match dst {
        NodeAddr::Mac(_) => None,
        NodeAddr::Udp(at) => Some(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_socket_is_read_by_one_of_four_polls() {
        let mut backoff = ReceiveBackoff::default();
        let at = Instant::from_nanos;
        assert!(!backoff.skips(at(0)), "the first poll");
        backoff.record(at(0), true);
        assert!(!backoff.skips(at(1)), "packets may follow packets");
        backoff.record(at(1), false);
        assert_eq!(
            [(); 4].map(|()| backoff.skips(at(2))),
            [true, true, true, false]
        );
        backoff.record(at(2), false);
        let nearly = RECENT - Duration::from_nanos(1);
        assert!(backoff.skips(at(2) + nearly));
        assert!(!backoff.skips(at(2) + RECENT), "polled rarely");
    }
}
