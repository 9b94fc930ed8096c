//! A transport that several threads use without waiting for each other.

#![cfg_attr(loom, allow(dead_code))] // The models use the ownership alone.
#![allow(unsafe_code)] // Hands out data of the owning thread; see `SharedTransport`.

mod ownership;
mod queue;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::ptr::NonNull;

use self::ownership::{Ownership, current_thread};
use self::queue::SendQueue;
use crate::contract::Tx;
use crate::values::{Rank, SendError};

/// Something that waits in a [`SharedTransport`] until it can be sent.
pub trait QueuedSend: Sized {
    /// Returns the bytes that this item occupies, for [`SharedTransport::queued_bytes`].
    fn cost(&self) -> usize;

    /// Sends the item to `peer` through `tx`. It must call code outside of the transport through
    /// [`shared.lend`](SharedTransport::lend), so that this code can send, too.
    ///
    /// # Errors
    /// The item, or its rest, if there was no room. It stays first in its peer's queue.
    fn send<T: Tx>(
        self,
        shared: &SharedTransport<T, Self>,
        tx: &mut dyn Tx,
        peer: Rank,
    ) -> Result<(), Self>;
}

/// Shares a transport among threads that must not wait for each other, and with the code that the
/// transport's own callbacks call.
///
/// A lock held across such a callback would deadlock if another thread waited for it while holding
/// a lock that the callback needs. So a thread that finds the transport in use does not wait: it
/// leaves an item in the queue ([`queue`](SharedTransport::queue)), and the owner sends the item
/// before, or right after, it releases the transport.
///
/// Callbacks get a `&mut dyn Tx`. To call code that may use this type again, they
/// [`lend`](SharedTransport::lend) it; until that call returns, [`send`](SharedTransport::send) on
/// the owning thread uses the lent sender.
///
/// The order of items and messages to one peer is kept as long as senders use
/// [`send`](SharedTransport::send), which is `Busy` while older items wait for that peer.
pub struct SharedTransport<T, I> {
    ownership: Ownership,
    /// Accessed by the owner only.
    transport: UnsafeCell<Option<T>>,
    /// Sender that code called by the owner may use. Accessed by the owner only.
    lent: UnsafeCell<Option<NonNull<dyn Tx>>>,
    /// True while the queue is being sent. Accessed by the owner only.
    draining: UnsafeCell<bool>,
    queue: SendQueue<I>,
}

// SAFETY: only the owner accesses the cells, `Ownership` permits one at most, and its acquire and
// release order the accesses of successive owners. The lent sender never outlives the call that
// lends it, on the lending thread.
unsafe impl<T: Send, I: Send> Sync for SharedTransport<T, I> {}
// SAFETY: nothing is lent while the value can be moved: `lend` borrows it.
unsafe impl<T: Send, I: Send> Send for SharedTransport<T, I> {}

