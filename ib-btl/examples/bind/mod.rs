//! A processor for each end of a measurement.

/// Binds this thread to the processor of its rank, if there are enough, as launchers do: left to
/// the scheduler, either end may have the processor on which its packets are handled, and figures
/// fall into groups.
pub(crate) fn bind(rank: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return;
    };
    if let Some(cpu) = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .nth(rank)
    {
        let mut own = rustix::thread::CpuSet::new();
        own.set(cpu);
        // Without it the figures scatter more, and that is all.
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
}
