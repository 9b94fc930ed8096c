//! The host's end of the engine: send commands, wake the loop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::command::Command;

/// Commands that may wait for the loop; a host that is faster blocks.
const QUEUE: usize = 1024;

/// The engine's thread has ended; no command reaches it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped")]
pub struct EngineGone;

/// Talks to a running engine; cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    queue: SyncSender<Command>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    page: OwnedFd,
    incarnation: u64,
}

/// The loop's end.
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
            shared: Arc::new(Shared {
                wake,
                page,
                incarnation,
            }),
        },
        inbox,
    ))
}

impl EngineHandle {
    /// Queues a command and wakes the engine. Blocks while 1024 others wait.
    pub fn send(&self, command: Command) -> Result<(), EngineGone> {
        self.queue.send(command).map_err(|_| EngineGone)?;
        // A full counter (EAGAIN) means the engine has been woken 2^64 - 2 times without looking:
        // it is awake.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// The page that tells programs whether the engine sleeps; they can map it read-only.
    pub fn page_fd(&self) -> BorrowedFd<'_> {
        self.shared.page.as_fd()
    }

    /// Random number of this engine's life, told in INFO_REPLY.
    pub fn incarnation(&self) -> u64 {
        self.shared.incarnation
    }
}

impl Inbox {
    /// The next command, if any; `Err` when every handle is gone.
    pub(crate) fn take(&self) -> Result<Option<Command>, EngineGone> {
        match self.queue.try_recv() {
            Ok(command) => Ok(Some(command)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(EngineGone),
        }
    }

    /// Readable when commands may wait.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the descriptor quiet again; call before the queue is emptied.
    pub(crate) fn quiet(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }
}
