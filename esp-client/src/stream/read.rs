//! Reading from the receive ring.

use std::cell::Cell;
use std::io::{self, Read};
use std::sync::atomic::Ordering;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};

use esp_engine::Engine;
use esp_engine::shm::{RxConsumer, Wake};

use super::EspStream;
use crate::error::EspError;
use crate::lease::Event;
use crate::socket::would_block;
use crate::sync::lock;

/// Minimum length of a buffer that is posted to the embedded engine, which then receives into it.
/// For a shorter one the additional copy costs less.
const MIN_POSTED: usize = 2048;

impl EspStream {
    /// Reads available bytes without waiting. Returns 0 at the end of the stream (or for an empty
    /// buffer).
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are available; else the error that closed the connection, after the
    /// bytes that arrived before it.
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.read_shut.load(Ordering::Relaxed) {
            return Ok(0);
        }
        self.socket.check_fork()?;
        match self.take(buffer) {
            0 => self.poll_and_read(buffer),
            n => Ok(n),
        }
    }

    /// Copies available bytes and returns their number.
    #[inline]
    fn take(&self, buffer: &mut [u8]) -> usize {
        let (n, notice) = {
            let mut rx = lock(&self.socket.rx);
            let n = rx.read(buffer);
            (n, n > 0 && rx.consumed_notice_due())
        };
        // After the unlock, because over a lease this polls the engine.
        if notice {
            self.ring();
        }
        n
    }

    /// Polls the embedded engine, then reads.
    #[cold]
    fn poll_and_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(lease) = self.socket.lease() {
            let engine = &lease.leases.engine;
            if buffer.len() < MIN_POSTED {
                engine.poll();
            } else {
                let mut rx = lock(&self.socket.rx);
                let posted = engine.poll_into(lease.slot, buffer);
                rx.consume(posted);
                drop(rx);
                if posted > 0 {
                    return Ok(self.posted(posted));
                }
            }
        }
        let end = self.end_of_reading(RxConsumer::at_end);
        match self.take(buffer) {
            0 => end(&lock(&self.socket.rx)),
            n => Ok(n),
        }
    }

    /// Loads the state of the connection, and returns a function for the result of a read that then
    /// finds no bytes: 0 at the end of the stream (`at_end`), or an error. The state is loaded
    /// first, because the engine publishes the last bytes before it.
    fn end_of_reading(
        &self,
        at_end: impl FnOnce(&RxConsumer) -> bool,
    ) -> impl FnOnce(&RxConsumer) -> io::Result<usize> {
        let closed = self.is_closed();
        let failure = self.failure();
        move |rx| match failure {
            _ if at_end(rx) => Ok(0),
            Some(error) => Err(error.into()),
            None if closed => Ok(0),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Passes the readable bytes to `take` as one contiguous slice without copying, and consumes
    /// the number that `take` returns, which is also the result. Other threads cannot read while
    /// `take` runs; `take` may write to the stream.
    ///
    /// `known` is the number of bytes that an earlier call left unconsumed.
    ///
    /// # Errors
    /// `WouldBlock` if no more than `known` bytes are readable. At the end of the stream the result
    /// is that of [`EspStream::try_read`].
    #[inline]
    pub fn try_read_with(
        &self,
        known: usize,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<usize> {
        self.socket.check_fork()?;
        let mut rx = lock(&self.socket.rx);
        if rx.available() <= known {
            let end = self.end_of_reading(RxConsumer::finished);
            if rx.available() <= known {
                return end(&rx);
            }
        }
        let available = rx.peek();
        let taken = take(available).min(available.len());
        rx.consume(taken);
        let notice = taken > 0 && rx.consumed_notice_due();
        drop(rx);
        if notice {
            self.ring();
        }
        Ok(taken)
    }

    /// Returns true if [`EspStream::try_read_with`] would not return `WouldBlock` for this `known`.
    #[inline]
    pub fn is_readable_beyond(&self, known: usize) -> bool {
        let (available, finished) = self.arrived.available();
        available > known || finished || self.has_ended()
    }

    /// Returns true if a read would not block. Takes no lock, because the caller may hold the
    /// engine.
    fn readable(&self) -> bool {
        self.is_readable_beyond(0) || self.read_shut.load(Ordering::Relaxed)
    }

    /// Waits for bytes or the end of the stream, then reads. The embedded engine receives directly
    /// into a long buffer.
    fn wait_and_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let deadline = self.socket.deadline(Wake::Readable);
        let lease = self.socket.lease();
        let lease = lease.filter(|_| buffer.len() >= MIN_POSTED);
        loop {
            let posted = Cell::new(0);
            let in_time = match lease {
                None => {
                    let ready = || self.readable();
                    self.socket.wait(Wake::Readable, ready, deadline)
                }
                Some(lease) => {
                    let poll = |engine: &mut Engine| {
                        // A thread that holds `rx` may be waiting for the engine.
                        let Ok(mut rx) = self.socket.rx.try_lock() else {
                            return engine.poll();
                        };
                        let (work, filled) = engine.poll_into(lease.slot, buffer);
                        rx.consume(filled);
                        posted.set(filled);
                        work
                    };
                    let ready = || posted.get() > 0 || self.readable();
                    let event = Event::Socket(&self.socket.waiting, Wake::Readable);
                    let engine = &lease.leases.engine;
                    engine.wait_by(self.socket.spin, poll, event, ready, deadline)
                }
            };
            if posted.get() > 0 {
                return Ok(self.posted(posted.get()));
            }
            if !in_time {
                return Err(EspError::CallTimedOut { what: "reading" }.into());
            }
            match self.try_read(buffer) {
                // Another thread has read the bytes.
                Err(error) if would_block(&error) => {}
                done => return done,
            }
        }
    }

    /// Notifies the engine after a read of `count` bytes that bypassed the ring, if due.
    fn posted(&self, count: usize) -> usize {
        if lock(&self.socket.rx).consumed_notice_due() {
            self.ring();
        }
        count
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn poll_read(&self, cx: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let attempt = || self.try_read(buffer);
        self.socket.poll(cx, Wake::Readable, attempt)
    }

    /// Makes all reads return 0, including those that wait.
    pub(super) fn finish_reading(&self) {
        self.read_shut.store(true, Ordering::Relaxed);
        self.socket.poke();
    }
}

impl Read for &EspStream {
    /// Reads; blocks until there is something to read.
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.try_read(buffer) {
            Err(error) if would_block(&error) && !self.socket.is_nonblocking() => {
                self.wait_and_read(buffer)
            }
            done => done,
        }
    }
}

impl Read for EspStream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}
