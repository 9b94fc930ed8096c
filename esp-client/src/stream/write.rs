//! Writing to the send ring.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use esp_engine::shm::Wake;

use super::rings::StreamRings;
use crate::error::EspError;
use crate::sync::lock;

/// Maximum number of bytes that writes with "more follows" hold back: about a jumbo frame, beyond
/// which holding back saves no frame.
const MAX_HELD: usize = 8192;

impl StreamRings {
    /// See [`EspStream::try_write`](crate::EspStream::try_write).
    #[inline]
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_all_of(&[io::IoSlice::new(bytes)])
    }

    /// Writes from several buffers, with one doorbell.
    #[inline]
    pub(crate) fn try_write_all_of(&self, buffers: &[io::IoSlice<'_>]) -> io::Result<usize> {
        if self.closed() || self.gone() {
            return Err(self.write_error());
        }
        let mut total = 0;
        let mut wanted = 0;
        let mut tx = lock(&self.tx);
        if tx.is_finished() {
            return Err(self.write_error());
        }
        for buffer in buffers {
            wanted += buffer.len();
            let n = tx.write(buffer);
            total += n;
            if n < buffer.len() {
                break;
            }
        }
        drop(tx);
        if total > 0 {
            self.ring();
        } else if wanted > 0 {
            self.flush();
            if let Some(lease) = &self.lease {
                lease.engine().poll(true); // makes room for the next attempt
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(total)
    }

    /// See [`EspStream::try_write_whole`](crate::EspStream::try_write_whole).
    #[inline]
    pub(crate) fn try_write_whole(
        &self,
        buffers: &[io::IoSlice<'_>],
        spare: usize,
    ) -> io::Result<()> {
        if self.put_whole(buffers, spare)? {
            self.ring();
            return Ok(());
        }
        self.flush();
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// See [`EspStream::try_write_more`](crate::EspStream::try_write_more).
    #[inline]
    pub(crate) fn try_write_more(&self, buffers: &[io::IoSlice<'_>]) -> io::Result<()> {
        if !self.put_whole(buffers, 0)? {
            self.flush();
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let added: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let held = self.held.load(Ordering::Relaxed).saturating_add(added);
        if held < MAX_HELD {
            self.held.store(held, Ordering::Relaxed);
        } else {
            self.ring();
        }
        Ok(())
    }

    /// Copies all buffers into the ring; false without room for them and `spare` further bytes.
    #[inline]
    fn put_whole(&self, buffers: &[io::IoSlice<'_>], spare: usize) -> io::Result<bool> {
        if self.closed() || self.gone() {
            return Err(self.write_error());
        }
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut tx = lock(&self.tx);
        if tx.is_finished() {
            return Err(self.write_error());
        }
        if tx.free() < total.saturating_add(spare) {
            return Ok(false);
        }
        for buffer in buffers {
            tx.write(buffer);
        }
        Ok(true)
    }

    /// Sends what [`StreamRings::try_write_more`] holds back.
    pub(crate) fn flush(&self) {
        if self.held.load(Ordering::Relaxed) > 0 {
            self.ring();
        }
    }

    #[cold]
    fn write_error(&self) -> io::Error {
        self.failure()
            .unwrap_or(EspError::WriteAfterEnd(self.peer))
            .into()
    }

    fn writable(&self) -> bool {
        let room = {
            let tx = lock(&self.tx);
            tx.free() > 0 || tx.is_finished()
        };
        room || self.closed() || self.gone()
    }

    /// Writes; blocks until there is room.
    pub(crate) fn write(&self, buffers: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.blocking.run(
            &self.blocking.write,
            "writing",
            || self.try_write_all_of(buffers),
            |until| self.wait(Wake::Writable, || self.writable(), until),
        )
    }

    /// Returns the number of written bytes that the peer's node has not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        lock(&self.tx).pending()
    }

    /// Waits until the peer's node has acknowledged all written bytes.
    pub(crate) fn wait_delivered(&self, deadline: Option<Instant>) -> io::Result<()> {
        let done = || self.unacknowledged() == 0 || self.closed() || self.gone();
        if !self.wait(Wake::Writable, done, deadline) {
            let what = "waiting for the acknowledgement";
            return Err(EspError::CallTimedOut { what }.into());
        }
        if self.unacknowledged() == 0 {
            return Ok(());
        }
        Err(self.write_error())
    }

    /// Ends the sending direction, behind the written bytes.
    pub(crate) fn finish_writing(&self) {
        let mut tx = lock(&self.tx);
        if !tx.is_finished() {
            tx.finish();
            drop(tx);
            self.ring();
        }
    }
}
