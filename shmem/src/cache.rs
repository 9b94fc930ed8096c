//! Prefetching a line, and waiting for reads. Models have no caches.

/// Asks the processor to fetch the cache line of `value`.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a hint that changes nothing, about memory that is mapped.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast());
    }
    let _ = value;
}

/// Waits until every earlier read is complete. Otherwise the processor may fetch a line ahead of
/// time and have it at once when the read is timed.
#[inline]
pub fn wait_for_loads() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: it touches nothing; every x86-64 processor has it.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
}
