//! Memory that cases lend to a transport. Contains all unsafe code of the suite.
//!
//! A [`Buffer`] is accessed by pointer only, never by reference, because a transport or a peer may
//! write it at any time. [`Run`] keeps every buffer of a case. The runner frees them when all ranks
//! have ended and dropped their transports, also after a failure.

use std::sync::Arc;

use super::run::{Failure, Run};
use btl::{Rank, Region, RegisterError, SendError, Started};

/// Memory of a case.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Raw>);

#[derive(Debug)]
struct Raw {
    pointer: *mut u8,
    length: usize,
}

// SAFETY: the memory is owned by this value, and reached by copies through the pointer only.
unsafe impl Send for Raw {}
// SAFETY: as above; cases do not touch a buffer that a transport holds, which the suite tests.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.pointer, self.length);
        // SAFETY: made by `Box::into_raw` in `Buffer::new`, with this length.
        drop(unsafe { Box::from_raw(slice) });
    }
}

impl Buffer {
    fn new(bytes: Vec<u8>) -> Buffer {
        let length = bytes.len();
        let pointer = Box::into_raw(bytes.into_boxed_slice()).cast::<u8>();
        Buffer(Arc::new(Raw { pointer, length }))
    }

    /// Returns the length, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Returns whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// Returns a copy of the bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut copy = vec![0; self.0.length];
        // SAFETY: `length` bytes on both sides, which are different allocations.
        unsafe { std::ptr::copy_nonoverlapping(self.0.pointer, copy.as_mut_ptr(), copy.len()) };
        copy
    }

    /// Overwrites the start of the buffer with as many of the bytes as fit.
    pub fn fill(&self, bytes: &[u8]) {
        let length = bytes.len().min(self.0.length);
        // SAFETY: at most `length` bytes on both sides; there is no reference into the buffer.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.0.pointer, length) };
    }

    fn at(&self, offset: usize, length: usize) -> Result<*mut u8, Failure> {
        match offset.checked_add(length) {
            Some(end) if end <= self.0.length => Ok(self.0.pointer.wrapping_add(offset)),
            _ => Err(Failure::Broken(format!(
                "bug of the case: {offset} + {length} of a buffer of {}",
                self.0.length
            ))),
        }
    }
}

/// Place in a peer's region.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    /// Owner of the region.
    pub peer: Rank,
    /// Key of the region.
    pub key: &'a [u8],
    /// Offset in the region, in bytes.
    pub offset: usize,
}

impl Run {
    /// Creates a buffer with these bytes, kept until every rank has ended.
    pub fn buffer(&mut self, bytes: Vec<u8>) -> Buffer {
        let buffer = Buffer::new(bytes);
        self.buffers.push(buffer.clone());
        buffer
    }

    /// Calls [`Btl::register`](btl::Btl::register) for a whole buffer.
    ///
    /// # Errors
    /// See there.
    pub fn register(&mut self, buffer: &Buffer) -> Result<Region, RegisterError> {
        // SAFETY: kept by `self.buffers` until the transport is dropped.
        unsafe { self.btl.register(buffer.0.pointer, buffer.0.length) }
    }

    /// Calls [`NoticedPuts::register_noticed`](btl::NoticedPuts::register_noticed) for a whole
    /// buffer.
    ///
    /// # Errors
    /// See there.
    pub fn register_noticed(
        &mut self,
        buffer: &Buffer,
        peer: Rank,
        notice: &[u8],
    ) -> Result<Region, RegisterError> {
        // SAFETY: kept by `self.buffers` until the transport is dropped.
        let region = unsafe {
            self.btl
                .register_noticed(buffer.0.pointer, buffer.0.length, peer, notice)
        };
        match region {
            Err(RegisterError::Unsupported) => self.register(buffer),
            region => region,
        }
    }

    /// Calls [`Tx::get`](btl::Tx::get) for `length` bytes to `at` of a buffer, and records the
    /// token while it is pending.
    ///
    /// # Errors
    /// The range is outside of the buffer.
    pub fn get(
        &mut self,
        remote: Remote<'_>,
        buffer: &Buffer,
        at: usize,
        length: usize,
    ) -> Result<Outcome, Failure> {
        let (token, local) = (self.token(), buffer.at(at, length)?);
        // SAFETY: `length` bytes of a buffer that is kept until the transport is dropped.
        let result = unsafe {
            self.btl
                .get(remote.peer, local, length, remote.key, remote.offset, token)
        };
        Ok(self.note(remote.peer, token, result))
    }

    /// Calls [`Tx::put`](btl::Tx::put), and records the token as [`get`](Run::get) does.
    ///
    /// # Errors
    /// The range is outside of the buffer.
    pub fn put(
        &mut self,
        remote: Remote<'_>,
        buffer: &Buffer,
        at: usize,
        length: usize,
    ) -> Result<Outcome, Failure> {
        let (token, local) = (self.token(), buffer.at(at, length)?);
        // SAFETY: as for `get`.
        let result = unsafe {
            self.btl
                .put(remote.peer, local, length, remote.key, remote.offset, token)
        };
        Ok(self.note(remote.peer, token, result))
    }

    /// Calls [`HeldSends::send_held`](btl::HeldSends::send_held) for a whole buffer, and records
    /// the token while it is pending.
    pub fn send_held(&mut self, peer: Rank, header: &[u8], buffer: &Buffer) -> Outcome {
        let token = self.token();
        // SAFETY: kept by `self.buffers` until the transport is dropped, and not changed before
        // completion.
        let result = unsafe {
            self.btl
                .send_held(peer, header, buffer.0.pointer, buffer.0.length, token)
        };
        self.note(peer, token, result)
    }

    /// Calls [`NoticedPuts::put_last`](btl::NoticedPuts::put_last), and records the token as
    /// [`get`](Run::get) does.
    ///
    /// # Errors
    /// The range is outside of the buffer.
    pub fn put_last(
        &mut self,
        remote: Remote<'_>,
        buffer: &Buffer,
        at: usize,
        length: usize,
    ) -> Result<Outcome, Failure> {
        let (token, local) = (self.token(), buffer.at(at, length)?);
        // SAFETY: as for `get`.
        let result = unsafe {
            self.btl
                .put_last(remote.peer, local, length, remote.key, remote.offset, token)
        };
        Ok(self.note(remote.peer, token, result))
    }

    fn note(&mut self, peer: Rank, token: u64, result: Result<Started, SendError>) -> Outcome {
        if matches!(result, Ok(Started::Pending)) {
            self.log.pending.insert(token, peer);
        }
        Outcome { token, result }
    }
}

/// Result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Token of the operation.
    pub token: u64,
    /// Result returned by the transport.
    pub result: Result<Started, SendError>,
}