/// Calls a function when it is dropped, even if the stack unwinds.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    #[inline]
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<T: Tx, I: QueuedSend> SharedTransport<T, I> {
    /// Creates a value that holds no transport yet.
    #[must_use]
    pub fn new() -> SharedTransport<T, I> {
        SharedTransport {
            ownership: Ownership::new(),
            transport: UnsafeCell::new(None),
            lent: UnsafeCell::new(None),
            draining: UnsafeCell::new(false),
            queue: SendQueue::default(),
        }
    }

    /// Returns whether the calling thread owns the transport, that is, whether this call was made,
    /// at some depth, by code that the transport or its queue called.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.ownership.is_held_by(current_thread())
    }

    /// Calls `f` with the place of the transport, to install, drive or remove it. Returns `None` if
    /// another thread or this one owns it.
    pub fn enter<R>(&self, f: impl FnOnce(&mut Option<T>) -> R) -> Option<R> {
        let owned = self.acquire(current_thread())?;
        // SAFETY: this thread is the owner until `owned` is dropped, and takes no other reference:
        // a nested `acquire` fails.
        let result = f(unsafe { &mut *self.transport.get() });
        drop(owned);
        self.handle_left_work();
        Some(result)
    }

    /// Calls `f` with a sender: the transport or, on the thread that owns it, the lent sender.
    /// Fails with [`SendError::Busy`] if another thread owns the transport, or this one has lent no
    /// sender, and with [`SendError::Closed`] if there is no transport.
    #[inline]
    fn with_tx<R>(
        &self,
        f: impl FnOnce(&mut dyn Tx) -> Result<R, SendError>,
    ) -> Result<R, SendError> {
        let thread = current_thread();
        if self.ownership.is_held_by(thread) {
            // SAFETY: this thread is the owner.
            let lent = unsafe { (*self.lent.get()).take() };
            let mut lent = lent.ok_or(SendError::Busy)?;
            let _restore = self.restore_lent(Some(lent));
            // SAFETY: `lend` stored it for the duration of its call, and this call is part of that
            // one. It was taken out, so no other reference to it is created until it is restored.
            return f(unsafe { lent.as_mut() });
        }
        let owned = self.acquire(thread).ok_or(SendError::Busy)?;
        // SAFETY: as in `enter`.
        let transport = unsafe { &mut *self.transport.get() };
        let result = match transport {
            Some(transport) => f(transport),
            None => Err(SendError::Closed),
        };
        drop(owned);
        self.handle_left_work();
        result
    }

    /// Returns a guard that restores the lent sender to `before`. Called by the owner.
    #[inline]
    fn restore_lent(&self, before: Option<NonNull<dyn Tx>>) -> OnDrop<impl FnMut()> {
        // SAFETY: made and dropped on the owning thread within one ownership.
        OnDrop(move || unsafe { *self.lent.get() = before })
    }

    /// Sends a message, unless older items wait for its peer.
    ///
    /// # Errors
    /// [`SendError::Busy`] if it must wait: there is no room, older items wait, or another call
    /// uses the transport. [`SendError::Closed`] if the transport was removed. Otherwise see
    /// [`Tx::send`].
    #[inline]
    pub fn send(&self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        // Checked by the owner: an item that was being sent may be back in its queue only now.
        self.with_tx(|tx| match self.has_queued(peer) {
            true => Err(SendError::Busy),
            false => tx.send(peer, header, body),
        })
    }

    /// Calls `f`, which may call [`send`](SharedTransport::send), and lends it `tx` for that. A
    /// thread that does not own the transport just calls `f`.
    #[inline]
    pub fn lend<R>(&self, tx: &mut dyn Tx, f: impl FnOnce() -> R) -> R {
        if !self.is_mine() {
            return f();
        }
        let tx: NonNull<dyn Tx + '_> = NonNull::from(tx);
        // SAFETY: only the lifetime in the type changes. The pointer is removed before this call,
        // and with it the borrow, ends.
        let tx = unsafe { std::mem::transmute::<NonNull<dyn Tx + '_>, NonNull<dyn Tx>>(tx) };
        // SAFETY: this thread is the owner.
        let before = unsafe { (*self.lent.get()).replace(tx) };
        let _restore = self.restore_lent(before);
        f()
    }

    /// Appends an item to the queue of `peer`, and sends the waiting items if the transport is
    /// free. Otherwise its owner sends them, at the latest when it releases the transport.
    pub fn queue(&self, peer: Rank, item: I) {
        self.queue.push(peer, item);
        self.ownership.leave_work();
        self.handle_left_work();
    }

    /// Sends waiting items while there is room. Called by the owner, which passes its transport.
    /// Returns the number of items sent. A nested call does nothing.
    pub fn drain(&self, tx: &mut dyn Tx) -> usize {
        if self.queue.is_empty() || !self.is_mine() {
            return 0;
        }
        // SAFETY: this thread is the owner.
        if unsafe { self.draining.get().replace(true) } {
            return 0;
        }
        // SAFETY: made and dropped on the owning thread within one ownership.
        let _draining = OnDrop(|| unsafe { *self.draining.get() = false });
        let mut sent = 0;
        for peer in self.queue.peers() {
            while let Some(item) = self.queue.pop(peer) {
                let cost = item.cost();
                if let Err(rest) = item.send(self, tx, peer) {
                    self.queue.put_back(peer, rest, cost);
                    break;
                }
                self.queue.finished(cost);
                sent += 1;
            }
        }
        sent
    }

    /// Returns whether items wait for `peer`.
    #[inline]
    pub fn has_queued(&self, peer: Rank) -> bool {
        !self.queue.is_empty() && self.queue.has(peer)
    }

    /// Returns whether no item waits or is being sent.
    #[inline]
    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the sum of [`QueuedSend::cost`] of the items that wait.
    pub fn queued_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Removes the items that wait for `peer`, oldest first.
    pub fn clear_queue(&self, peer: Rank) -> VecDeque<I> {
        self.queue.clear(peer)
    }

    /// Makes `thread` the owner until the guard is dropped.
    #[inline]
    fn acquire(&self, thread: usize) -> Option<OnDrop<impl FnMut()>> {
        let acquired = self.ownership.try_acquire(thread);
        acquired.then(|| OnDrop(|| self.ownership.release()))
    }

    #[inline]
    fn handle_left_work(&self) {
        if self.ownership.has_left_work() {
            self.handle_left_work_now();
        }
    }

    #[cold]
    fn handle_left_work_now(&self) {
        while self.ownership.has_left_work() {
            let Some(owned) = self.acquire(current_thread()) else {
                return;
            };
            self.ownership.take_note();
            // SAFETY: as in `enter`.
            if let Some(transport) = unsafe { &mut *self.transport.get() } {
                self.drain(transport);
            }
            drop(owned);
        }
    }
}

impl<T: Tx, I: QueuedSend> Default for SharedTransport<T, I> {
    fn default() -> SharedTransport<T, I> {
        SharedTransport::new()
    }
}

impl<T, I> fmt::Debug for SharedTransport<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTransport")
            .field("ownership", &self.ownership)
            .finish_non_exhaustive()
    }
}
