//! Reading from the receive ring.

use std::cell::Cell;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use esp_engine::Engine;
use esp_engine::shm::Wake;

use super::rings::StreamRings;
use crate::blocking::would_block;
use crate::error::EspError;
use crate::sync::lock;

/// Operation in time-out errors.
const READING: &str = "reading";
/// Minimum length of a buffer that is posted to the embedded engine, which then receives into it.
/// For a shorter one the additional copy costs less.
const MIN_POSTED: usize = 2048;

impl StreamRings {
    /// See [`EspStream::try_read`](crate::EspStream::try_read). Bytes that arrived before an error
    /// are returned before it.
    #[inline]
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.read_shut.load(Ordering::Relaxed) {
            return Ok(0);
        }
        match self.take(buffer) {
            0 => self.poll_and_read(buffer),
            n => Ok(n),
        }
    }

    /// Copies available bytes and returns their number.
    #[inline]
    fn take(&self, buffer: &mut [u8]) -> usize {
        let (n, notice) = {
            let mut rx = lock(&self.rx);
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
        if let Some(lease) = &self.lease {
            if buffer.len() < MIN_POSTED {
                lease.engine().poll(true);
            } else {
                let mut rx = lock(&self.rx);
                let posted = lease.engine().poll_into(lease.slot, buffer);
                rx.consume(posted);
                drop(rx);
                if posted > 0 {
                    return Ok(self.posted(posted));
                }
            }
        }
        // Loaded first, because the engine publishes the last bytes before the state.
        let closed = self.closed();
        let failure = self.failure();
        let n = self.take(buffer);
        if n > 0 {
            return Ok(n);
        }
        if lock(&self.rx).at_end() {
            return Ok(0);
        }
        match failure {
            Some(error) => Err(error.into()),
            None if closed => Ok(0),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// See [`EspStream::try_read_with`](crate::EspStream::try_read_with).
    #[inline]
    pub(crate) fn try_read_with(
        &self,
        known: usize,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<usize> {
        let mut rx = lock(&self.rx);
        if rx.available() <= known {
            // Loaded first, because the engine publishes the last bytes before the state.
            let closed = self.closed();
            let failure = self.failure();
            if rx.available() <= known {
                return match failure {
                    _ if rx.finished() => Ok(0),
                    Some(error) => Err(error.into()),
                    None if closed => Ok(0),
                    None => Err(io::ErrorKind::WouldBlock.into()),
                };
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

    #[inline]
    pub(crate) fn has_news(&self, known: usize) -> bool {
        let (available, finished) = self.arrived.available();
        available > known || finished || self.closed() || self.gone()
    }

    /// Returns true if a read would not block. Takes no lock, because the caller may hold the
    /// engine.
    fn readable(&self) -> bool {
        self.has_news(0) || self.read_shut.load(Ordering::Relaxed)
    }

    /// Reads; blocks until there is something to read.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.try_read(buffer) {
            Err(error) if would_block(&error) && !self.blocking.is_nonblocking() => {}
            done => return done,
        }
        let deadline = self.blocking.read.deadline();
        loop {
            match self.wait_readable(buffer, deadline) {
                (_, posted @ 1..) => return Ok(self.posted(posted)),
                (true, 0) => {}
                (false, 0) => return Err(EspError::CallTimedOut { what: READING }.into()),
            }
            match self.try_read(buffer) {
                // Another thread has read the bytes.
                Err(error) if would_block(&error) => {}
                done => return done,
            }
        }
    }

    /// Waits for bytes or the end of the stream. Returns false at the deadline, and the number of
    /// bytes that the embedded engine received directly into the buffer.
    fn wait_readable(&self, buffer: &mut [u8], deadline: Option<Instant>) -> (bool, usize) {
        let lease = self.lease.as_ref().filter(|_| buffer.len() >= MIN_POSTED);
        let Some(lease) = lease else {
            return (self.wait(Wake::Readable, || self.readable(), deadline), 0);
        };
        let posted = Cell::new(0);
        let poll = |engine: &mut Engine| {
            // A thread that holds `rx` may be waiting for the engine.
            let Ok(mut rx) = self.rx.try_lock() else {
                return engine.poll();
            };
            let (work, filled) = engine.poll_into(lease.slot, buffer);
            rx.consume(filled);
            posted.set(filled);
            work
        };
        let ready = || posted.get() > 0 || self.readable();
        let in_time = lease.engine().wait_by(self.spin, poll, ready, deadline);
        (in_time, posted.get())
    }

    /// Notifies the engine after a read of `count` bytes that bypassed the ring, if due.
    fn posted(&self, count: usize) -> usize {
        if lock(&self.rx).consumed_notice_due() {
            self.ring();
        }
        count
    }

    /// See [`EspStream::peek`](crate::EspStream::peek).
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.read_shut.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let attempt = || {
            let (closed, failure) = (self.closed(), self.failure());
            let rx = lock(&self.rx);
            let available = rx.peek();
            let n = available.len().min(buffer.len());
            match failure {
                _ if n > 0 => buffer[..n].copy_from_slice(&available[..n]),
                _ if rx.at_end() => {}
                Some(error) => return Err(error.into()),
                None if closed => {}
                None => return Err(io::ErrorKind::WouldBlock.into()),
            }
            Ok(n)
        };
        let wait = |until| self.wait(Wake::Readable, || self.readable(), until);
        self.blocking
            .run(&self.blocking.read, READING, attempt, wait)
    }

    /// Makes all reads return 0, including those that wait.
    pub(crate) fn finish_reading(&self) {
        self.read_shut.store(true, Ordering::Relaxed);
        match &self.lease {
            None => self.waiting.status.poke(),
            Some(lease) => lease.engine().poke(),
        }
        self.waiting.reader.wake();
    }
}
