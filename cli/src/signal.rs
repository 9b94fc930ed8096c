//! Ctrl-C as a question a loop can ask, so that it ends with its summary.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};

/// Tells whether the user (or the system) asked the program to end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches for SIGINT and SIGTERM from now on. To be called before the program starts other
    /// threads: the signals are blocked in the calling thread and those it starts, and one thread
    /// waits for them.
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

    /// True from the first such signal on.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
