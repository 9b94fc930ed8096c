//! Receiving with `recvmmsg`, the payload straight into memory of the caller.

use std::fmt;
use std::io;
use std::ptr::NonNull;

use super::recv::Headers;
use crate::arena::Arena;
use crate::{FrameKind, PacketSocket};

/// Parts of a frame: its first bytes, the rest.
const PARTS: usize = 2;

/// Room for the first bytes of received frames; the rest of each goes to an area the caller posted for it.
///
/// Which frame comes next is a guess: the caller posts where the payload belongs if the frame is the expected one, and
/// looks at the head afterwards. A payload that came to the wrong place is the caller's to move.
pub struct ScatterBatch {
    headers: Headers,
    heads: Arena<u8>,
    head_len: usize,
    posted: Vec<usize>,
}

/// What is known of a frame received into a [`ScatterBatch`].
#[derive(Clone, Copy, Debug)]
pub struct ScatteredFrame<'a> {
    /// The frame's first bytes, fewer when it is shorter.
    pub head: &'a [u8],
    /// Bytes in the posted area.
    pub payload_len: usize,
    /// Whom it was for.
    pub kind: FrameKind,
    /// It did not fit into head and area: its end is missing.
    pub truncated: bool,
}

impl ScatterBatch {
    /// Room for the first `head_len` bytes of `frames` frames (each at least 1).
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

    /// Frames it can hold.
    pub fn capacity(&self) -> usize {
        self.headers.frames()
    }

    /// Posts the area for the rest of the `index`-th frame of each receive from now on, in place of the one before;
    /// without any, frames longer than the head are truncated.
    ///
    /// # Safety
    /// The area must stay valid for writes, and nobody else may use it during a receive, until another (or none) is
    /// posted for the index or the batch is dropped.
    pub unsafe fn post(&mut self, index: usize, area: Option<(NonNull<u8>, usize)>) {
        if let Some(posted) = self.posted.get_mut(index) {
            let (start, len) = area.map_or((std::ptr::null_mut(), 0), |(start, len)| {
                (start.as_ptr(), len)
            });
            *posted = len;
            self.headers.set_area(index, 1, start, len);
        }
    }

    /// The `index`-th frame of the last receive.
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
    /// Receives up to `most` frames (and not more than the batch holds), each into its head and the area posted for
    /// it. Else as [`recv_batch`](PacketSocket::recv_batch).
    ///
    /// # Errors
    /// As there.
    pub fn recv_scatter(&self, batch: &mut ScatterBatch, most: usize) -> io::Result<usize> {
        // SAFETY: heads are borrowed mutably with the batch; whoever posted the other areas vouched for them.
        unsafe { batch.headers.receive(self, most) }
    }
}
