//! Sending: many frames with `sendmmsg`, a single one with `send`.

mod datagrams;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use rustix::net::{SendFlags, send};

use self::datagrams::Datagrams;
use crate::PacketSocket;
use crate::arena::Arena;

/// Length of a frame's head buffer in bytes: headers before the payload and bytes after it.
pub const HEAD_LEN: usize = 256;

/// Memory areas of one frame: front of the head, payload, rest of the head.
const PARTS: usize = 3;

/// Layout of one frame.
#[derive(Clone, Copy)]
struct Frame {
    /// Index of its head; frames move up in the queue, heads stay in place.
    head: usize,
    prefix: usize,
    payload: Option<(NonNull<u8>, usize)>,
    tail: usize,
    /// Destination of a datagram.
    dst: Option<SocketAddr>,
}

impl Frame {
    fn len(&self) -> usize {
        self.prefix + self.payload.map_or(0, |(_, len)| len) + self.tail
    }
}

/// Frames to be sent.
///
/// Each has a head of [`HEAD_LEN`] bytes in the batch; the payload is sent from the caller's
/// memory. The frame on the wire is the first `prefix_len` bytes of the head, the payload, then the
/// next `tail_len` bytes of the head.
///
/// ```
/// let mut batch = netif::SendBatch::new(32);
/// if let Some(head) = batch.head() {
///     head[..6].copy_from_slice(&[0xff; 6]);
///     batch.push_inline(60);
/// }
/// assert_eq!(batch.len(), 1);
/// ```
pub struct SendBatch {
    heads: Arena<[u8; HEAD_LEN]>,
    /// All slots; the first `queued` wait to be sent, in this order.
    frames: Box<[Frame]>,
    queued: usize,
    rejected: u64,
    pub(crate) unreachable: u64,
    headers: Arena<libc::mmsghdr>,
    areas: Arena<libc::iovec>,
    /// Allocated by the first datagram.
    datagrams: Option<Datagrams>,
}

impl SendBatch {
    /// Allocates room for `frames` frames (at least 1, at most 1024, the limit of one system call).
    pub fn new(frames: usize) -> SendBatch {
        let frames = frames.clamp(1, 1024);
        // SAFETY: bytes and plain C structures; zero is a valid value of each.
        let (heads, headers, areas) = unsafe {
            (
                Arena::zeroed(frames),
                Arena::zeroed(frames),
                Arena::zeroed(frames * PARTS),
            )
        };
        let slots = (0..frames)
            .map(|head| Frame {
                head,
                prefix: 0,
                payload: None,
                tail: 0,
                dst: None,
            })
            .collect();
        SendBatch {
            heads,
            frames: slots,
            queued: 0,
            rejected: 0,
            unreachable: 0,
            headers,
            areas,
            datagrams: None,
        }
    }

    /// Sets the destination of the next frame, if it is a datagram
    /// ([`UdpSocket::send_batch`](crate::UdpSocket::send_batch)). Call it before the frame is
    /// queued.
    pub fn set_destination(&mut self, dst: Option<SocketAddr>) {
        if let Some(frame) = self.frames.get_mut(self.queued) {
            frame.dst = dst;
        }
    }

    /// Returns the buffer for the head of the next frame, with undefined content. `None` when the
    /// batch is full. The frame is queued by [`push`](Self::push) or
    /// [`push_inline`](Self::push_inline).
    pub fn head(&mut self) -> Option<&mut [u8; HEAD_LEN]> {
        let slot = self.frames.get(self.queued)?.head;
        self.heads.get_mut(slot)
    }

    /// Queues the frame whose head was written last. Lengths beyond the head are truncated at its
    /// end. Has no effect when the batch is full.
    ///
    /// # Safety
    /// The payload must stay valid for reads until the frame was sent
    /// ([`PacketSocket::send_batch`]) or the batch cleared or dropped. Other processes may write to
    /// it before that; the frame then contains old or new bytes.
    pub unsafe fn push(
        &mut self,
        prefix_len: usize,
        payload: Option<(NonNull<u8>, usize)>,
        tail_len: usize,
    ) {
        if let Some(frame) = self.frames.get_mut(self.queued) {
            frame.prefix = prefix_len.min(HEAD_LEN);
            frame.payload = payload;
            frame.tail = tail_len.min(HEAD_LEN - frame.prefix);
            self.queued += 1;
        }
    }

