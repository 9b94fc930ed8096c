//! What the control plane needs of an engine; a seam for tests.

use std::io;
use std::os::fd::OwnedFd;

use esp_engine::{Command, EngineGone, EngineHandle};

/// Takes commands. Implemented by the real engine's handle.
pub trait EnginePort: Send + Sync {
    /// Queues a command; waits while the queue is full, which the engine empties in every turn.
    ///
    /// # Errors
    /// The engine's thread has ended.
    fn send(&self, command: Command) -> Result<(), EngineGone>;

    /// A duplicate of the page that tells programs whether the engine sleeps.
    ///
    /// # Errors
    /// No descriptor left.
    fn page(&self) -> io::Result<OwnedFd>;

    /// Random number of this engine's life.
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
