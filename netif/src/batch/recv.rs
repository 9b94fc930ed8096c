//! Receiving with `recvmmsg`.

use std::fmt;
use std::io;
use std::mem;
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
    /// The frame from its destination address on, without checksum and without the outer VLAN tag.
    pub bytes: &'a [u8],
    /// Destination class.
    pub kind: FrameKind,
    /// The frame was longer than the batch's buffers: its end is missing.
    pub truncated: bool,
    /// Tag control information of the 802.1Q tag that the kernel removed (priority 3 bits, drop 1,
    /// VLAN id 12), on sockets with [`SocketOptions::vlan_tag`](crate::SocketOptions::vlan_tag).
    pub vlan: Option<u16>,
}

/// Properties of one received message.
#[derive(Clone, Copy)]
pub(super) struct Meta {
    pub(super) len: usize,
    pub(super) kind: FrameKind,
    pub(super) truncated: bool,
    pub(super) vlan: Option<u16>,
}

/// Buffer for the auxiliary data of one message, aligned as its header requires.
type Control = [u64; 8];

/// The arrays for `recvmmsg`, with `parts` memory areas for each message. The owner decides how to
/// use them.
pub(super) struct Headers {
    headers: Arena<libc::mmsghdr>,
    areas: Arena<libc::iovec>,
    names: Arena<libc::sockaddr_ll>,
    // Written only by the kernel, through the headers.
    controls: Arena<Control>,
    parts: usize,
    filled: usize,
}

impl Headers {
    pub(super) fn new(frames: usize, parts: usize) -> Headers {
        // SAFETY: plain C structures and integers; zero is a valid value of each.
        let (headers, areas, names, controls) = unsafe {
            (
                Arena::zeroed(frames),
                Arena::zeroed(frames * parts),
                Arena::zeroed(frames),
                Arena::zeroed(frames),
            )
        };
        let mut all = Headers {
            headers,
            areas,
            names,
            controls,
            parts,
            filled: 0,
        };
        for index in 0..frames {
            all.reset(index);
        }
        all
    }

