//! Words of a region for tests whose engine ends at one of its stores.
//!
//! Each store takes one from a [`StoreBudget`]. When that is used up, the thread unwinds, as if the
//! process ended. Calls without a budget, such as those of other threads, store without a limit.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shmem::sync::Ordering;

thread_local! {
    /// Budget of the part that runs on this thread.
    static BUDGET: Cell<Option<StoreBudget>> = const { Cell::new(None) };
}

/// Number of stores that an engine executes before it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreBudget {
    /// Stores left.
    pub(crate) stores: u64,
    /// True: the engine ends right after its last store. False: it ends at the next one, which is
    /// not executed.
    pub(crate) sharp: bool,
}

/// Payload of the panic that ends an engine.
struct Crash;

impl StoreBudget {
    /// Runs `part` with this budget; `None` if it was used up.
    pub(crate) fn run<T>(&mut self, part: impl FnOnce() -> T) -> Option<T> {
        BUDGET.set(Some(*self));
        let result = catch_unwind(AssertUnwindSafe(part));
        if let Some(left) = BUDGET.take() {
            *self = left;
        }
        match result {
            Ok(value) => Some(value),
            Err(why) if why.is::<Crash>() => None,
            Err(why) => resume_unwind(why),
        }
    }
}

/// Executes a store; unwinds when the budget is used up.
fn execute(store: impl FnOnce()) {
    let Some(mut budget) = BUDGET.get() else {
        return store();
    };
    if budget.stores == 0 {
        resume_unwind(Box::new(Crash));
    }
    budget.stores -= 1;
    BUDGET.set(Some(budget));
    store();
    if budget.stores == 0 && budget.sharp {
        resume_unwind(Box::new(Crash));
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
