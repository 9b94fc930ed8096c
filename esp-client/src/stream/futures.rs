//! Operations of [`StreamRings`] as futures poll them.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use esp_engine::shm::{StreamState, Wake};

use super::rings::StreamRings;
use crate::error::EspError;

impl StreamRings {
    pub(crate) fn poll_connected(&self, cx: &Context<'_>) -> Poll<Result<(), EspError>> {
        self.wake_later(cx);
        self.waiting.register(cx, Wake::State);
        match self.failure() {
            Some(error) => Poll::Ready(Err(error)),
            None if self.waiting.status.state() == StreamState::Connecting => Poll::Pending,
            None => Poll::Ready(Ok(())),
        }
    }

    pub(crate) fn poll_read(&self, cx: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let register = || self.wake_later(cx);
        self.waiting
            .poll(cx, Wake::Readable, register, || self.try_read(buffer))
    }

    pub(crate) fn poll_write(
        &self,
        cx: &Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let register = || self.wake_later(cx);
        self.waiting.poll(cx, Wake::Writable, register, || {
            self.try_write_all_of(buffers)
        })
    }

    /// Has the progress thread of a lease wake the task, which receives no events there.
    fn wake_later(&self, cx: &Context<'_>) {
        if let Some(lease) = &self.lease {
            lease.wake_later(cx);
        }
    }
}
