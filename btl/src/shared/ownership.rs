//! Exclusive ownership that no thread waits for, and a note for the owner.

use std::ptr;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

thread_local! {
    /// Its address identifies the thread.
    static MARK: u8 = const { 0 };
}

/// Returns a number that identifies the calling thread while it lives; never 0.
pub(super) fn current_thread() -> usize {
    MARK.with(|mark| ptr::from_ref(mark).addr())
}

/// Records which thread owns something, if any, and whether others left work for it.
///
/// A thread that fails to become the owner leaves its work in a queue and calls
/// [`leave_work`](Ownership::leave_work) *before* it tries once more. An owner checks for left work
/// *after* [`release`](Ownership::release). One of the two always sees the other.
#[derive(Debug)]
pub(super) struct Ownership {
    /// The owning thread; 0: none.
    owner: AtomicUsize,
    work_left: AtomicBool,
}

impl Ownership {
    pub(super) fn new() -> Ownership {
        Ownership {
            owner: AtomicUsize::new(0),
            work_left: AtomicBool::new(false),
        }
    }

    /// Returns whether `thread` is the owner. For any other caller than `thread` itself, the answer
    /// may be outdated at once.
    #[inline]
    pub(super) fn is_held_by(&self, thread: usize) -> bool {
        self.owner.load(Ordering::Relaxed) == thread
    }

    /// Makes `thread` the owner if there is none.
    #[inline]
    pub(super) fn try_acquire(&self, thread: usize) -> bool {
        self.owner
            .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends the ownership of the calling thread, which checks for left work afterwards.
    #[inline]
    pub(super) fn release(&self) {
        self.owner.store(0, Ordering::Release);
        // SYNC POINT left work: against the fence in `leave_work`.
        fence(Ordering::SeqCst);
    }

    /// Notes that there is work in the queue. The calling thread then tries to become the owner.
    pub(super) fn leave_work(&self) {
        // SYNC POINT work noted: the work was queued before. A swap, because a plain store would
        // hide earlier notes of other threads from the owner.
        self.work_left.swap(true, Ordering::Release);
        // SYNC POINT left work: either the next `try_acquire` finds no owner, or the owner finds
        // the note after its release.
        fence(Ordering::SeqCst);
    }

    /// Returns whether work was left since an owner took the note.
    #[inline]
    pub(super) fn has_left_work(&self) -> bool {
        self.work_left.load(Ordering::Relaxed)
    }

    /// Takes the note. Called by the owner before it reads the queue, so that it sees the work of
    /// this note and of every earlier one.
    pub(super) fn take_note(&self) {
        // SYNC POINT work noted: a store could become visible after the owner reads the queue, and
        // remove a note for work that the owner has not seen.
        self.work_left.swap(false, Ordering::Acquire);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicUsize as Count;
    use loom::thread;

    use super::*;

    struct Model {
        ownership: Ownership,
        /// Items in the queue.
        queued: Count,
        /// Accessed by the owner alone: loom reports two owners at once.
        handled: UnsafeCell<usize>,
    }

    impl Model {
        fn handle_left_work(&self, thread: usize) {
            while self.ownership.has_left_work() && self.ownership.try_acquire(thread) {
                self.ownership.take_note();
                // As `SendQueue::is_empty` does before the lists are read.
                let items = match self.queued.load(Ordering::SeqCst) {
                    0 => 0,
                    _ => self.queued.swap(0, Ordering::AcqRel),
                };
                // SAFETY: this thread is the owner.
                self.handled
                    .with_mut(|handled| unsafe { *handled += items });
                self.ownership.release();
            }
        }

        fn submit(&self, thread: usize) {
            self.queued.fetch_add(1, Ordering::SeqCst);
            self.ownership.leave_work();
            self.handle_left_work(thread);
        }

        fn own_for_a_moment(&self, thread: usize) {
            if self.ownership.try_acquire(thread) {
                // SAFETY: this thread is the owner.
                self.handled.with_mut(|handled| unsafe { *handled += 0 });
                self.ownership.release();
                self.handle_left_work(thread);
            }
        }
    }

    #[test]
    fn loom_left_work_is_always_handled() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Arc::new(Model {
                ownership: Ownership::new(),
                queued: Count::new(0),
                handled: UnsafeCell::new(0),
            });
            let others: Vec<_> = (2..4)
                .map(|number| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || {
                        model.submit(number);
                        model.own_for_a_moment(number);
                    })
                })
                .collect();
            model.own_for_a_moment(1);
            others.into_iter().for_each(|other| other.join().unwrap());
            // SAFETY: every thread has ended.
            let handled = model.handled.with(|handled| unsafe { *handled });
            assert_eq!((handled, model.queued.load(Ordering::Acquire)), (2, 0));
        });
    }
}
