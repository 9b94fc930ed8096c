//! Receiving with `recvmmsg`, with the payload directly in the caller's memory.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use netif::PacketSocket;

/// Parts of a frame: its first bytes, and the rest.
const PARTS: usize = 2;

/// Buffers for the first bytes of received frames; the rest of each goes to an area posted by the
/// caller.
///
/// The next frame is a guess: the caller posts an area for the payload of the expected frame, and
/// checks the head afterwards. If another frame came, the caller has to move its payload.
pub struct ScatterBatch {
    headers: Vec<libc::mmsghdr>,
    areas: Vec<libc::iovec>,
    heads: Vec<u8>,
    head_len: usize,
    received: usize,
}

/// One frame received into a [`ScatterBatch`].
#[derive(Clone, Copy, Debug)]
pub struct ScatteredFrame<'a> {
    /// The frame's first bytes; fewer when it is shorter.
    pub head: &'a [u8],
    /// Bytes in the posted area.
    pub payload_len: usize,
    /// The frame did not fit into head and area: its end is missing.
    pub truncated: bool,
}

impl ScatterBatch {
    /// Allocates room for the first `head_len` bytes of `frames` frames.
    pub fn new(frames: usize, head_len: usize) -> ScatterBatch {
        // SAFETY: plain C structures; zero is a valid value of each.
        let (header, area) = unsafe { (mem::zeroed(), mem::zeroed()) };
        ScatterBatch {
            headers: vec![header; frames],
            areas: vec![area; frames * PARTS],
            heads: vec![0; frames * head_len],
            head_len,
            received: 0,
        }
    }

    /// Posts the area for the rest of the `index`-th frame of each further receive, in place of the
    /// previous one. With `None`, frames longer than the head are truncated.
    ///
    /// # Safety
    /// The area must stay valid for writes, and must not be accessed otherwise during a receive,
    /// until another (or none) is posted for the index or the batch is dropped.
    pub unsafe fn post(&mut self, index: usize, area: Option<(NonNull<u8>, usize)>) {
        self.areas[index * PARTS + 1] = libc::iovec {
            iov_base: area.map_or(ptr::null_mut(), |(start, _)| start.as_ptr().cast()),
            iov_len: area.map_or(0, |(_, len)| len),
        };
    }

    /// Receives up to `most` frames (and not more than the batch holds), each into its head and the
    /// area posted for it. Returns their number, 0 when none waits.
    ///
    /// # Errors
    /// Those of the system.
    pub fn receive(&mut self, socket: &PacketSocket, most: usize) -> io::Result<usize> {
        let most = most.min(self.headers.len());
        let heads = self.heads.as_mut_ptr();
        for index in 0..most {
            self.areas[index * PARTS] = libc::iovec {
                iov_base: heads.wrapping_add(index * self.head_len).cast(),
                iov_len: self.head_len,
            };
        }
        let areas = self.areas.as_mut_ptr();
        for (index, header) in self.headers.iter_mut().enumerate().take(most) {
            header.msg_hdr.msg_iov = areas.wrapping_add(index * PARTS);
            header.msg_hdr.msg_iovlen = PARTS;
        }
        self.received = 0;
        // SAFETY: `most` headers exist; the areas of each are those just written, heads that
        // `self` owns, and (guaranteed by the caller of `post`) areas valid for writes.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                self.headers.as_mut_ptr(),
                most as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        if let Ok(count) = usize::try_from(result) {
            self.received = count;
            return Ok(count);
        }
        match io::Error::last_os_error() {
            none if none.kind() == io::ErrorKind::WouldBlock => Ok(0),
            none if none.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        }
    }

    /// Returns the `index`-th frame of the last receive.
    pub fn frame(&self, index: usize) -> Option<ScatteredFrame<'_>> {
        let header = self.headers.get(..self.received)?.get(index)?;
        let len = header.msg_len as usize;
        let in_head = len.min(self.head_len);
        let posted = self.areas[index * PARTS + 1].iov_len;
        Some(ScatteredFrame {
            head: &self.heads[index * self.head_len..][..in_head],
            payload_len: (len - in_head).min(posted),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        })
    }
}
