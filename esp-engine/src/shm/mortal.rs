//! Words of a region for tests whose engine ends at one of its stores.
//!
//! The stores of a [`Life`] are counted, and the last one unwinds, as the end of a process stops
//! it: nothing after that store is executed. All other threads and calls store without a limit.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shmem::sync::Ordering;

thread_local! {
    /// The life that runs in this thread.
    static LIFE: Cell<Option<Life>> = const { Cell::new(None) };
}

/// Stores that an engine executes before it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    /// Stores left.
    pub(crate) stores: u64,
    /// It ends after the last one and before all that follows; otherwise before the next one.
    pub(crate) sharp: bool,
}

/// Payload of the panic that ends a life.
struct Ended;

impl Life {
    /// Runs a part of this life; `None` if it has ended.
    pub(crate) fn run<T>(&mut self, part: impl FnOnce() -> T) -> Option<T> {
        LIFE.set(Some(*self));
        let result = catch_unwind(AssertUnwindSafe(part));
        if let Some(left) = LIFE.take() {
            *self = left;
        }
        match result {
            Ok(value) => Some(value),
            Err(why) if why.is::<Ended>() => None,
            Err(why) => resume_unwind(why),
        }
    }
}

/// Executes a store, and ends the life of which it is the last one.
fn execute(store: impl FnOnce()) {
    let Some(mut life) = LIFE.get() else {
        return store();
    };
    if life.stores == 0 {
        resume_unwind(Box::new(Ended));
    }
    life.stores -= 1;
    LIFE.set(Some(life));
    store();
    if life.stores == 0 && life.sharp {
        resume_unwind(Box::new(Ended));
    }
}

/// A word whose stores are counted.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct AtomicU64(shmem::sync::AtomicU64);

impl AtomicU64 {
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        execute(|| self.0.store(value, order));
    }
}
