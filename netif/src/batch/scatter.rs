//! Receiving with `recvmmsg`, with the payload directly in the caller's memory.

use std::fmt;
use std::io;
use std::ptr::NonNull;

use super::recv::Headers;
use crate::arena::Arena;
use crate::{FrameKind, PacketSocket};

/// Parts of a frame: its first bytes, and the rest.
const PARTS: usize = 2;

/// Buffers for the first bytes of received frames; the rest of each goes to an area posted by the
/// caller.
///
/// The next frame is a guess: the caller posts an area for the payload of the expected frame, and
/// checks the head afterwards. If another frame came, the caller has to move its payload.
pub struct ScatterBatch {
    headers: Headers,
    heads: Arena<u8>,
    head_len: usize,
    posted: Vec<usize>,
}

/// One frame received into a [`ScatterBatch`].
#[derive(Clone, Copy, Debug)]
pub struct ScatteredFrame<'a> {
    /// The frame's first bytes; fewer when it is shorter.
    pub head: &'a [u8],
    /// Bytes in the posted area.
    pub payload_len: usize,
    /// Destination class.
    pub kind: FrameKind,
    /// The frame did not fit into head and area: its end is missing.
    pub truncated: bool,
}

impl ScatterBatch {
    /// Allocates room for the first `head_len` bytes of `frames` frames (each at least 1).
    pub fn new(frames: usize, head_len: usize) -> ScatterBatch {
        let (frames, head_len) = (frames.max(1), head_len.max(1));
        // SAFETY: zero is a valid byte.
        let heads: Arena<u8> = unsafe { Arena::zeroed(frames * head_len) };
        let mut headers = Headers::new(frames, PARTS);
        for index in 0..frames {
            headers.set_area(index, 0, heads.at(index * head_len), head_len);
        }
        ScatterBatch {
            headers,
            heads,
            head_len,
            posted: vec![0; frames],
        }
    }

    /// Returns the maximum number of frames.
    pub fn capacity(&self) -> usize {
        self.headers.frames()
    }

    /// Posts the area for the rest of the `index`-th frame of each receive from now on, in place of
    /// the previous one. With `None`, frames longer than the head are truncated.
    ///
    /// # Safety
    /// The area must stay valid for writes, and must not be accessed otherwise during a receive,
    /// until another (or none) is posted for the index or the batch is dropped.
    pub unsafe fn post(&mut self, index: usize, area: Option<(NonNull<u8>, usize)>) {
        if let Some(posted) = self.posted.get_mut(index) {
            let (start, len) = area.map_or((std::ptr::null_mut(), 0), |(start, len)| {
                (start.as_ptr(), len)
            });
            *posted = len;
            self.headers.set_area(index, 1, start, len);
        }
    }

    /// Returns the `index`-th frame of the last receive.
    pub fn frame(&self, index: usize) -> Option<ScatteredFrame<'_>> {
        let meta = self.headers.meta(index)?;
        let in_head = meta.len.min(self.head_len);
        let payload_len = (meta.len - in_head).min(*self.posted.get(index)?);
        let head = self.heads.slice(index * self.head_len, in_head);
        Some(ScatteredFrame {
            head,
            payload_len,
            kind: meta.kind,
            truncated: meta.truncated,
        })
    }
}

impl fmt::Debug for ScatterBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ScatterBatch({} of {} frames)",
            self.headers.filled(),
            self.capacity()
        )
    }
}

impl PacketSocket {
    /// Receives up to `most` frames (and not more than the batch holds), each into its head and the
    /// area posted for it. See [`recv_batch`](PacketSocket::recv_batch).
    ///
    /// # Errors
    /// As for [`recv_batch`](PacketSocket::recv_batch).
    pub fn recv_scatter(&self, batch: &mut ScatterBatch, most: usize) -> io::Result<usize> {
        // SAFETY: heads are borrowed mutably with the batch; the caller of `post` guaranteed the
        // other areas.
        unsafe { batch.headers.receive(self, most) }
    }
}
