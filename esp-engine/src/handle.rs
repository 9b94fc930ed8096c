//! The handle of an engine, and its queue of commands.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::command::Command;

/// Maximum number of queued commands; [`EngineHandle::send`] blocks above it.
const QUEUE: usize = 1024;

/// Error: the engine has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped")]
pub struct EngineGone;

/// Sends commands to an engine. Cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    queue: SyncSender<Command>,
    shared: Arc<HandleState>,
}

#[derive(Debug)]
struct HandleState {
    wake: OwnedFd,
    page: OwnedFd,
    incarnation: u64,
}

/// Receiver of the commands, on the engine's side.
pub(crate) struct Inbox {
    queue: Receiver<Command>,
    wake: OwnedFd,
}

pub(crate) fn channel(page: OwnedFd, incarnation: u64) -> std::io::Result<(EngineHandle, Inbox)> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let (tx, rx) = sync_channel(QUEUE);
    let inbox = Inbox {
        queue: rx,
        wake: wake.try_clone()?,
    };
    Ok((
        EngineHandle {
            queue: tx,
            shared: Arc::new(HandleState {
                wake,
                page,
                incarnation,
            }),
        },
        inbox,
    ))
}

impl EngineHandle {
    /// Queues a command and wakes the engine. Blocks while 1024 others are queued.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn send(&self, command: Command) -> Result<(), EngineGone> {
        self.queue.send(command).map_err(|_| EngineGone)?;
        self.wake();
        Ok(())
    }

    /// Wakes the engine, if it sleeps.
    pub(crate) fn wake(&self) {
        // A full counter (EAGAIN) wakes as well.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }

    /// Returns the page in which programs see whether the engine sleeps. They can map it read-only.
    pub fn page_fd(&self) -> BorrowedFd<'_> {
        self.shared.page.as_fd()
    }

    /// Returns the random number that identifies this engine, as in INFO_REPLY.
    pub fn incarnation(&self) -> u64 {
        self.shared.incarnation
    }
}

impl Inbox {
    /// Returns the next command, if any. `Disconnected`: every handle was dropped.
    pub(crate) fn take(&self) -> Result<Command, TryRecvError> {
        self.queue.try_recv()
    }

    /// Returns a descriptor that is readable when commands may be queued.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Resets the descriptor. Call it before taking commands.
    pub(crate) fn reset(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }
}
