//! The progress thread: polls the embedded engine while the program does not, and keeps the leases.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::embedded::Progress;
use super::{Kind, Leases, Spares, adopt};
use crate::control::Request;
use crate::session::lock;

/// Futures that wait beyond this number are woken at every step, so that tasks that poll all the
/// time do not fill the memory.
#[cfg(feature = "tokio")]
const MANY_WAKERS: usize = 16 * 1024;

/// Runs until the leases are dropped.
pub(super) fn run(leases: &Weak<Leases>) {
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
    /// Leases whose daemon is gone go on over their spare sockets. Those that another one has
    /// adopted by now have new sockets already.
    fn use_spares(&self) {
        let table = lock(&self.table).clone();
        for ports in table {
            let spares = lock(&ports.spares).take_if(|spares| spares.are_needed());
            if let Some(Spares { sockets, .. }) = spares {
                self.engine.use_spares(ports.link, sockets);
            }
        }
    }

    /// Keeps the leases: uses spares and looks for the next daemon when one is gone, reports
    /// connections to it, wakes futures, gives unused leases back.
    fn maintain(self: &Arc<Self>) {
        if self.keeper().check().is_err() && !self.engine.is_forked() {
            self.use_spares();
            adopt::start(self);
        }
        self.tell_begun();
        for (slot, link, peer) in self.engine.take_moved() {
            self.moved(slot, link, peer);
        }
        self.tell_closed();
        #[cfg(feature = "tokio")]
        self.wake_futures();
        lock(&self.table).retain(|ports| {
            // Two: here, and in a stream or listener, or in the lease whose standby it is.
            let unused =
                (ports.kind != Kind::Row || ports.is_lost()) && Arc::strong_count(ports) == 1;
            if unused && self.engine.remove(ports.link) {
                if !ports.is_lost() {
                    self.keeper().post(&Request::EndLease {
                        lease: ports.id.load(Ordering::Relaxed),
                    });
                }
                return false;
            }
            true
        });
    }

    /// Futures are woken to look again when the progress thread finds that something happened
    /// since. (They look once more behind this call, so what came before it is not missed.)
    #[cfg(feature = "tokio")]
    pub(super) fn wake_later(&self, cx: &std::task::Context<'_>) {
        let mut wakers = lock(&self.wakers);
        if !wakers.last().is_some_and(|last| last.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
    }

    /// Returns true while futures wait to be woken by this thread.
    fn has_futures(&self) -> bool {
        #[cfg(feature = "tokio")]
        return !lock(&self.wakers).is_empty();
        #[cfg(not(feature = "tokio"))]
        false
    }

    #[cfg(feature = "tokio")]
    fn wake_futures(&self) {
        let now = self.engine.activity();
        let quiet = self.seen.swap(now, Ordering::Relaxed) == now;
        let mut wakers = lock(&self.wakers);
        if quiet && wakers.len() < MANY_WAKERS {
            return;
        }
        let all = std::mem::take(&mut *wakers);
        drop(wakers);
        all.into_iter().for_each(std::task::Waker::wake);
    }
}
