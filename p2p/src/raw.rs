//! Non-blocking calls on raw memory, for other languages. Safe ones: [`Comm::scope`],
//! [`Comm::isend_owned`].

use btl::Rank;

use crate::comm::{Comm, Message};
use crate::error::Error;
use crate::memory::{ReadMem, WriteMem};
use crate::types::{RequestId, Source, Tag};

impl Comm {
    /// Starts to send `length` bytes.
    ///
    /// # Safety
    /// The bytes are readable and not written until the request is over:
    /// [`P2p::wait`](crate::P2p::wait) or a successful test has returned, or the layer was
    /// finalized. For a request given to [`P2p::free`](crate::P2p::free): until the layer was
    /// finalized.
    ///
    /// # Errors
    /// As [`Comm::send`].
    pub unsafe fn isend_raw(
        &self,
        at: *const u8,
        length: usize,
        dst: Rank,
        tag: i32,
    ) -> Result<RequestId, Error> {
        // SAFETY: the caller promises the same.
        self.isend_mem(unsafe { ReadMem::new(at, length) }, dst, tag, false)
    }

    /// Starts a synchronous send of `length` bytes: it completes when a receive has taken them.
    ///
    /// # Safety
    /// As [`isend_raw`](Comm::isend_raw).
    ///
    /// # Errors
    /// As [`Comm::send`].
    pub unsafe fn issend_raw(
        &self,
        at: *const u8,
        length: usize,
        dst: Rank,
        tag: i32,
    ) -> Result<RequestId, Error> {
        // SAFETY: the caller promises the same.
        self.issend_mem(unsafe { ReadMem::new(at, length) }, dst, tag, false)
    }

    /// Starts to receive at most `length` bytes.
    ///
    /// # Safety
    /// The bytes are writable, and not read or written by others, until the request is over; see
    /// [`isend_raw`](Comm::isend_raw).
    ///
    /// # Errors
    /// As [`Comm::recv`].
    pub unsafe fn irecv_raw(
        &self,
        at: *mut u8,
        length: usize,
        src: Source,
        tag: Tag,
    ) -> Result<RequestId, Error> {
        // SAFETY: the caller promises the same.
        self.irecv_mem(unsafe { WriteMem::new(at, length) }, src, tag, false)
    }
}

impl Message {
    /// Starts to receive the message.
    ///
    /// # Safety
    /// As [`Comm::irecv_raw`].
    ///
    /// # Errors
    /// As [`Message::recv`].
    pub unsafe fn irecv_raw(self, at: *mut u8, length: usize) -> Result<RequestId, Error> {
        // SAFETY: the caller promises the same.
        self.irecv_mem(unsafe { WriteMem::new(at, length) })
    }
}
