//! The progress thread: polls the embedded engine while the program does not, and maintains the
//! leases.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::adopt;
use super::embedded::Progress;
use super::leases::Leases;
use super::ports::{LeaseKind, Spares};
use crate::control::Request;
use crate::error::EspError;
use crate::session::Session;
use crate::sync::lock;

/// Runs until the leases are dropped.
fn run(leases: &Weak<Leases>) {
    let mut state = Progress::default();
    while let Some(held) = leases.upgrade() {
        held.maintain();
        let engine = Arc::clone(&held.engine);
        let waits = held.has_futures();
        drop(held);
        engine.progress(&mut state, waits);
    }
}

impl Leases {
    /// Starts the embedded engine of a client and its progress thread.
    pub(crate) fn start(session: &Arc<Session>) -> Result<Arc<Leases>, EspError> {
        let leases = Arc::new(Leases::new(session)?);
        let weak = Arc::downgrade(&leases);
        std::thread::Builder::new()
            .name("esp-lease".into())
            .spawn(move || run(&weak))
            .map_err(|error| EspError::resource("start a thread", error))?;
        Ok(leases)
    }

    /// Maintains the leases: prepares for the next daemon when one is gone, reports connections,
    /// wakes futures, and ends unused leases.
    fn maintain(self: &Arc<Self>) {
        if self.keeper().check().is_err() && !self.engine.is_forked() {
            self.use_spares();
            adopt::start(self);
        }
        self.report_pending();
        self.report_moved();
        self.report_closed();
        self.wake_futures();
        lock(&self.table).retain(|ports| {
            // Streams, listeners and the lease of a standby hold further references.
            let unused = (ports.kind != LeaseKind::Range || ports.is_lost())
                && Arc::strong_count(ports) == 1;
            if !unused || !self.engine.remove(ports.link) {
                return true;
            }
            if !ports.is_lost() {
                self.keeper().post(&Request::EndLease {
                    lease: ports.id.load(Ordering::Relaxed),
                });
            }
            false
        });
    }

    /// Switches leases whose daemon is gone to their spare sockets. Adopted leases have new ones.
    fn use_spares(&self) {
        let table = lock(&self.table).clone();
        for ports in table {
            let spares = lock(&ports.spares).take_if(|spares| spares.are_needed());
            if let Some(Spares { sockets, .. }) = spares {
                self.engine.use_spares(ports.link, sockets);
            }
        }
    }

    /// Returns true while futures wait to be woken by this thread.
    fn has_futures(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Wakes the waiting futures if the engine had work since.
    fn wake_futures(&self) {
        let now = self.engine.activity();
        if self.seen.swap(now, Ordering::Relaxed) != now {
            self.wakers.wake();
        }
    }
}
