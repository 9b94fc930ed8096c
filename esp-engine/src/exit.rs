//! Work at the end of the process.

/// Registers a function that the C library calls when the process ends by a return from `main` or
/// by `exit`, before threads and memory go. It is not called after a signal, `abort` or `_exit`.
///
/// Thread-local values of the calling thread may be gone by then, and a panic aborts the process.
/// Returns false if the C library has no memory for it.
pub fn at_exit(call: extern "C" fn()) -> bool {
    // SAFETY: atexit has no preconditions. If this is part of a library that is unloaded, the
    // function is called at that time, and not later.
    unsafe { libc::atexit(call) == 0 }
}