    pub(super) fn frames(&self) -> usize {
        self.headers.len()
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    pub(super) fn set_area(&mut self, frame: usize, part: usize, start: *mut u8, len: usize) {
        if let Some(area) = self.areas.get_mut(frame * self.parts + part) {
            *area = libc::iovec {
                iov_base: start.cast(),
                iov_len: len,
            };
        }
    }

    /// Prepares a header for the kernel, which overwrites its lengths.
    fn reset(&mut self, index: usize) {
        let areas = self.areas.at(index * self.parts);
        let name = self.names.at(index);
        let control = self.controls.at(index);
        if let Some(header) = self.headers.get_mut(index) {
            header.msg_len = 0;
            let inner = &mut header.msg_hdr;
            inner.msg_name = name.cast();
            inner.msg_namelen = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            inner.msg_iov = areas;
            inner.msg_iovlen = self.parts as _;
            inner.msg_control = control.cast();
            inner.msg_controllen = mem::size_of::<Control>() as _;
            inner.msg_flags = 0;
        }
    }

    /// Receives up to `most` messages into the areas set before.
    ///
    /// # Safety
    /// The areas of the first `most` messages must be valid for writes and not accessed otherwise
    /// during the call.
    pub(super) unsafe fn receive(
        &mut self,
        socket: &PacketSocket,
        most: usize,
    ) -> io::Result<usize> {
        for index in 0..self.filled {
            self.reset(index);
        }
        self.filled = 0;
        let most = most.min(self.headers.len());
        if most == 0 {
            return Ok(0);
        }
        // SAFETY: `most` headers exist; their names, controls and area lists are arenas of `self`,
        // and the caller guarantees the areas.
        let result = unsafe {
            libc::recvmmsg(
                socket.socket.as_raw_fd(),
                self.headers.at(0),
                most as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        match usize::try_from(result) {
            Ok(count) => {
                self.filled = count;
                Ok(count)
            }
            Err(_) => match io::Error::last_os_error() {
                nothing if nothing.kind() == io::ErrorKind::WouldBlock => Ok(0),
                nothing if nothing.kind() == io::ErrorKind::Interrupted => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Returns the properties of a message of the last receive.
    pub(super) fn meta(&self, index: usize) -> Option<Meta> {
        if index >= self.filled {
            return None;
        }
        let header = self.headers.slice(index, 1).first()?;
        let name = self.names.slice(index, 1).first()?;
        Some(Meta {
            len: header.msg_len as usize,
            kind: FrameKind::from_kernel(name.sll_pkttype),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            vlan: vlan_tag(&header.msg_hdr),
        })
    }
}

// SAFETY: the addresses inside lead to memory that the structure owns, except areas, which only the
// caller of `receive` uses.
unsafe impl Send for Headers {}
// SAFETY: shared references only read.
unsafe impl Sync for Headers {}

/// Returns the VLAN tag in the auxiliary data, if the kernel removed one from the frame.
fn vlan_tag(header: &libc::msghdr) -> Option<u16> {
    if header.msg_controllen == 0 {
        return None;
    }
    // SAFETY: the header's control area is the arena element of this message; the kernel set its
    // length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: not null means a complete header within the control area.
        let (level, kind, len) = unsafe {
            (
                (*next).cmsg_level,
                (*next).cmsg_type,
                (*next).cmsg_len as usize,
            )
        };
        // SAFETY: arithmetic only.
        let whole =
            unsafe { libc::CMSG_LEN(mem::size_of::<libc::tpacket_auxdata>() as u32) } as usize;
        if (level, kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA) && len >= whole {
            // SAFETY: the message is long enough for the structure; it need not be aligned.
            let aux = unsafe {
                libc::CMSG_DATA(next)
                    .cast::<libc::tpacket_auxdata>()
                    .read_unaligned()
            };
            return (aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then_some(aux.tp_vlan_tci);
        }
        // SAFETY: `next` came from this header.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    None
}

/// Reusable buffers for received frames.
pub struct RecvBatch {
    headers: Headers,
    bytes: Arena<u8>,
    frame_len: usize,
    stride: usize,
}

impl RecvBatch {
    /// Allocates room for `frames` frames (at least 1) of up to `frame_len` bytes each. Use MTU +
    /// 14, and 4 more to detect a VLAN tag; longer frames are marked as truncated.
    pub fn new(frames: usize, frame_len: usize) -> RecvBatch {
        let (frames, frame_len) = (frames.max(1), frame_len.max(1));
        // Each frame starts a cache line.
        let stride = frame_len.next_multiple_of(64);
        // SAFETY: zero is a valid byte.
        let bytes: Arena<u8> = unsafe { Arena::zeroed(frames * stride) };
        let mut headers = Headers::new(frames, 1);
        for index in 0..frames {
            headers.set_area(index, 0, bytes.at(index * stride), frame_len);
        }
        RecvBatch {
            headers,
            bytes,
            frame_len,
            stride,
        }
    }

    /// Returns the maximum number of frames.
    pub fn capacity(&self) -> usize {
        self.headers.frames()
    }

    /// Returns the number of frames of the last receive.
    pub fn len(&self) -> usize {
        self.headers.filled()
    }

    /// Returns true if the last receive brought no frame.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the frames of the last receive in the order of arrival.
    pub fn frames(&self) -> Frames<'_> {
        Frames {
            batch: self,
            next: 0,
        }
    }

    fn frame(&self, index: usize) -> Option<RawFrame<'_>> {
        let meta = self.headers.meta(index)?;
        let bytes = self
            .bytes
            .slice(index * self.stride, meta.len.min(self.frame_len));
        Some(RawFrame {
            bytes,
            kind: meta.kind,
            truncated: meta.truncated,
            vlan: meta.vlan,
        })
    }
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RecvBatch({} of {} frames of {} B)",
            self.len(),
            self.capacity(),
            self.frame_len
        )
    }
}

/// Iterator over the frames of a [`RecvBatch`].
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    batch: &'a RecvBatch,
    next: usize,
}

impl<'a> Iterator for Frames<'a> {
    type Item = RawFrame<'a>;

    fn next(&mut self) -> Option<RawFrame<'a>> {
        let frame = self.batch.frame(self.next)?;
        self.next += 1;
        Some(frame)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.batch.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Frames<'_> {}

impl PacketSocket {
    /// Receives waiting frames, up to the batch's capacity; replaces the frames of the previous
    /// receive. Returns `Ok(0)` when none is waiting; poll the socket for readability then.
    ///
    /// # Errors
    /// `ENETDOWN` once when the interface went down or was removed. Other errors are the system's;
    /// the socket remains usable after any error.
    pub fn recv_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        self.recv_some(batch, batch.capacity())
    }

    /// Receives at most `most` frames; see [`recv_batch`](Self::recv_batch).
    ///
    /// # Errors
    /// As for [`recv_batch`](Self::recv_batch).
    pub fn recv_some(&self, batch: &mut RecvBatch, most: usize) -> io::Result<usize> {
        // SAFETY: the areas are `batch.bytes`, borrowed mutably with the batch.
        unsafe { batch.headers.receive(self, most) }
    }
}
