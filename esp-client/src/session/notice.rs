//! [`ReplyNotice`]: notifies the owner of a [`Poller`](crate::Poller) of replies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::EventfdFlags;

/// Flag that a reply has arrived or the daemon is gone, with an eventfd for a sleeping owner.
pub(crate) struct ReplyNotice {
    raised: AtomicBool,
    asleep: AtomicBool,
    wake: OwnedFd,
}

impl ReplyNotice {
    pub(super) fn new() -> io::Result<ReplyNotice> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ReplyNotice {
            raised: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wake,
        })
    }

    /// Raises the flag and wakes the owner.
    pub(super) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        // Pairs with the fence of `try_sleep`: either we see the owner asleep, or it sees the flag.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            // Fails only with a full counter, which wakes as well.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Returns the flag and clears it.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.raised.load(Ordering::Relaxed) && self.raised.swap(false, Ordering::Acquire)
    }

    /// Announces that the owner sleeps on [`ReplyNotice::fd`]; false if the flag is raised. In
    /// either case [`ReplyNotice::awake`] follows.
    pub(crate) fn try_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.raised.load(Ordering::Relaxed)
    }

    /// Ends the sleep and makes the descriptor unreadable.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    /// Returns the descriptor that wakes the sleeping owner.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
