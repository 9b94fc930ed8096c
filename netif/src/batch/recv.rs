//! Receiving with `recvmmsg`.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;

use crate::PacketSocket;
use crate::arena::Arena;

/// Destination class of a received frame, as the kernel determined it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// This interface's address.
    Host,
    /// The broadcast address.
    Broadcast,
    /// A multicast address.
    Multicast,
    /// Another station (the interface is promiscuous), or a VLAN without an interface here.
    OtherHost,
    /// Sent by this machine itself.
    Outgoing,
}

impl FrameKind {
    pub(crate) fn from_kernel(kind: u8) -> FrameKind {
        match kind {
            libc::PACKET_HOST => FrameKind::Host,
            libc::PACKET_BROADCAST => FrameKind::Broadcast,
            libc::PACKET_MULTICAST => FrameKind::Multicast,
            libc::PACKET_OUTGOING | libc::PACKET_LOOPBACK => FrameKind::Outgoing,
            _ => FrameKind::OtherHost,
        }
    }
}

/// One received frame. Valid until the next receive into its batch.
#[derive(Clone, Copy, Debug)]
pub struct RawFrame<'a> {
    /// The frame, starting with its destination address, without checksum and without the outer
    /// VLAN tag.
    pub bytes: &'a [u8],
    /// Destination class.
    pub kind: FrameKind,
    /// The frame was longer than the batch's buffers: its end is missing.
    pub truncated: bool,
}

/// Reusable buffers for received frames.
pub struct RecvBatch {
    /// Headers passed to `recvmmsg`; the addresses in them point into the other arrays.
    headers: Arena<libc::mmsghdr>,
    // Read only by the kernel, through the headers.
    _areas: Arena<libc::iovec>,
    names: Arena<libc::sockaddr_ll>,
    bytes: Arena<u8>,
    frame_len: usize,
    /// Frames of the last receive.
    filled: usize,
}

impl RecvBatch {
    /// Allocates room for `frames` frames (at least 1) of up to `frame_len` bytes each. Use MTU +
    /// 14, and 4 more to detect a VLAN tag; longer frames are marked as truncated.
    pub fn new(frames: usize, frame_len: usize) -> RecvBatch {
        let (frames, frame_len) = (frames.max(1), frame_len.max(1));
        let stride = stride(frame_len);
        // SAFETY: plain C structures and bytes; zero is a valid value of each.
        let (mut headers, mut areas, names, bytes) = unsafe {
            (
                Arena::<libc::mmsghdr>::zeroed(frames),
                Arena::zeroed(frames),
                Arena::<libc::sockaddr_ll>::zeroed(frames),
                Arena::<u8>::zeroed(frames * stride),
            )
        };
        for index in 0..frames {
            if let Some(area) = areas.get_mut(index) {
                *area = libc::iovec {
                    iov_base: bytes.at(index * stride).cast(),
                    iov_len: frame_len,
                };
            }
            if let Some(header) = headers.get_mut(index) {
                header.msg_hdr.msg_name = names.at(index).cast();
                header.msg_hdr.msg_namelen = NAME_LEN;
                header.msg_hdr.msg_iov = areas.at(index);
                header.msg_hdr.msg_iovlen = 1;
            }
        }
        RecvBatch {
            headers,
            _areas: areas,
            names,
            bytes,
            frame_len,
            filled: 0,
        }
    }

    /// Returns the frames of the last receive in the order of arrival.
    pub fn frames(&self) -> impl Iterator<Item = RawFrame<'_>> {
        let headers = self.headers.slice(0, self.filled).iter().enumerate();
        let names = self.names.slice(0, self.filled);
        headers.zip(names).map(|((index, header), name)| {
            let len = (header.msg_len as usize).min(self.frame_len);
            RawFrame {
                bytes: self.bytes.slice(index * stride(self.frame_len), len),
                kind: FrameKind::from_kernel(name.sll_pkttype),
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            }
        })
    }
}

/// Length of the sender's address.
const NAME_LEN: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;

/// Returns the distance between two frames in memory: each starts at a cache line.
fn stride(frame_len: usize) -> usize {
    frame_len.next_multiple_of(64)
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (filled, all) = (self.filled, self.headers.len());
        write!(f, "RecvBatch({filled} of {all} frames)")
    }
}

// SAFETY: the addresses inside point to memory that the batch owns.
unsafe impl Send for RecvBatch {}
// SAFETY: shared references only read.
unsafe impl Sync for RecvBatch {}

impl PacketSocket {
    /// Receives waiting frames, up to the batch's capacity; replaces the frames of the previous
    /// receive. Returns `Ok(0)` when none is waiting; poll the socket for readability then.
    ///
    /// # Errors
    /// `ENETDOWN` once when the interface went down or was removed. Other errors are the system's;
    /// the socket remains usable after any error.
    pub fn recv_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        self.recv_some(batch, batch.headers.len())
    }

    /// Receives at most `max` frames; see [`recv_batch`](Self::recv_batch).
    ///
    /// # Errors
    /// As for [`recv_batch`](Self::recv_batch).
    pub fn recv_some(&self, batch: &mut RecvBatch, max: usize) -> io::Result<usize> {
        for index in 0..batch.filled {
            if let Some(header) = batch.headers.get_mut(index) {
                // The kernel has overwritten it.
                header.msg_hdr.msg_namelen = NAME_LEN;
            }
        }
        batch.filled = 0;
        let max = max.min(batch.headers.len());
        // SAFETY: `max` headers exist; they refer to arenas of the batch, which is borrowed
        // mutably.
        let result = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                batch.headers.at(0),
                max as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if let Ok(count) = usize::try_from(result) {
            batch.filled = count;
            return Ok(count);
        }
        match io::Error::last_os_error() {
            none if none.kind() == io::ErrorKind::WouldBlock => Ok(0),
            none if none.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        }
    }
}
