//! The end of an embedded engine, with its client or with the process.
//!
//! The kernel retransmits for a program of TCP that has exited; an embedded engine ends with its
//! program. So it is polled, for a bounded time, until the peers have acknowledged the FINs of all
//! streams that the program has closed or finished writing. The remaining streams are then reset,
//! because their peers would get no more answers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};

use super::engine::{EmbeddedEngine, STEP_ASIDE};
use super::leases::Leases;
use crate::sync::{lock, try_lock};

/// Maximum wait for the peers' acknowledgements, as Apache's httpd lingers (`SECONDS_TO_LINGER`).
/// An end of stream is repeated every 34 ms, so this is enough for a path that loses every second
/// frame; and a program whose peer is gone should not keep its user waiting.
const END_LINGER: Duration = Duration::from_secs(2);

/// Engines of this process.
static ENGINES: Mutex<Vec<Weak<Leases>>> = Mutex::new(Vec::new());

/// Registers an engine whose streams are delivered when the process exits: shared clients are never
/// dropped.
pub(super) fn at_exit(leases: &Arc<Leases>) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // If this fails, streams end as when the program is killed.
        esp_engine::at_exit(end_all);
    });
    let mut engines = lock(&ENGINES);
    engines.retain(|engine| engine.strong_count() > 0);
    engines.push(Arc::downgrade(leases));
}

extern "C" fn end_all() {
    let deadline = end_deadline();
    // In a forked child, another thread of the parent may have held it; there is nothing to do
    // then.
    let engines = try_lock(&ENGINES).map(|engines| engines.clone());
    let engines = engines.unwrap_or_default();
    for leases in engines.iter().filter_map(Weak::upgrade) {
        leases.engine.end_streams(deadline);
    }
}

/// Returns the deadline for the end of streams if their engine ends now.
pub(super) fn end_deadline() -> Instant {
    Instant::now() + END_LINGER
}

impl EmbeddedEngine {
    /// Drives the engine until all ends of streams are acknowledged, at most until the deadline,
    /// then resets the remaining streams.
    pub(super) fn end_streams(&self, deadline: Instant) {
        if self.is_forked() {
            return;
        }
        // Drivers step aside for this thread.
        self.wanted.fetch_add(1, Ordering::SeqCst);
        loop {
            let is_late = Instant::now() >= deadline;
            let ended = self.try_with(|engine| {
                engine.poll_all_links();
                let may_end = is_late || !engine.has_unacknowledged_ends();
                if may_end {
                    engine.reset_streams();
                }
                may_end
            });
            if is_late || ended == Some(true) {
                break;
            }
            if ended.is_none() {
                self.interrupt();
            }
            std::thread::sleep(STEP_ASIDE);
        }
        self.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}