    /// Queues a frame that is the first `len` bytes of the head.
    pub fn push_inline(&mut self, len: usize) {
        // SAFETY: no payload.
        unsafe { self.push(len, None, 0) }
    }

    /// Returns the number of frames waiting to be sent.
    pub fn len(&self) -> usize {
        self.queued
    }

    /// Returns true if no frame is waiting.
    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Returns true if there is no room for another frame.
    pub fn is_full(&self) -> bool {
        self.queued == self.frames.len()
    }

    /// Returns the maximum number of frames.
    pub fn capacity(&self) -> usize {
        self.frames.len()
    }

    /// Returns the number of frames discarded since the batch was created because the kernel never
    /// accepts them (longer than the interface's MTU allows, or shorter than an Ethernet header).
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Takes the number of datagrams that the kernel refused since the last call because their
    /// destination is unreachable or forbidden. They are lost, as if in the network.
    pub fn take_unreachable(&mut self) -> u64 {
        std::mem::take(&mut self.unreachable)
    }

    /// Removes the first waiting frame.
    pub fn skip(&mut self) {
        self.remove(1);
    }

    /// Removes all waiting frames.
    pub fn clear(&mut self) {
        self.queued = 0;
    }

    /// Copies a waiting frame (the first is 0) as it will be on the wire, for traces; truncated to
    /// `to`. Returns the length of the whole frame.
    pub fn copy_frame(&self, index: usize, to: &mut [u8]) -> Option<usize> {
        let frame = self.frames.get(..self.queued)?.get(index)?;
        let head = self.heads.slice(frame.head, 1).first()?;
        let (prefix, rest) = head.split_at(frame.prefix);
        let mut at = 0;
        let mut room = |len: usize| {
            let start = at;
            at = to.len().min(at + len);
            start..at
        };
        let (first, middle, last) = (
            room(prefix.len()),
            room(frame.payload.map_or(0, |(_, len)| len)),
            room(frame.tail),
        );
        to[first.clone()].copy_from_slice(&prefix[..first.len()]);
        if let Some((start, _)) = frame.payload {
            let part = &mut to[middle];
            // SAFETY: the caller of `push` keeps the payload readable; at most its length is
            // copied, and the target is an exclusive slice.
            unsafe { std::ptr::copy_nonoverlapping(start.as_ptr(), part.as_mut_ptr(), part.len()) };
        }
        to[last.clone()].copy_from_slice(&rest[..last.len()]);
        Some(frame.len())
    }

    /// Writes the kernel's description of the waiting frames.
    fn describe(&mut self) {
        for (index, frame) in self.frames.iter().enumerate().take(self.queued) {
            let head = self.heads.at(frame.head).cast::<u8>();
            let (payload, len) = frame
                .payload
                .map_or((std::ptr::null_mut(), 0), |(start, len)| {
                    (start.as_ptr(), len)
                });
            let first = self.areas.at(index * PARTS);
            let parts = [
                (head, frame.prefix),
                (payload, len),
                (head.wrapping_add(frame.prefix), frame.tail),
            ];
            for (part, (start, len)) in parts.into_iter().enumerate() {
                if let Some(area) = self.areas.get_mut(index * PARTS + part) {
                    *area = libc::iovec {
                        iov_base: start.cast(),
                        iov_len: len,
                    };
                }
            }
            if let Some(header) = self.headers.get_mut(index) {
                header.msg_hdr.msg_iov = first;
                // Empty areas cost the kernel time.
                header.msg_hdr.msg_iovlen = match (len, frame.tail) {
                    (0, 0) => 1,
                    (_, 0) => 2,
                    _ => 3,
                };
            }
        }
    }

    /// Counts a frame that is never accepted.
    pub(crate) fn reject(&mut self) {
        self.rejected += 1;
    }

