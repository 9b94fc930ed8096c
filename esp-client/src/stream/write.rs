//! Writing to the send ring.

use std::io::{self, IoSlice, Write};
use std::sync::atomic::Ordering;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};

use esp_engine::shm::{TxProducer, Wake};

use super::EspStream;
use crate::error::EspError;
use crate::sync::lock;

/// Maximum number of bytes that writes with "more follows" hold back: about a jumbo frame, beyond
/// which holding back saves no frame.
const MAX_HELD: usize = 8192;

impl EspStream {
    /// Writes as many bytes as the send ring has room for, without waiting, and returns their
    /// number.
    ///
    /// # Errors
    /// `WouldBlock` if the ring is full; else the error that closed the connection.
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(bytes)])
    }

    /// Writes from several buffers, with one doorbell.
    #[inline]
    fn try_write_vectored(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut total = 0;
        let mut wanted = 0;
        self.with_tx(|tx| {
            for buffer in buffers {
                wanted += buffer.len();
                let n = tx.write(buffer);
                total += n;
                if n < buffer.len() {
                    break;
                }
            }
        })?;
        if total > 0 {
            self.ring();
        } else if wanted > 0 {
            self.send_held();
            if let Some(lease) = self.socket.lease() {
                lease.leases.engine.poll(); // makes room for the next attempt
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(total)
    }

    /// Writes all buffers or nothing, and leaves at least `spare` bytes of the send ring free.
    ///
    /// # Errors
    /// `WouldBlock` if the ring has not enough room.
    #[inline]
    pub fn try_write_whole(&self, buffers: &[IoSlice<'_>], spare: usize) -> io::Result<()> {
        self.put_whole(buffers, spare)?;
        self.ring();
        Ok(())
    }

    /// Like [`try_write_whole`](EspStream::try_write_whole), but more is about to follow (cf.
    /// `MSG_MORE`): the engine is not notified, so that this write and the next ones share frames.
    ///
    /// Held bytes are sent with the next write without "more", by [`flush`](std::io::Write::flush),
    /// when the sending direction ends, and when 8 KiB of them wait. Nothing else sends them.
    ///
    /// # Errors
    /// `WouldBlock` if the ring has no room for all bytes; the held bytes are then sent.
    pub fn try_write_more(&self, buffers: &[IoSlice<'_>]) -> io::Result<()> {
        let added = self.put_whole(buffers, 0)?;
        let held = self.held.load(Ordering::Relaxed).saturating_add(added);
        if held < MAX_HELD {
            self.held.store(held, Ordering::Relaxed);
        } else {
            self.ring();
        }
        Ok(())
    }

    /// Copies all buffers into the ring and returns their length. Without room for them and `spare`
    /// further bytes it sends the held bytes and returns `WouldBlock`.
    #[inline]
    fn put_whole(&self, buffers: &[IoSlice<'_>], spare: usize) -> io::Result<usize> {
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let fits = self.with_tx(|tx| {
            let fits = tx.free() >= total.saturating_add(spare);
            if fits {
                for buffer in buffers {
                    tx.write(buffer);
                }
            }
            fits
        })?;
        if fits {
            return Ok(total);
        }
        self.send_held();
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Calls `write` with the send ring, unless the sending direction has ended.
    #[inline]
    fn with_tx<T>(&self, write: impl FnOnce(&mut TxProducer) -> T) -> io::Result<T> {
        if self.has_ended() {
            return Err(self.write_error());
        }
        let mut tx = lock(&self.socket.tx);
        if tx.is_finished() {
            return Err(self.write_error());
        }
        Ok(write(&mut tx))
    }

    /// Notifies the engine of bytes written, bytes read or the end of writing.
    #[inline]
    pub(super) fn ring(&self) {
        self.held.store(0, Ordering::Relaxed);
        self.socket.ring();
    }

    /// Sends the bytes that [`EspStream::try_write_more`] holds back.
    pub(crate) fn send_held(&self) {
        if self.held.load(Ordering::Relaxed) > 0 {
            self.ring();
        }
    }

    #[cold]
    pub(super) fn write_error(&self) -> io::Error {
        let ended = EspError::WriteAfterEnd(self.peer);
        self.failure().unwrap_or(ended).into()
    }

    fn writable(&self) -> bool {
        let room = {
            let tx = lock(&self.socket.tx);
            tx.free() > 0 || tx.is_finished()
        };
        room || self.has_ended()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_write(
        &self,
        cx: &Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let attempt = || self.try_write_vectored(buffers);
        self.socket.poll(cx, Wake::Writable, attempt)
    }

    /// Returns the number of written bytes that the peer's node has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        lock(&self.socket.tx).pending()
    }

    /// Ends the sending direction after the written bytes.
    pub(super) fn finish_writing(&self) {
        let mut tx = lock(&self.socket.tx);
        if !tx.is_finished() {
            tx.finish();
            drop(tx);
            self.ring();
        }
    }
}

impl Write for &EspStream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let attempt = || self.try_write_vectored(buffers);
        let call = (Wake::Writable, "writing");
        self.socket.block(call, attempt, || self.writable())
    }

    /// Sends the bytes that [`EspStream::try_write_more`] holds back. No other write is held back.
    fn flush(&mut self) -> io::Result<()> {
        self.send_held();
        Ok(())
    }
}

impl Write for EspStream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}
