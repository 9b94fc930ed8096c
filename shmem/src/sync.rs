//! Atomics, fences and pauses. Under `cfg(loom)` they are the model checker's: code that is to run
//! in a model takes them from here.

#[cfg(not(loom))]
pub use {
    core::hint::spin_loop,
    core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence},
    std::thread::yield_now,
};
#[cfg(loom)]
pub use {
    loom::hint::spin_loop,
    loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence},
    loom::thread::yield_now,
};

pub use core::sync::atomic::Ordering;

/// Orders memory accesses against those of a thread that calls [`global_fence`](crate::Fence): a
/// compiler barrier, not an instruction. The models have no such system call, and use a full fence.
#[inline]
pub fn light_fence() {
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
