//! The engine's interface to the control plane; replaced in tests.

use std::io;
use std::os::fd::OwnedFd;

use esp_engine::{Command, EngineGone, EngineHandle};

/// Accepts commands. Implemented by the handle of the real engine.
pub trait EnginePort: Send + Sync {
    /// Queues a command; waits while the queue is full, which the engine empties in every poll.
    ///
    /// # Errors
    /// The engine's thread has ended.
    fn send(&self, command: Command) -> Result<(), EngineGone>;

    /// Duplicates the page in which programs see whether the engine sleeps.
    ///
    /// # Errors
    /// No descriptor left.
    fn page(&self) -> io::Result<OwnedFd>;

    /// Returns the random number that identifies this run of the engine.
    fn incarnation(&self) -> u64;
}

impl EnginePort for EngineHandle {
    fn send(&self, command: Command) -> Result<(), EngineGone> {
        EngineHandle::send(self, command)
    }

    fn page(&self) -> io::Result<OwnedFd> {
        self.page_fd().try_clone_to_owned()
    }

    fn incarnation(&self) -> u64 {
        EngineHandle::incarnation(self)
    }
}