    /// Returns the kernel's descriptions.
    pub(crate) fn headers(&self) -> *mut libc::mmsghdr {
        self.headers.at(0)
    }

    /// Returns the bytes of the only waiting frame contiguously, if they fit into its head: copying
    /// a short payload is faster than describing several areas to the kernel.
    pub(crate) fn alone(&mut self) -> Option<&[u8]> {
        let [frame] = self.frames.get_mut(..self.queued)? else {
            return None;
        };
        let len = frame.len();
        if len > HEAD_LEN {
            return None;
        }
        let head = self.heads.get_mut(frame.head)?;
        if let Some((start, length)) = frame.payload.take() {
            let end = frame.prefix + length;
            head.copy_within(frame.prefix..frame.prefix + frame.tail, end);
            let room = head[frame.prefix..end].as_mut_ptr();
            // SAFETY: the caller of `push` keeps the payload readable, and `room` is as long; the
            // head is exclusively borrowed.
            unsafe { std::ptr::copy_nonoverlapping(start.as_ptr(), room, length) };
            frame.prefix = end;
        }
        head.get(..len)
    }

    /// Removes the first `count` frames; the others move up and keep their heads.
    pub(crate) fn remove(&mut self, count: usize) {
        let count = count.min(self.queued);
        if count < self.queued
            && let Some(waiting) = self.frames.get_mut(..self.queued)
        {
            waiting.rotate_left(count);
        }
        self.queued -= count;
    }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SendBatch({} of {} frames, {} rejected)",
            self.queued,
            self.frames.len(),
            self.rejected
        )
    }
}

// SAFETY: payload addresses are followed only by the kernel and `copy_frame`, and their validity is
// guaranteed by the caller of `push` independently of the thread. All other addresses point to
// memory that the batch owns.
unsafe impl Send for SendBatch {}
// SAFETY: shared references only read.
unsafe impl Sync for SendBatch {}

impl PacketSocket {
    /// Passes the waiting frames to the kernel, in order. Returns the number of frames accepted;
    /// the others stay in the batch. Fewer than all without an error means that there is no room
    /// now (`EAGAIN`, `ENOBUFS`): poll the socket for writability or retry later. Frames that can
    /// never be sent are discarded and counted ([`SendBatch::rejected`]).
    ///
    /// Work is bounded by the batch's length: each system call sends or rejects a frame, or is the
    /// last.
    ///
    /// # Errors
    /// `ENETDOWN` when the interface is down, `ENXIO` when it was removed, other errors of the
    /// system, but only when no frame was accepted before. The frames stay in the batch; clear it
    /// to discard them.
    pub fn send_batch(&self, batch: &mut SendBatch) -> io::Result<usize> {
        let mut passed = 0; // sent or rejected: the frames at the front of the arrays
        let mut sent = 0;
        let mut failure = None;
        while passed < batch.queued {
            let error = match self.hand_over(batch, passed) {
                Ok(0) => break,
                Ok(count) => {
                    passed += count;
                    sent += count;
                    continue;
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                // The error concerns only the first frame: too long, too short, or payload not
                // readable.
                Some(libc::EMSGSIZE | libc::EINVAL | libc::EFAULT) => {
                    batch.rejected += 1;
                    passed += 1;
                }
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => break,
                _ => {
                    failure = Some(error);
                    break;
                }
            }
        }
        batch.remove(passed);
        match failure {
            Some(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// Performs one system call for the frames after the first `passed`; returns the number
    /// accepted by the kernel.
    fn hand_over(&self, batch: &mut SendBatch, passed: usize) -> io::Result<usize> {
        if let Some(frame) = batch.alone() {
            return Ok(send(&self.socket, frame, SendFlags::DONTWAIT).map(|_| 1)?);
        }
        if passed == 0 {
            batch.describe();
        }
        // SAFETY: headers `passed..queued` were written by `describe` before the first of these
        // calls; their area lists, heads and (guaranteed by the caller of `push`) payload are
        // readable.
        let count = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                batch.headers.at(passed),
                (batch.queued - passed) as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests;
