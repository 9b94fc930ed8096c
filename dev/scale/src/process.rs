//! Figures that the system reports of this process.

use std::fs;

/// Bytes of a page of memory.
const PAGE: u64 = 4096;

/// Returns the resident bytes of this process; `None` where the system does not report them.
pub fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE)
}

/// Returns the seconds that this thread has run on a processor; `None` where the system does not
/// report them.
pub fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos: f64 = text.split(' ').next()?.parse().ok()?;
    Some(nanos / 1e9)
}
