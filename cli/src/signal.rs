//! A flag set by Ctrl-C, so that a loop can end with its summary.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};

/// Flag that is set by SIGINT and SIGTERM.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to watch for SIGINT and SIGTERM. Call it before the program starts other threads: it
    /// blocks the signals in the calling thread and in those it starts later, and starts a thread
    /// that waits for them.
    ///
    /// # Errors
    /// The signals cannot be blocked, or the thread cannot be started.
    pub fn watch() -> io::Result<Interrupt> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        let interrupt = Interrupt::default();
        let flag = Arc::clone(&interrupt.0);
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                if signals.wait().is_ok() {
                    flag.store(true, Ordering::Relaxed);
                }
            })?;
        Ok(interrupt)
    }

    /// Returns true once a signal has arrived.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
