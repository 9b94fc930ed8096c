//! Signals: a flag set by Ctrl-C, so that a loop can end with its summary, and signals to wait for.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Flag that is set by SIGINT and SIGTERM.
#[derive(Debug, Default)]
pub struct Interrupt {
    /// `None` in tests.
    signals: Option<Signals>,
    arrived: Cell<bool>,
}

impl Interrupt {
    /// Starts to watch for SIGINT and SIGTERM. Call it before the program starts other threads: it
    /// blocks the signals in the calling thread and in those it starts later.
    ///
    /// # Errors
    /// The signals cannot be blocked.
    pub fn watch() -> io::Result<Interrupt> {
        let signals = Signals::block(&[Signal::SIGINT as i32, Signal::SIGTERM as i32])?;
        Ok(Interrupt {
            signals: Some(signals),
            arrived: Cell::new(false),
        })
    }

    /// Returns the signals, whose descriptor becomes readable when one arrives; `None` in tests.
    pub fn signals(&self) -> Option<&Signals> {
        self.signals.as_ref()
    }

    /// Waits for this time; returns true if a signal has arrived, which ends the wait.
    pub fn waits(&self, mut pause: Duration) -> bool {
        while !pause.is_zero() && !self.is_set() {
            let step = pause.min(Duration::from_millis(50));
            std::thread::sleep(step);
            pause -= step;
        }
        self.is_set()
    }

    /// Returns true once a signal has arrived.
    pub fn is_set(&self) -> bool {
        if self.signals.as_ref().and_then(Signals::next).is_some() {
            self.arrived.set(true);
        }
        self.arrived.get()
    }
}

/// Signals that are read from a descriptor instead of ending the process.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks these signals in the calling thread, and thus in the programs that it starts later.
    ///
    /// # Errors
    /// The signals cannot be blocked.
    pub fn block(signals: &[i32]) -> io::Result<Signals> {
        let mut set = SigSet::empty();
        for signal in signals {
            set.add(Signal::try_from(*signal)?);
        }
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(
            &set,
            SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
        )?))
    }

    /// Returns the number of a signal that has arrived.
    pub fn next(&self) -> Option<i32> {
        let arrived = self.0.read_signal().ok().flatten();
        arrived.and_then(|signal| i32::try_from(signal.ssi_signo).ok())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
