//! The progress thread, which moves messages while the program computes.

use std::io;
use std::sync::{Arc, Weak};

use crate::shared::Shared;

/// Starts the progress thread. It ends when the layer is closed or dropped.
pub(crate) fn spawn(shared: &Arc<Shared>) -> io::Result<()> {
    let weak = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("p2p-progress".into())
        .spawn(move || run(&weak))?;
    Ok(())
}

fn run(shared: &Weak<Shared>) {
    // The layer is kept alive only during a poll or a sleep of at most a second.
    while let Some(shared) = shared.upgrade() {
        let waiting = shared.waiting();
        let mut lock = waiting.lock();
        if lock.protocol.closed {
            return;
        }
        // Not `Lock::poll`, which records that the program polls itself.
        let engine: &mut crate::engine::Engine = &mut lock;
        if engine.poll(None) == 0 {
            lock = waiting.sleep(lock, true);
        }
        drop(lock);
        waiting.let_others_in();
    }
}
