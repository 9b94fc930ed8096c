//! Taking bytes out of the ring.

use std::io;
use std::sync::atomic::Ordering;

use esp_engine::shm::Wake;

use super::Core;
use crate::error::EspError;
use crate::session::lock;

impl Core {
    /// Reads what is there. `WouldBlock`: nothing yet. Bytes that arrived before an error are given out before it.
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
        // Behind the unlock: over a lease the engine takes a turn, and who waits for one looks at the ring.
        if notice {
            self.ring();
        }
        n
    }

    #[cold]
    fn nothing_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(lease) = &self.lease {
            lease.host().poll(true);
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
    pub(crate) fn try_read_with(&self, known: usize, take: impl FnOnce(&[u8]) -> usize) -> io::Result<usize> {
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
            if !self.wait(Wake::Readable, || self.readable(), deadline) {
                return Err(EspError::CallTimedOut { what: "reading" }.into());
            }
            match self.try_read(buffer) {
                // Another thread was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
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
            Some(lease) => lease.host().poke(),
        }
        self.waiting.reader.wake();
    }
}
