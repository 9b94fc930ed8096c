//! The only place that names atomics and fences. Under `cfg(loom)` they are the model checker's, so that the real
//! algorithms run in the models.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, fence};

pub(crate) use core::sync::atomic::Ordering;

/// The sender's half of the sleep protocol (`sleep.rs`) where the sleeper's half is `membarrier(2)`: nothing but a limit for
/// the compiler. The models have no such system call, so there it is a fence like the sleeper's.
#[inline]
pub(crate) fn light_fence() {
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
