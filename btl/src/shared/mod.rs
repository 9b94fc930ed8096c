//! A transport that several threads use without waiting for each other.

#![cfg_attr(loom, allow(dead_code))] // The models use the ownership alone.
#![allow(unsafe_code)] // Gives out what only the owning thread may touch; see `SharedTransport`.

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

    /// Sends the item to `peer` by `tx`. Code outside of the transport is called with
    /// [`shared.lend`](SharedTransport::lend), so that it may send, too.
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
/// a lock that the callback needs. So a thread that finds the transport taken does not wait: it
/// leaves an item in the queue ([`queue`](SharedTransport::queue)), and the owner sends it before,
/// or right after, it gives the transport back.
///
/// Callbacks get a `&mut dyn Tx`. To call code that may come back to this type, they
/// [`lend`](SharedTransport::lend) it; until that call returns, [`send`](SharedTransport::send) on
/// the owning thread uses the lent sender.
///
/// The order of items and messages to one peer is kept as long as senders use
/// [`send`](SharedTransport::send), which is `Busy` while older items wait for that peer.
pub struct SharedTransport<T, I> {
    ownership: Ownership,
    /// Touched by the owner only.
    transport: UnsafeCell<Option<T>>,
    /// Touched by the owner only. The sender that code called by the owner may use.
    lent: UnsafeCell<Option<NonNull<dyn Tx>>>,
    /// Touched by the owner only. The queue is being sent.
    draining: UnsafeCell<bool>,
    queue: SendQueue<I>,
}

// SAFETY: the cells are touched by the owner only, `Ownership` gives one at most, and its acquire
// and release order the accesses of successive owners. The lent sender never outlives the call that
// lends it, on the lending thread.
unsafe impl<T: Send, I: Send> Sync for SharedTransport<T, I> {}
// SAFETY: nothing is lent while the value can be moved: `lend` borrows it.
unsafe impl<T: Send, I: Send> Send for SharedTransport<T, I> {}

/// Calls a function when it is dropped, also when the stack unwinds.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    #[inline]
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<T: Tx, I: QueuedSend> SharedTransport<T, I> {
    /// Creates it without a transport.
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

    /// Returns whether the calling thread owns the transport: it is called, at some depth, by what
    /// the transport or its queue called.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.ownership.is_held_by(current_thread())
    }

    /// Calls `f` with the transport's place, to install, drive or remove it. `None`: a thread owns
    /// it, another one or this one.
    pub fn enter<R>(&self, f: impl FnOnce(&mut Option<T>) -> R) -> Option<R> {
        let owned = self.acquire(current_thread())?;
        // SAFETY: this thread is the owner until `owned` is dropped, and takes no other reference:
        // a nested `acquire` fails.
        let result = f(unsafe { &mut *self.transport.get() });
        drop(owned);
        self.handle_left_work();
        Some(result)
    }

    /// Calls `f` with a sender: the transport, or on the owning thread the sender it has lent.
    /// [`SendError::Busy`]: a thread owns the transport, or this one without having lent it.
    /// [`SendError::Closed`]: there is none.
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
            // SAFETY: `lend` put it there for the duration of its call, in which this is. It was
            // taken out, so no other reference is made of it meanwhile.
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

    /// Returns a guard that puts the lent sender back as it was. For the owner.
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
        // Looked at by the owner: an item that was being sent may be back in its queue only now.
        self.with_tx(|tx| match self.has_queued(peer) {
            true => Err(SendError::Busy),
            false => tx.send(peer, header, body),
        })
    }

    /// Calls `f`, which may come back to [`send`](SharedTransport::send), and lends it `tx` for
    /// that. A thread that does not own the transport just calls `f`.
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

    /// Appends an item to the queue of `peer`, and sends what waits if the transport is free. If it
    /// is taken, its owner sends the item when it gives the transport back, at the latest.
    pub fn queue(&self, peer: Rank, item: I) {
        self.queue.push(peer, item);
        self.ownership.leave_work();
        self.handle_left_work();
    }

    /// Sends what waits, as far as there is room; for the owner, which passes its transport.
    /// Returns the number of items sent. Called again while it runs, it does nothing.
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
