//! Prefetching a line, and measuring how long one takes from memory. Models have no caches.

use std::time::Duration;

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

/// Measures how long it takes to read a line that is in no cache; `None` if this processor has no
/// instruction for that. Takes about ten microseconds.
pub fn memory_latency() -> Option<Duration> {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        use core::arch::x86_64::{_mm_clflush, _mm_lfence, _mm_mfence};
        use std::time::Instant;
        const LINES: usize = 64;
        let lines = [const { crate::Line([0u8; crate::LINE]) }; LINES];
        let mut times = lines.each_ref().map(|line| {
            let at = core::ptr::from_ref(line).cast::<u8>();
            // SAFETY: evicting a line of our own from the caches changes nothing, and fences touch
            // nothing; every x86-64 processor has the instructions.
            unsafe {
                _mm_clflush(at);
                _mm_mfence();
            }
            let (empty, begin) = (Instant::now(), Instant::now());
            // SAFETY: as above; the read is of a live value.
            unsafe {
                _mm_lfence();
                at.read_volatile();
                _mm_lfence();
            }
            begin.elapsed().saturating_sub(begin - empty)
        });
        times.sort_unstable();
        // Interrupts and other cores' traffic slow some reads down; nothing speeds one up.
        Some(times[LINES / 4])
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    None
}
