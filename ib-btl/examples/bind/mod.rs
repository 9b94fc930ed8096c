//! Binds each end of a measurement to a processor.

/// Binds this thread to the processor of its rank, if there are enough, as launchers do: otherwise
/// the scheduler may put either end on the processor that handles its packets, and results fall
/// into groups.
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
        // Without it the results only scatter more.
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
}
