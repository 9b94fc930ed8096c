//! Reception: coalesced datagrams, split without a copy.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use quinn_udp::{EcnCodepoint, RecvMeta};

use super::UdpSocket;

/// Number of receptions of one system call: eight of 64 KiB hold half a window, and describing more
/// to the kernel would slow down the call for a single datagram.
const BUFFERS: usize = 8;
/// Maximum size of a reception in bytes; the kernel coalesces no more.
const BUFFER_LEN: usize = 65536;

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Sender.
    pub src: SocketAddr,
    /// Payload of UDP.
    pub bytes: &'a [u8],
    /// A router or switch marked it: congestion experienced (RFC 3168).
    pub ce: bool,
}

/// Buffer of one reception. It begins at a page boundary, as the kernel's own buffers do, because
/// some processors copy slowly to a destination that is a few bytes farther into its page than the
/// source (see `shmem::copy_bytes`).
#[repr(align(4096))]
struct Buffer([u8; BUFFER_LEN]);

/// Buffers of received datagrams.
pub struct UdpRecvBatch {
    buffers: Box<[Buffer]>,
    metas: Box<[RecvMeta; BUFFERS]>,
    received: usize,
}

impl UdpRecvBatch {
    /// Allocates the buffers, 512 KiB.
    pub fn new() -> UdpRecvBatch {
        UdpRecvBatch {
            buffers: (0..BUFFERS).map(|_| Buffer([0; BUFFER_LEN])).collect(),
            metas: Box::new([RecvMeta::default(); BUFFERS]),
            received: 0,
        }
    }

    /// Returns the datagrams of the last [`UdpSocket::recv_batch`] in the order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let buffers = self.buffers.iter().zip(self.metas.iter());
        buffers.take(self.received).flat_map(|(buffer, meta)| {
            let (src, ce) = (meta.addr, meta.ecn == Some(EcnCodepoint::Ce));
            split(&buffer.0, meta).map(move |bytes| Datagram { src, bytes, ce })
        })
    }
}

impl Default for UdpRecvBatch {
    fn default() -> Self {
        UdpRecvBatch::new()
    }
}

impl std::fmt::Debug for UdpRecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdpRecvBatch({} receptions)", self.received)
    }
}

/// Returns the datagrams of one reception. All but the last have the length of the stride.
fn split<'a>(buffer: &'a [u8], meta: &RecvMeta) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let received = buffer.get(..meta.len).unwrap_or(buffer);
    received.chunks(meta.stride.max(1))
}

impl UdpSocket {
    /// Receives the datagrams that wait, at most eight receptions of 64 KiB, in one system call.
    /// Returns the number of receptions, 0 if none waits; each has one or more datagrams.
    ///
    /// # Errors
    /// Those of the system, ICMP errors among them ([`UdpSocket::closed_ports`]); the socket can
    /// still be used.
    pub fn recv_batch(&self, batch: &mut UdpRecvBatch) -> io::Result<usize> {
        batch.received = 0;
        let mut buffers = batch.buffers.iter_mut();
        let mut buffers: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| {
            IoSliceMut::new(buffers.next().map_or(&mut [], |buffer| &mut buffer.0))
        });
        let received = self.state.recv(
            (&self.socket).into(),
            &mut buffers,
            batch.metas.as_mut_slice(),
        );
        match received {
            Ok(count) => {
                batch.received = count;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(len: usize, stride: usize) -> Vec<usize> {
        let buffer = vec![0; BUFFER_LEN];
        let meta = RecvMeta {
            len,
            stride,
            ..RecvMeta::default()
        };
        split(&buffer, &meta).map(<[u8]>::len).collect()
    }

    #[test]
    fn receptions_are_split_at_the_stride() {
        assert_eq!(lengths(300, 100), [100, 100, 100]);
        assert_eq!(lengths(250, 100), [100, 100, 50]);
        assert_eq!(lengths(100, 100), [100]);
        assert_eq!(lengths(40, 100), [40]);
        assert_eq!(lengths(0, 0), [0usize; 0], "an empty datagram");
    }

    #[test]
    fn an_odd_stride_is_no_panic() {
        assert_eq!(lengths(3, 0), [1, 1, 1]);
        assert_eq!(lengths(usize::MAX, usize::MAX), [BUFFER_LEN]);
    }
}
