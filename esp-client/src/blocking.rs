//! [`Blocking`]: the blocking mode and time-outs of a socket.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::EspError;

/// Blocking mode and time-outs; all may change while calls wait.
#[derive(Default)]
pub(crate) struct Blocking {
    nonblocking: AtomicBool,
    pub(crate) read: Timeout,
    pub(crate) write: Timeout,
}

impl Blocking {
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Repeats `attempt` until it returns something else than `WouldBlock`, and calls `wait` with
    /// the deadline in between. In nonblocking mode there is one attempt.
    ///
    /// # Errors
    /// [`EspError::CallTimedOut`] with `what` if `wait` returns false.
    #[inline]
    pub(crate) fn run<T>(
        &self,
        timeout: &Timeout,
        what: &'static str,
        mut attempt: impl FnMut() -> io::Result<T>,
        wait: impl FnMut(Option<Instant>) -> bool,
    ) -> io::Result<T> {
        match attempt() {
            Err(error) if would_block(&error) && !self.is_nonblocking() => {
                wait_until(timeout.deadline(), what, attempt, wait)
            }
            done => done,
        }
    }
}

/// Waits, then makes an attempt, until it returns something else than `WouldBlock`; see
/// [`Blocking::run`].
pub(crate) fn wait_until<T>(
    deadline: Option<Instant>,
    what: &'static str,
    mut attempt: impl FnMut() -> io::Result<T>,
    mut wait: impl FnMut(Option<Instant>) -> bool,
) -> io::Result<T> {
    loop {
        if !wait(deadline) {
            return Err(EspError::CallTimedOut { what }.into());
        }
        match attempt() {
            Err(error) if would_block(&error) => {}
            done => return done,
        }
    }
}

/// Returns true for `WouldBlock`.
pub(crate) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Time-out in ns; 0: none.
#[derive(Default)]
pub(crate) struct Timeout(AtomicU64);

impl Timeout {
    /// Sets the time-out of later calls. Zero is an error.
    pub(crate) fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            let text = "invalid time-out of zero: use None for no time-out";
            return Err(EspError::BadArgument(text).into());
        }
        let nanos = timeout.map_or(0, |time| time.as_nanos().try_into().unwrap_or(u64::MAX));
        self.0.store(nanos, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the deadline of a call that begins now.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            nanos => Instant::now().checked_add(Duration::from_nanos(nanos)),
        }
    }
}
