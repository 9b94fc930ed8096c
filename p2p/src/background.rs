//! The progress thread: moves messages while the program computes.

use std::io;
use std::sync::{Arc, Weak};

use crate::shared::Shared;

/// Starts it. It ends when the layer is closed or gone.
pub(crate) fn spawn(shared: &Arc<Shared>) -> io::Result<()> {
    let weak = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("p2p-progress".into())
        .spawn(move || run(&weak))?;
    Ok(())
}

fn run(shared: &Weak<Shared>) {
    // The layer is held only during a turn or a sleep of at most a second.
    while let Some(shared) = shared.upgrade() {
        let waiting = shared.waiting();
        let mut lock = waiting.lock();
        if lock.protocol.closed {
            return;
        }
        // Not `Lock::poll`: that is how the program's own turns are noticed.
        let engine: &mut crate::engine::Engine = &mut lock;
        if engine.poll(None) == 0 {
            lock = waiting.sleep(lock, true);
        }
        drop(lock);
        waiting.let_others_in();
    }
}
