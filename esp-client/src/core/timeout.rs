//! Time-outs of calls.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::EspError;

/// A time-out that may be changed while others wait; 0 ns: none.
#[derive(Default)]
pub(crate) struct Timeout(AtomicU64);

impl Timeout {
    pub(crate) fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        let nanos = match timeout {
            None => 0,
            Some(Duration::ZERO) => {
                return Err(EspError::BadArgument(
                    "a time-out of zero is not possible; None means no time-out",
                )
                .into());
            }
            Some(timeout) => u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        self.0.store(nanos, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.get()
            .and_then(|timeout| Instant::now().checked_add(timeout))
    }
}
