//! The same for async programs.

use std::io;
use std::task::{Context, Poll};

use esp_engine::shm::{StreamState, Wake};

use super::Core;
use crate::error::EspError;

impl Core {
    pub(crate) fn poll_connected(&self, cx: &Context<'_>) -> Poll<Result<(), EspError>> {
        if let Some(lease) = &self.lease {
            lease.wake_later(cx);
        }
        self.waiting.reader.register(cx);
        self.waiting.status.arm_fd(Wake::State);
        match self.failure() {
            Some(error) => Poll::Ready(Err(error)),
            None if self.waiting.status.state() == StreamState::Connecting => Poll::Pending,
            None => Poll::Ready(Ok(())),
        }
    }

    pub(crate) fn poll_read(&self, cx: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if let ready @ Poll::Ready(_) = as_poll(self.try_read(buffer)) {
            return ready;
        }
        if let Some(lease) = &self.lease {
            lease.wake_later(cx);
        }
        self.waiting.reader.register(cx);
        self.waiting.status.arm_fd(Wake::Readable);
        as_poll(self.try_read(buffer))
    }

    pub(crate) fn poll_write(
        &self,
        cx: &Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let ready @ Poll::Ready(_) = as_poll(self.try_write_all_of(buffers)) {
            return ready;
        }
        if let Some(lease) = &self.lease {
            lease.wake_later(cx);
        }
        self.waiting.writer.register(cx);
        self.waiting.status.arm_fd(Wake::Writable);
        as_poll(self.try_write_all_of(buffers))
    }
}

/// `WouldBlock` as `Pending`.
pub(crate) fn as_poll<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}
