//! The caretaker: a thread that looks after the leases while nobody calls.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use esp_engine::Clock;

use super::host::STEP;
use super::{Kind, Leases, Spares, adopt};
use crate::control::Request;
use crate::session::lock;

/// The caretaker's step while there are connections, and while there are none.
const CARE: Duration = Duration::from_millis(2);
const IDLE_CARE: Duration = Duration::from_millis(20);
/// Steps without anything happening, after which it waits for frames.
const QUIET_STEPS: u32 = 25;

/// Futures that wait beyond this number are woken at every step, lest tasks that look all the time fill the memory.
#[cfg(feature = "tokio")]
const MANY_WAKERS: usize = 16 * 1024;

/// Looks after the leases while nobody calls.
pub(super) fn run(leases: &Weak<Leases>) {
    let mut quiet = 0;
    let mut seen = 0;
    while let Some(held) = leases.upgrade() {
        let (again, rushed) = (held.host.see_off(), held.host.see_rush());
        let busy = held.care();
        let most = if held.is_awaited() { CARE } else { IDLE_CARE };
        let activity = held.host.activity();
        quiet = if activity == seen { quiet + 1 } else { 0 };
        seen = activity;
        if again {
            continue;
        }
        let host = Arc::clone(&held.host);
        drop(held);
        if busy && !rushed && quiet >= QUIET_STEPS {
            // Streams are open, and nothing happens: a frame ends the wait. What was readable before it may still be: so the
            // step comes in any case.
            quiet = QUIET_STEPS;
            host.wait_for_frames(IDLE_CARE - CARE);
            if host.is_behind() {
                continue;
            }
        }
        let alarm = host.alarm().clone();
        drop(host);
        match (rushed, busy) {
            (true, _) => alarm.nap(STEP),
            (false, true) => alarm.sleep(Clock.now().as_nanos(), CARE, most),
            (false, false) => alarm.nap(IDLE_CARE),
        }
    }
}

impl Leases {
    /// Leases whose daemon is gone go on over their spare sockets. Those that another one has adopted by now have new sockets already.
    fn use_spares(&self) {
        let table = lock(&self.table).clone();
        for ports in table {
            let spares = lock(&ports.spares).take_if(|spares| spares.are_needed());
            if let Some(Spares { sockets, .. }) = spares {
                self.host.use_spares(ports.link, sockets);
            }
        }
    }

    /// What is to be done now and then; true while there are connections.
    fn care(self: &Arc<Self>) -> bool {
        self.host.care();
        if self.keeper().check().is_err() && !self.host.is_forked() {
            self.use_spares();
            adopt::start(self);
        }
        self.tell_begun();
        for (slot, link, peer) in self.host.take_moved() {
            self.moved(slot, link, peer);
        }
        self.tell_closed();
        #[cfg(feature = "tokio")]
        self.wake_futures();
        lock(&self.table).retain(|ports| {
            // Two: here, and in a stream or listener, or in the lease whose standby it is.
            let unused =
                (ports.kind != Kind::Row || ports.is_lost()) && Arc::strong_count(ports) == 1;
            if unused && self.host.remove(ports.link) {
                if !ports.is_lost() {
                    self.keeper().post(&Request::EndLease {
                        lease: ports.id.load(Ordering::Relaxed),
                    });
                }
                return false;
            }
            true
        });
        !self.host.is_idle()
            || lock(&self.table)
                .iter()
                .any(|ports| ports.kind == Kind::Listener)
    }

    /// Futures are woken to look again when the caretaker finds that something happened since. (They look once more behind
    /// this call, so what came before it is not missed.)
    #[cfg(feature = "tokio")]
    pub(super) fn wake_later(&self, cx: &std::task::Context<'_>) {
        let mut wakers = lock(&self.wakers);
        if !wakers.last().is_some_and(|last| last.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        self.host.alarm().keep();
    }

    /// Does something wait for the caretaker's next step?
    fn is_awaited(&self) -> bool {
        #[cfg(feature = "tokio")]
        if !lock(&self.wakers).is_empty() {
            return true;
        }
        !lock(&self.begun).is_empty()
    }

    #[cfg(feature = "tokio")]
    fn wake_futures(&self) {
        let now = self.host.activity();
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
