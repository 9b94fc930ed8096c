//! Taking bytes out of the ring.

use std::cell::Cell;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use esp_engine::Engine;
use esp_engine::shm::Wake;

use super::Core;
use crate::error::EspError;
use crate::session::lock;

/// A shorter buffer is not lent to the engine: to copy so little once more costs less than to lend.
const LEAST_POSTED: usize = 2048;

impl Core {
    /// Reads what is there. `WouldBlock`: nothing yet. Bytes that arrived before an error are given
    /// out before it.
    #[inline]
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.read_shut.load(Ordering::Relaxed) {
            return Ok(0);
        }
        match self.take(buffer) {
            0 => self.nothing_read(buffer),
            n => Ok(n),
        }
    }

    #[inline]
    fn take(&self, buffer: &mut [u8]) -> usize {
        let (n, notice) = {
            let mut rx = lock(&self.rx);
            let n = rx.read(buffer);
            (n, n > 0 && rx.consumed_notice_due())
        };
        // Behind the unlock: over a lease the engine takes a turn, and who waits for one looks at
        // the ring.
        if notice {
            self.ring();
        }
        n
    }

    #[cold]
    fn nothing_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(lease) = &self.lease {
            if buffer.len() < LEAST_POSTED {
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
        // The state first: the engine publishes the last bytes before it.
        let closed = self.closed();
        let failure = self.failure();
        match self.take(buffer) {
            0 => {}
            n => return Ok(n),
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
            // The state first: the engine publishes the last bytes before it.
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
        let there = rx.peek();
        let taken = take(there).min(there.len());
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
        let (there, finished) = self.arrived.look();
        there > known || finished || self.closed() || self.gone()
    }

    /// Is a read going to return something? Asked by who has the engine, so it takes no lock.
    fn readable(&self) -> bool {
        self.has_news(0) || self.read_shut.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        if self.nonblocking.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let deadline = self.read_timeout.deadline();
        loop {
            match self.wait_readable(buffer, deadline) {
                (_, posted @ 1..) => return Ok(self.posted(posted)),
                (true, 0) => {}
                (false, 0) => return Err(EspError::CallTimedOut { what: "reading" }.into()),
            }
            match self.try_read(buffer) {
                // Another thread was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// Waits for bytes, or for the end (true); how many went straight into the buffer, which over a
    /// lease the engine has meanwhile.
    fn wait_readable(&self, buffer: &mut [u8], deadline: Option<Instant>) -> (bool, usize) {
        let lease = self.lease.as_ref().filter(|_| buffer.len() >= LEAST_POSTED);
        let Some(lease) = lease else {
            return (self.wait(Wake::Readable, || self.readable(), deadline), 0);
        };
        let posted = Cell::new(0);
        let turn = |engine: &mut Engine| {
            // Who reads now may be waiting for the engine that we have.
            let Ok(mut rx) = self.rx.try_lock() else {
                return engine.poll();
            };
            let (work, filled) = engine.poll_into(lease.slot, buffer);
            rx.consume(filled);
            posted.set(filled);
            work
        };
        let there = || posted.get() > 0 || self.readable();
        (
            lease.engine().wait_by(self.spin, turn, there, deadline),
            posted.get(),
        )
    }

    /// So many bytes were read without the ring.
    fn posted(&self, count: usize) -> usize {
        if lock(&self.rx).consumed_notice_due() {
            self.ring();
        }
        count
    }

    /// Copies what is there without taking it.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.read_shut.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let deadline = self.read_timeout.deadline();
        loop {
            let (closed, failure) = (self.closed(), self.failure());
            {
                let rx = lock(&self.rx);
                let there = rx.peek();
                let n = there.len().min(buffer.len());
                if n > 0 {
                    buffer[..n].copy_from_slice(&there[..n]);
                    return Ok(n);
                }
                if rx.at_end() {
                    return Ok(0);
                }
            }
            match failure {
                Some(error) => return Err(error.into()),
                None if closed => return Ok(0),
                None if self.nonblocking.load(Ordering::Relaxed) => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                None => {}
            }
            if !self.wait(Wake::Readable, || self.readable(), deadline) {
                return Err(EspError::CallTimedOut { what: "reading" }.into());
            }
        }
    }

    pub(crate) fn finish_reading(&self) {
        self.read_shut.store(true, Ordering::Relaxed);
        match &self.lease {
            None => self.waiting.status.poke(),
            Some(lease) => lease.engine().poke(),
        }
        self.waiting.reader.wake();
    }
}
